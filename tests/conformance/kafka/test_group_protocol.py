"""Groups: the protocol itself"""

from __future__ import annotations

import threading

import pytest

from tests.conformance.kafka.clients.wire import Wire
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import unique, wait_until

ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP, UNKNOWN_MEMBER = 22, 23, 24, 25
INVALID_SESSION_TIMEOUT, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED, FENCED_INSTANCE = 26, 27, 79, 82


def _beat(wire, group, member_id, generation, instance_id=None):
    answer = wire.call(
        "heartbeat", 3, group_id=group, member_id=member_id, generation_id=generation, group_instance_id=instance_id
    )
    return answer["error_code"]


def _leave(wire, group, member_id, instance_id=None):
    member = {"member_id": member_id, "group_instance_id": instance_id}
    answer = wire.call("leave_group", 3, group_id=group, members=[member])
    return answer["error_code"] or answer["members"][0]["error_code"]


@pytest.fixture
def joined(wire):
    """(group, member id, generation) of a group with one member, stable."""
    group = unique("group")
    answer = wire.join(group)
    assert answer["error_code"] == 0, answer
    assert wire.sync(group, answer["member_id"], answer["generation_id"])["assignment"] == b"all"
    return group, answer["member_id"], answer["generation_id"]


def test_the_first_join_is_answered_with_an_id_to_join_with(cluster, wire):
    answer = wire.coordinated(
        "join_group",
        5,
        group_id=unique("group"),
        session_timeout=6_000,
        rebalance_timeout=6_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert answer["error_code"] == MEMBER_ID_REQUIRED and answer["member_id"]


def test_a_single_member_leads_its_group(cluster, wire):
    answer = wire.join(unique("group"))
    assert (answer["error_code"], answer["generation_id"], answer["protocol_name"]) == (0, 1, "range")
    assert answer["leader"] == answer["member_id"]
    assert [member["member_id"] for member in answer["members"]] == [answer["member_id"]]


def test_heartbeats_are_for_members_of_this_generation(cluster, wire, joined):
    group, member_id, generation = joined
    assert _beat(wire, group, member_id, generation) == 0
    assert _beat(wire, group, member_id, generation - 1) == ILLEGAL_GENERATION
    assert _beat(wire, group, member_id, generation + 1) == ILLEGAL_GENERATION
    assert _beat(wire, group, "a stranger", generation) == UNKNOWN_MEMBER
    assert _beat(wire, unique("group"), member_id, generation) == UNKNOWN_MEMBER


def test_assignments_are_for_members_of_this_generation(cluster, wire, joined):
    group, member_id, generation = joined
    assert wire.sync(group, member_id, generation - 1)["error_code"] == ILLEGAL_GENERATION
    assert wire.sync(group, "a stranger", generation)["error_code"] == UNKNOWN_MEMBER
    again = wire.sync(group, member_id, generation, None)
    assert (again["error_code"], again["assignment"]) == (0, b"all")


def test_commits_are_for_members_of_this_generation(cluster, wire, joined):
    group, member_id, generation = joined
    partition = cluster.partition()
    assert wire.commit(group, partition, 3, member_id=member_id, generation=generation) == 0
    assert wire.commit(group, partition, 9, member_id=member_id, generation=generation - 1) == ILLEGAL_GENERATION
    assert wire.commit(group, partition, 9, member_id="a stranger", generation=generation) == UNKNOWN_MEMBER
    assert wire.commit(group, partition, 9) == UNKNOWN_MEMBER
    assert cluster.admin.group_offsets(group)[partition][0] == 3


def test_members_are_told_of_a_rebalance_by_their_heartbeat_and_may_still_commit(cluster, wire, joined):
    group, member_id, generation = joined
    partition = cluster.partition()
    other = Wire(cluster.bootstrap_servers)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(other.join(group)))
    thread.start()
    try:
        wait_until(lambda: _beat(wire, group, member_id, generation) == REBALANCE_IN_PROGRESS, what="the rebalance")
        assert wire.commit(group, partition, 3, member_id=member_id, generation=generation) == 0
        mine = wire.join(group, member_id)
        thread.join(20)
    finally:
        other.close()
    (others,) = answers
    assert mine["generation_id"] == others["generation_id"] == generation + 1
    assert mine["leader"] == others["leader"] == member_id
    assert (len(mine["members"]), len(others["members"])) == (2, 0)
    assert wire.commit(group, partition, 9, member_id=member_id, generation=generation) == ILLEGAL_GENERATION


