"""A Cassandra that asks for a password and a certificate over TLS: with them the store gets in, without it says why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agl_stream.errors import EngineUnreachable, SettingError
from agl_stream.infra.servers.cassandra import Cassandra
from agl_stream.infra.servers.fixtures import running
from agl_stream.settings import Settings
from agl_stream.streams.store import open_store
from tests.security.certificates import Certificates, make_certificates
from tests.security.test_protected_kafka import agl

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def settings(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings that open the protected Cassandra."""
    conf = {
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "client_encryption_options": {
            "enabled": True,
            "optional": False,
            "require_client_auth": True,
            "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
            "keystore": str(certificates.server),
            "truststore": str(certificates.authority),
        },
    }
    with running("cassandra", lambda folder: Cassandra(folder, conf=conf)) as engine:
        yield Settings(
            dir=str(tmp_path_factory.mktemp("data")),
            store_url=f"cassandra://{engine.contact_points}/protected",
            store_username="cassandra",
            store_password="cassandra",
            store_tls=True,
            store_ca_file=str(certificates.authority),
            store_certificate_file=str(certificates.client),
            store_key_file=str(certificates.client_key),
            connect_timeout_seconds=8.0,
        )


def _environment(settings: Settings) -> dict[str, str]:
    names = [name for name in settings.__dataclass_fields__ if name.startswith("store_")]
    given = {f"AGL_STREAM_{name.upper()}": str(getattr(settings, name)) for name in names}
    return {**os.environ, **given, "AGL_STREAM_CONNECT_TIMEOUT_SECONDS": "8"}


def test_the_store_is_set_up_and_read_over_tls_with_a_password(settings: Settings, tmp_path: Path) -> None:
    done = agl("store", "apply", environment=_environment(settings), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with closing(open_store(settings)) as store:
        assert store.counts()["rollouts"] == 0
        assert store.get_rollout("ro-nobody") is None


def test_a_wrong_password_is_told(settings: Settings, tmp_path: Path) -> None:
    environment = _environment(replace(settings, store_password="not this one"))
    done = agl("store", "plan", environment=environment, folder=tmp_path)
    assert done.returncode != 0
    assert "refuses the user" in done.stderr and "AGL_STREAM_STORE_USERNAME" in done.stderr
    assert "not this one" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["plain", "other authority", "stranger"])
def test_without_the_right_certificates_nobody_gets_in(
    settings: Settings, certificates: Certificates, what: str
) -> None:
    wrong = {
        "plain": replace(settings, store_tls=False, store_ca_file="", store_certificate_file="", store_key_file=""),
        "other authority": replace(settings, store_ca_file=str(certificates.other_authority)),
        "stranger": replace(
            settings,
            store_certificate_file=str(certificates.stranger),
            store_key_file=str(certificates.stranger_key),
        ),
    }[what]
    with pytest.raises(EngineUnreachable, match="AGL_STREAM_STORE_TLS"):
        open_store(wrong)


def test_contradictions_are_told(settings: Settings) -> None:
    for wrong, told in (
        (replace(settings, store_tls=False), "AGL_STREAM_STORE_TLS"),
        (replace(settings, store_password=""), "AGL_STREAM_STORE_PASSWORD"),
        (replace(settings, store_ca_file="/nowhere"), "AGL_STREAM_STORE_CA_FILE"),
    ):
        with pytest.raises(SettingError, match=told):
            open_store(wrong)
