"""Makes codecs in a thread while the event loop serves those whose requests need none that is missing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from agl_stream.infra.embedded.protocol.apis import missing_codec
from agl_stream.infra.embedded.protocol.codecs import Codec, codec_of


class CodecMaker:
    """One thread, so that a burst over all APIs takes the interpreter from the event loop for 5 ms at a time at most.

    Nothing is made beforehand: what a client needs is made within its first requests, and an idle broker stays small.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "codecs")
        self._under_way: dict[tuple[str, int], asyncio.Future[Codec]] = {}

    def wait_for(self, frame: memoryview) -> asyncio.Future[Codec] | None:
        """None if the frame can be decoded at once, else what is done when it can. Shared: not to be cancelled."""
        missing = missing_codec(frame)
        if missing is None:
            return None
        making = self._under_way.get(missing)
        if making is None:
            making = asyncio.get_running_loop().run_in_executor(self._thread, codec_of, *missing)
            self._under_way[missing] = making
            making.add_done_callback(lambda _: self._under_way.pop(missing, None))
        return making

    def close(self) -> None:
        """Make no more; the one that is under way is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
