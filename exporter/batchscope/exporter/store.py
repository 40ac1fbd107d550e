"""The one owner of the DuckDB file: opens, migrates, commits, answers named queries.

One thread writes (the pipeline's store thread); any thread may query. Nothing else imports duckdb.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Any
from zlib import crc32

import duckdb
import pyarrow as pa

from batchscope.exporter import tables
from batchscope.exporter.errors import (
    QueryError,
    QueryTimeoutError,
    SchemaVersionError,
    StoreError,
)
from batchscope.exporter.queries import named

STORE_VERSION = 1
MIGRATIONS: tuple[Callable[[duckdb.DuckDBPyConnection], None], ...] = ()
"""MIGRATIONS[v - 1] turns a store of version v into v + 1. Released versions are never edited."""

_META = "CREATE TABLE IF NOT EXISTS meta (key VARCHAR NOT NULL, value UBIGINT NOT NULL)"
_OURS = {"meta", "ring_state"}
"""Tables that every store has, whatever its version; a file with others is not ours to touch."""
_SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "preserve_insertion_order": "false",  # big scans need less memory; queries order themselves
}
_ZSTD, _LENGTH = pa.Codec("zstd", 1), Struct("<Q")
_HELD = re.compile(r"Conflicting lock is held in (\S+) \(PID (\d+)\)")


@dataclass(frozen=True)
class RingState:
    """How far a ring is read and what the fold knew there."""

    ring_id: int
    ring_uuid: str
    seq: int
    byte_pos: int
    fold_version: int
    blob: bytes


@dataclass(frozen=True)
class Commit:
    """One transaction. Tables as Arrow, without batch_id; column names as in sql/tables.

    appended: rows to add. replaced: rows of `tables.PER_RING` and of `engines`; what the rings in
    `rings` had there goes. states: the positions that these rows belong to.
    """

    appended: Mapping[str, pa.Table] = field(default_factory=dict)
    replaced: Mapping[str, pa.Table] = field(default_factory=dict)
    states: Sequence[RingState] = ()
    rings: Sequence[int] = ()


class Store:
    """An open store. Open with `Store.open`, end with `close`."""

    def __init__(self, path: Path, *, memory_limit: str, read_only: bool) -> None:
        self.path, self.read_only = path, read_only
        self._config = {**_SETTINGS, "memory_limit": memory_limit, "threads": "2"}
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._batch = 0
        self._tried: tuple[Commit, int] | None = None
        self._file: tuple[int, int] | None = None

    @classmethod
    def open(
        cls, path: Path | str, *, memory_limit: str = "256MB", read_only: bool = False
    ) -> Store:
        """Open or make the store. Raises StoreError or SchemaVersionError, each one sentence."""
        store = cls(Path(path), memory_limit=memory_limit, read_only=read_only)
        store._connect()
        return store

    def close(self) -> None:
        """Checkpoint and let go of the file. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def batch(self) -> int:
        """Number of the last durable commit; it is the batch_id of its rows."""
        return self._batch

    def _connect(self) -> None:
        try:
            connection = _open_file(self.path, config=self._config, read_only=self.read_only)
        except duckdb.Error as error:
            raise StoreError(_why(self.path, error)) from None
        try:
            self._prepare(connection)
        except duckdb.Error as error:
            connection.close()
            raise StoreError(f"can't prepare the store {self.path}: {_first(error)}") from None
        except StoreError:
            connection.close()
            raise
        self._connection, self._file = connection, _identity(self.path)

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        found = _objects(connection)
        if found and not found >= _OURS:
            raise StoreError(f"{self.path} has tables of something else: choose another --store")
        version = _meta(connection, "schema_version") if found else None
        if version is None and self.read_only:
            raise StoreError(f"{self.path} is a DuckDB file, but no store of batchscope")
        if version is not None and version > STORE_VERSION:
            raise SchemaVersionError(
                f"the store {self.path} has schema version {version}, this batchscope knows up to "
                f"{STORE_VERSION}: use a newer batchscope or another --store"
            )
        # what is up to date isn't written to: a store on a full disk can still be opened and asked
        if not self.read_only and (version, _meta(connection, "layout")) != _current():
            _upgrade(connection, version)
        self._batch = _meta(connection, "batch") or 0
        connection.execute("SET lock_configuration = true")

    def _writable(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connect()
        assert self._connection is not None
        return self._connection

    def commit(self, commit: Commit) -> int:
        """Write everything or nothing, and return its batch_id.

        After a StoreError call it again with the same object: a transaction that turns out to be
        durable although its COMMIT failed isn't written twice.
        """
        connection = self._writable()
        self._check_file()
        if self._tried and self._tried[0] is commit and self._batch >= self._tried[1]:
            return self._tried[1]
        self._tried = (commit, self._batch + 1)
        try:
            _transact(connection, commit, self._batch + 1)
        except duckdb.Error as error:
            self._reset()
            raise StoreError(f"can't write to {self.path}: {_first(error)}") from None
        self._batch += 1
        return self._batch

    def _check_file(self) -> None:
        """A deleted file takes rows as before, and all of them are lost: say so, begin anew."""
        if _identity(self.path) != self._file:
            self._tried = None
            self._reset()
            raise StoreError(f"the store {self.path} was removed or replaced while it was in use")

    def _reset(self) -> None:
        # a failed write may leave DuckDB "invalidated until restart": open the file anew
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.close()
            self._connect()
        except (duckdb.Error, StoreError):
            return  # the next commit tries again

    def ring_states(self) -> dict[str, RingState]:
        """Where each ring stands, by ring_uuid."""
        names = "ring_id, ring_uuid, seq, byte_pos, fold_version, blob"
        rows = self.rows(f"SELECT {names} FROM ring_state")  # noqa: S608
        states = [RingState(*row) for row in rows]
        return {state.ring_uuid: replace(state, blob=_unpacked(state.blob)) for state in states}

    def hellos(self) -> list[dict[str, Any]]:
        """The engines table as dicts: what is known of every ring there ever was."""
        names = [name for name in tables.columns("engines") if name != "batch_id"]
        rows = self.rows(f"SELECT {', '.join(names)} FROM engines ORDER BY attached_unix_ns")  # noqa: S608
        return [dict(zip(names, row, strict=True)) for row in rows]

    def rows(self, sql: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        """Rows of our own SQL; never of text that came from outside."""
        with self._reading() as cursor:
            return cursor.execute(sql, dict(params or {})).fetchall()

    def query(
        self, name: str, params: Mapping[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> pa.Table:
        """Answer a named question. Parameter values are text, as they came.

        Raises QueryError (unknown name, parameter, value), QueryTimeoutError, StoreError.
        """
        question = named(name)
        values = question.bind(params or {})
        with self._reading() as cursor, _deadline(cursor, timeout_s):
            answer: pa.Table = cursor.sql(question.sql, params=values).to_arrow_table()
            return answer

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = self._connection
        if connection is None:
            raise StoreError(f"the store {self.path} is not open at the moment")
        try:
            with connection.cursor() as cursor:
                yield cursor
        except duckdb.InterruptException:
            raise QueryTimeoutError("the query took too long; ask for a shorter range") from None
        except (duckdb.DataError, duckdb.OutOfMemoryException) as error:
            raise QueryError(f"the query can't be answered: {_first(error)}") from None
        except duckdb.Error as error:
            raise StoreError(f"can't read {self.path}: {_first(error)}") from None

    def used_bytes(self) -> int:
        """Used blocks x block size. Not the file's size: a DuckDB file never shrinks."""
        return int(
            self.rows("SELECT sum(used_blocks * block_size) FROM pragma_database_size()")[0][0]
        )

    def prune(self, table: str, *, before_unix_ns: int) -> int:
        """Delete a table's rows that ended before an instant; how many went. Store thread only."""
        if table not in tables.table_names():
            raise StoreError(f"no table is called {table!r}")
        sql = f"DELETE FROM {table} WHERE unix_ns < $before"  # noqa: S608
        return int(self._run(sql, {"before": before_unix_ns})[0][0])

    def thin_states(self, *, before_unix_ns: int) -> None:
        """Drop the folds of rings that ended before an instant; their positions stay."""
        self._run(
            "UPDATE ring_state SET blob = ''::BLOB, fold_version = 0 WHERE fold_version <> 0 AND"
            " ring_id IN (SELECT ring_id FROM engines WHERE ended_unix_ns < $before)",
            {"before": before_unix_ns},
        )

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file and free what was deleted. Store thread only."""
        self._run("CHECKPOINT")

    def _run(self, sql: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        try:
            return self._writable().execute(sql, dict(params or {})).fetchall()
        except duckdb.Error as error:
            self._reset()
            raise StoreError(f"can't write to {self.path}: {_first(error)}") from None


def _open_file(
    path: Path, *, config: Mapping[str, str], read_only: bool
) -> duckdb.DuckDBPyConnection:
    if not read_only:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"can't make the folder {path.parent}: {error.strerror}") from None
    return duckdb.connect(str(path), read_only=read_only, config={**config})


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None when there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _current() -> tuple[int, int]:
    """Schema version, and checksum of the statements: views may change within a version."""
    return STORE_VERSION, crc32("".join(tables.statements()).encode())


def _upgrade(connection: duckdb.DuckDBPyConnection, version: int | None) -> None:
    connection.execute("BEGIN")
    connection.execute(_META)
    for migrate in MIGRATIONS[version - 1 :] if version else ():
        migrate(connection)
    for statement in tables.statements():
        connection.execute(statement)
    connection.execute("DELETE FROM meta WHERE key IN ('schema_version', 'layout')")
    for key, value in zip(("schema_version", "layout"), _current(), strict=True):
        connection.execute("INSERT INTO meta VALUES ($k, $v)", {"k": key, "v": value})
    if version is None:
        connection.execute("INSERT INTO meta VALUES ('batch', 0)")
    connection.execute("COMMIT")


def _transact(connection: duckdb.DuckDBPyConnection, commit: Commit, batch: int) -> None:
    connection.execute("BEGIN")
    try:
        _write(connection, commit, batch)
    except duckdb.Error:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _write(connection: duckdb.DuckDBPyConnection, commit: Commit, batch: int) -> None:
    for table in commit.replaced:
        _forget(connection, table, list(commit.rings))
    for table, rows in (*commit.replaced.items(), *commit.appended.items()):
        _insert(connection, table, rows, batch)
    if commit.states:
        _forget(connection, "ring_state", [state.ring_id for state in commit.states])
        _insert(connection, "ring_state", _state_table(commit.states), batch)
    connection.execute("UPDATE meta SET value = $b WHERE key = 'batch'", {"b": batch})


def _forget(connection: duckdb.DuckDBPyConnection, table: str, rings: list[int]) -> None:
    sql = f"DELETE FROM {table} WHERE ring_id IN (SELECT unnest($rings::UBIGINT[]))"  # noqa: S608
    connection.execute(sql, {"rings": rings})


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, batch: int) -> None:
    if not rows.num_rows:
        return
    connection.register("incoming", rows)
    sql = f"INSERT INTO {table} BY NAME SELECT *, $batch::UBIGINT AS batch_id FROM incoming"  # noqa: S608
    try:
        connection.execute(sql, {"batch": batch})
    finally:
        connection.unregister("incoming")


def _packed(blob: bytes) -> bytes:
    """Compressed: 300 kB of a fold become 85 in 0.4 ms, and all of it is written at each commit."""
    return _LENGTH.pack(len(blob)) + _ZSTD.compress(blob, asbytes=True) if blob else b""


def _unpacked(packed: bytes) -> bytes:
    if not packed:
        return b""
    (length,) = _LENGTH.unpack_from(packed)
    return bytes(_ZSTD.decompress(packed[_LENGTH.size :], length, asbytes=True))


def _state_table(states: Sequence[RingState]) -> pa.Table:
    unsigned = dict.fromkeys(("ring_id", "seq", "byte_pos"), pa.uint64())
    kinds: dict[str, pa.DataType] = {
        **unsigned,
        "ring_uuid": pa.string(),
        "fold_version": pa.uint32(),
        "blob": pa.binary(),
    }
    rows = [{**vars(state), "blob": _packed(state.blob)} for state in states]
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))


@contextmanager
def _deadline(cursor: duckdb.DuckDBPyConnection, timeout_s: float) -> Iterator[None]:
    timer = threading.Timer(timeout_s, cursor.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _objects(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Names of the tables and views in a file."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_catalog = current_catalog()"
    return {row[0] for row in connection.execute(sql).fetchall()}


def _meta(connection: duckdb.DuckDBPyConnection, key: str) -> int | None:
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = $k", {"k": key}).fetchone()
    except duckdb.CatalogException:
        return None
    return None if row is None else int(row[0])


def _why(path: Path, error: duckdb.Error) -> str:
    """One sentence for an operator whose store doesn't open."""
    held = _HELD.search(str(error))
    if held:
        return f"the store {path} is held by another process ({held[1]}, pid {held[2]})"
    if "not a valid DuckDB database" in str(error):
        return f"{path} exists, but is not a DuckDB file"
    return f"can't open the store {path}: {_first(error)}"


def _first(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
