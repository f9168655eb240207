"""The restart decision over arbitrary death times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agl_stream.supervise import RestartPolicy

POLICY = RestartPolicy(max_deaths=5, window_seconds=60, first_delay_seconds=0.1, max_delay_seconds=5)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30).map(sorted))
def test_gives_up_exactly_when_the_window_holds_too_many_deaths(death_times: list[float]) -> None:
    in_window = [t for t in death_times if death_times[-1] - t < 60]
    delay = POLICY.delay_seconds(death_times)
    assert (delay is None) == (len(in_window) >= 5)
    if delay is not None:
        assert 0.1 <= delay <= 5


@given(st.floats(61, 1e6))
def test_rare_deaths_are_always_restarted_at_once(pause: float) -> None:
    assert POLICY.delay_seconds([pause * number for number in range(1, 20)]) == 0.1


def test_delays_double_to_the_limit() -> None:
    patient = RestartPolicy(max_deaths=100, first_delay_seconds=0.5, max_delay_seconds=3)
    assert [patient.delay_seconds(list(range(n))) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
