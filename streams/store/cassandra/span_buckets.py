"""Into which partition a span goes. An attempt may record any number of spans, a partition should stay below 100 MB.

A partition (bucket) is opened by the first span that comes for an attempt, takes 64 MB and is followed by the next;
its number is the offset of the span that opened it. What was opened is remembered here and nowhere else: after a
restart, or for an attempt that was forgotten meanwhile, another bucket is opened, and what was read twice stands in
two of them. Readers look into all buckets of an attempt and take each span once, so this costs some space and changes
no answer.
"""

from __future__ import annotations

from collections import OrderedDict

BUCKET_BYTES = 64_000_000
_REMEMBERED = 100_000
_ROW_OVERHEAD = 100

Attempt = tuple[str, str]


class SpanBuckets:
    """The open bucket of each of the latest 100,000 attempts. Not thread-safe."""

    def __init__(self) -> None:
        self._open: OrderedDict[Attempt, list[int]] = OrderedDict()

    def place(self, attempt: Attempt, offset: int, size: int) -> tuple[int, bool]:
        """The bucket of a span of ``size`` bytes, and whether this span opens it."""
        size += _ROW_OVERHEAD
        known = self._open.get(attempt)
        if known is not None and known[1] + size <= BUCKET_BYTES:
            known[1] += size
            return known[0], False
        self._open[attempt] = [offset, size]
        if known is not None:
            self._open.move_to_end(attempt)
        elif len(self._open) > _REMEMBERED:
            self._open.popitem(last=False)
        return offset, True

    def forget(self) -> None:
        """Open new buckets from now on: it is not known whether the last ones were noted in the database."""
        self._open.clear()
