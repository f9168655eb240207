"""The event loop of aiokafka's clients: one, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from functools import cache
from typing import Any, TypeVar

from aiokafka.errors import KafkaError, ProducerFenced

from tests.conformance.kafka.clients.port import SECONDS, Refused

T = TypeVar("T")
_PRODUCER_FENCED = 90


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="aiokafka", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, T], seconds: float = SECONDS) -> T:
    with refusals():
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), event_loop()).result()


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise refused(error) from error


def refused(error: BaseException) -> Refused:
    code = _PRODUCER_FENCED if isinstance(error, ProducerFenced) else getattr(error, "errno", -1)
    return Refused(code, f"{type(error).__name__} {error}")


def check(code: int, message: str | None = "") -> None:
    if code:
        raise Refused(code, message or "")
