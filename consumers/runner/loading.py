"""``MODULE:AGENT`` or ``path/to/file.py:AGENT`` to an agent, with errors an agent's author can act on."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from agl_stream.agents import LitAgent, as_agent
from agl_stream.errors import UsageError


def load_agent(spec: str) -> LitAgent:
    """The agent that ``spec`` names. The working directory is searched first, as with ``python -m``.

    Raises UsageError saying what was looked for and where, or which line of the module failed.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UsageError(f"{spec!r} names no agent: write MODULE:AGENT or path/to/file.py:AGENT")
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    is_file = place.endswith(".py") or "/" in place
    module = _import_file(Path(place)) if is_file else _import_module(place)
    found = _attribute(module, name, spec)
    try:
        return as_agent(found)
    except (TypeError, NotImplementedError) as error:
        raise UsageError(f"{spec}: {error}") from None


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                f"there is no module {error.name!r} (searched the working directory {Path.cwd()} and the installed "
                "packages); change directory, or give the file: path/to/file.py:AGENT"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path} (from the working directory {Path.cwd()})")
    # Its folder first, so that modules beside the agent are found as when the file is run as a script.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise _broken(str(path), error) from error
    return module


def _broken(place: str, error: Exception) -> UsageError:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return UsageError(f"importing {place} failed: {type(error).__name__}: {error}{where}")


def _attribute(module: ModuleType, name: str, spec: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            candidates = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            own = [key for key in candidates if getattr(vars(module)[key], "__module__", None) == module.__name__]
            near = difflib.get_close_matches(part, candidates, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it defines {', '.join(own) or 'no functions'}"
            raise UsageError(f"{spec}: {module.__name__} has no {name!r}; {hint}") from None
    return found
