"""The real engines: they serve, keep data and addresses over restarts, stay on loopback, and leave nobody behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agl_stream.errors import PortInUse, UsageError
from agl_stream.infra.servers import Apicurio, Cassandra, Connect, Kafka, Postgres
from agl_stream.infra.servers.probe import serves
from tests.infra.servers.processes import alive, wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


def create_topic(bootstrap_servers: str, *, partitions: int = 1, replicas: int = 1) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)
    wait_until(lambda: topic in admin.list_topics(timeout=10).topics, "the topic", 30)
    return topic


def write(bootstrap_servers: str, topic: str, values: list[bytes]) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(60) == 0 and not failed


def read(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [m.value() or b"" for m in consumer.consume(count, 0.5) if m.error() is None]
    consumer.close()
    return found


def listening_addresses(pid: int) -> set[str]:
    """Addresses, in hex as the kernel gives them, on which a process listens for TCP."""
    inodes = {
        str(target.readlink()).removeprefix("socket:[").rstrip("]")
        for target in Path(f"/proc/{pid}/fd").iterdir()
        if target.is_symlink()
    }
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def is_loopback(address: str) -> bool:
    """127.x.y.z in the kernel's order of bytes, also as IPv4 in IPv6."""
    return address.endswith("7F") and (len(address) == 8 or address.startswith("0000000000000000FFFF0000"))


def test_session_fixtures_serve(
    kafka: Kafka, cassandra: Cassandra, apicurio: Apicurio, connect_worker: Connect, postgres: Postgres
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    write(kafka.bootstrap_servers, topic, [b"a", b"b"])
    assert read(kafka.bootstrap_servers, topic, 2) == [b"a", b"b"]
    with urllib.request.urlopen(connect_worker.url + "/connector-plugins", timeout=10) as answer:
        plugins = {plugin["class"].rpartition(".")[2] for plugin in json.load(answer)}
    assert "JdbcSinkConnector" in plugins
    assert postgres.sql("select 'a=>1'::hstore -> 'a'") == "1"
    for name, engine in (
        *(("kafka", kafka), ("cassandra", cassandra), ("registry", apicurio)),
        *(("connect", connect_worker), ("postgres", postgres)),
    ):
        assert serves(name, engine.address), name
        assert engine.version, name
        for node in engine.nodes:
            assert node.pid is not None
            addresses = listening_addresses(node.pid)
            assert addresses and all(map(is_loopback, addresses)), (node.name, addresses)


def test_a_paused_engine_is_seen_not_to_serve(tmp_path: Path, kafka: Kafka) -> None:
    assert serves("kafka", kafka.address)
    kafka.nodes[0].pause()
    try:
        assert not serves("kafka", kafka.address)
    finally:
        kafka.nodes[0].resume()
    wait_until(lambda: serves("kafka", kafka.address), "service after the pause")


def test_cassandra_as_root_takes_no_locked_memory(cassandra: Cassandra) -> None:
    status = Path(f"/proc/{cassandra.nodes[0].pid}/status").read_text()
    locked_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmLck:"))
    assert locked_kib < 1024


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter, unlike pytest's own."""
    from agl_stream.infra.servers.engine import temporary_folder

    folder, remove = temporary_folder("test")
    yield folder
    remove()


def test_kafka_keeps_addresses_and_records_over_a_kill_a_stop_and_a_new_object(place: Path) -> None:
    with Kafka(place) as kafka:
        address = kafka.bootstrap_servers
        topic = create_topic(address)
        write(address, topic, [b"1"])
        kafka.nodes[0].kill()
        assert not serves("kafka", address)
        kafka.nodes[0].start()
        kafka.nodes[0].wait_ready()
        write(address, topic, [b"2"])
    with Kafka(place) as kafka:
        assert kafka.bootstrap_servers == address
        write(address, topic, [b"3"])
        assert read(address, topic, 3) == [b"1", b"2", b"3"]
        with pytest.raises(PortInUse, match=r"broker-1.*is in use.*ports\.json"):
            Kafka(place)
    with pytest.raises(UsageError, match=r"holds the data of 1 node.*not of 3"):
        Kafka(place, nodes=3)


def test_apicurio_keeps_the_ids_of_schemas_over_a_kill(place: Path) -> None:
    """A registry that gave an old id to another schema would have records on the log read with the wrong one."""

    def ask(engine: Apicurio, path: str, body: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            engine.ccompat_url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    with Apicurio(place) as engine:
        first = ask(engine, "/subjects/a-value/versions", {"schema": '"string"'})["id"]
        engine.nodes[0].kill()
        engine.start()
        assert ask(engine, f"/schemas/ids/{first}")["schema"] == '"string"'
        second = ask(engine, "/subjects/b-value/versions", {"schema": '"int"'})["id"]
        assert second != first
        assert ask(engine, "/subjects/a-value/versions", {"schema": '"string"'})["id"] == first


def test_postgres_keeps_rows_over_a_kill_and_a_new_object(place: Path) -> None:
    with Postgres(place) as postgres:
        postgres.sql("create table t (a int); insert into t values (7)")
        postgres.nodes[0].kill()
        postgres.start()
        assert postgres.sql("select a from t") == "7"
        url = postgres.jdbc_url
    with Postgres(place) as postgres:
        assert postgres.jdbc_url == url and postgres.sql("select a from t") == "7"


def test_cassandra_keeps_rows_over_a_restart(place: Path) -> None:
    with Cassandra(place) as engine:
        address = engine.contact_points
        cql(engine, "create keyspace k with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        cql(engine, "create table k.t (a int primary key)")
        cql(engine, "insert into k.t (a) values (7)")
    with Cassandra(place) as engine:
        assert engine.contact_points == address
        assert cql(engine, "select a from k.t") == [{"a": 7}]


def cql(engine: Cassandra, statement: str) -> list[dict[str, Any]]:
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
    from cassandra.query import dict_factory

    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()), row_factory=dict_factory, request_timeout=60
    )
    cluster = Cluster(
        engine.hosts, port=engine.port, protocol_version=5, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )
    try:
        return list(cluster.connect().execute(statement))
    finally:
        cluster.shutdown()


PARENT = """
import sys, time
from pathlib import Path
from agl_stream.infra.servers import Kafka, Postgres
engines = [Kafka(Path(sys.argv[1]) / "kafka"), Postgres(Path(sys.argv[1]) / "postgres")]
for engine in engines:
    engine.start()
print(*(node.pid for engine in engines for node in engine.nodes), flush=True)
time.sleep(600)
"""


def test_engines_die_with_their_killed_parent(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(place)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        parent.send_signal(signal.SIGKILL)
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), "the end of an engine whose parent was killed", 10)


