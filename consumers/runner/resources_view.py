"""The versions of resources seen on the log so far, and waiting for one that is not there yet."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from agl_stream.errors import NotFound
from agl_stream.schemas.events import Event
from agl_stream.types import NamedResources, parse_resources

_VERSIONS_KEPT = 4096
_PARSED_KEPT = 64


class ResourcesView:
    """Belongs to one event loop. ``apply`` feeds it; ``get`` waits, so that a dispatch may overtake its resources.

    Keeps the text of the latest versions published (bounded) and parses on demand.
    """

    def __init__(self, default: NamedResources | None = None) -> None:
        """``default``: what a rollout runs with that was accepted before any resources were published."""
        self._default = default or {}
        self._texts: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._latest: dict[str, int] = {}
        self._parsed: OrderedDict[tuple[str, int], NamedResources] = OrderedDict()
        self._changed = asyncio.Event()

    def apply(self, event: Event) -> None:
        """Take in a ResourcesPublished. A version never changes, so that a second delivery changes nothing."""
        key = (event["resources_id"], event["version"])
        self._texts[key] = event["resources"]
        self._latest[key[0]] = max(key[1], self._latest.get(key[0], key[1]))
        while len(self._texts) > _VERSIONS_KEPT:
            oldest, _ = self._texts.popitem(last=False)
            if self._latest.get(oldest[0]) == oldest[1]:
                del self._latest[oldest[0]]
        self._changed.set()
        self._changed = asyncio.Event()

    def has(self, resources_id: str | None, version: int | None) -> bool:
        """Whether ``get`` would return at once."""
        return resources_id is None or self._find(resources_id, version) is not None

    async def get(self, resources_id: str | None, version: int | None, wait_seconds: float) -> NamedResources:
        """The named resources (a fresh dict); version None is the latest of that id, id None the default.

        Raises NotFound when they have not been seen after ``wait_seconds``, UsageError when they do not parse.
        """
        if resources_id is None:
            return dict(self._default)
        key = self._find(resources_id, version)
        if key is None:
            try:
                async with asyncio.timeout(wait_seconds):
                    while (key := self._find(resources_id, version)) is None:
                        await self._changed.wait()
            except TimeoutError:
                which = resources_id if version is None else f"{resources_id}@{version}"
                raise NotFound(f"resources {which} were not on the log within {wait_seconds:g} s") from None
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = self._parsed[key] = parse_resources(self._texts[key])
            if len(self._parsed) > _PARSED_KEPT:
                self._parsed.popitem(last=False)
        return dict(parsed)

    def _find(self, resources_id: str, version: int | None) -> tuple[str, int] | None:
        wanted = self._latest.get(resources_id) if version is None else version
        return None if wanted is None or (resources_id, wanted) not in self._texts else (resources_id, wanted)
