"""Iceberg tables, by pyiceberg and a catalog that the operator names.

pyiceberg tries a lost commit again without a look at what the table has by then, and the file of a part would be in
the table twice: its own tries are switched off, in memory alone.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common import storage
from nightshift.common.errors import StorageUnavailable
from nightshift.common.public_text import marked, private
from nightshift.common.settings import Settings
from nightshift.common.system_errors import told
from nightshift.producer.tables import catalogs, columns
from nightshift.producer.tables.table import Change, CommitLost, CommitRefused, Seen

TRIES = "commit.retry.num-retries"
"""Property of a table: how often pyiceberg tries a lost commit again."""

METRICS = "write.metadata.metrics.default"
"""Property of a table: what is said of the values of a column in each file."""

MAPPING = "schema.name-mapping.default"
"""Property of a table: which column has which id, for files that say no ids."""

MOST_MERGE_BYTES = 512 * 2**20
"""Most decoded bytes of the rows of one merge, which pyiceberg holds in memory."""


class IcebergTables:
    """An Iceberg table by its name in a catalog."""

    def __init__(self, settings: Settings, catalog: str, name: str) -> None:
        self._settings, self._catalog_name, self.name = settings, catalog, name
        self.title = f"{catalog}.{name}"

    @cached_property
    def _catalog(self) -> Any:
        return catalogs.open_catalog(self._settings, self._catalog_name)

    def look(self) -> Seen:
        """The table as it is now; see `Table.look`."""
        handle = catalogs.load_table(self._catalog, self.name)
        if handle is None:
            return Seen()
        return Seen(version_of(handle), handle.schema().as_arrow(), handle)

    def mark(self, seen: Seen, app: str) -> int:
        """See `Table.mark`. The mark stands in a property, which outlives snapshots."""
        return 0 if seen.handle is None else int(seen.handle.properties.get(_key(app), 0))

    def places(self, seen: Seen) -> list[str]:
        """See `Table.places`. Where there is no table yet, a catalog that is no server says where it will be."""
        if seen.handle is not None:
            return [_bare(seen.handle.location())]
        where = getattr(self._catalog, "_resolve_table_location", None)
        if where is None:
            return []
        namespace, _, name = self.name.rpartition(".")
        with catalogs.answering(self._catalog_name, self._catalog.properties, table=self.name):
            return [_bare(where(None, namespace, name))]

    def names(self, seen: Seen) -> set[str]:
        """See `Table.names`."""
        return set() if seen.handle is None else {_bare(file.file_path) for file in _files(seen)}

    def held(self, seen: Seen) -> set[str]:
        """See `Table.held`: the files of every branch and tag."""
        if seen.handle is None:
            return set()
        snapshots = {ref.snapshot_id for ref in seen.handle.metadata.refs.values()}
        return {
            _bare(task.file.file_path)
            for snapshot in snapshots
            for task in seen.handle.scan(snapshot_id=snapshot).plan_files()
        }

    def misfit(self, seen: Seen, schema: pa.Schema, *, replaces: bool, merges: bool) -> str | None:
        """See `Table.misfit`."""
        if seen.schema is None:
            return None
        if not seen.handle.spec().is_unpartitioned():
            names = ", ".join(field.name for field in seen.handle.spec().fields)
            return f"it is partitioned by {names}, and parts of a job are not"
        return columns.misfit(schema, seen.schema, "iceberg", whole=merges)

    def fence(self, seen: Seen, app: str, mark: int) -> None:
        """See `Table.fence`."""
        if seen.handle is not None:
            self.commit(seen, Change(app, mark, seen.schema))

    def commit(self, seen: Seen, change: Change) -> str:
        """See `Table.commit`."""
        from pyiceberg.exceptions import (
            CommitFailedException,
            CommitStateUnknownException,
            TableAlreadyExistsError,
            ValidationException,
        )

        try:
            with catalogs.answering(self._catalog_name, self._catalog.properties, table=self.name):
                try:
                    transaction = self._filled(seen, change, {})
                except OverflowError:
                    # A moment that Python's dates do not have, such as a database's infinity.
                    transaction = self._filled(seen, change, {METRICS: "counts"})
                return version_of(transaction.commit_transaction())
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            raise CommitLost(
                f"{private(self.title)} does not take a commit to its version {seen.version}: {marked(error)}"
            ) from error
        except CommitStateUnknownException as error:
            raise StorageUnavailable(
                f"the catalog did not say whether {private(self.title)} has the commit"
            ) from error
        except OSError as error:
            raise StorageUnavailable(
                f"the table {private(self.title)} cannot be written now: {told(error)}"
            ) from error

    def _filled(self, seen: Seen, change: Change, in_memory: dict[str, str]) -> Any:
        """The transaction of a change. Properties `in_memory` hold for it alone, and are not written."""
        if seen.handle is not None:
            transaction = seen.handle.transaction()
        else:
            transaction = self._catalog.create_table_transaction(self.name, schema=change.schema)
        transaction._table.metadata.properties.update({TRIES: "0", **in_memory})
        transaction.set_properties({_key(change.app): str(change.mark)})
        self._fill(seen, transaction, change)
        return transaction

    def _fill(self, seen: Seen, transaction: Any, change: Change) -> None:
        if change.merge is not None and seen.handle is not None:
            rows = self._whole(change)
            if rows.num_rows:
                # pyiceberg wants the order of the table's columns.
                wanted = seen.handle.schema().as_arrow()
                rows = rows.select(wanted.names).cast(wanted)
                failed = pc.is_valid(rows.column("error"))
                has_id = pc.is_valid(rows.column(change.key))
                before = transaction.table_metadata.current_snapshot_id
                for some, may_replace in ((pc.invert(failed), True), (failed, False)):
                    merged = rows.filter(pc.and_(some, has_id))
                    if merged.num_rows:
                        transaction.upsert(
                            merged, join_cols=[change.key], when_matched_update_all=may_replace
                        )
                # A null id matches no row, in Delta as well; `upsert` does not accept one.
                if (without_id := rows.filter(pc.invert(has_id))).num_rows:
                    transaction.append(without_id)
                if transaction.table_metadata.current_snapshot_id != before:
                    return
        gone = _files(seen) if change.overwrite else _of(seen, change.remove)
        if change.add and not gone:
            transaction.add_files([_uri(file.uri) for file in change.add])
            return
        if not gone:
            # A snapshot without files: whoever has begun a commit to the one before is overtaken.
            with transaction.update_snapshot().fast_append():
                return
        # `add_files` does this by itself: the files have no ids of columns.
        if transaction.table_metadata.name_mapping() is None:
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({MAPPING: mapping})
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        # One snapshot, so that a reader of any snapshot sees the old rows or the new ones.
        with transaction.update_snapshot().overwrite() as snapshot:
            for file in gone:
                snapshot.delete_data_file(file)
            added = [_uri(file.uri) for file in change.add]
            for file in parquet_files_to_data_files(
                transaction._table.io, transaction.table_metadata, iter(added)
            ):
                snapshot.append_data_file(file)

    def _whole(self, change: Change) -> pa.Table:
        assert change.merge is not None
        held, size = [], 0
        for batch in change.merge():
            held.append(batch)
            size += batch.nbytes
            if size > MOST_MERGE_BYTES:
                raise CommitRefused(
                    f"a merge into an Iceberg table holds its rows in memory, and these have more than "
                    f"{MOST_MERGE_BYTES:,} bytes: use mode append, a Delta table, or smaller generations"
                )
        return pa.Table.from_batches(held, change.schema)


def version_of(handle: Any) -> str:
    """The version of a table: its snapshot, and 0 before the first."""
    found = handle.current_snapshot()
    return "0" if found is None else str(found.snapshot_id)


def _key(app: str) -> str:
    return f"nightshift.{app}"


def _files(seen: Seen) -> list[Any]:
    return [] if seen.handle is None else [task.file for task in seen.handle.scan().plan_files()]


def _of(seen: Seen, uris: Sequence[str]) -> list[Any]:
    if not uris:
        return []
    wanted = set(uris)
    return [file for file in _files(seen) if _bare(file.file_path) in wanted]


def _bare(path: str) -> str:
    """An address as ours are: local files as a path."""
    return path.removeprefix("file://")


def _uri(uri: str) -> str:
    return f"file://{uri}" if storage.is_local(uri) else uri
