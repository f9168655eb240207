"""How clients reach Kafka and the schema registry: addresses, encryption, credentials.

Every client of this package takes its connection from here, so that a protected cluster is a matter of settings
alone. Raises SettingError where settings contradict each other or name a file that is not there; a client would
only say much later that it could not connect.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl_stream.errors import AccessRefused, EngineUnreachable, SettingError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from agl_stream.schemas.registry import RegistryClient
    from agl_stream.settings import Settings

_SLICE_SECONDS = 0.5


def librdkafka(settings: Settings) -> dict[str, Any]:
    """Connection part of a confluent-kafka client's configuration."""
    _check_kafka(settings)
    protocol = settings.kafka_security_protocol
    config: dict[str, Any] = {"bootstrap.servers": settings.bootstrap_servers}
    if protocol == "PLAINTEXT":
        return config
    config["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        config["sasl.mechanism"] = settings.kafka_sasl_mechanism
        config["sasl.username"] = settings.kafka_username
        config["sasl.password"] = settings.kafka_password
    if protocol.endswith("SSL"):
        files = {
            "ssl.ca.location": settings.kafka_ca_file,
            "ssl.certificate.location": settings.kafka_certificate_file,
            "ssl.key.location": settings.kafka_key_file,
            "ssl.key.password": settings.kafka_key_password,
        }
        config.update({name: value for name, value in files.items() if value})
    return config


class Refusal:
    """Part of an ``error_cb``: remembers that the cluster does not let this client in, which the errors of its calls
    do not tell from a broker that is away."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._said: str | None = None

    def note(self, error: KafkaError) -> None:
        """Take an error that the client reports."""
        if error.code() in (error._AUTHENTICATION, error._SSL):
            self._said = error.str()

    def check(self) -> None:
        """Raise AccessRefused when the cluster has refused this client."""
        if self._said is not None:
            raise access_refused(self._settings, self._said)


def first_answer(client: Any, settings: Settings, refusal: Refusal) -> Any:
    """Metadata of the cluster that ``client``, a confluent-kafka client which reports errors to ``refusal``, reaches.

    Blocks up to ``connect_timeout_seconds``; raises EngineUnreachable when no broker answers by then, AccessRefused as
    soon as one does not let this client in.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + settings.connect_timeout_seconds
    while True:
        # In slices, because a Ctrl-C is only seen between calls into the client.
        try:
            return client.list_topics(timeout=max(0.01, min(_SLICE_SECONDS, deadline - time.monotonic())))
        except KafkaException as error:
            client.poll(0)
            refusal.check()
            if time.monotonic() >= deadline:
                raise EngineUnreachable(
                    f"no Kafka broker answers at {settings.bootstrap_servers} within "
                    f"{settings.connect_timeout_seconds:g} s ({error.args[0].str()}); start one with `agl-stream up`, "
                    "or set AGL_STREAM_BOOTSTRAP_SERVERS (--bootstrap-servers)"
                ) from None


def access_refused(settings: Settings, said: object) -> AccessRefused:
    """The error to raise when Kafka does not let this client in."""
    protocol = settings.kafka_security_protocol
    user = f" as user {settings.kafka_username!r}" if protocol.startswith("SASL") else ""
    return AccessRefused(
        f"Kafka at {settings.bootstrap_servers} does not accept this client over {protocol}{user} ({said}); "
        "check the settings AGL_STREAM_KAFKA_*"
    )


def aiokafka(settings: Settings) -> dict[str, Any]:
    """Connection part of an aiokafka client's keyword arguments."""
    _check_kafka(settings)
    protocol = settings.kafka_security_protocol
    arguments: dict[str, Any] = {"bootstrap_servers": settings.bootstrap_servers, "security_protocol": protocol}
    if protocol.startswith("SASL"):
        arguments["sasl_mechanism"] = settings.kafka_sasl_mechanism
        arguments["sasl_plain_username"] = settings.kafka_username
        arguments["sasl_plain_password"] = settings.kafka_password
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _kafka_ssl_context(settings)
    return arguments


def faust(settings: Settings) -> dict[str, Any]:
    """Connection part of a Faust application's keyword arguments."""
    from faust.auth import SASLCredentials, SSLCredentials

    _check_kafka(settings)
    protocol = settings.kafka_security_protocol
    arguments: dict[str, Any] = {"broker": [f"kafka://{server}" for server in settings.bootstrap_servers.split(",")]}
    context = _kafka_ssl_context(settings) if protocol.endswith("SSL") else None
    if protocol.startswith("SASL"):
        arguments["broker_credentials"] = SASLCredentials(
            username=settings.kafka_username,
            password=settings.kafka_password,
            mechanism=settings.kafka_sasl_mechanism,
            ssl_context=context,
        )
    elif context is not None:
        arguments["broker_credentials"] = SSLCredentials(context)
    return arguments


def registry_config(settings: Settings) -> dict[str, Any]:
    """Configuration of confluent-kafka's SchemaRegistryClient."""
    config: dict[str, Any] = {"url": settings.registry_url}
    if settings.registry_username:
        config["basic.auth.user.info"] = f"{settings.registry_username}:{settings.registry_password}"
    elif settings.registry_password:
        raise SettingError("AGL_STREAM_REGISTRY_PASSWORD is set and AGL_STREAM_REGISTRY_USERNAME is not")
    if settings.registry_ca_file:
        config["ssl.ca.location"] = _existing("registry_ca_file", settings.registry_ca_file)
    return config


def registry_client(settings: Settings, *, register: bool | None = None) -> RegistryClient:
    """The registry that holds the event schemas of the settings' namespace.

    ``register``: whether schemas that it lacks are registered; None: as the setting register_schemas says.
    """
    from agl_stream.schemas.registry import RegistryClient

    return RegistryClient(
        settings.registry_url,
        namespace=settings.namespace,
        register=settings.register_schemas if register is None else register,
        config=registry_config(settings),
    )


def _check_kafka(settings: Settings) -> None:
    protocol = settings.kafka_security_protocol
    for name in ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file"):
        value = getattr(settings, name)
        if value and not protocol.endswith("SSL"):
            raise SettingError(
                f"{_variable(name)} is set and AGL_STREAM_KAFKA_SECURITY_PROTOCOL is {protocol}, which has no "
                "encryption: use SSL or SASL_SSL"
            )
        if value:
            _existing(name, value)
    if bool(settings.kafka_certificate_file) != bool(settings.kafka_key_file):
        raise SettingError(
            "AGL_STREAM_KAFKA_CERTIFICATE_FILE and AGL_STREAM_KAFKA_KEY_FILE belong together: set both or neither"
        )
    given = bool(settings.kafka_username), bool(settings.kafka_password)
    if protocol.startswith("SASL") and not all(given):
        raise SettingError(
            f"AGL_STREAM_KAFKA_SECURITY_PROTOCOL={protocol} needs AGL_STREAM_KAFKA_USERNAME and "
            "AGL_STREAM_KAFKA_PASSWORD"
        )
    if any(given) and not protocol.startswith("SASL"):
        raise SettingError(
            "AGL_STREAM_KAFKA_USERNAME or AGL_STREAM_KAFKA_PASSWORD is set and "
            f"AGL_STREAM_KAFKA_SECURITY_PROTOCOL is {protocol}, which has no users: use SASL_SSL (or SASL_PLAINTEXT)"
        )


def _kafka_ssl_context(settings: Settings) -> ssl.SSLContext:
    return ssl_context(
        "AGL_STREAM_KAFKA",
        ca_file=settings.kafka_ca_file,
        certificate_file=settings.kafka_certificate_file,
        key_file=settings.kafka_key_file,
        key_password=settings.kafka_key_password,
    )


def ssl_context(
    prefix: str, *, ca_file: str, certificate_file: str = "", key_file: str = "", key_password: str = ""
) -> ssl.SSLContext:
    """A client's context that verifies the server and its host name. Without a CA file the system's are trusted.

    Raises SettingError, which names ``prefix``, for files that do not parse.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file or None, key_password or None)
    except (ssl.SSLError, OSError) as error:
        raise SettingError(
            f"the files of {prefix}_CA_FILE, {prefix}_CERTIFICATE_FILE and {prefix}_KEY_FILE cannot be used: {error}"
        ) from None
    return context


def _existing(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise SettingError(f"{_variable(name)}={path} is not a file")
    return path


def _variable(name: str) -> str:
    return f"AGL_STREAM_{name.upper()}"
