"""Whatever is repeated, interleaved, late or killed: in the end each rollout has the triplets of all its spans."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agl_stream.consumers.batch_loop import Partition
from agl_stream.schemas.events import Event
from agl_stream.schemas.ids import attempt_id
from agl_stream.schemas.partitioner import murmur2_partition
from agl_stream.streams.joiner.adapter_llm_calls import LlmCalls
from agl_stream.streams.joiner.core import Bounds
from agl_stream.streams.joiner.outcome import ending_of, join
from agl_stream.streams.joiner.spans import view_of
from agl_stream.streams.store.port import latest_attempt

from ..makers import attempt_state, llm_call, reward_span, rollout, span
from .world import INPUTS, PARTITIONS, World


@dataclass
class Script:
    """What happens to one rollout, in the order its writers cause it."""

    rollout_id: str
    steps: list[tuple[str, Any]] = field(default_factory=list)
    done: int = 0
    dispatched_at_us: dict[int, list[int]] = field(default_factory=dict)


@st.composite
def scripts(draw: st.DrawFn, rollout_id: str) -> Script:
    steps: list[tuple[str, Any]] = []
    attempts = draw(st.integers(1, 2))
    made: list[Event] = []
    sequence = 0
    for number in range(1, attempts + 1):
        steps.append(("dispatch", number))
        for _ in range(draw(st.integers(0, 4))):
            sequence += 1
            kind = draw(st.sampled_from(["call", "call", "reward", "other"]))
            identity = f"{number}-{sequence}"
            if kind == "call":
                event = llm_call(rollout_id, identity, sequence, [sequence], [number, sequence], number=number)
            elif kind == "reward":
                reward = draw(st.sampled_from([0.0, 0.5, 1.0]))
                event = reward_span(rollout_id, identity, sequence, reward, number=number)
            else:
                event = span(rollout_id, identity, sequence, number=number)
            made.append(event)
            steps.append(("span", event))
            if draw(st.integers(0, 9)) == 0:
                # its claim was not seen in time: offered again while it ran
                steps.append(("dispatch", number))
    end = {
        "status": draw(st.sampled_from(["succeeded", "succeeded", "succeeded", "failed", "cancelled"])),
        "attempts": attempts,
        "reward": draw(st.sampled_from([None, None, 0.25])),
    }
    steps.append(("end", end))
    for _ in range(draw(st.integers(0, 3))):
        what = draw(st.sampled_from(["late", "again", "correct", "resume", "requeue"]))
        if what == "again" and made:
            steps.append(("span", draw(st.sampled_from(made))))
        elif what == "correct":
            steps.append(("end", end | {"reward": draw(st.sampled_from([None, 0.75]))}))
        elif what == "resume":
            # by hand, without another attempt: the same one goes on and ends again
            sequence += 1
            more = llm_call(rollout_id, f"r{sequence}", sequence, [2], [8], number=end["attempts"])
            steps += [("running", None), ("span", more), ("end", end)]
        elif what == "requeue" and end["attempts"] < 4:
            end = end | {"attempts": end["attempts"] + 1, "status": "succeeded"}
            steps += [("running", None), ("dispatch", end["attempts"])]
            sequence += 1
            steps.append(("span", llm_call(rollout_id, f"q{sequence}", sequence, [1], [9], number=end["attempts"])))
            steps.append(("end", end))
        elif what == "late":
            sequence += 1
            number = draw(st.integers(1, end["attempts"]))
            late = reward_span(rollout_id, f"late-{sequence}", sequence, 1.0, number=number)
            if draw(st.booleans()):
                late = llm_call(rollout_id, f"late-{sequence}", sequence, [7], [7], number=number)
            steps.append(("span", late))
    return Script(rollout_id, steps)


def play(world: World, script: Script, wrong_partition: bool) -> None:
    """The script's next step."""
    if script.done == len(script.steps):
        return
    kind, what = script.steps[script.done]
    script.done += 1
    version = script.done
    if kind == "dispatch":
        script.dispatched_at_us.setdefault(what, []).append(world.now_us)
    elif kind == "span":
        world.produce_span(what, wrong_partition)
    elif kind == "running":
        world.produce_rollout(rollout(script.rollout_id, version, "running"))
    else:
        states = [
            attempt_state(
                script.rollout_id,
                number,
                dispatched_at_us=script.dispatched_at_us[number][-1],
                delivery=len(script.dispatched_at_us[number]),
                reward=what["reward"] if number == what["attempts"] else None,
            )
            for number in range(1, what["attempts"] + 1)
        ]
        requested_at_us = script.dispatched_at_us[1][0]
        given = {"attempts": states, "group_id": "g", "requested_at_us": requested_at_us}
        world.produce_rollout(rollout(script.rollout_id, version, what["status"], **given))


