"""MODULE:AGENT and file.py:AGENT: what is found, and what the author is told otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agl_stream.consumers.runner import load_agent
from agl_stream.errors import UsageError

GOOD = """
import helper_{n}
from agl_stream.agents import LitAgent, rollout

class Box:
    inner = staticmethod(lambda task: 5)

class Solver(LitAgent):
    def rollout(self, task, resources, rollout):
        return 2.0

def solve(task):
    return helper_{n}.VALUE

def needs_database(task, database):
    return 1.0

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A working directory with modules of unique names, since imports are for the life of the process."""
    n = abs(hash(request.node.name)) % 10**9
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    (tmp_path / f"good_{n}.py").write_text(GOOD.format(n=n))
    (tmp_path / f"helper_{n}.py").write_text("VALUE = 4")
    (tmp_path / f"broken_{n}.py").write_text("def f():\n    return 1 / 0\nf()\n")
    (tmp_path / f"lacking_{n}.py").write_text("import not_installed_anywhere\n")
    package = tmp_path / "sub" / f"pack_{n}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "agent.py").write_text("def agent(task):\n    return 6\n")
    tmp_path.n = n  # type: ignore[attr-defined]
    return tmp_path


class _Folder(type(Path())):  # so that a number can be kept beside the path
    n: int = 0


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    return _Folder(tmp_path)


def call(agent: Any) -> Any:
    return agent.method_for("train")("task", resources={}, rollout=None)


def test_modules_of_the_working_directory_and_files(folder: Any) -> None:
    n = folder.n
    assert call(load_agent(f"good_{n}:solve")) == 4
    assert call(load_agent(f"good_{n}:Solver")) == 2.0
    assert call(load_agent(f"good_{n}:Box.inner")) == 5
    assert call(load_agent(f"good_{n}.py:solve")) == 4
    assert call(load_agent(f"{folder}/good_{n}.py:solve")) == 4
    assert call(load_agent(f"sub/pack_{n}/agent.py:agent")) == 6


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("good", "MODULE:AGENT"),
        ("good:", "MODULE:AGENT"),
        (":agent", "MODULE:AGENT"),
        ("no_such_module:agent", "no module 'no_such_module'.*working directory"),
        ("no_such.sub:agent", "no module 'no_such'"),
        ("nowhere/agent.py:agent", "no file nowhere/agent.py"),
        ("good_{n}:slove", "did you mean 'solve'"),
        ("good_{n}:Xyzzy", "it defines .*solve"),
        ("good_{n}:number", "no agent"),
        ("good_{n}:needs_database", "'database'"),
        ("broken_{n}:f", r"ZeroDivisionError: division by zero \(.*broken_\d+\.py, line 2\)"),
        ("broken_{n}.py:f", r"ZeroDivisionError: division by zero \(.*line 2\)"),
        ("lacking_{n}:f", "importing lacking_.* failed: ModuleNotFoundError: .*not_installed_anywhere"),
    ],
)
def test_what_is_wrong_is_said(folder: Any, spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load_agent(spec.format(n=folder.n))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
