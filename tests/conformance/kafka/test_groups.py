"""Groups: members and partitions"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conformance.kafka.clients.port import Ability, Partition
from tests.conformance.kafka.declare import case
from tests.conformance.kafka.engines import offsets, poll_until, take, unique, wait_until

PARTITIONS = 4


@pytest.fixture
def topic(cluster):
    name = cluster.topic(PARTITIONS)
    for number in range(PARTITIONS):
        cluster.write(Partition(name, number), [b"x"] * 10)
    return name


def _member(use, topic, group, **settings):
    consumer = use.consumer(group=group, **settings)
    consumer.subscribe(topic)
    return consumer


def _sizes(*members):
    return sorted(len(member.assignment()) for member in members)


def _settle(members, *sizes):
    """Poll until the members have as many partitions as given; what was read meanwhile."""
    return poll_until(members, lambda _: _sizes(*members) == sorted(sizes), f"a split of {sizes}")


def test_a_single_member_gets_every_partition_and_every_record(use, topic, cluster):
    member = _member(use, topic, unique("group"))
    records = take(member, 40)
    assert member.assignment() == {Partition(topic, number) for number in range(PARTITIONS)}
    assert len({(record.partition, record.offset) for record in records}) == 40


@case(Ability.REBALANCES)
def test_a_second_member_takes_half_and_gives_it_back(use, topic, cluster):
    group = unique("group")
    first = _member(use, topic, group)
    records = take(first, 40)
    first.commit()
    second = _member(use, topic, group)
    records += _settle([first, second], 2, 2)
    for number in range(PARTITIONS):
        cluster.write(Partition(topic, number), [b"y"] * 5)
    records += poll_until([first, second], lambda more: len(records) + len(more) >= 60)
    assert len(records) == 60, "a record came twice although its offset was committed"
    assert not first.assignment() & second.assignment()
    second.commit()
    use.close(second)
    _settle([first], PARTITIONS)


@case(Ability.REBALANCES)
def test_with_more_members_than_partitions_some_have_none(use, cluster):
    topic, group = cluster.topic(2), unique("group")
    members = [_member(use, topic, group) for _ in range(3)]
    _settle(members, 0, 1, 1)
    use.close(next(member for member in members if member.assignment()))
    _settle([member for member in members if member in use._opened], 1, 1)


def test_two_groups_read_everything_each(use, topic, cluster):
    first, second = (_member(use, topic, unique("group")) for _ in range(2))
    assert len(take(first, 40)) == 40
    assert len(take(second, 40)) == 40


def test_a_member_may_read_several_topics(use, cluster):
    topics = [cluster.topic(), cluster.topic(2)]
    for topic in topics:
        cluster.write(Partition(topic), [b"x"] * 3)
    member = use.consumer(group=unique("group"))
    member.subscribe(*topics)
    assert {record.partition.topic for record in take(member, 6)} == set(topics)
    assert len(member.assignment()) == 3


@case(Ability.REBALANCES)
def test_members_of_one_group_may_read_different_topics(use, cluster):
    group, topics = unique("group"), [cluster.topic(2), cluster.topic(2)]
    members = [_member(use, topic, group) for topic in topics]
    poll_until(
        members,
        lambda _: all(
            member.assignment() == {Partition(topic, 0), Partition(topic, 1)}
            for member, topic in zip(members, topics, strict=True)
        ),
        "each its own topic",
    )


@case(Ability.REBALANCES)
def test_partitions_that_are_added_are_assigned(use, cluster):
    topic = cluster.topic(1)
    member = _member(use, topic, unique("group"))
    _settle([member], 1)
    cluster.admin.add_partitions(topic, 3)
    _settle([member], 3)


@case(Ability.COOPERATIVE)
def test_cooperative_members_keep_what_they_are_not_asked_to_give(use, topic, cluster):
    group = unique("group")
    settings = {"strategies": ("cooperative-sticky",)}
    first = _member(use, topic, group, **settings)
    records = take(first, 40)
    first.commit()
    held = [first.assignment()]
    second = _member(use, topic, group, **settings)

    def split(more):
        held.append(first.assignment())
        return _sizes(first, second) == [2, 2]

    records += poll_until([first, second], split, "the split")
    assert min(len(partitions) for partitions in held) == 2, "the first member gave up more than it had to"
    cluster.write(next(iter(first.assignment())), [b"y"])
    cluster.write(next(iter(second.assignment())), [b"y"])
    records += poll_until([first, second], lambda more: len(records) + len(more) >= 42)
    assert len(records) == 42


MEMBER = """
import sys, types
package = types.ModuleType("tests")  # another package of that name may be installed
package.__path__ = [sys.argv[1]]
sys.modules["tests"] = package
from tests.conformance.kafka.clients.port import ConsumerSettings
from tests.conformance.kafka.declare import CLIENTS
_, _, name, bootstrap_servers, group, topic, session_timeout_ms = sys.argv
(client,) = [client for client in CLIENTS if client.name == name]
settings = ConsumerSettings(group=group, session_timeout_ms=int(session_timeout_ms))
consumer = client.consumer(bootstrap_servers, settings)
consumer.subscribe(topic)
while True:
    consumer.poll(0.05)
    if consumer.assignment():
        print("assigned", flush=True)