def expected(script: Script) -> Event:
    """The join of everything, done at once."""
    states = [(n, what) for n, (kind, what) in enumerate(script.steps, 1) if kind == "end"]
    version, what = states[-1]
    attempts = [
        attempt_state(script.rollout_id, n, reward=what["reward"] if n == what["attempts"] else None)
        for n in range(1, what["attempts"] + 1)
    ]
    state = rollout(script.rollout_id, version, what["status"], attempts=attempts, group_id="g")
    deciding = latest_attempt(state)
    assert deciding is not None
    spans = {
        event["span_id"]: view_of(event, 0, 0)
        for kind, event in script.steps
        if kind == "span" and event["attempt_id"] == deciding["attempt_id"]
    }
    views = [view for view in spans.values() if view is not None]
    return join(script.rollout_id, ending_of(state), views, len(spans), 0, LlmCalls()).event


@dataclass(frozen=True)
class Round:
    """Some producing, some consuming, some applying by the sink, then something that happens to the joiner."""

    script: int
    steps: int
    wrong_partition: bool
    consumed: list[int]
    applied: list[int]
    then: str


rounds = st.builds(
    Round,
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(0, 9).map(lambda n: n == 0),
    st.lists(st.sampled_from([0, 1, 2, 50, 50]), min_size=len(INPUTS), max_size=len(INPUTS)),
    st.lists(st.sampled_from([0, 1, 50, 50]), min_size=len(INPUTS) + 1, max_size=len(INPUTS) + 1),
    st.sampled_from(
        ["nothing", "nothing", "commit", "commit", "wait", "long wait", "hours", "crash", "rebalance", "break writes"]
    ),
)
DISTURBANCES = {"crash", "rebalance", "break writes"}


def happen(world: World, what: str) -> None:
    if what == "commit":
        world.commit()
    elif what == "wait":
        world.now_us += 6_000_000
        world.idle()
    elif what == "long wait":
        world.now_us += 25_000_000
        world.idle()
    elif what == "hours":
        # what the store does not know by then is given up; the sink of rollouts is not away for so long
        for partition in INPUTS:
            if partition.topic == "rollouts":
                world.applied[partition] = len(world.log[partition])
        for _ in range(2):
            world.now_us += 4_000_000_000
            world.idle()
    elif what == "crash":
        world.start()
    elif what == "rebalance":
        world.rebalance()
    elif what == "break writes":
        world.broken_writes = 1


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    told=st.tuples(scripts("ro-a"), scripts("ro-b"), scripts("ro-c")),
    course=st.lists(rounds, min_size=3, max_size=20),
    small=st.booleans(),
)
def test_the_end_is_the_same(told: tuple[Script, ...], course: list[Round], small: bool) -> None:
    world = World(Bounds(open_bytes=2500, rollout_spans=3, closed=1) if small else Bounds())
    for turn in course:
        world.now_us += 100_000
        for _ in range(turn.steps):
            play(world, told[turn.script], turn.wrong_partition)
        for partition, count in zip(INPUTS, turn.consumed, strict=True):
            world.consume(partition, count)
        for partition, count in zip(world.log, turn.applied, strict=True):
            world.applied[partition] = min(world.applied[partition] + count, len(world.log[partition]))
        happen(world, turn.then)
    world.broken_writes = 0
    for script in told:
        while script.done < len(script.steps):
            play(world, script, False)
    world.settle()
    disturbed = any(turn.then in DISTURBANCES or turn.wrong_partition for turn in course)
    for script in told:
        check(world, script, disturbed=disturbed)
    # nothing is held back once everything is joined
    assert list(world.handler.commit_floors()) == []


