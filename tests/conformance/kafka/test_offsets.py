"""Groups: committed offsets"""

from __future__ import annotations

import pytest

from tests.conformance.kafka.clients.port import Ability, Partition
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, poll_until, refusal, take, take_new, unique, wait_until

UNKNOWN_PARTITION, METADATA_TOO_LARGE, UNKNOWN_MEMBER, NON_EMPTY_GROUP, UNKNOWN_GROUP = 3, 12, 25, 68, 69
INVALID_GROUP, SUBSCRIBED = 24, 86


def test_nothing_is_committed_for_a_new_group(cluster, use):
    consumer = use.consumer(group=unique("group"))
    partition = cluster.partition()
    consumer.assign({partition: 0})
    assert consumer.committed(partition) is None


def test_positions_and_given_offsets_are_committed(cluster, use):
    group, partition = unique("group"), cluster.partition()
    cluster.write(partition, [b"x"] * 10)
    consumer = use.consumer(group=group)
    consumer.assign({partition: 0})
    take(consumer, 10)
    consumer.commit()
    assert consumer.committed(partition) == 10
    consumer.commit({partition: (4, "a note")})
    assert consumer.committed(partition) == 4
    assert cluster.admin.group_offsets(group) == {partition: (4, "a note")}


def test_positions_are_committed_on_leaving_when_the_client_is_told_to(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"] * 7)
    consumer = use.consumer(group=group, auto_commit=True)
    consumer.subscribe(topic)
    take(consumer, 7)
    use.close(consumer)
    assert cluster.admin.group_offsets(group)[Partition(topic)][0] == 7


@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"old"), ("latest", b"new")])
def test_without_a_committed_offset_the_policy_says_where_to_begin(cluster, use, reset, expected):
    topic = cluster.topic()
    cluster.write(Partition(topic), [b"old"] * 3)
    consumer = use.consumer(group=unique("group"), reset=reset)
    consumer.subscribe(topic)
    assert take_new(cluster, consumer, Partition(topic))[0].value == expected


