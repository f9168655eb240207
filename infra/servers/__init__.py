"""The engines that people deploy, run on this machine: Apache Kafka, Kafka Connect, Cassandra, Apicurio, PostgreSQL.

Jars come from Maven (`fetch`), once for a machine; PostgreSQL is the system's. Each engine is an `Engine`: a folder,
nodes that are processes, addresses on loopback that stay over restarts. Nodes end with the process that started them.
`fixtures` has them for pytest; `agl-stream engines` for the command line.
"""

from agl_stream.infra.servers.apicurio import Apicurio
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.components import FetchFailed
from agl_stream.infra.servers.connect import Connect
from agl_stream.infra.servers.engine import Engine
from agl_stream.infra.servers.fetch import fetch
from agl_stream.infra.servers.home import EnginesHome
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.infra.servers.postgres import Postgres
from agl_stream.infra.servers.process import ServerFailed, ServerProcess
from agl_stream.infra.servers.tools import ToolMissing

__all__ = [
    "Apicurio",
    "Cassandra",
    "Connect",
    "Engine",
    "EnginesHome",
    "FetchFailed",
    "Kafka",
    "Postgres",
    "ServerFailed",
    "ServerProcess",
    "ToolMissing",
    "fetch",
]
