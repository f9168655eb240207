"""Runs learners in forked processes, so that torch is imported once and not for each of them.

Reads one JSON object a line: {settings, config, model_dir, kill: [stage, step] or null}; answers one: {"status": how
the process ended, "summary": ..., "error": ...}. With ``kill`` the learner sends itself SIGKILL at that point.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from trainer_makers import PlainBackend

from agl_stream.errors import AglStreamError
from agl_stream.settings import Settings
from agl_stream.trainer.config import LearnerConfig
from agl_stream.trainer.learner import Learner
from agl_stream.trainer.progress import summary


def learn(order: dict[str, Any], out: int) -> None:
    """The forked process."""
    kill = tuple(order["kill"]) if order["kill"] else None
    paths = {name: Path(order["config"][name]) for name in ("model_dir", "tasks_file") if order["config"].get(name)}
    if order["config"].get("validation_file"):
        paths["validation_file"] = Path(order["config"]["validation_file"])

    def on_stage(stage: str, step: int) -> None:
        if (stage, step) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    config = LearnerConfig(**{**order["config"], **paths})
    backend = PlainBackend(config.model_dir)
    try:
        state = Learner(Settings(**order["settings"]), config, backend, on_stage=on_stage).run()
        answer = {"summary": summary(state)}
    except AglStreamError as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(out, json.dumps(answer).encode())


def main() -> None:
    importlib.import_module("safetensors.torch")
    importlib.import_module("verl.trainer.ppo.core_algos")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                learn(json.loads(line), writer)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(70)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = json.loads(pipe.read() or b"{}")
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), **answer}), flush=True)


if __name__ == "__main__":
    main()
