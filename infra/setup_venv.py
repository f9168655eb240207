"""Make a virtual environment from a list of pins: ``setup_venv.py VENV REQUIREMENTS``.

Standard library only. uv does the work (the whole training stack takes about half a minute instead of minutes);
where it is absent it is installed by pip into a helper environment beside VENV. Installing again what is
already there takes about a second.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path


def find_uv(place: Path) -> str:
    """uv's path: the one on PATH, or one installed by pip into a small environment at ``place``."""
    if found := shutil.which("uv"):
        return found
    uv = place / "bin" / "uv"
    if not uv.exists():
        venv.create(place, with_pip=True, clear=True)
        run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv"])
    return str(uv)


def run(command: list[str]) -> None:
    """Run, or end with the command's own exit code; its messages have gone to the terminal."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"setup: {' '.join(command)} ended with {done.returncode}")


def main() -> None:
    if sys.version_info < (3, 11) or sys.version_info >= (3, 13):
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"agl-stream needs Python 3.11 or 3.12, this is {found}; choose one with `make PYTHON=python3.12 ...`")
    target, pins = Path(sys.argv[1]), sys.argv[2]
    uv = find_uv(target.with_name(target.name + "-uv"))
    python = target / "bin" / "python"
    if not python.exists():
        run([uv, "venv", "-q", "--python", sys.executable, str(target)])
    # without .pyc files every start of a process that imports torch or faust pays seconds for compiling them
    run([uv, "pip", "sync", "-q", "--compile-bytecode", "--python", str(python), pins])
    run([uv, "pip", "install", "-q", "--python", str(python), "--no-deps", "-e", "."])


if __name__ == "__main__":
    main()