def check(world: World, script: Script, *, disturbed: bool) -> None:
    wanted = expected(script)
    found = world.get_triplets(script.rollout_id, everything=True)
    assert found is not None
    assert found["content_hash"] == wanted["content_hash"]
    assert (found["triplets"], found["reward"]) == (wanted["triplets"], wanted["reward"])
    written = world.joined(script.rollout_id)
    # an event told twice is the same event
    by_id = {event["event_id"]: (event["revision"], event["content_hash"]) for event in written}
    assert len(set(by_id.values())) == len(by_id)
    if not disturbed:
        # each revision once, in order, each saying something else than the one before
        assert [event["revision"] for event in written] == list(range(len(written)))
        assert all(one["content_hash"] != two["content_hash"] for one, two in itertools.pairwise(written))
        if script.steps[-1][0] == "end" and [kind for kind, _ in script.steps].count("end") == 1:
            # its writers kept to the rule: spans acknowledged before the end. One join, no revision
            assert len(written) == 1


@settings(max_examples=60, deadline=None)
@given(scripts("ro-a"), st.integers(0, 30))
def test_a_joiner_that_starts_late_catches_up(script: Script, commits: int) -> None:
    """Another joiner died after ``commits`` records; its successor has only the log, the commits and the store."""
    world = World()
    while script.done < len(script.steps):
        play(world, script, False)
        world.now_us += 10_000_000
        for partition in INPUTS:
            world.consume(partition, 1)
        if script.done <= commits:
            world.commit()
    world.start()
    world.settle()
    found = world.get_triplets("ro-a", everything=True)
    assert found is not None and found["content_hash"] == expected(script)["content_hash"]
    assert found["attempt_id"] == attempt_id("ro-a", found["attempt_number"])


def test_a_late_call_that_makes_the_record_too_large_takes_the_triplets_back() -> None:
    world = World(Bounds(record_bytes=10_000))
    attempt = attempt_state("ro-a", 1, reward=1.0, dispatched_at_us=world.now_us)
    state = rollout("ro-a", 2, "succeeded", attempts=[attempt])
    world.produce_span(llm_call("ro-a", "first", 1, [1] * 1000, [2]))
    world.produce_rollout(state)
    world.settle()
    for n in (2, 3):
        world.produce_span(llm_call("ro-a", f"late-{n}", n, [1] * 1000, [2]))
        world.settle()
    # the second late call says nothing new; nor does another joiner that reads everything again
    world.committed = {}
    world.start()
    world.settle()
    told = [(event["revision"], event["reason_code"], len(event["triplets"])) for event in world.joined("ro-a")]
    assert told == [(0, None, 1), (1, "record_too_large", 0)]
    assert [reject["reason_code"] for reject in world.rejects] == ["record_too_large"]


SPANS = Partition("spans", murmur2_partition(b"ro-a", PARTITIONS))
ROLLOUTS = Partition("rollouts", SPANS.number)


def succeeded(dispatched_at_us: int, **attempt: Any) -> Event:
    attempts = [attempt_state("ro-a", 1, dispatched_at_us=dispatched_at_us, **attempt)]
    return rollout("ro-a", 2, "succeeded", attempts=attempts, requested_at_us=dispatched_at_us)


def rewards(world: World) -> list[tuple[int, float | None, int]]:
    world.settle()
    return [(event["revision"], event["reward"], event["spans_total"]) for event in world.joined("ro-a")]