"""


@case(Ability.REBALANCES)
def test_a_killed_member_is_replaced_when_its_session_ends(use, topic, cluster):
    session_ms = max(2_000, cluster.capabilities.session_timeout_ms)
    group = unique("group")
    tests = Path(__file__).parents[2]
    arguments = [str(tests), use.client.name, cluster.bootstrap_servers, group, topic, str(session_ms)]
    with subprocess.Popen([sys.executable, "-c", MEMBER, *arguments], stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None and victim.stdout.readline().strip() == "assigned"
            survivor = _member(use, topic, group, session_timeout_ms=session_ms)
            _settle([survivor], 2)
            victim.kill()
            killed = time.monotonic()
            _settle([survivor], PARTITIONS)
            seconds = time.monotonic() - killed
        finally:
            victim.kill()
    assert session_ms / 1000 - 1.5 < seconds < session_ms / 1000 + 8


@case(Ability.REBALANCES)
def test_a_member_that_stops_polling_loses_its_partitions(use, topic, cluster):
    group = unique("group")
    lazy = _member(use, topic, group, max_poll_interval_ms=6_500)
    _settle([lazy], PARTITIONS)
    keen = _member(use, topic, group)
    _settle([lazy, keen], 2, 2)
    began = time.monotonic()
    _settle([keen], PARTITIONS)
    assert time.monotonic() - began < 18


@case(Ability.REBALANCES)
def test_a_static_member_comes_back_to_its_place_without_a_rebalance(use, topic, cluster):
    group = unique("group")
    first = _member(use, topic, group, instance_id="one", session_timeout_ms=20_000)
    second = _member(use, topic, group, instance_id="two", session_timeout_ms=20_000)
    _settle([first, second], 2, 2)
    held, rebalances = first.assignment(), second.rebalances
    use.close(first)
    again = _member(use, topic, group, instance_id="one", session_timeout_ms=20_000)
    _settle([again, second], 2, 2)
    assert again.assignment() == held
    assert second.rebalances == rebalances


def test_a_member_goes_on_where_the_last_one_committed(use, topic, cluster):
    group = unique("group")
    member = _member(use, topic, group)
    take(member, 40)
    member.commit()
    use.close(member)
    cluster.write(Partition(topic, 1), [b"new"] * 3)
    again = _member(use, topic, group)
    records = take(again, 3) + again.poll(0.2)
    assert [record.value for record in records] == [b"new"] * 3
    assert offsets(records) == [10, 11, 12]


@case(Ability.REBALANCES, only="embedded")
def test_members_join_again_after_the_broker_was_restarted(use, tmp_path):
    from agl_stream.infra.embedded.testing import BrokerThread
    from tests.conformance.kafka.engines import EMBEDDED, EMBEDDED_SETTINGS, Cluster, Use

    with BrokerThread(tmp_path, config=EMBEDDED_SETTINGS) as broker:
        engine = Cluster(broker.bootstrap_servers, EMBEDDED)
        topic = engine.topic(2)
        engine.write(Partition(topic), [b"before"] * 3)
        here = Use(use.client, engine)
        member = _member(here, topic, unique("group"))
        take(member, 3)
        member.commit()
    port = engine.port
    with BrokerThread(tmp_path, config=EMBEDDED_SETTINGS, port=port):
        wait_until(lambda: engine.admin.partitions(topic), what="the restarted broker")
        engine.write(Partition(topic), [b"after"] * 3)
        records = poll_until([member], lambda found: found and found[-1].offset == 5)
        assert offsets(records) == [3, 4, 5]
        here.close()
        engine.close()


@case(
    Ability.NEW_GROUP_PROTOCOL,
    differs="group.protocol=consumer (KIP-848) is refused with a clear error: the classic protocol is all we use",
)
def test_the_new_group_protocol_works_or_is_refused(use, topic, cluster):
    from tests.conformance.kafka.clients.confluent import ConfluentConsumer
    from tests.conformance.kafka.clients.port import ConsumerSettings

    settings = ConsumerSettings(group=unique("group"))
    options = {"group.protocol": "consumer", "session.timeout.ms": None, "heartbeat.interval.ms": None}
    options["partition.assignment.strategy"] = None
    consumer = ConfluentConsumer(cluster.bootstrap_servers, settings, **options)
    consumer.subscribe(topic)
    try:
        if cluster.capabilities.consumer_group_protocol:
            assert len(take(consumer, 40)) == 40
        else:
            refusals = []

            def refused():
                message = consumer.inner.poll(0.05)
                if message is not None:
                    refusals.append(message.error().str())
                return refusals

            wait_until(refused, what="the refusal")
            assert "API version not supported" in refusals[0]
    finally:
        consumer.close()
