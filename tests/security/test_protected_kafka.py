"""A Kafka that asks for certificates and passwords: every client of ours gets in with them, and is told why without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from agl_stream.infra.servers.fixtures import running
from agl_stream.infra.servers.kafka import Kafka
from agl_stream.settings import ENV_PREFIX
from agl_stream.supervise import free_ports
from tests.security.certificates import Certificates, make_certificates

pytestmark = pytest.mark.engines

PASSWORD = 'a "strange" pass=word; with spaces'
AGENT = "async def agent(task):\n    return float(task['answer'])\n"


@dataclass(frozen=True)
class Protected:
    """Addresses by protocol, and the settings that open each."""

    addresses: dict[str, str]
    certificates: Certificates

    def environment(self, protocol: str, **changes: object) -> dict[str, str]:
        settings: dict[str, object] = {
            "bootstrap_servers": self.addresses[protocol],
            "kafka_security_protocol": protocol,
        }
        if protocol.endswith("SSL"):
            settings["kafka_ca_file"] = self.certificates.authority
        if protocol == "SSL":
            settings["kafka_certificate_file"] = self.certificates.client
            settings["kafka_key_file"] = self.certificates.client_key
        if protocol.startswith("SASL"):
            settings |= {"kafka_username": "agl", "kafka_password": PASSWORD}
        settings |= changes
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        return clean | {ENV_PREFIX + name.upper(): str(value) for name, value in settings.items()}


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    names = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")
    places = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True)}
    listeners = ",".join(["PLAINTEXT://127.0.0.1:{port}", *(f"{name}://{place}" for name, place in places.items())])
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    conf: dict[str, object] = {
        "listeners": listeners + ",CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *(f"{name}:{name}" for name in names)]
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    for name in ("sasl_ssl", "sasl_plaintext"):
        for mechanism in ("256", "512"):
            conf[f"listener.name.{name}.scram-sha-{mechanism}.sasl.jaas.config"] = jaas
    with running("kafka", lambda folder: Kafka(folder, conf=conf)) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            added = UserScramCredentialUpsertion("agl", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([added])["agl"].result(20)
        allowed = [
            AclBinding(
                kind, "safe-", ResourcePatternType.PREFIXED, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW
            )
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
        ]
        for granted in admin.create_acls(allowed).values():
            granted.result(20)
        yield Protected(places, certificates)


def agl(*arguments: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(folder), *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=90)


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [("SSL", None), ("SASL_SSL", "SCRAM-SHA-512"), ("SASL_PLAINTEXT", "SCRAM-SHA-256")],
)
def test_a_rollout_goes_through_streams_and_runner_over_protected_links(
    protected: Protected, registry_url: str, tmp_path: Path, protocol: str, mechanism: str | None
) -> None:
    changes = {"registry_url": registry_url, "namespace": f"safe-{protocol.lower()}", "partitions": 2}
    if mechanism is not None:
        changes["kafka_sasl_mechanism"] = mechanism
    environment = protected.environment(protocol, **changes)
    (tmp_path / "own_agent.py").write_text(AGENT)
    for verb in (("topics", "apply"), ("schemas", "apply")):
        done = agl(*verb, environment=environment, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(tmp_path), *arguments],
            env=environment,
            cwd=tmp_path,
            stderr=(tmp_path / f"{arguments[0]}.log").open("wb"),
        )
        for arguments in (("streams",), ("runner", "own_agent.py:agent"))
    ]
    try:
        task = json.dumps({"answer": 0.75})
        produced = subprocess.run(
            [sys.executable, "-m", "agl_stream.cli.main", "--dir", str(tmp_path), "produce", "-"],
            input=task + "\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert produced.returncode == 0, produced.stderr
        deadline = time.monotonic() + 90
        while not (found := _finished(environment, tmp_path)):
            assert time.monotonic() < deadline, (tmp_path / "streams.log").read_text()[-3000:]
            assert all(process.poll() is None for process in processes), (tmp_path / "runner.log").read_text()[-3000:]
            time.sleep(0.3)
        assert found == {"succeeded": 1}
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(40)


def _finished(environment: dict[str, str], folder: Path) -> dict[str, Any] | None:
    done = agl("status", "--output", "json", environment=environment, folder=folder)
    if done.returncode != 0:
        return None
    rollouts = json.loads(done.stdout)["rollouts"]
    return rollouts if rollouts.get("succeeded") or rollouts.get("failed") else None


@pytest.mark.parametrize(
    "verb", [("topics", "plan"), ("streams", "--only", "lifecycle"), ("runner", "own_agent.py:agent")]
)
def test_a_wrong_password_is_told_at_once(
    protected: Protected, registry_url: str, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    environment = protected.environment("SASL_SSL", kafka_password="not this one", registry_url=registry_url)
    (tmp_path / "own_agent.py").write_text(AGENT)
    assert agl("schemas", "apply", environment=environment, folder=tmp_path).returncode == 0
    started = time.monotonic()
    done = agl(*verb, environment=environment, folder=tmp_path)
    assert done.returncode == 3, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "as user 'agl'" in last and "AGL_STREAM_KAFKA_" in last
    assert "not this one" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 30


def test_topics_of_a_namespace_without_rights_are_refused(protected: Protected, tmp_path: Path) -> None:
    environment = protected.environment("SASL_SSL", namespace="foreign")
    done = agl("topics", "apply", environment=environment, folder=tmp_path)
    assert done.returncode not in (0, 2), done.stdout
    assert "foreign." in done.stderr and "uthorization" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_of_another_authority_is_not_trusted(protected: Protected, tmp_path: Path) -> None:
    environment = protected.environment("SASL_SSL", kafka_ca_file=protected.certificates.other_authority)
    done = agl("topics", "plan", environment=environment, folder=tmp_path)
    assert done.returncode == 3
    assert "certificate" in done.stderr and "AGL_STREAM_KAFKA_" in done.stderr


def test_a_client_of_another_authority_is_not_let_in(protected: Protected, tmp_path: Path) -> None:
    environment = protected.environment(
        "SSL",
        kafka_certificate_file=protected.certificates.stranger,
        kafka_key_file=protected.certificates.stranger_key,
        connect_timeout_seconds=5,
    )
    done = agl("topics", "plan", environment=environment, folder=tmp_path)
    assert done.returncode == 3, done.stderr


def test_a_client_without_encryption_is_not_let_in(protected: Protected, tmp_path: Path) -> None:
    environment = protected.environment(
        "SASL_SSL", kafka_security_protocol="SASL_PLAINTEXT", kafka_ca_file="", connect_timeout_seconds=3
    )
    done = agl("topics", "plan", environment=environment, folder=tmp_path)
    assert done.returncode == 3, done.stderr