@pytest.mark.parametrize("crowd", [False, True], ids=["a long rollout", "memory for all"])
def test_a_late_span_that_memory_had_no_room_for_is_read_back_from_beyond_the_barrier(crowd: bool) -> None:
    world = World(Bounds(open_bytes=2500) if crowd else Bounds(rollout_spans=2))
    for n in (1, 2):
        world.produce_span(llm_call("ro-a", f"s{n}", n, [n], [n]))
    world.consume(SPANS, 1)
    world.produce_rollout(succeeded(world.now_us))
    # the barrier lies behind the second span, which is told together with what comes after it
    world.consume(ROLLOUTS, 1)
    world.applied[SPANS] = 2
    world.produce_span(reward_span("ro-a", "late", 3, 1.0))
    if crowd:
        # of the same partition
        world.produce_span(llm_call("ro-c", "other", 1, [1], [1]))
    world.consume(SPANS, 3)
    assert world.positions[SPANS] == len(world.log[SPANS])
    assert rewards(world) == [(0, 1.0, 3)]


def test_a_rollout_that_ends_after_it_was_given_up_has_its_first_spans_too() -> None:
    world = World()
    dispatched_at_us = world.now_us
    world.produce_span(llm_call("ro-a", "before", 1, [1], [1]))
    world.consume(SPANS, 1)
    # the sink is away for so long that nobody seems to have requested it
    for _ in range(120):
        world.now_us += 60_000_000
        world.idle()
    assert list(world.handler.commit_floors()) == []
    world.produce_span(reward_span("ro-a", "after", 2, 1.0))
    world.produce_rollout(succeeded(dispatched_at_us))
    assert rewards(world) == [(0, 1.0, 2)]


def test_an_attempt_offered_again_has_the_spans_of_its_first_delivery_too() -> None:
    world = World(Bounds(rollout_spans=2))
    requested_at_us = world.now_us
    for n in (1, 2, 3, 4):
        world.produce_span(llm_call("ro-a", f"s{n}", n, [n], [n]))
    world.consume(SPANS, 4)
    world.commit()
    # another joiner, which is told of the last only; the dispatch that the attempt names is after its beginning
    world.start()
    world.now_us += 60_000_000
    end = succeeded(world.now_us, delivery=2) | {"requested_at_us": requested_at_us}
    world.produce_span(reward_span("ro-a", "s5", 5, 1.0))
    world.produce_rollout(end)
    assert rewards(world) == [(0, 1.0, 5)]


@pytest.mark.parametrize("dropped", [False, True], ids=["told after it", "dropped before it"])
def test_spans_that_the_next_attempt_has_before_the_first_is_joined_are_read_back(dropped: bool) -> None:
    world = World(Bounds(rollout_spans=1))
    world.produce_span(llm_call("ro-a", "s1", 1, [1], [1]))
    world.produce_span(llm_call("ro-a", "s2", 2, [2], [2], number=2))
    world.applied[SPANS] = 2
    world.produce_rollout(succeeded(world.now_us))
    if dropped:
        world.consume(SPANS, 2)
    # joined by what the store holds of the first attempt
    world.consume(ROLLOUTS, 1)
    assert [event["spans_total"] for event in world.joined("ro-a")] == [1]
    world.consume(SPANS, 2)
    world.produce_rollout(rollout("ro-a", 3, "running"))
    world.consume(ROLLOUTS, 1)
    world.produce_span(reward_span("ro-a", "s3", 3, 1.0, number=2))
    world.consume(SPANS, 1)
    attempts = [attempt_state("ro-a", n, dispatched_at_us=world.now_us) for n in (1, 2)]
    world.produce_rollout(rollout("ro-a", 4, "succeeded", attempts=attempts))
    assert rewards(world) == [(0, None, 1), (1, 1.0, 2)]


def test_late_spans_without_room_outlive_the_joiner() -> None:
    world = World(Bounds(rollout_spans=1))
    world.produce_span(llm_call("ro-a", "s1", 1, [1], [1]))
    world.produce_rollout(succeeded(world.now_us))
    world.settle()
    world.commit()
    # the end is before this joiner's time, and it dies before it has asked the store for it
    world.start()
    for n in (2, 3, 4):
        world.produce_span(reward_span("ro-a", f"s{n}", n, n / 4))
    world.consume(SPANS, 3)
    world.commit()
    world.start()
    assert rewards(world) == [(0, None, 1), (1, 1.0, 4)]
