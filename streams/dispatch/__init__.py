"""Which partition of the dispatch topic an attempt is offered on, and so which runner gets it."""

from agl_stream.streams.dispatch.dispatcher import Dispatcher, RoundRobin

__all__ = ["Dispatcher", "RoundRobin"]
