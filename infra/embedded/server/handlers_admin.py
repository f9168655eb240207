"""CreateTopics, CreatePartitions, DeleteTopics and the topic settings."""

from __future__ import annotations

from collections.abc import Callable

from agl_stream.infra.embedded.protocol.errors import ErrorCode
from agl_stream.infra.embedded.protocol.wire import Message
from agl_stream.infra.embedded.server.node import Caller, Node
from agl_stream.infra.embedded.server.topics import TopicRefused

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
_CONFIG_TYPES: dict[type, int] = {bool: 1, str: 2, int: 5}
_LIST_SETTINGS = {"cleanup.policy", "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}


def create_topics(node: Node, request: Message, caller: Caller) -> Message:
    names = [topic["name"] for topic in request["topics"]]
    answers: list[Message] = []
    for topic in request["topics"]:
        name = topic["name"]
        try:
            if names.count(name) > 1:
                raise TopicRefused(ErrorCode.INVALID_REQUEST, f"topic {name} comes twice in the request")
            overrides = {config["name"]: config["value"] for config in topic["configs"]}
            partitions = node.catalogue.create(
                name, _wanted_partitions(node, topic), overrides, validate_only=request["validate_only"]
            )
        except TopicRefused as refusal:
            answers.append({"name": name, "error_code": refusal.error, "error_message": str(refusal)})
            continue
        settings = [
            {key: value for key, value in setting.items() if key in ("name", "value", "read_only", "config_source")}
            for setting in _settings(node, overrides)
        ]
        answers.append({"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings})
    return {"topics": answers}


def _wanted_partitions(node: Node, topic: Message) -> int:
    """Partition count, from the count or from a replica assignment to this only broker."""
    assignments = topic["assignments"]
    if not assignments:
        if topic["replication_factor"] not in (-1, 1):
            raise TopicRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {topic['replication_factor']}: the embedded broker is one node, use 1 or -1",
            )
        return topic["num_partitions"]
    numbers = sorted(assignment["partition_index"] for assignment in assignments)
    only_here = all(tuple(assignment["broker_ids"]) == (node.config.node_id,) for assignment in assignments)
    if not only_here or numbers != list(range(len(numbers))):
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"every partition must be assigned to broker {node.config.node_id} once",
        )
    return len(assignments)


def create_partitions(node: Node, request: Message, caller: Caller) -> Message:
    answers: list[Message] = []
    for topic in request["topics"]:
        answer: Message = {"name": topic["name"]}
        _guard(
            answer,
            lambda topic=topic: node.catalogue.add_partitions(
                topic["name"], topic["count"], validate_only=request["validate_only"]
            ),
        )
        answers.append(answer)
    return {"results": answers}


def delete_topics(node: Node, request: Message, caller: Caller) -> Message:
    answers: list[Message] = []
    for name in request["topic_names"]:
        answer: Message = {"name": name}
        _guard(answer, lambda name=name: node.delete_topic(name))
        answers.append(answer)
    return {"responses": answers}


def _guard(answer: Message, change: Callable[[], None]) -> None:
    """Make a change, or put the reason against it into the answer."""
    try:
        change()
    except TopicRefused as refusal:
        answer.update(error_code=refusal.error, error_message=str(refusal))


def describe_configs(node: Node, request: Message, caller: Caller) -> Message:
    return {"results": [_describe(node, resource) for resource in request["resources"]]}


def _describe(node: Node, resource: Message) -> Message:
    answer: Message = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
    try:
        if resource["resource_type"] == TOPIC_RESOURCE:
            settings = _settings(node, node.catalogue.require(resource["resource_name"]).overrides)
        elif resource["resource_type"] == BROKER_RESOURCE:
            settings = _broker_settings(node, resource["resource_name"])
        else:
            raise TopicRefused(ErrorCode.INVALID_REQUEST, "only topics and the broker have settings here")
    except TopicRefused as refusal:
        return answer | {"error_code": refusal.error, "error_message": str(refusal)}
    keys = resource["configuration_keys"]
    return answer | {"configs": [setting for setting in settings if keys is None or setting["name"] in keys]}


def _settings(node: Node, overrides: dict[str, str]) -> list[Message]:
    defaults = node.config.topic_defaults
    return [
        {
            "name": name,
            "value": overrides.get(name, default),
            "config_source": SOURCE_TOPIC if name in overrides else SOURCE_DEFAULT,
            "is_default": name not in overrides,
            "read_only": False,
        }
        for name, default in sorted(defaults.items())
    ]


def _broker_settings(node: Node, name: str) -> list[Message]:
    config = node.config
    if name not in ("", str(config.node_id)):
        raise TopicRefused(ErrorCode.INVALID_REQUEST, f"this is broker {config.node_id}, not {name}")
    values: dict[str, bool | int | str] = {
        "advertised.listeners": f"PLAINTEXT://{node.host}:{node.port}",
        "auto.create.topics.enable": config.auto_create_topics,
        "broker.id": config.node_id,
        "connections.max.idle.ms": int(config.connection_idle_seconds * 1000),
        "default.replication.factor": 1,
        "fetch.max.bytes": config.fetch_max_bytes,
        "group.initial.rebalance.delay.ms": config.group_initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": config.group_max_session_timeout_ms,
        "group.max.size": config.group_max_size,
        "group.min.session.timeout.ms": config.group_min_session_timeout_ms,
        "log.dirs": str(node.folder),
        "log.retention.check.interval.ms": int(config.housekeeping_seconds * 1000),
        "log.retention.ms": config.retention_ms,
        "log.segment.bytes": config.segment_bytes,
        "max.connection.creation.rate": _or_no_limit(config.max_connection_rate),
        "max.connections": config.max_connections,
        "max.connections.per.ip": _or_no_limit(config.max_connections_per_ip),
        "message.max.bytes": config.max_message_bytes,
        "num.partitions": config.default_partitions,
        "offset.metadata.max.bytes": config.offset_metadata_max_bytes,
        "offsets.retention.minutes": config.offsets_retention_ms // 60_000,
        "producer.id.expiration.ms": config.producer_id_expiration_ms,
        "queued.max.request.bytes": config.queued_max_request_bytes,
        "socket.request.max.bytes": config.max_request_bytes,
        "transaction.max.timeout.ms": config.transaction_max_timeout_ms,
        "transactional.id.expiration.ms": config.transactional_id_expiration_ms,
    }
    return [
        {
            "name": key,
            "value": str(value).lower() if isinstance(value, bool) else str(value),
            "config_source": SOURCE_STATIC_BROKER,
            "config_type": _CONFIG_TYPES[type(value)],
            "read_only": True,
        }
        for key, value in values.items()
    ]


def _or_no_limit(value: float | None) -> int:
    """Kafka's way to say that there is no limit."""
    return 2**31 - 1 if value is None else int(value)


def alter_configs(node: Node, request: Message, caller: Caller) -> Message:
    """Replace the settings of topics."""
    return _alter(node, request, lambda name, configs: {config["name"]: config["value"] for config in configs})


def incremental_alter_configs(node: Node, request: Message, caller: Caller) -> Message:
    """Change single settings of topics."""
    return _alter(node, request, lambda name, configs: _incremented(node, name, configs))


def _alter(node: Node, request: Message, change: Callable[[str, list[Message]], dict[str, str | None]]) -> Message:
    answers: list[Message] = []
    for resource in request["resources"]:
        name = resource["resource_name"]
        answer: Message = {"resource_type": resource["resource_type"], "resource_name": name}
        try:
            if resource["resource_type"] != TOPIC_RESOURCE:
                raise TopicRefused(ErrorCode.INVALID_REQUEST, "only the settings of topics can be changed at run time")
            overrides = change(name, resource["configs"])
            node.catalogue.configure(name, overrides, validate_only=request["validate_only"])
        except TopicRefused as refusal:
            answer.update(error_code=refusal.error, error_message=str(refusal))
        answers.append(answer)
    return {"responses": answers}


def _incremented(node: Node, name: str, configs: list[Message]) -> dict[str, str | None]:
    overrides: dict[str, str | None] = dict(node.catalogue.require(name).overrides)
    for config in configs:
        key, operation, value = config["name"], config["config_operation"], config["value"]
        if operation == SET:
            overrides[key] = value
        elif operation == DELETE:
            overrides.pop(key, None)
        elif operation in (APPEND, SUBTRACT) and key in _LIST_SETTINGS:
            present = (overrides.get(key) or node.config.topic_defaults[key]).split(",")
            given = (value or "").split(",")
            kept = [item for item in present if item and item not in given]
            overrides[key] = ",".join(kept + given if operation == APPEND else kept)
        else:
            raise TopicRefused(ErrorCode.INVALID_CONFIG, f"operation {operation} does not fit the setting {key}")
    return overrides
