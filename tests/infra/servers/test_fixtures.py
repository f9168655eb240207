"""The pytest fixtures where an engine cannot be had: the tests fail with the sentence, or are skipped when told so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST = "def test_it(kafka):\n    assert kafka.bootstrap_servers\n"


def pytest_without_java(folder: Path, **env: str) -> str:
    (folder / "bin").mkdir()
    (folder / "bin" / "setpriv").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "setpriv").chmod(0o755)
    (folder / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "agl_stream.infra.servers.fixtures", "test_it.py"]
    bare = {"PATH": str(folder / "bin"), "JAVA_HOME": "", "AGL_STREAM_ENGINES_DIR": str(folder / "engines")}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, env={**os.environ, **bare, **env}
    )
    return done.stdout


def test_without_java_the_tests_fail_with_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_STREAM_SKIP_ENGINES", raising=False)
    said = pytest_without_java(tmp_path)
    assert "1 error" in said
    assert "java is not on PATH" in said and "openjdk-17" in said and "AGL_STREAM_SKIP_ENGINES=1" in said
    assert "Traceback" not in said and "tools.py" not in said, "a sentence, not a trace"


def test_told_so_the_tests_are_skipped(tmp_path: Path) -> None:
    said = pytest_without_java(tmp_path, AGL_STREAM_SKIP_ENGINES="1")
    assert "1 skipped" in said and "error" not in said
