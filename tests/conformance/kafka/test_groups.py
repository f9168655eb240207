"""Consumer groups: assignment, rebalances, death, static membership, committed offsets; three clients."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

PARTITIONS = 4
RECORDS = 200


class Members:
    """Confluent consumers of one group, polled together, with what they have read."""

    def __init__(self, cluster, wait_until, topic, **settings):
        self._wait_until = wait_until
        self._topic = topic
        self._config = cluster.group_config(**settings)
        self.group = self._config["group.id"]
        self.consumers: list[Consumer] = []
        self.assignments: list[Consumer] = []
        self.read: list[tuple[int, int]] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for consumer in list(self.consumers):
            self.leave(consumer)

    def join(self, **settings) -> Consumer:
        consumer = Consumer({**self._config, **{key.replace("_", "."): value for key, value in settings.items()}})
        consumer.subscribe([self._topic], on_assign=lambda *_: self.assignments.append(consumer))
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def poll(self) -> None:
        for consumer in self.consumers:
            for message in consumer.consume(100, 0.02):
                assert message.error() is None, message.error()
                self.read.append((message.partition(), message.offset()))

    def until(self, condition, what, seconds=20.0) -> None:
        def step():
            self.poll()
            return condition()

        self._wait_until(step, seconds, what)

    def assigned(self) -> list[int]:
        return sorted(len(consumer.assignment()) for consumer in self.consumers)


@pytest.fixture
def topic(cluster):
    name = cluster.create_topic(PARTITIONS)
    cluster.produce(name, [b"x"] * RECORDS)
    return name


@pytest.mark.parametrize("strategy", ["range,roundrobin", "cooperative-sticky"])
def test_members_share_hand_over_and_resume(cluster, wait_until, topic, strategy):
    with Members(cluster, wait_until, topic, partition_assignment_strategy=strategy) as members:
        first = members.join()
        members.until(lambda: members.assigned() == [PARTITIONS] and len(members.read) == RECORDS, "the first member")
        first.commit(asynchronous=False)
        second = members.join()
        members.until(lambda: members.assigned() == [2, 2], "an even split")
        cluster.produce(topic, [b"y"] * 40)
        members.until(lambda: len(set(members.read)) == RECORDS + 40, "the records after the split")
        assert len(members.read) == RECORDS + 40, "a record was read twice although its offset was committed"
        for consumer in (first, second):
            consumer.commit(asynchronous=False)
        members.leave(first)
        members.until(lambda: members.assigned() == [PARTITIONS], "the take-over")
    cluster.produce(topic, [b"z"] * 10)
    with Members(cluster, wait_until, topic, group_id=members.group) as again:
        again.join()
        again.until(lambda: len(again.read) >= 10, "the new records")
        again.poll()
        assert len(again.read) == 10, "records were read again after the group resumed"


def test_a_killed_member_is_replaced_after_its_session(cluster, wait_until, topic):
    config = cluster.group_config()
    code = (
        "from confluent_kafka import Consumer\n"
        f"consumer = Consumer({config!r}); consumer.subscribe([{topic!r}])\n"
        "while True:\n"
        "    consumer.poll(0.05)\n"
        "    if consumer.assignment(): print('assigned', flush=True)\n"
    )
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as victim,
        Members(cluster, wait_until, topic, group_id=config["group.id"]) as members,
    ):
        try:
            assert victim.stdout is not None and victim.stdout.readline().strip() == "assigned"
            members.join()
            members.until(lambda: members.assigned() == [2], "a share for the second member")
            victim.kill()
            killed = time.monotonic()
            members.until(lambda: members.assigned() == [PARTITIONS], "the take-over")
            seconds = time.monotonic() - killed
        finally:
            victim.kill()
    assert seconds < config["session.timeout.ms"] / 1000 + 3


async def test_aiokafka_members_share_and_hand_over(cluster, topic, unique):
    settings = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "group_id": unique("group"),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 200,
    }
    read: set[tuple[int, int]] = set()

    async def pump(consumer):
        while True:
            for partition, messages in (await consumer.getmany(timeout_ms=100)).items():
                read.update((partition.partition, message.offset) for message in messages)

    async def until(condition):
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - a client's assignment has no event to wait for
                await asyncio.sleep(0.02)

    first, second = AIOKafkaConsumer(topic, **settings), AIOKafkaConsumer(topic, **settings)
    await first.start()
    first_pump = asyncio.create_task(pump(first))
    await until(lambda: len(first.assignment()) == PARTITIONS and len(read) == RECORDS)
    await first.commit()
    await second.start()
    second_pump = asyncio.create_task(pump(second))
    await until(lambda: (len(first.assignment()), len(second.assignment())) == (2, 2))
    first_pump.cancel()
    await first.stop()
    await until(lambda: len(second.assignment()) == PARTITIONS)
    committed = [await second.committed(partition) for partition in second.assignment()]
    second_pump.cancel()
    await second.stop()
    assert sum(offset or 0 for offset in committed) == RECORDS


def test_kafka_python_commits_and_resumes(cluster, wait_until, topic, unique):
    """With assigned partitions: as a subscribed member, kafka-python 3.0.12 on a busy machine now and then stops
    looking for its coordinator after a rebalance, on Apache Kafka as well."""
    group = unique("group")

    def read_and_commit(count):
        consumer = KafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        read: list[tuple[int, int]] = []
        consumer.assign([KafkaTopicPartition(topic, number) for number in range(PARTITIONS)])

        def step():
            for partition, messages in consumer.poll(timeout_ms=50).items():
                read.extend((partition.partition, message.offset) for message in messages)
            return len(read) >= count

        try:
            wait_until(step, what=f"{count} records")
            consumer.commit()
        finally:
            consumer.close(autocommit=False)
        return set(read)

    first = read_and_commit(RECORDS)
    assert len(first) == RECORDS
    cluster.produce(topic, [b"y"] * 20)
    second = read_and_commit(20)
    assert len(second) == 20 and not first & second


def test_a_static_member_comes_back_without_a_rebalance(cluster, wait_until, topic):
    with Members(cluster, wait_until, topic, session_timeout_ms=10_000) as members:
        static = members.join(group_instance_id="static-1")
        members.until(lambda: members.assigned() == [PARTITIONS], "the static member")
        other = members.join(group_instance_id="static-2")
        members.until(lambda: members.assigned() == [2, 2], "the split")
        kept = {partition.partition for partition in static.assignment()}
        members.assignments.clear()
        members.leave(static)
        again = members.join(group_instance_id="static-1")
        members.until(lambda: members.assigned() == [2, 2], "the old place")
        assert {partition.partition for partition in again.assignment()} == kept
        assert other not in members.assignments


def test_a_second_owner_of_a_static_id_fences_the_first(cluster, wait_until, topic):
    with Members(cluster, wait_until, topic) as members:
        first = members.join(group_instance_id="static-1")
        members.until(lambda: members.assigned() == [PARTITIONS], "the first owner")
        second = Consumer({**cluster.group_config(members.group), "group.instance.id": "static-1"})
        second.subscribe([topic])
        try:
            errors: list[KafkaError] = []

            def step():
                second.poll(0.02)
                message = first.poll(0.02)
                if message is not None and message.error() is not None:
                    errors.append(message.error())
                return errors and second.assignment()

            wait_until(step, what="the fence")
            assert errors[0].code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)
        finally:
            second.close()


def test_offsets_are_committed_with_metadata_and_changed_from_outside(cluster, topic, unique):
    group = unique("group")
    consumer = Consumer(cluster.config(group_id=group, enable_auto_commit=False))
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 5, metadata="a note")], asynchronous=False)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], 10)
        (nothing,) = consumer.committed([TopicPartition(topic, 1)], 10)
    finally:
        consumer.close()
    assert (committed.offset, committed.metadata) == (5, "a note")
    assert nothing.offset < 0

    def listed():
        answer = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
        return [(partition.partition, partition.offset) for partition in answer.topic_partitions]

    assert listed() == [(0, 5)]
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 9)])
    cluster.admin.alter_consumer_group_offsets([change])[group].result(10)
    assert listed() == [(0, 9)]
    cluster.admin.delete_consumer_groups([group])[group].result(10)
    assert listed() == []


def test_offsets_of_a_group_with_members_cannot_be_changed_from_outside(cluster, wait_until, topic):
    with Members(cluster, wait_until, topic) as members:
        members.join().poll(0.1)
        members.until(lambda: members.assigned() == [PARTITIONS], "the member")
        outsider = Consumer(cluster.config(group_id=members.group, enable_auto_commit=False))
        try:
            with pytest.raises(KafkaException) as caught:
                outsider.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        finally:
            outsider.close()
        assert caught.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        with pytest.raises(KafkaException) as caught:
            cluster.admin.delete_consumer_groups([members.group])[members.group].result(10)
        assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP


def test_groups_are_described_and_listed(cluster, wait_until, topic):
    def described(group):
        return cluster.admin.describe_consumer_groups([group])[group].result(10)

    with Members(cluster, wait_until, topic) as members:
        members.join().poll(0.1)
        members.until(lambda: len(members.read) == RECORDS, "the records")
        members.consumers[0].commit(asynchronous=False)
        stable = described(members.group)
        assert stable.state is ConsumerGroupState.STABLE
        (member,) = stable.members
        assert len(member.assignment.topic_partitions) == PARTITIONS
        listing = cluster.admin.list_consumer_groups().result(10)
        assert members.group in {group.group_id for group in listing.valid}
    assert described(members.group).state is ConsumerGroupState.EMPTY
    cluster.admin.delete_consumer_groups([members.group])[members.group].result(10)
    assert described(members.group).state is ConsumerGroupState.DEAD


def test_offsets_of_a_deleted_topic_are_forgotten(cluster, topic, unique, wait_until):
    group = unique("group")
    consumer = Consumer(cluster.config(group_id=group, enable_auto_commit=False))
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        cluster.admin.delete_topics([topic])[topic].result(10)
        wait_until(lambda: topic not in cluster.admin.list_topics(timeout=5).topics)
        cluster.create_topic(PARTITIONS, name=topic)
        wait_until(lambda: consumer.committed([TopicPartition(topic, 0)], 10)[0].offset < 0, what="the forgetting")
    finally:
        consumer.close()


def test_the_new_group_protocol_works_or_is_refused(cluster, wait_until, topic, unique):
    config = cluster.config(group_id=unique("group"), auto_offset_reset="earliest", group_protocol="consumer")
    errors: list[KafkaError] = []
    consumer = Consumer({**config, "error_cb": errors.append})
    read: list[int] = []
    consumer.subscribe([topic])
    try:

        def step():
            message = consumer.poll(0.05)
            if message is not None:
                (errors.append(message.error()) if message.error() else read.append(message.offset()))
            return len(read) == RECORDS or errors

        wait_until(step, what="records or a refusal")
    finally:
        consumer.close()
    if cluster.capabilities.consumer_group_protocol:
        assert len(read) == RECORDS
    else:
        assert not read
        assert errors[0].code() == KafkaError._FATAL
        assert "API version not supported" in errors[0].str()
