"""The migrations of this version, as files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources


@dataclass(frozen=True)
class Migration:
    """One ``migrations/NNNN_name.cql``; never edited once released, which ``hash`` holds everybody to."""

    number: int
    name: str
    script: str

    @property
    def hash(self) -> str:
        """Of what is carried out: comments and white space may change."""
        return sha256("\n".join(self.statements()).encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        """Its statements, each on one line."""
        lines = (line for line in self.script.splitlines() if not line.lstrip().startswith("--"))
        for statement in "\n".join(lines).split(";"):
            if text := " ".join(statement.split()):
                yield text


@cache
def migrations() -> tuple[Migration, ...]:
    """All of them, in order."""
    folder = resources.files("agl_stream.streams.store.cassandra").joinpath("migrations")
    found = [
        Migration(int(entry.name[:4]), entry.name.removesuffix(".cql"), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".cql")
    ]
    return tuple(sorted(found, key=lambda migration: migration.number))
