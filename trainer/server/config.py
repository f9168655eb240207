"""What a server is told; without torch, so that a command line reads it at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class EngineConfig:
    """``cache_tokens``: size of the key-value cache, for all requests together. ``max_in_flight``: requests beyond
    it are refused as Unavailable. ``drain_seconds``: how long a swap waits for requests before it cancels them, and
    a request for a swap before it is refused. ``threads``: torch threads on CPU."""

    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    cache_tokens: int = 16_384
    max_batch_tokens: int = 512
    max_in_flight: int = 512
    drain_seconds: float = 60.0


@dataclass(frozen=True)
class ServeConfig:
    """``resources_id`` None: the base model is served, nothing is followed. ``worker_id``: stable across restarts."""

    model_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    served_name: str = "policy"
    resources_id: str | None = None
    worker_id: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
