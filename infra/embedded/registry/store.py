"""What the registry knows: schemas by id, versions of subjects, compatibility levels, modes; kept in one journal.

Every change is one line of `registry.jsonl`, on disk before it is answered. Ids and version numbers are never
given twice, also not after a deletion. Errors carry the codes of Confluent's registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agl_stream.infra.embedded.journal import Journal
from agl_stream.infra.embedded.registry.compatibility import LEVELS, InvalidSchema, canonical, incompatibilities, parse

MODES = ("READWRITE", "READONLY")


class RegistryError(Exception):
    """An answer with an HTTP status and an error code."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(slots=True)
class Version:
    number: int
    schema_id: int
    deleted: bool = False


@dataclass(slots=True)
class Subject:
    name: str
    versions: list[Version] = field(default_factory=list)
    next_number: int = 1

    def visible(self, deleted: bool = False) -> list[Version]:
        return [version for version in self.versions if deleted or not version.deleted]


class SchemaStore:
    """All state of one registry folder. Methods that change something return when it is on disk."""

    def __init__(self, path: Path, *, default_level: str = "FULL_TRANSITIVE", read_only: bool = False) -> None:
        """Load the journal; raises DamagedFile. `read_only` refuses every change."""
        self._default_level = default_level
        self._read_only = read_only
        self._schemas: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._subjects: dict[str, Subject] = {}
        self._levels: dict[str | None, str] = {}
        self._modes: dict[str | None, str] = {}
        self._journal = Journal(path)
        for entry in self._journal.load():
            self._apply(entry)

    def _apply(self, entry: list[Any]) -> None:
        kind, *rest = entry
        if kind == "schema":
            schema_id, text = rest
            self._schemas[schema_id] = text
            self._ids[canonical(text)] = schema_id
        elif kind == "version":
            name, number, schema_id = rest
            subject = self._subjects.setdefault(name, Subject(name))
            subject.versions.append(Version(number, schema_id))
            subject.next_number = number + 1
        elif kind == "delete":
            name, numbers, permanent = rest
            subject = self._subjects[name]
            for version in subject.versions:
                version.deleted = version.deleted or version.number in numbers
            if permanent:
                subject.versions = [version for version in subject.versions if version.number not in numbers]
        elif kind in ("level", "mode"):
            name, value = rest
            target = self._levels if kind == "level" else self._modes
            if value is None:
                target.pop(name, None)
            else:
                target[name] = value

    def _record(self, *entries: list[Any]) -> None:
        self._journal.append(entries)
        self._journal.flush()
        for entry in entries:
            self._apply(entry)

    def close(self) -> None:
        self._journal.close()

    # Reading

    def text(self, schema_id: int) -> str:
        try:
            return self._schemas[schema_id]
        except KeyError:
            raise RegistryError(404, 40403, f"Schema {schema_id} not found") from None

    def subjects(self, deleted: bool = False) -> list[str]:
        return sorted(subject.name for subject in self._subjects.values() if subject.visible(deleted))

    def versions(self, name: str, deleted: bool = False) -> list[int]:
        return [version.number for version in self._require(name, deleted).visible(deleted)]

    def _require(self, name: str, deleted: bool = False) -> Subject:
        subject = self._subjects.get(name)
        if subject is None or not subject.visible(deleted):
            raise RegistryError(404, 40401, f"Subject '{name}' not found.")
        return subject

    def version(self, name: str, wanted: str, deleted: bool = False) -> Version:
        """By number, or "latest" (also -1)."""
        subject = self._require(name, deleted)
        visible = subject.visible(deleted)
        if wanted in ("latest", "-1"):
            return visible[-1]
        if not wanted.isdecimal() or not 1 <= int(wanted) < 2**31:
            raise RegistryError(
                422,
                42202,
                f"The specified version '{wanted}' is not a valid version id: a number from 1 on, or latest.",
            )
        for version in visible:
            if version.number == int(wanted):
                return version
        raise RegistryError(404, 40402, f"Version {wanted} not found.")

    def lookup(self, name: str, text: str, deleted: bool = False) -> Version:
        """The version of a subject that has this schema."""
        subject = self._require(name, deleted)
        schema_id = self._ids.get(self._canonical(text))
        for version in reversed(subject.visible(deleted)):
            if version.schema_id == schema_id:
                return version
        raise RegistryError(404, 40403, "Schema not found")

    def uses(self, schema_id: int, deleted: bool = False) -> list[tuple[str, int]]:
        """(subject, version) pairs that have the schema."""
        self.text(schema_id)
        return [
            (subject.name, version.number)
            for subject in self._subjects.values()
            for version in subject.visible(deleted)
            if version.schema_id == schema_id
        ]

    def level(self, name: str | None = None, *, own: bool = False) -> str:
        """Compatibility level of a subject, or the global one. `own`: error unless the subject has its own."""
        if name in self._levels:
            return self._levels[name]
        if own:
            raise RegistryError(404, 40408, f"Subject '{name}' does not have subject-level compatibility configured")
        return self._levels.get(None, self._default_level)

    def mode(self, name: str | None = None, *, own: bool = False) -> str:
        if self._read_only:
            return "READONLY"
        if name in self._modes:
            return self._modes[name]
        if own:
            raise RegistryError(404, 40409, f"Subject '{name}' does not have subject-level mode configured")
        return self._modes.get(None, "READWRITE")

    # Checking and changing

    def _canonical(self, text: str) -> str:
        try:
            return canonical(text)
        except InvalidSchema as error:
            raise RegistryError(422, 42201, f"Invalid schema: {error}") from error

    def compatibility(self, name: str, text: str, against: str | None = None) -> list[str]:
        """Why a schema may not be added to a subject; `against` compares with that version alone."""
        try:
            parse(text)
            subject = self._subjects.get(name)
            if against is None or (against in ("latest", "-1") and (subject is None or not subject.visible())):
                earlier = [] if subject is None else [self._schemas[v.schema_id] for v in subject.visible()]
            else:
                earlier = [self.text(self.version(name, against).schema_id)]
            return incompatibilities(self.level(name), text, earlier)
        except InvalidSchema as error:
            raise RegistryError(422, 42201, f"Invalid schema: {error}") from error

    def register(self, name: str, text: str) -> int:
        """The id of a schema under a subject; the same schema has the same id under every subject.

        A schema that the subject has already is answered also by a read-only registry.
        """
        key = self._canonical(text)
        schema_id = self._ids.get(key)
        subject = self._subjects.get(name)
        if subject is not None and any(version.schema_id == schema_id for version in subject.visible()):
            return schema_id or 0
        self._check_writable(name)
        faults = self.compatibility(name, text)
        if faults:
            raise RegistryError(
                409,
                409,
                f'Schema being registered is incompatible with an earlier schema for subject "{name}" '
                f"under the level {self.level(name)}: {'; '.join(faults)}",
            )
        entries: list[list[Any]] = []
        if schema_id is None:
            schema_id = max(self._schemas, default=0) + 1
            entries.append(["schema", schema_id, text])
        entries.append(["version", name, subject.next_number if subject else 1, schema_id])
        self._record(*entries)
        return schema_id

    def _check_writable(self, name: str | None) -> None:
        if self.mode(name) != "READWRITE":
            if self._read_only:
                where, remedy = "the registry", "start it without --read-only, or register with another one"
            elif name in self._modes:
                where, remedy = f"subject '{name}'", f"PUT /mode/{name} with mode READWRITE"
            else:
                where, remedy = "the registry", "PUT /mode with mode READWRITE"
            raise RegistryError(422, 42205, f"{where} is read-only, nothing can be registered or changed: {remedy}")

    def delete_version(self, name: str, wanted: str, permanent: bool) -> int:
        self._check_writable(name)
        version = self.version(name, wanted, deleted=True)
        if permanent and not version.deleted:
            raise RegistryError(
                404,
                40407,
                f"Subject '{name}' version {version.number} was not deleted first before being permanently deleted",
            )
        if version.deleted and not permanent:
            raise RegistryError(
                404,
                40406,
                f"Subject '{name}' version {version.number} was soft deleted. Set permanent=true to delete permanently",
            )
        self._record(["delete", name, [version.number], permanent])
        return version.number

    def delete_subject(self, name: str, permanent: bool) -> list[int]:
        self._check_writable(name)
        subject = self._require(name, deleted=True)
        if permanent and subject.visible():
            raise RegistryError(404, 40405, f"Subject '{name}' was not deleted first before being permanently deleted")
        numbers = [version.number for version in subject.visible(deleted=permanent)]
        if not numbers:
            raise RegistryError(
                404, 40404, f"Subject '{name}' was soft deleted. Set permanent=true to delete permanently"
            )
        self._record(["delete", name, numbers, permanent])
        return numbers

    def set_level(self, name: str | None, level: str) -> None:
        if level not in LEVELS:
            raise RegistryError(
                422, 42203, f"Invalid compatibility level {level!r}. Valid values are {', '.join(LEVELS)}"
            )
        self._check_writable(name)
        self._record(["level", name, level])

    def delete_level(self, name: str | None) -> str:
        self._check_writable(name)
        previous = self.level(name, own=name is not None)
        self._record(["level", name, None])
        return previous

    def set_mode(self, name: str | None, mode: str) -> None:
        if mode not in MODES:
            raise RegistryError(422, 42204, f"Invalid mode {mode!r}. Valid values are {', '.join(MODES)}")
        if self._read_only:
            self._check_writable(None)
        self._record(["mode", name, mode])

    def delete_mode(self, name: str) -> str:
        if self._read_only:
            self._check_writable(None)
        previous = self.mode(name, own=True)
        self._record(["mode", name, None])
        return previous
