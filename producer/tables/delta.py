"""Delta tables, by deltalake.

A commit is made from the handle that looked at the table, without deltalake's own tries: Delta records the
transaction of an application and does not enforce it, so a commit that is tried again on a newer version could be
made twice.
"""

import json
import time
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.public_text import marked, private
from nightshift.common.system_errors import told
from nightshift.producer.tables import columns, delta_log
from nightshift.producer.tables.store_options import storage_options
from nightshift.producer.tables.table import (
    Change,
    CommitLost,
    CommitRefused,
    DataFile,
    Seen,
    TableAway,
)

KNOWN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
"""Features of a table that ask nothing of a file that is added to it, and that deltalake can write."""

RULES = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableRowTracking")
"""Beginnings of properties that ask something of each row or column."""


class DeltaTables:
    """A Delta table by its root."""

    def __init__(self, root: str) -> None:
        self.root = root

    @cached_property
    def _lib(self) -> Any:
        try:
            import deltalake
        except ImportError as error:
            raise TableAway(
                "Delta tables need the package deltalake: pip install 'nightshift-fleet[delta]'"
            ) from error
        return deltalake

    def look(self) -> Seen:
        """The table as it is now; see `Table.look`."""
        exceptions = self._lib.exceptions
        delta_log.check_log(self.root)
        try:
            handle = self._lib.DeltaTable(self.root, storage_options=storage_options(self.root))
        except exceptions.TableNotFoundError:
            return Seen()
        except exceptions.DeltaProtocolError as error:
            raise BadInput(
                f"the table {private(self.root)} cannot be read: {marked(error)}"
            ) from error
        except (exceptions.DeltaError, OSError) as error:
            raise StorageUnavailable(
                f"the table {private(self.root)} cannot be read now: {told(error)}"
            ) from error
        return Seen(str(handle.version()), pa.schema(handle.schema().to_arrow()), handle)

    def _rules(self, handle: Any, *, replaces: bool) -> str | None:
        """Files that are added are not looked at by the library, so a table must ask nothing of them."""
        protocol, metadata = handle.protocol(), handle.metadata()
        asked = set(protocol.writer_features or ()) - KNOWN_FEATURES
        asked |= {
            name
            for name, value in metadata.configuration.items()
            if name.startswith(RULES) and value not in ("none", "false")
        }
        if protocol.min_writer_version in (3, 4, 5, 6):
            fields = json.loads(handle.schema().to_json())["fields"]
            asked |= {
                f"{field['name']}: {key}"
                for field in fields
                for key in field["metadata"]
                if key.startswith("delta.")
            }
        if metadata.partition_columns:
            asked.add(f"partitioned by {', '.join(metadata.partition_columns)}")
        if asked:
            return (
                "it asks something of its files that parts of a job do not keep: "
                f"{', '.join(sorted(asked))}"
            )
        if replaces and metadata.configuration.get("delta.appendOnly") == "true":
            return "it takes rows and gives none away (delta.appendOnly)"
        return None

    def mark(self, seen: Seen, app: str) -> int:
        """See `Table.mark`. Delta keeps it as the version of an application's transaction."""
        found = None if seen.handle is None else seen.handle.transaction_version(app)
        return 0 if found is None else int(found)

    def places(self, seen: Seen) -> list[str]:
        """See `Table.places`."""
        return [self.root]

    def names(self, seen: Seen) -> set[str]:
        """See `Table.names`."""
        if seen.handle is None:
            return set()
        actions = pa.table(seen.handle.get_add_actions(flatten=True))
        return {self._address(unquote(path)) for path in actions.column("path").to_pylist()}

    def _address(self, path: str) -> str:
        return path if path.startswith("/") or "://" in path else f"{self.root}/{path}"

    def held(self, seen: Seen) -> set[str]:
        """See `Table.held`."""
        return self.names(seen)

    def misfit(self, seen: Seen, schema: pa.Schema, *, replaces: bool, merges: bool) -> str | None:
        """See `Table.misfit`."""
        if seen.schema is None:
            return None
        why = self._rules(seen.handle, replaces=replaces or merges)
        return why or columns.misfit(schema, seen.schema, "delta", whole=merges)

    def fence(self, seen: Seen, app: str, mark: int) -> None:
        """See `Table.fence`."""
        if seen.handle is not None:
            self.commit(seen, Change(app, mark, seen.schema))

    def commit(self, seen: Seen, change: Change) -> str:
        """See `Table.commit`."""
        lib, exceptions = self._lib, self._lib.exceptions
        properties = lib.CommitProperties(
            custom_metadata={"nightshift": f"{change.app} {change.mark}"},
            max_commit_retries=0,
            app_transactions=[lib.Transaction(change.app, change.mark)],
        )
        try:
            if seen.handle is None:
                return self._create(change, properties)
            if change.merge is not None:
                return self._merge(seen.handle, change, properties)
            return self._write(seen.handle, change, properties)
        except exceptions.CommitFailedError as error:
            raise CommitLost(
                f"{private(self.root)} does not take a commit to its version {seen.version}: {marked(error)}"
            ) from error
        except exceptions.DeltaError as error:
            # Whoever makes a table second is told so in an error that has no type of its own.
            now = self.look()
            if now.version != seen.version:
                raise CommitLost(
                    f"{private(self.root)} has the version {now.version} by now"
                ) from error
            if isinstance(error, exceptions.DeltaProtocolError | exceptions.SchemaMismatchError):
                raise CommitRefused(
                    f"the table {private(self.root)} cannot be written: {marked(error)}"
                ) from error
            raise StorageUnavailable(
                f"the table {private(self.root)} cannot be written now: {told(error)}"
            ) from error
        except OSError as error:
            raise StorageUnavailable(
                f"the table {private(self.root)} cannot be written now: {told(error)}"
            ) from error

    def _create(self, change: Change, properties: Any) -> str:
        from deltalake.transaction import create_table_with_add_actions

        create_table_with_add_actions(
            self.root,
            self._lib.Schema.from_arrow(change.schema),
            [self._add(file, change.schema) for file in change.add],
            mode="error",
            storage_options=storage_options(self.root),
            commit_properties=properties,
        )
        return "0"

    def _write(self, handle: Any, change: Change, properties: Any) -> str:
        from deltalake.transaction import RemoveAction

        version = handle.version()
        now = int(time.time() * 1000)
        actions = [self._add(file, change.schema) for file in change.add]
        actions += [
            RemoveAction(path=self._path(uri), data_change=True, deletion_timestamp=now)
            for uri in change.remove
        ]
        handle.create_write_transaction(
            actions,
            "overwrite" if change.overwrite else "append",
            self._lib.Schema.from_arrow(change.schema),
            commit_properties=properties,
        )
        return str(version + 1)

    def _merge(self, handle: Any, change: Change, properties: Any) -> str:
        assert change.merge is not None
        assert change.key is not None
        self._check_own(handle)
        version = handle.version()
        rows = pa.RecordBatchReader.from_batches(change.schema, change.merge())
        key = '"' + change.key.replace('"', '""') + '"'
        (
            handle.merge(
                rows,
                f"t.{key} = s.{key}",
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            .when_matched_update_all('s."error" IS NULL')
            .when_not_matched_insert_all()
            .execute()
        )
        if handle.version() == version:
            # deltalake skips the commit, and with it the mark, if a merge changes no row.
            schema = pa.schema(handle.schema().to_arrow())
            return self._write(handle, Change(change.app, change.mark, schema), properties)
        return str(version + 1)

    def _check_own(self, handle: Any) -> None:
        """A merge reads files that the log names, and writes their rows anew: each must lie below the root, and within
        the walls. A log may name any file of the machine.
        """
        delta_log.check_sidecars(self.root)
        for path in pa.table(handle.get_add_actions(flatten=True)).column("path").to_pylist():
            uri = delta_log.data_uri(self.root, path)
            if not uri.startswith(f"{self.root}/"):
                raise CommitRefused(
                    f"the log of {private(self.root)} names the file {private(uri)}, which does not lie below the table: no rows are merged"
                )
            storage.check_object(uri)
            try:
                storage.stat(uri)
            except FileNotFoundError as error:
                raise CommitRefused(
                    f"the file {private(uri)} of {private(self.root)} is gone"
                ) from error

    def _path(self, uri: str) -> str:
        return uri.removeprefix(f"{self.root}/")

    def _add(self, file: DataFile, schema: pa.Schema) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(
            path=self._path(file.uri),
            size=file.bytes,
            partition_values={},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=stats_of(file, schema),
        )


def stats_of(file: DataFile, schema: pa.Schema) -> str:
    """The statistics of a file as they stand in the log.

    Bounds are given for all columns that can have them, or for none, and structs have empty ones: `to_pyarrow_dataset`
    of deltalake takes a column without bounds beside others that have some for one that no filter finds.
    """
    found: dict[str, Any] = {"numRecords": file.rows, "nullCount": file.nulls}
    if all(
        field.name in file.least or file.nulls.get(field.name) == file.rows
        for field in schema
        if _can_have_bounds(field.type)
    ):
        structs: dict[str, Any] = {
            field.name: {} for field in schema if pa.types.is_struct(field.type)
        }
        found["minValues"] = structs | _told(file.least)
        found["maxValues"] = structs | _told(file.greatest)
    return json.dumps(found, ensure_ascii=False)


def _can_have_bounds(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind))


def _told(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(sep=" ", timespec="milliseconds")
        utc = value.astimezone(UTC).replace(tzinfo=None)
        return f"{utc.isoformat(timespec='milliseconds')}Z"
    return value.isoformat() if isinstance(value, date) else value
