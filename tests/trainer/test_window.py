"""The group window: any order and repetition of the input gives the same groups."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_makers import group, joined

from agl_stream.trainer.window import ClosedGroup, GroupWindow, WindowConfig

SECOND = 1_000_000


def _reports() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Events of up to five groups and some single rollouts: revisions, failures, missing siblings."""

    @st.composite
    def reports(draw: st.DrawFn) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for g in range(draw(st.integers(1, 5))):
            size = draw(st.integers(2, 4))
            for sibling in range(draw(st.integers(1, size))):
                for revision in range(draw(st.integers(1, 3))):
                    events.append(
                        joined(
                            f"ro-{g}-{sibling}",
                            group_id=f"g{g}",
                            group_size=size,
                            revision=revision,
                            status=draw(st.sampled_from(["succeeded", "failed", "cancelled"])),
                            reward=draw(st.sampled_from([0.0, 1.0])),
                            occurred_at_us=draw(st.integers(1, 10)) * SECOND,
                        )
                    )
        events += [joined(f"single-{i}") for i in range(draw(st.integers(0, 3)))]
        return events

    return reports()


def _take_all(window: GroupWindow) -> list[tuple[str, tuple[str, ...], int]]:
    groups = window.take(window.ready) or []
    return [(g.key, tuple(f"{e['rollout_id']}@{e['revision']}" for e in g.members), g.size) for g in groups]


