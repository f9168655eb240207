"""The learner as a process: the real one, but for a back end that sums up instead of training a model.

``python learner.py MODEL_DIR`` trains on whatever groups arrive until SIGTERM; settings come from the environment.
"""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "trainer"))

from trainer_makers import PlainBackend

from agl_stream.settings import Settings
from agl_stream.supervise.orphan import die_with_parent
from agl_stream.trainer.config import LearnerConfig
from agl_stream.trainer.learner import Learner

GROUP_SIZE = 4
LEARNER = "learner"


def main() -> None:
    die_with_parent()
    # what the first step would import, for half a minute on a busy machine
    importlib.import_module("verl.trainer.ppo.core_algos")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    config = LearnerConfig(
        model_dir=Path(sys.argv[1]),
        learner_id=LEARNER,
        groups_per_step=1,
        group_size=GROUP_SIZE,
        need_server=False,
        keep_checkpoints=1,
        keep_versions=1,
    )

    def on_stage(stage: str, step: int) -> None:
        if stage == "acknowledged":
            print(f"learner ready at step {step}", flush=True)

    Learner(Settings.load(), config, PlainBackend(config.model_dir), stop=stop, on_stage=on_stage).run()


if __name__ == "__main__":
    main()
