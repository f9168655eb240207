"""Connection settings: what they become for each client, and that contradictions are told before anything connects."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from agl_stream import connections
from agl_stream.errors import SettingError
from agl_stream.settings import Settings
from tests.security.certificates import make_certificates


def test_without_protection_only_the_address_is_given() -> None:
    settings = Settings(bootstrap_servers="one:1,two:2")
    assert connections.librdkafka(settings) == {"bootstrap.servers": "one:1,two:2"}
    assert connections.aiokafka(settings) == {"bootstrap_servers": "one:1,two:2", "security_protocol": "PLAINTEXT"}
    assert connections.faust(settings) == {"broker": ["kafka://one:1", "kafka://two:2"]}
    assert connections.registry_config(settings) == {"url": settings.registry_url}


def test_every_client_gets_user_authority_and_certificate(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    settings = Settings(
        kafka_security_protocol="SASL_SSL",
        kafka_username="u",
        kafka_password="p",
        kafka_ca_file=str(files.authority),
        kafka_certificate_file=str(files.client),
        kafka_key_file=str(files.client_key),
    )
    assert connections.librdkafka(settings) == {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": str(files.authority),
        "ssl.certificate.location": str(files.client),
        "ssl.key.location": str(files.client_key),
    }
    arguments = connections.aiokafka(settings)
    context = arguments.pop("ssl_context")
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert arguments == {
        "bootstrap_servers": settings.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    credentials = connections.faust(settings)["broker_credentials"]
    assert (credentials.username, credentials.password) == ("u", "p")
    assert credentials.mechanism.value == "SCRAM-SHA-512"
    assert credentials.protocol.value == "SASL_SSL"
    assert credentials.ssl_context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"kafka_security_protocol": "SASL_SSL"}, "needs AGL_STREAM_KAFKA_USERNAME"),
        ({"kafka_security_protocol": "SASL_SSL", "kafka_username": "u"}, "AGL_STREAM_KAFKA_PASSWORD"),
        ({"kafka_username": "u", "kafka_password": "p"}, "which has no users"),
        ({"kafka_ca_file": "/nowhere"}, "no encryption"),
        ({"kafka_security_protocol": "SSL", "kafka_ca_file": "/nowhere"}, "is not a file"),
        ({"kafka_security_protocol": "SSL", "kafka_certificate_file": __file__}, "belong together"),
    ],
)
def test_contradictions_are_told_with_the_setting(values: dict[str, Any], told: str) -> None:
    for client in (connections.librdkafka, connections.aiokafka, connections.faust):
        with pytest.raises(SettingError, match="AGL_STREAM_KAFKA") as error:
            client(Settings(**values))
        assert told in str(error.value)


def test_a_file_that_is_no_certificate_is_told() -> None:
    settings = Settings(kafka_security_protocol="SSL", kafka_ca_file=__file__)
    with pytest.raises(SettingError, match="AGL_STREAM_KAFKA_CA_FILE"):
        connections.aiokafka(settings)


def test_registry_credentials() -> None:
    settings = Settings(registry_username="u", registry_password="p:q")
    assert connections.registry_config(settings)["basic.auth.user.info"] == "u:p:q"
    with pytest.raises(SettingError, match="AGL_STREAM_REGISTRY_USERNAME"):
        connections.registry_config(Settings(registry_password="p"))
    with pytest.raises(SettingError, match="AGL_STREAM_REGISTRY_CA_FILE"):
        connections.registry_config(Settings(registry_ca_file="/nowhere"))


def test_an_unknown_protocol_is_refused_by_the_settings() -> None:
    with pytest.raises(SettingError, match="PLAINTEXT, SSL"):
        Settings.load(kafka_security_protocol="TLS")