@given(_reports(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_order_and_repetition_change_nothing(events: list[dict[str, Any]], rng: Any) -> None:
    shuffled = [*events, *rng.choices(events, k=len(events))]
    rng.shuffle(shuffled)
    results = []
    for order in (events, shuffled):
        window = GroupWindow(WindowConfig(deadline_seconds=5.0))
        for event in order:
            window.offer(event)
        window.close_due(12 * SECOND)
        results.append((_take_all(window), window.missing()))
    assert results[0] == results[1]


@given(_reports(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_restored_window_goes_on_alike(events: list[dict[str, Any]], data: st.DataObject) -> None:
    cut, taken = data.draw(st.integers(0, len(events))), data.draw(st.integers(0, 3))
    straight = GroupWindow()
    for event in events[:cut]:
        straight.offer(event)
    if straight.ready >= taken:
        straight.take(taken)
    restored = GroupWindow.restore(json.loads(json.dumps(straight.state())))
    for event in events[cut:]:
        assert straight.offer(event) == restored.offer(event)
    assert straight.take_late() == restored.take_late()
    assert _take_all(straight) == _take_all(restored)
    assert straight.state() == restored.state()


@given(_reports())
@settings(max_examples=100, deadline=None)
def test_every_rollout_is_settled_exactly_once(events: list[dict[str, Any]]) -> None:
    """Taken in a group or handed out as late, once; or still open."""
    window = GroupWindow(WindowConfig(deadline_seconds=1.0, min_siblings=1))
    settled: list[str] = []
    for event in events:
        window.offer(event)
        window.close_due(100 * SECOND)
        for taken in window.take(window.ready) or []:
            settled += [member["rollout_id"] for member in taken.members]
        settled += [late["rollout_id"] for late in window.take_late()]
    assert sorted(settled) == sorted({event["rollout_id"] for event in events})


def test_a_group_closes_when_all_siblings_reported_also_the_failed() -> None:
    window = GroupWindow()
    first, second, third = group("g", 3)
    second["status"] = "failed"
    assert [window.offer(e) for e in (first, second)] == ["accepted", "accepted"]
    assert window.take(1) is None
    assert window.missing() == {"group:g": (2, 3)}
    window.offer(third)
    taken = window.take(1)
    assert taken is not None
    assert [(g.reason, g.size, len(g.members)) for g in taken] == [("complete", 3, 3)]


def test_a_closed_group_takes_corrections_until_it_is_taken() -> None:
    window = GroupWindow()
    events = group("g", 2)
    for event in events:
        window.offer(event)
    corrected = joined("g-0", group_id="g", group_size=2, revision=1, reward=0.5)
    assert window.offer(corrected) == "replaced"
    assert window.offer(events[0]) == "outdated"
    assert window.offer(corrected) == "duplicate"
    taken = window.take(1)
    assert taken is not None
    assert taken[0].members[0]["reward"] == 0.5
    assert window.offer(joined("g-0", group_id="g", group_size=2, revision=2)) == "late"
    assert window.take_late() == []
    assert window.counts["late"] == 1


def test_the_deadline_closes_with_enough_siblings_and_late_ones_are_handed_out_once() -> None:
    window = GroupWindow(WindowConfig(deadline_seconds=10.0, min_siblings=2))
    first, second, third = group("g", 3)
    window.offer(first)
    window.close_due(60 * SECOND)
    assert window.ready == 0, "one sibling is too few"
    window.offer(second)
    window.close_due(10 * SECOND)
    assert window.ready == 0, "the deadline counts from the first sibling's event time"
    window.close_due(11 * SECOND)
    taken = window.take(1)
    assert taken is not None
    assert taken[0].reason == "deadline"
    assert window.offer(third) == "late"
    assert window.offer(third) == "late"
    assert [event["rollout_id"] for event in window.take_late()] == ["g-2"]
    assert window.take_late() == []


def test_groups_come_in_the_order_they_closed_and_sorted_within_a_step() -> None:
    window = GroupWindow()
    for name in ("c", "a", "b"):
        for event in group(name, 2):
            window.offer(event)
    assert window.take(4) is None
    assert [g.key for g in window.take(2) or []] == ["group:a", "group:c"]
    assert [g.key for g in window.take(1) or []] == ["group:b"]


def test_groups_asked_for_by_key_are_taken_together_whatever_closed_before() -> None:
    window = GroupWindow()
    for name in ("c", "a", "b"):
        for event in group(name, 2):
            window.offer(event)
    assert window.take(2, ["group:b", "group:d"]) is None
    assert [g.key for g in window.take(2, ["group:b", "group:a"]) or []] == ["group:a", "group:b"]
    assert window.ready == 1


def test_without_group_id_a_rollout_is_a_group_of_its_own() -> None:
    window = GroupWindow()
    window.offer(joined("ro-1"))
    taken = window.take(1)
    assert taken is not None
    assert taken[0] == ClosedGroup("rollout:ro-1", (joined("ro-1"),), 1, "complete")


def test_members_beyond_the_size_of_a_group_are_late_once_each_before_and_after_it_is_taken(caplog: Any) -> None:
    """Sixteen tasks of one group_id that do not say its size, for a trainer with a group size of eight."""
    events = [joined(f"ro-{i:02}", group_id="g") for i in range(16)]
    window = GroupWindow(WindowConfig(group_size=8))
    assert [window.offer(event) for event in events[:11]] == ["accepted"] * 8 + ["late"] * 3
    assert window.offer(joined("ro-08", group_id="g", revision=1)) == "late"
    assert window.offer(joined("ro-00", group_id="g", revision=1)) == "replaced"
    window = GroupWindow.restore(json.loads(json.dumps(window.state())), window.config)
    taken = window.take(1)
    assert taken is not None
    assert [member["rollout_id"] for member in taken[0].members] == [f"ro-{i:02}" for i in range(8)]
    window = GroupWindow.restore(json.loads(json.dumps(window.state())), window.config)
    assert [window.offer(event) for event in events] == ["late"] * 16
    assert [event["rollout_id"] for event in window.take_late()] == [f"ro-{i:02}" for i in range(8, 16)]
    assert window.counts["surplus"] == 8
    assert [window.offer(event) for event in events] == ["late"] * 16
    assert window.take_late() == []
    assert "group:g has more members than its size of 8" in caplog.text


def test_a_surplus_member_stays_one_when_the_group_turns_out_to_be_larger() -> None:
    window = GroupWindow(WindowConfig(group_size=2))
    for i in range(3):
        window.offer(joined(f"ro-{i}", group_id="g"))
    assert window.offer(joined("ro-0", group_id="g", group_size=4, revision=1)) == "replaced"
    assert window.offer(joined("ro-2", group_id="g", group_size=4, revision=1)) == "late"
    assert window.offer(joined("ro-3", group_id="g", group_size=4)) == "accepted"
    assert [len(taken.members) for taken in window.take(1) or []] == [3]
    assert [event["rollout_id"] for event in window.take_late()] == ["ro-2"]


def test_one_warning_is_enough_for_all_groups_that_are_too_large(caplog: Any) -> None:
    window = GroupWindow(WindowConfig(group_size=2))
    for name in ("a", "b"):
        for i in range(5):
            window.offer(joined(f"{name}-{i}", group_id=name))
    assert window.counts["surplus"] == 6
    assert caplog.text.count("has more members than its size") == 1


def test_a_late_sibling_of_a_group_that_closed_early_is_no_surplus(caplog: Any) -> None:
    window = GroupWindow(WindowConfig(deadline_seconds=10.0))
    events = group("g", 3)
    for event in events[:2]:
        window.offer(event)
    window.close_due(60 * SECOND)
    assert window.take(1) is not None
    assert window.offer(events[2]) == "late"
    assert window.counts["surplus"] == 0
    assert "more members" not in caplog.text


def test_windows_of_earlier_checkpoints_are_read() -> None:
    member = joined("a-0", group_id="a", group_size=2)
    stored = {
        "open": [],
        "closed": [],
        "late": [],
        "settled": [["group:whole", None], ["group:part", ["part-0"]]],
        "counts": {},
    }
    old = GroupWindow()
    old.offer({**member, "triplets": []})
    stored["open"] = [entry[:5] for entry in old.state()["open"]]
    window = GroupWindow.restore(stored)
    assert window.missing() == {"group:a": (1, 2)}
    assert [window.offer(group(name, 3)[1]) for name in ("whole", "part")] == ["late", "late"]
    assert [event["rollout_id"] for event in window.take_late()] == ["part-1"]


def test_memory_is_bounded_by_evicting_the_oldest_open_group() -> None:
    window = GroupWindow(WindowConfig(max_open_groups=2, max_settled_groups=1))
    for name in ("a", "b", "c"):
        window.offer(group(name, 2)[0])
    assert set(window.missing()) == {"group:b", "group:c"}
    taken = window.take(1)
    assert taken is not None
    assert (taken[0].key, taken[0].reason) == ("group:a", "evicted")
    assert window.offer(group("a", 2)[1]) == "late"
    assert [event["rollout_id"] for event in window.take_late()] == ["a-1"]