def test_a_committed_offset_beyond_the_end_is_reset(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"] * 3)
    cluster.admin.set_group_offsets(group, {Partition(topic): 1_000})
    consumer = use.consumer(group=group)
    consumer.subscribe(topic)
    assert offsets(take(consumer, 3)) == [0, 1, 2]


def test_a_member_that_was_removed_cannot_commit(cluster, use):
    """Its partitions belong to others: the commit of a member that was away for too long is refused."""
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"] * 5)
    member = use.consumer(group=group, heartbeat_ms=2_000)
    member.subscribe(topic)
    take(member, 5)
    (member_id,) = cluster.admin.group(group).members
    _remove_member(cluster, group, member_id)
    assert refusal(member.commit) in (22, UNKNOWN_MEMBER, 27, -1)
    assert cluster.admin.group_offsets(group) == {}


def _remove_member(cluster, group, member_id):
    from tests.conformance.kafka.clients.wire import Wire

    wire = Wire(cluster.bootstrap_servers)
    member = {"member_id": member_id, "group_instance_id": None}
    assert wire.call("leave_group", 3, group_id=group, members=[member])["error_code"] == 0
    wire.close()


def test_a_group_is_described_while_it_has_members_and_after(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"])
    admin = use.admin()
    assert admin.group(group).state == "Dead"
    member = use.consumer(group=group)
    member.subscribe(topic)
    take(member, 1)
    member.commit()
    described = admin.group(group)
    assert (described.state, described.protocol, len(described.members)) == ("Stable", "range", 1)
    assert group in admin.groups()
    use.close(member)
    assert (admin.group(group).state, admin.group(group).members) == ("Empty", [])
    assert group in admin.groups()


def test_an_admin_sees_what_a_group_has_committed(cluster, use):
    group, topic = unique("group"), cluster.topic(2)
    cluster.write(Partition(topic, 1), [b"x"] * 5)
    cluster.admin.set_group_offsets(group, {Partition(topic, 0): 0, Partition(topic, 1): 4})
    admin = use.admin()
    assert admin.group_offsets(group) == {Partition(topic, 0): (0, ""), Partition(topic, 1): (4, "")}
    assert admin.group_offsets(unique("group")) == {}


@case(Ability.ALTER_OFFSETS)
def test_offsets_are_changed_from_outside_only_while_there_are_no_members(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"] * 5)
    admin = use.admin()
    admin.set_group_offsets(group, {Partition(topic): 3})
    member = use.consumer(group=group)
    member.subscribe(topic)
    assert offsets(take(member, 2)) == [3, 4]
    assert refusal(admin.set_group_offsets, group, {Partition(topic): 1}) == UNKNOWN_MEMBER
    assert cluster.admin.group_offsets(group)[Partition(topic)][0] == 3


@case(Ability.DELETE_GROUPS)
def test_a_group_without_members_can_be_deleted(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"])
    admin = use.admin()
    member = use.consumer(group=group)
    member.subscribe(topic)
    take(member, 1)
    member.commit()
    assert refusal(admin.delete_group, group) == NON_EMPTY_GROUP
    use.close(member)
    admin.delete_group(group)
    assert cluster.admin.group_offsets(group) == {} and group not in admin.groups()
    assert refusal(admin.delete_group, group) == UNKNOWN_GROUP


@case(Ability.DELETE_OFFSETS)
def test_a_groups_offset_is_deleted_unless_a_member_reads_the_topic(cluster, use):
    group, topic, other = unique("group"), cluster.topic(), cluster.topic()
    cluster.write(Partition(topic), [b"x"])
    cluster.admin.set_group_offsets(group, {Partition(topic): 1, Partition(other): 0})
    member = use.consumer(group=group)
    member.subscribe(topic)
    poll_until([member], lambda _: member.assignment(), "the assignment")
    admin = use.admin()
    assert refusal(admin.delete_group_offsets, group, Partition(topic)) == SUBSCRIBED
    admin.delete_group_offsets(group, Partition(other))
    assert set(cluster.admin.group_offsets(group)) == {Partition(topic)}
    use.close(member)
    admin.delete_group_offsets(group, Partition(topic))
    assert cluster.admin.group_offsets(group) == {}
    assert refusal(admin.delete_group_offsets, unique("group"), Partition(topic)) == UNKNOWN_GROUP


@case(Ability.REMOVE_MEMBERS)
def test_members_can_be_removed_from_outside(cluster, use):
    group, topic = unique("group"), cluster.topic()
    member = use.consumer(group=group, heartbeat_ms=2_000)
    member.subscribe(topic)
    poll_until([member], lambda _: member.assignment(), "the assignment")
    admin = use.admin()
    (member_id,) = admin.group(group).members
    admin.remove_member(group, member_id)
    assert admin.group(group).members == []
    assert refusal(admin.remove_member, group, member_id) == UNKNOWN_MEMBER


@case(Ability.GROUP_STATES)
def test_groups_are_listed_by_their_state(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.admin.set_group_offsets(group, {Partition(topic): 0})
    admin = use.admin()
    assert group in admin.groups_in_state("Empty")
    assert group not in admin.groups_in_state("Stable")


def test_offsets_of_a_deleted_topic_are_forgotten(cluster, use):
    group, topic = unique("group"), cluster.topic()
    cluster.write(Partition(topic), [b"x"] * 5)
    cluster.admin.set_group_offsets(group, {Partition(topic): 5})
    cluster.admin.delete_topic(topic)
    wait_until(lambda: not cluster.admin.group_offsets(group), what="the forgetting")
    wait_until(lambda: topic not in cluster.admin.topics())
    cluster.admin.create_topic(topic)
    cluster.write(Partition(topic), [b"new"])
    consumer = use.consumer(group=group)
    consumer.subscribe(topic)
    assert [record.value for record in take(consumer, 1)] == [b"new"]


# The protocol itself


def test_offsets_of_a_partition_that_does_not_exist_are_refused(cluster, wire):
    topic = cluster.topic()
    assert wire.commit(unique("group"), Partition(topic, 8), 1) == UNKNOWN_PARTITION
    assert wire.commit(unique("group"), Partition(unique("missing")), 1) == UNKNOWN_PARTITION


def test_a_note_that_is_too_long_is_refused(cluster, wire):
    group, partition = unique("group"), cluster.partition()
    assert wire.commit(group, partition, 1, note="x" * 4_096) == 0
    assert wire.commit(group, partition, 2, note="x" * 4_097) == METADATA_TOO_LARGE
    topics = [{"name": partition.topic, "partition_indexes": [0]}]
    answer = wire.call("offset_fetch", 7, group_id=group, topics=topics, require_stable=False)
    (found,) = answer["topics"][0]["partitions"]
    assert (found["committed_offset"], found["metadata"]) == (1, "x" * 4_096)


def test_offsets_of_the_group_without_a_name_are_kept(cluster, wire):
    """Clients from before groups had to be named commit under an empty id."""
    partition = cluster.partition()
    assert wire.commit("", partition, 3) == 0
    topics = [{"name": partition.topic, "partition_indexes": [0]}]
    answer = wire.call("offset_fetch", 7, group_id="", topics=topics, require_stable=False)
    assert answer["topics"][0]["partitions"][0]["committed_offset"] == 3


def test_the_group_without_a_name_has_no_members_and_no_transactions(cluster, wire):
    partition = cluster.partition()
    assert wire.join("")["error_code"] == INVALID_GROUP
    member = {"group_id": "", "member_id": "nobody", "group_instance_id": None}
    assert wire.call("heartbeat", 3, generation_id=1, **member)["error_code"] == INVALID_GROUP
    producer_id, epoch = wire.producer_id(name := unique("writer"))
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = wire.call(
        "txn_offset_commit",
        3,
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=-1,
        topics=[{"name": partition.topic, "partitions": [row]}],
        **member | {"member_id": ""},
    )
    assert answer["topics"][0]["partitions"][0]["error_code"] == INVALID_GROUP
    rows = [{"name": partition.topic, "partitions": [{"partition_index": 0}]}]
    assert wire.call("offset_delete", 0, group_id="", topics=rows)["error_code"] == INVALID_GROUP
