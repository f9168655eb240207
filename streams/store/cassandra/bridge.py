"""Questions to Cassandra from an asyncio program, without a thread for each.

The driver answers on a thread of its own; the answer is handed to the loop that asked. The store's port blocks and goes
through ``asyncio.to_thread``; this is for those who have many small questions under way at once. Opening a store and
preparing a statement for the first time block, and belong in ``to_thread``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from agl_stream.streams.store.cassandra.connection import Connection, explain
from agl_stream.streams.store.cassandra.requests import PAGE_ROWS


async def rows(connection: Connection, statement: str, *values: Any) -> AsyncIterator[tuple[Any, ...]]:
    """The rows of one question; a page is asked for when the one before is used up.

    Raises what the blocking reads raise. Cancelling stops the waiting, not the question.
    """
    loop = asyncio.get_running_loop()
    bound = connection.prepared(statement).bind(values)
    bound.fetch_size = PAGE_ROWS
    with connection.explained():
        asked = connection.session.execute_async(bound)
    while True:
        page: asyncio.Future[list[Any]] = loop.create_future()
        told = _Telling(loop, page)
        asked.add_callbacks(told(page.set_result), told(page.set_exception))
        try:
            found = await page
        except Exception as error:
            raise explain(connection.address, error) from error
        finally:
            asked.clear_callbacks()
        for row in found or ():
            yield row
        if not asked.has_more_pages:
            return
        asked.start_fetching_next_page()


class _Telling:
    """Callbacks for the driver's thread. A loop that is closed and a question nobody waits for are let go."""

    def __init__(self, loop: asyncio.AbstractEventLoop, page: asyncio.Future[Any]) -> None:
        self._loop = loop
        self._page = page

    def __call__(self, settle: Callable[[Any], None]) -> Callable[[Any], None]:
        def on_the_loop(value: Any) -> None:
            if not self._page.done():
                settle(value)

        def on_the_driver(value: Any) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(on_the_loop, value)

        return on_the_driver
