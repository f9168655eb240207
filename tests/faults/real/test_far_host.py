"""A runner on a host of its own: cut off from everything for a while, and with a clock that somebody sets."""

from __future__ import annotations

import time

import pytest

from tests.faults.real.load import QUICK, Load

pytestmark = [pytest.mark.engines, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]


def test_network_cut_beyond_the_session(load: Load) -> None:
    seconds = QUICK["session_timeout_seconds"] + 4
    with load.flow():
        load.progress(4)
        since = time.monotonic()
        load.far.cut()
        try:
            time.sleep(seconds)  # how long the cut lasts is what is tested
        finally:
            load.far.heal()
        load.progress(12)
    load.settle(f"network of a runner cut for {seconds:g} s", since)


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_clock_of_a_runner_jumps(load: Load, hours: float) -> None:
    """An hour more is no reason to time out what has just begun, an hour less none to let it run on."""
    before = load.tried_again()
    with load.flow(seconds=1.5):
        load.progress(4)
        since = time.monotonic()
        load.far.shift_clock(hours * 3600)
        load.progress(16)
        load.far.shift_clock(0)
        load.progress(8)
    load.settle(f"clock of a runner set {hours:+g} h and back", since)
    again = load.tried_again()
    assert {rollout_id: again[rollout_id] for rollout_id in again.keys() - before.keys()} == {}
