"""How a learner begins: alone in its folder, and from which version."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agl_stream.errors import AglStreamError, FolderNotWritable
from agl_stream.trainer.config import LearnerConfig
from agl_stream.trainer.publication import llm_resources


class CheckpointLost(AglStreamError):
    """The log shows steps of this learner that its folder does not know of."""


@contextlib.contextmanager
def lock_learner(home: Path) -> Iterator[None]:
    """Holds the learner's folder; the kernel lets go of it however the process ends.

    Raises FolderNotWritable when it cannot be made, or when another process trains in it.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FolderNotWritable(f"{home} cannot be written ({error.strerror}); set AGL_STREAM_DIR (--dir)") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderNotWritable(
                f"another process trains in {home}; stop it, or take another --learner-id"
            ) from None
        yield
    finally:
        os.close(handle)


def first_version(published: Sequence[dict[str, Any]], config: LearnerConfig, gateway_url: str) -> tuple[int, str]:
    """(version, resources JSON) of a learner's step 0, given all ResourcesPublished on the log.

    Versions go on from the newest of the same resources id, whose resources are kept; a version that this learner
    published as its step 0 just before it was killed is taken again. Raises CheckpointLost when the newest version
    is a later step of this very learner.
    """
    ours = [event for event in published if event["resources_id"] == config.resources_id]
    if not ours:
        return 1, json.dumps(llm_resources(gateway_url, config.served_name, config.sampling))
    newest = max(ours, key=lambda event: event["version"])
    if newest["learner_id"] == config.learner_id and newest["run_id"] == config.run_id:
        if newest["step"]:
            raise CheckpointLost(
                f"the log has step {newest['step']} of learner {config.learner_id}, and no checkpoint of it is here; "
                "set AGL_STREAM_DIR to the folder that has it, or begin anew under another --learner-id"
            )
        return newest["version"], newest["resources"]
    return newest["version"] + 1, newest["resources"]
