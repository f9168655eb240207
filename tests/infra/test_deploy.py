"""The compose file and the Kubernetes manifests are what their schemas allow, and say what this version understands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml

from agl_stream.cli.main import ONE_LINE_HELP, cli
from agl_stream.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "infra" / "compose" / "compose.yaml"
KUBERNETES = ROOT / "infra" / "kubernetes"
SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES_VERSION = "1.34"
SETTINGS = {f"AGL_STREAM_{spec.name.upper()}" for spec in fields(Settings)}

Manifest = dict[str, Any]


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def manifests() -> list[tuple[str, Manifest]]:
    """(file/kind/name, document) of everything that kustomization.yaml lists."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    found = []
    for name in listed:
        for document in yaml.safe_load_all((KUBERNETES / name).read_text()):
            found.append((f"{name}:{document['kind']}/{document['metadata']['name']}", document))
    return found


MANIFESTS = dict(manifests())
SERVICES = compose()["services"]


def pod_spec(manifest: Manifest) -> dict[str, Any] | None:
    return manifest.get("spec", {}).get("template", {}).get("spec") if manifest["kind"] != "KafkaConnect" else None


def our_containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for where, manifest in MANIFESTS.items():
        pod = pod_spec(manifest) or {}
        for container in [*pod.get("initContainers", []), *pod.get("containers", [])]:
            if container["image"].startswith("agl-stream"):
                yield f"{where}/{container['name']}", container


CONTAINERS = dict(our_containers())


# what the schemas say


