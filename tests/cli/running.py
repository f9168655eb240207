"""A running `agl-stream up` for tests, and the other verbs in its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agl_stream.supervise import free_ports


class Up:
    """A running `agl-stream up`, and other verbs in its folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            self.command("up", "--output", "json", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(self.folder), *arguments]

    def endpoints(self) -> dict[str, Any]:
        """Waits until it is up."""
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def agl(self, *arguments: str, code: int = 0) -> Any:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "json" in arguments else done.stdout

    def ended(self, seconds: float = 60) -> tuple[int, str]:
        """Exit status and stderr."""
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err


def ports() -> list[str]:
    broker, registry, gateway = free_ports(3)
    return ["--broker-port", str(broker), "--registry-port", str(registry), "--gateway-port", str(gateway)]
