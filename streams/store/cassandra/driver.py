"""The names of cassandra-driver that this package uses, or one sentence on what to install."""

from agl_stream.errors import SettingError

try:
    from cassandra import ConsistencyLevel, DriverException, InvalidRequest, OperationTimedOut
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, ResponseFuture
    from cassandra.connection import ConnectionBusy
    from cassandra.policies import DCAwareRoundRobinPolicy, ExponentialReconnectionPolicy, RetryPolicy, TokenAwarePolicy
    from cassandra.query import BatchStatement, BatchType, BoundStatement, tuple_factory
except ImportError as error:
    raise SettingError(
        f"a cassandra:// state store needs cassandra-driver ({error}): `pip install agl-stream[cassandra]`"
    ) from None

__all__ = [
    "EXEC_PROFILE_DEFAULT",
    "BatchStatement",
    "BatchType",
    "BoundStatement",
    "Cluster",
    "ConnectionBusy",
    "ConsistencyLevel",
    "DCAwareRoundRobinPolicy",
    "DriverException",
    "ExecutionProfile",
    "ExponentialReconnectionPolicy",
    "InvalidRequest",
    "NoHostAvailable",
    "OperationTimedOut",
    "PlainTextAuthProvider",
    "ResponseFuture",
    "RetryPolicy",
    "TokenAwarePolicy",
    "tuple_factory",
]
