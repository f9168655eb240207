"""SQLite connections: one writer, a reader for each thread, migrations, and what the durability settings mean.

The database is in WAL mode: any number of processes read while one writes. ``synchronous`` is NORMAL: a commit is
handed to the operating system without waiting for the disk. A crash of the process loses nothing; a power cut may
take the last commits away, always whole transactions from the end. The applied offsets live in the same
transactions, so such a loss is a state of a little earlier, and reading starts again from the store's own offsets
(which win over those committed to Kafka, for these may be ahead of it). FULL would fsync each batch for nothing.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from agl_stream.errors import EngineUnreachable, FolderNotWritable, SettingError
from agl_stream.streams.store.change import Change

_BUSY_SECONDS = 30.0
_PRAGMAS = (
    "PRAGMA synchronous = NORMAL",
    "PRAGMA cache_size = -16000",
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA temp_store = MEMORY",
)


class Connections:
    """Opens the database at ``path`` on demand. A reader of a database that does not exist (yet) sees it empty."""

    def __init__(self, path: Path, namespace: str, *, read_only: bool) -> None:
        self._path = path
        self._namespace = namespace
        self._readers = threading.local()
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._writing = threading.Lock()
        self._writer = None if read_only else self._open_writer()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The writer, in a transaction that commits on success; one at a time."""
        if self._writer is None:
            raise SettingError(f"the state store at {self._path} was opened for reading only")
        with self._writing, self._explained():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """This thread's reader. Each statement sees everything committed before it."""
        with self._explained():
            yield self._reader()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """This thread's reader, all statements of which see one state."""
        with self.reading() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()
        self._readers = threading.local()
        self._writer = None

    def _reader(self) -> sqlite3.Connection:
        try:
            status = self._path.stat()
            identity = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            return self._empty()
        known: tuple[tuple[int, int], sqlite3.Connection] | None = getattr(self._readers, "known", None)
        if known is not None:
            if known[0] == identity:
                return known[1]
            # the file was replaced, as when a store is rebuilt from the log
            known[1].close()
        connection = self._connect(str(self._path))
        connection.execute("PRAGMA query_only = ON")
        if _version(connection) == 0:
            # a writer is just making it
            connection.close()
            return self._empty()
        self._check(connection)
        self._readers.known = (identity, connection)
        return connection

    def _empty(self) -> sqlite3.Connection:
        connection = self._connect(":memory:")
        _migrate(connection)
        return connection

    def _open_writer(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._explained():
                connection = self._connect(str(self._path))
                connection.execute("PRAGMA page_size = 8192")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                _migrate(connection)
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('namespace', ?)", (self._namespace,))
                connection.execute("COMMIT")
        except OSError as error:
            raise FolderNotWritable(
                f"the state store cannot be made in {self._path.parent}: {error.strerror}; set AGL_STREAM_DIR to a "
                "folder that can be written"
            ) from None
        self._check(connection)
        return connection

    def _connect(self, address: str) -> _Connection:
        connection = sqlite3.connect(
            address, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        self._open.add(connection)
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        newest = max(number for number, _ in _migrations())
        if (found := _version(connection)) > newest:
            raise SettingError(
                f"the state store at {self._path} has layout {found}, this version of agl-stream knows up to {newest}; "
                "use the newer version, or delete the file to rebuild it from the log"
            )
        namespace = connection.execute("SELECT value FROM meta WHERE key = 'namespace'").fetchone()
        if namespace is not None and namespace[0] != self._namespace:
            raise SettingError(
                f"the state store at {self._path} belongs to namespace {namespace[0]!r}, not {self._namespace!r}; "
                "set AGL_STREAM_NAMESPACE or AGL_STREAM_DIR"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise EngineUnreachable(
                f"the state store at {self._path} cannot be used now: {error}; look at the disk's space and rights, "
                "and for other programs that hold the file"
            ) from error
        except sqlite3.DatabaseError as error:
            if type(error) is sqlite3.DatabaseError:
                raise SettingError(
                    f"{self._path} is damaged or no state store ({error}); move it away, it is rebuilt from the log"
                ) from error
            raise


class _Connection(sqlite3.Connection):
    """A connection that can be held weakly."""


def plan_layout(path: Path) -> list[Change]:
    """What a writer does with the file at ``path`` as it opens it."""
    newest = max(number for number, _ in _migrations())
    if not path.exists():
        return [Change("create", str(path), f"layout {newest}")]
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    try:
        found = _version(connection)
    except sqlite3.DatabaseError as error:
        return [Change("refuse", str(path), f"damaged or no state store ({error}); move it away")]
    finally:
        connection.close()
    if found > newest:
        return [Change("refuse", str(path), f"layout {found}, this version of agl-stream knows up to {newest}")]
    if found < newest:
        return [Change("migrate", str(path), f"from layout {found} to {newest}")]
    return [Change("keep", str(path), f"layout {found}")]


def _migrations() -> list[tuple[int, str]]:
    folder = resources.files("agl_stream.streams.store").joinpath("migrations")
    found = [(int(entry.name[:4]), entry) for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return [(number, entry.read_text(encoding="utf-8")) for number, entry in sorted(found, key=lambda pair: pair[0])]


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the layout up to date inside the caller's transaction."""
    present = _version(connection)
    for number, script in _migrations():
        if number > present:
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _statements(script: str) -> Iterator[str]:
    """``executescript`` would commit the surrounding transaction, so the script is cut at complete statements."""
    pending = ""
    for line in script.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
