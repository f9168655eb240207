"""Apache Cassandra: one node, or three on 127.0.0.1, 127.0.0.2 and 127.0.0.3."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agl_stream.infra.servers.components import CASSANDRA
from agl_stream.infra.servers.engine import CONFIG_FOLDER, Engine
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.jvm import class_path, java_command
from agl_stream.infra.servers.probe import answers_cql, takes_connections
from agl_stream.infra.servers.process import ServerProcess

KEYSPACE = "agl"
"""The keyspace that agl-stream is told to use."""

_READY_LINE = "Startup complete"

# Doors into the JDK that Cassandra 5.0 goes through; without them it fails at start.
_EXPORTS = (
    *("java.base/jdk.internal.misc", "java.base/java.lang.ref", "java.management.rmi/com.sun.jmx.remote.internal.rmi"),
    *("java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql", "jdk.attach/sun.tools.attach"),
    *("jdk.compiler/com.sun.tools.javac.file", "jdk.unsupported/sun.misc"),
)
_OPENS = (
    *("java.base/java.io", "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect"),
    *("java.base/java.nio", "java.base/java.util", "java.base/jdk.internal.loader", "java.base/jdk.internal.math"),
    *("java.base/jdk.internal.module", "java.base/jdk.internal.ref", "java.base/jdk.internal.reflect"),
    *("java.base/jdk.internal.util.jar", "java.base/sun.nio.ch", "jdk.compiler/com.sun.tools.javac"),
    "jdk.management/com.sun.management.internal",
)
_JDK_OPTIONS = (
    *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
    *(
        "-Djdk.attach.allowAttachSelf=true",
        "-Djava.security.manager=allow",
        "-Dio.netty.tryReflectionSetAccessible=true",
    ),
)

# A node of a few on one machine need not wait for gossip of hundreds, nor announce its end for two seconds.
_IMPATIENT = (
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
    "-Dcassandra.size_recorder_interval=-1",
    "-Dcassandra.shutdown_announce_in_ms=100",
)


def store_url(contact_points: str) -> str:
    """The state store that agl-stream keeps in a Cassandra which is started here."""
    return f"cassandra://{contact_points}/{KEYSPACE}"


class Cassandra(Engine):
    """`nodes` servers of one cluster (as before, or one). `conf` overrides or adds settings of every cassandra.yaml.

    All nodes share the native port and differ in their address, as drivers expect of a cluster.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int | None = None,
        heap_mb: int | None = None,
        conf: Mapping[str, Any] | None = None,
        port: int | None = None,
        prefer_port: int | None = None,
        home: EnginesHome | None = None,
    ) -> None:
        super().__init__(folder)
        home = home or EnginesHome.default()
        self._jars = home.fetch(CASSANDRA)
        self.version = home.version(CASSANDRA, "cassandra-all")
        ports = self.keep_ports(
            "native",
            "storage",
            wanted={"native": port},
            preferred={"native": prefer_port},
        )
        self.port, self._storage_port = ports["native"], ports["storage"]
        count = self.keep_count(nodes)
        self.hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
        self._conf = dict(conf or {})
        heap_mb = heap_mb or (512 if count == 1 else 256)
        self.nodes = [self._node(number, host, heap_mb) for number, host in enumerate(self.hosts, 1)]

    @property
    def contact_points(self) -> str:
        return ",".join(f"{host}:{self.port}" for host in self.hosts)

    @property
    def address(self) -> str:
        return self.contact_points

    @property
    def settings(self) -> dict[str, str]:
        return {"store_url": store_url(self.contact_points)}

    def spawn(self) -> None:
        """The first node is the seed of the others: they start side by side once it serves."""
        for number, host in enumerate(self.hosts, 1):
            folder = self.folder / f"node-{number}"
            folder.mkdir(exist_ok=True)
            # JSON is YAML.
            (folder / "cassandra.yaml").write_text(json.dumps(self.yaml(number, host), indent=1) + "\n")
        seed, *others = self.nodes
        seed.start()
        if others:
            seed.wait_ready(self.cancelled)
        for node in others:
            node.start()

    def yaml(self, number: int, host: str) -> dict[str, Any]:
        """What cassandra.yaml of node `number` says."""
        data = self.folder / f"node-{number}" / "data"
        memtable_mb = 64 if len(self.hosts) == 1 else 32
        return {
            "cluster_name": "agl-stream",
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "num_tokens": 16,
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": f"{self.hosts[0]}:{self._storage_port}"}],
                }
            ],
            "endpoint_snitch": "SimpleSnitch",
            "listen_address": host,
            "rpc_address": host,
            "storage_port": self._storage_port,
            "native_transport_port": self.port,
            "start_native_transport": True,
            "auto_bootstrap": False,
            "data_file_directories": [str(data / "data")],
            "commitlog_directory": str(data / "commitlog"),
            "saved_caches_directory": str(data / "saved_caches"),
            "hints_directory": str(data / "hints"),
            "cdc_raw_directory": str(data / "cdc_raw"),
            # An acknowledged write is on the disk. Cassandra's own default syncs every 10 s: a node that is killed
            # loses what it acknowledged since, and nobody is told.
            "commitlog_sync": "batch",
            "commitlog_segment_size": "16MiB",  # Half of it is the largest write.
            "commitlog_total_space": "256MiB",
            "memtable_allocation_type": "heap_buffers",
            "memtable_heap_space": f"{memtable_mb}MiB",
            "memtable_offheap_space": f"{memtable_mb}MiB",
            "memtable": {
                "configurations": {
                    "skiplist": {"class_name": "SkipListMemtable"},
                    "trie": {"class_name": "TrieMemtable"},
                    "default": {"inherits": "trie"},
                }
            },
            "key_cache_size": "8MiB",
            "row_cache_size": "0MiB",
            "counter_cache_size": "0MiB",
            "file_cache_size": "32MiB",
            "networking_cache_size": "16MiB",
            "concurrent_reads": 16,
            "concurrent_writes": 16,
            "concurrent_compactors": 1,
            "compaction_throughput": "0MiB/s",
            "auto_snapshot": False,  # Dropping a table would keep a copy of it.
            "snapshot_before_compaction": False,
            "hinted_handoff_enabled": True,
            "disk_access_mode": "auto",
            "authenticator": "AllowAllAuthenticator",
            "authorizer": "AllowAllAuthorizer",
            "sasi_indexes_enabled": False,
            "materialized_views_enabled": False,
            "paxos_variant": "v2",
            **self._conf,
        }

    def _node(self, number: int, host: str, heap_mb: int) -> ServerProcess:
        folder = self.folder / f"node-{number}"
        (agent,) = (self._jars / "lib").glob("jamm-*.jar")
        # Without a ring delay several nodes take each other for dead while they start.
        ring_delay_ms = 0 if len(self.hosts) == 1 else 2000
        options = [
            *_JDK_OPTIONS,
            f"-javaagent:{agent}",
            # The agent only lends its instrumentation and changes no class, so that an archive beside it is right.
            *("-XX:+UnlockDiagnosticVMOptions", "-XX:+AllowArchivingWithJavaAgent"),
            *_IMPATIENT,
            f"-Dcassandra.ring_delay_ms={ring_delay_ms}",
            f"-Dcassandra.config=file://{folder / 'cassandra.yaml'}",
            f"-Dlogback.configurationFile={CONFIG_FOLDER / 'logback.xml'}",
            f"-Dcassandra.storagedir={folder / 'data'}",
            "-Dcassandra-foreground=yes",
        ]
        daemon = ["-cp", class_path(self._jars / "lib"), "org.apache.cassandra.service.CassandraDaemon"]
        command = java_command(self._jars, "cassandra", daemon, heap_mb=heap_mb, options=options)
        return ServerProcess(
            f"cassandra-{number}",
            ["prlimit", "--memlock=65536:65536", *command],
            folder,
            ready=lambda process: process.printed_since_start(_READY_LINE) and self._serves(host),
            # Root may lock memory: Cassandra then pins its whole heap and takes 800 MB instead of 235 MB.
            privileges=["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"] if os.geteuid() == 0 else [],
        )

    def _serves(self, host: str) -> bool:
        # Behind TLS the answer could only be read with certificates; that a connection is taken has to do.
        encrypted = self._conf.get("client_encryption_options", {}).get("enabled", False)
        return takes_connections(host, self.port) if encrypted else answers_cql(host, self.port)