def test_three_brokers_acknowledge_while_one_is_dead_and_none_is_lost(kafka_cluster: Kafka) -> None:
    address = kafka_cluster.bootstrap_servers
    topic = create_topic(address, replicas=3)
    expected = [b"%d" % number for number in range(100)]
    write(address, topic, expected[:50])
    kafka_cluster.nodes[0].kill()
    write(address, topic, expected[50:])
    kafka_cluster.nodes[0].start()
    kafka_cluster.nodes[0].wait_ready()
    assert read(address, topic, 100) == expected
    admin = AdminClient({"bootstrap.servers": address})

    def in_sync() -> int:
        return len(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs)

    wait_until(lambda: in_sync() == 3, "three replicas in sync", 60)


def test_three_cassandra_nodes_are_one_ring_and_serve_a_quorum_while_one_is_dead(cassandra_cluster: Cassandra) -> None:
    from cassandra import ConsistencyLevel
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy, TokenAwarePolicy

    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
        consistency_level=ConsistencyLevel.QUORUM,
        request_timeout=60,
    )
    cluster = Cluster(
        cassandra_cluster.hosts,
        port=cassandra_cluster.port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.5),
    )
    try:
        session = cluster.connect()
        wait_until(lambda: sum(1 for host in cluster.metadata.all_hosts() if host.is_up) == 3, "three hosts", 60)
        session.execute("create keyspace k with replication = {'class': 'SimpleStrategy', 'replication_factor': 3}")
        wait_until(lambda: _schema_agreed(session, 3), "agreement on the schema", 60)
        session.execute("create table k.t (a int primary key)")
        wait_until(lambda: _schema_agreed(session, 3), "agreement on the schema", 60)
        insert = session.prepare("insert into k.t (a) values (?)")
        insert.is_idempotent = True
        for number in range(20):
            session.execute(insert, (number,))
        cassandra_cluster.nodes[2].kill()
        for number in range(20, 40):
            insist(session, insert, (number,))
        assert {row.a for row in insist(session, "select a from k.t")} == set(range(40))
        cassandra_cluster.nodes[2].start()
        cassandra_cluster.nodes[2].wait_ready()
    finally:
        cluster.shutdown()


def insist(session: Any, statement: Any, values: tuple[Any, ...] = (), seconds: float = 60.0) -> Any:
    """Execute, again where the coordinator still counted on the dead node: it needs a while to see the death."""
    from cassandra import OperationTimedOut, ReadTimeout, Unavailable, WriteTimeout

    deadline = time.monotonic() + seconds
    while True:
        try:
            return list(session.execute(statement, values))
        except (OperationTimedOut, ReadTimeout, Unavailable, WriteTimeout):
            if time.monotonic() > deadline:
                raise


def _schema_agreed(session: Any, count: int) -> bool:
    """Whether every node has the same schema, asked of each itself: the driver counts only peers it knows already."""
    versions = []
    for host in session.cluster.metadata.all_hosts():
        rows = list(session.execute("select schema_version from system.local", host=host))
        versions.append(rows[0].schema_version)
    return len(versions) == count and len(set(versions)) == 1