def test_compose_file_is_what_its_specification_allows() -> None:
    schema = json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(compose(), schema)
    wrong = compose()
    wrong["services"]["kafka"]["helthcheck"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def strimzi_schema(kind: str) -> dict[str, Any]:
    schema = json.loads((SCHEMAS / "strimzi.json").read_text())
    return {**schema["kinds"][kind], "$defs": schema["$defs"]}


def check(manifest: Manifest) -> None:
    api = manifest["apiVersion"]
    if api.startswith("kafka.strimzi.io/"):
        assert api == "kafka.strimzi.io/v1"
        jsonschema.validate(manifest, strimzi_schema(manifest["kind"]))
    elif api.startswith("k8ssandra.io/"):
        jsonschema.validate(manifest, json.loads((SCHEMAS / "k8ssandra.json").read_text()))
    else:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("where", MANIFESTS)
def test_manifest_is_what_its_schema_allows(where: str) -> None:
    check(MANIFESTS[where])


@pytest.mark.parametrize("where", MANIFESTS)
def test_schema_refuses_a_field_that_it_does_not_know(where: str) -> None:
    """A check that lets everything through would be none."""
    manifest = MANIFESTS[where]
    part = "data" if manifest["kind"] == "ConfigMap" else "spec"
    wrong = {**manifest, part: {**manifest.get(part, {}), "replicaz": {"no": ["such", "field"]}}}
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(wrong)


def test_every_manifest_file_is_listed() -> None:
    listed = {where.partition(":")[0] for where in MANIFESTS}
    assert listed == {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.engines
def test_strimzi_schema_is_what_its_api_classes_say(tmp_path: Path) -> None:
    made = tmp_path / "strimzi.json"
    subprocess.run([sys.executable, str(SCHEMAS / "make.py"), str(made)], check=True)
    assert made.read_text() == (SCHEMAS / "strimzi.json").read_text()


# what our command line understands


def parsed(command: list[str]) -> None:
    """Raises UsageError where `agl-stream COMMAND` would; runs nothing."""
    assert command, "no command"
    assert command[0] in ONE_LINE_HELP, command
    context = cli.make_context("agl-stream", list(command))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, verb, arguments = context.command.resolve_command(context, rest)
        assert verb is not None
        with without_files(verb):
            context = verb.make_context(name, arguments, parent=context)


class without_files:
    """Paths of a container are not here: their types take any text meanwhile."""

    def __init__(self, verb: click.Command) -> None:
        self.changed = [p.type for p in verb.params if isinstance(p.type, click.Path) and p.type.exists]

    def __enter__(self) -> None:
        for kind in self.changed:
            kind.exists = False

    def __exit__(self, *_: object) -> None:
        for kind in self.changed:
            kind.exists = True


def plain(text: str) -> str:
    """A compose value with the defaults of its variables."""
    return re.sub(r"\$\{\w+:[-?]([^}]*)\}", r"\1", text)


def commands() -> dict[str, list[str]]:
    found = {}
    for name, service in SERVICES.items():
        if "infra/compose/Dockerfile" in str(service.get("build")):
            found[f"compose:{name}"] = [plain(str(word)) for word in service["command"]]
            test = service.get("healthcheck", {}).get("test", ["NONE"])
            if test[:2] == ["CMD", "agl-stream"]:
                found[f"compose:{name}:health"] = test[2:]
    for where, container in CONTAINERS.items():
        found[where] = container["args"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            command = container.get(probe, {}).get("exec", {}).get("command")
            if command:
                assert command[0] == "agl-stream"
                found[f"{where}:{probe}"] = command[1:]
    return found


COMMANDS = commands()


@pytest.mark.parametrize("where", COMMANDS)
def test_command_line_is_understood(where: str) -> None:
    parsed(COMMANDS[where])


def test_a_wrong_command_line_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parsed(["streams", "--onlyy", "sink"])


def test_every_part_of_the_system_runs_in_both() -> None:
    """The same processes, and their set-up from the catalogue, wherever they run."""
    wanted = {"topics apply", "schemas apply", "store apply", "gateway", "runner", "serve", "trainer"}
    wanted |= {f"streams --only {parts}" for parts in ("lifecycle,watchdog", "sink", "joiner")}
    for origin in ("compose:", ""):
        said = {" ".join(c[:3]) for where, c in COMMANDS.items() if where.startswith("compose:") == bool(origin)}
        missing = [want for want in wanted if not any(f"{line} ".startswith(want + " ") for line in said)]
        assert not missing, f"{origin or 'kubernetes'}: {missing}"


def test_every_setting_named_exists() -> None:
    text = "".join(path.read_text() for path in [COMPOSE, *KUBERNETES.glob("*.yaml"), *COMPOSE.parent.glob("*ocker*")])
    assert set(re.findall(r"AGL_STREAM_[A-Z_]*[A-Z]", text)) <= SETTINGS


# what keeps a deployment alive and apart


def test_services_are_bounded_checked_and_bound_to_loopback() -> None:
    for name, service in SERVICES.items():
        assert "memory" in str(service["deploy"]["resources"]["limits"]), name
        assert service.get("restart"), name
        if service["restart"] != "no":
            assert service["healthcheck"]["test"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} listens beyond loopback: {port}"
        assert "latest" not in service["image"] and ":" in service["image"].split("}")[0], name


def test_services_wait_for_the_health_of_what_they_use() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            set_up = SERVICES[other].get("restart") == "no"
            assert how["condition"] == ("service_completed_successfully" if set_up else "service_healthy"), name


def test_secrets_are_given_and_never_written() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("TOKEN|PASSWORD|KEY", variable):
                assert str(value).startswith("${"), f"{name}: {variable}"
    assert ":?" in str(SERVICES["gateway"]["environment"]["AGL_STREAM_GATEWAY_TOKEN"]), "must be given, or none starts"
    for where, container in CONTAINERS.items():
        for entry in container.get("env", []):
            if re.search("TOKEN|PASSWORD|API_KEY", entry["name"]):
                assert "secretKeyRef" in entry["valueFrom"], f"{where}: {entry['name']}"


def test_pods_of_ours_are_unprivileged_and_bounded() -> None:
    for where, manifest in MANIFESTS.items():
        pod = pod_spec(manifest)
        if pod is None:
            continue
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"], where
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert not container["securityContext"]["allowPrivilegeEscalation"], where
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, where
            assert "memory" in container["resources"]["limits"], where
            if manifest["kind"] != "Job":
                assert "readinessProbe" in container, where


def test_what_selects_pods_selects_some() -> None:
    """Services, budgets and policies by label: a wrong one would be silent."""
    pods = [m["spec"]["template"]["metadata"]["labels"] for m in MANIFESTS.values() if pod_spec(m)]

    def matches(selector: dict[str, str]) -> bool:
        return any(selector.items() <= labels.items() for labels in pods)

    for where, manifest in MANIFESTS.items():
        if manifest["kind"] == "Service":
            assert matches(manifest["spec"]["selector"]), where
        elif manifest["kind"] == "PodDisruptionBudget":
            assert matches(manifest["spec"]["selector"]["matchLabels"]), where
        elif manifest["kind"] == "NetworkPolicy" and where != "network.yaml:NetworkPolicy/agl-cassandra":
            assert matches(manifest["spec"]["podSelector"]["matchLabels"]), where


@pytest.mark.parametrize("dockerfile", sorted(COMPOSE.parent.glob("*ockerfile")), ids=lambda path: path.name)
def test_dockerfile_copies_what_is_there(dockerfile: Path) -> None:
    for line in dockerfile.read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            for source in sources:
                assert (ROOT / source).exists(), f"{dockerfile.name}: {source}"
