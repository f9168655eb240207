"""A CPU platform for verl, through the extension points verl documents for new hardware.

verl asks a *platform* for everything that depends on the device, and an *engine registry* for the class that runs
a model on it. This module registers both for plain CPU: gloo for communication, ``torch.cpu`` where verl expects
``torch.cuda``, and verl's own FSDP engine. Nothing of verl is patched, and where a GPU is visible none of this is
loaded. Import it through ``choose_platform``.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PLUGIN = "agl_stream.trainer.verl_cpu"


def choose_platform(device: str = "auto") -> str:
    """Tells verl which device to train on; returns ``cpu`` or ``cuda``. Call it before anything imports verl.

    ``auto`` takes CUDA where torch sees it. The choice travels in the environment (VERL_PLATFORM,
    VERL_USE_EXTERNAL_MODULES), so that worker processes started from here make it, too.
    """
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARN")
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if chosen == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
        os.environ["VERL_USE_EXTERNAL_MODULES"] = PLUGIN
    return chosen


def register_engine() -> None:
    """Lets verl's FSDP engine run on CPU. Harmless when repeated."""
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    if "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]:
        EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(FSDPEngineWithLMHead)


def _device_module() -> types.ModuleType:
    """What verl takes for ``torch.cuda``: torch.cpu, with the questions about memory answered by constants."""
    module = types.ModuleType("torch_cpu_device")
    for name in (
        "synchronize",
        "current_device",
        "set_device",
        "device_count",
        "is_available",
        "Stream",
        "stream",
        "current_stream",
    ):
        setattr(module, name, getattr(torch.cpu, name))
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, lambda *_args, **_kwargs: 0)
    constants: dict[str, Any] = {
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "mem_get_info": lambda *_args: (1 << 34, 1 << 34),
        "get_rng_state": lambda *_args: torch.get_rng_state(),
        "set_rng_state": lambda state, *_args: torch.set_rng_state(state),
        "get_device_name": lambda *_args: "cpu",
    }
    for name, value in constants.items():
        setattr(module, name, value)
    return module


def _register_platform() -> None:
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    @PlatformRegistry.register(platform="cpu")
    class PlatformCPU(PlatformBase):  # pyright: ignore[reportUnusedClass]
        """verl's questions about the device, answered for a machine without one."""

        _module = _device_module()

        @property
        def device_name(self) -> str:
            return "cpu"

        @property
        def vendor_name(self) -> str:
            return "cpu"

        @property
        def device_module(self) -> types.ModuleType:
            return self._module

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            return os.environ.get("VERL_PLATFORM") == "cpu"  # never wins an auto-detection over hardware

        def current_device(self) -> Any:
            return torch.device("cpu")

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            """There is one device."""

        def synchronize(self, device_index: int | None = None) -> None:
            """CPU work is done when the call returns."""

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None:
            """The CPU allocator has none."""

        def empty_cache(self) -> None:
            """The CPU allocator keeps none."""

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
            yield

        def profiler_start(self) -> None:
            """No device profiler."""

        def profiler_stop(self) -> None:
            """No device profiler."""

        def ray_resource_name(self) -> str:
            return "CPU"

        def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
            return {"num_cpus": num_gpus}

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        def cudart(self) -> Any:
            return None


_register_platform()