def test_a_member_that_left_is_unknown(cluster, wire, joined):
    group, member_id, generation = joined
    assert _leave(wire, group, member_id) == 0
    assert _beat(wire, group, member_id, generation) == UNKNOWN_MEMBER
    assert _leave(wire, group, member_id) == UNKNOWN_MEMBER


def test_a_member_without_a_heartbeat_is_removed_after_its_session(cluster, wire):
    group, session_ms = unique("group"), cluster.capabilities.session_timeout_ms
    answer = wire.join(group, session_timeout=session_ms)
    wire.sync(group, answer["member_id"], answer["generation_id"])

    def members():
        return wire.call("describe_groups", 3, groups=[group])["groups"][0]["members"]

    assert len(members()) == 1
    wait_until(lambda: not members(), what="the end of the session")
    assert _beat(wire, group, answer["member_id"], answer["generation_id"]) == UNKNOWN_MEMBER


def test_a_member_that_speaks_none_of_the_groups_protocols_is_refused(cluster, wire, joined):
    group, _, _ = joined
    assert wire.join(group, protocols=[{"name": "other", "metadata": b""}])["error_code"] == INCONSISTENT_PROTOCOL
    assert wire.join(group, protocol_type="connect")["error_code"] == INCONSISTENT_PROTOCOL


@pytest.mark.parametrize("milliseconds", [1, 2_000_000_000])
def test_impossible_session_timeouts_are_refused(cluster, wire, milliseconds):
    assert wire.join(unique("group"), session_timeout=milliseconds)["error_code"] == INVALID_SESSION_TIMEOUT


def test_a_group_without_a_name_is_refused(cluster, wire):
    assert wire.join("")["error_code"] == INVALID_GROUP


def test_an_id_that_was_never_given_cannot_join(cluster, wire):
    assert wire.join(unique("group"), "made up")["error_code"] == UNKNOWN_MEMBER


def test_a_second_owner_of_a_static_id_fences_the_first(cluster, wire):
    group = unique("group")
    first = wire.join(group, group_instance_id="one")
    wire.sync(group, first["member_id"], first["generation_id"])
    second = wire.join(group, group_instance_id="one")
    assert second["error_code"] == 0 and second["member_id"] != first["member_id"]
    assert _beat(wire, group, first["member_id"], first["generation_id"], "one") == FENCED_INSTANCE
    again = wire.join(group, first["member_id"], group_instance_id="one")
    assert again["error_code"] == FENCED_INSTANCE


def test_a_static_member_can_be_removed_by_its_name(cluster, wire):
    group = unique("group")
    first = wire.join(group, group_instance_id="one")
    wire.sync(group, first["member_id"], first["generation_id"])
    assert _leave(wire, group, "", "someone else") == UNKNOWN_MEMBER
    assert _leave(wire, group, "", "one") == 0
    assert cluster.admin.group(group).members == []


def test_one_connection_is_a_coordinators_for_groups_and_transactions(cluster, wire):
    for kind in (0, 1):
        answer = wire.coordinated("find_coordinator", 2, key=unique("name"), key_type=kind)
        assert answer["error_code"] == 0
        assert f"{answer['host']}:{answer['port']}" == cluster.bootstrap_servers


@case(differs="sessions may be as short as 1 s (group.min.session.timeout.ms), Kafka's default is 6 s")
def test_the_shortest_session_is_the_engines(cluster, wire):
    shortest = cluster.capabilities.session_timeout_ms
    assert wire.join(unique("group"), session_timeout=shortest)["error_code"] == 0
    assert wire.join(unique("group"), session_timeout=shortest - 1)["error_code"] == INVALID_SESSION_TIMEOUT
