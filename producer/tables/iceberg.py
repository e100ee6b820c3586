"""Iceberg tables, by pyiceberg and a catalog that the operator names.

pyiceberg tries a lost commit again without a look at what the table has by then, and the file of a part would be in
the table twice: its own tries are switched off, in memory alone.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import StorageUnavailable
from nightshift.common.settings import Settings
from nightshift.producer.tables import catalogs, columns
from nightshift.producer.tables.table import Change, CommitLost, CommitRefused, Seen

TRIES = "commit.retry.num-retries"
"""Property of a table: how often pyiceberg tries a lost commit again."""

METRICS = "write.metadata.metrics.default"
"""Property of a table: what is said of the values of a column in each file."""

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
        self._refuse_rules(handle)
        handle.metadata.properties[TRIES] = "0"
        return Seen(version_of(handle), handle.schema().as_arrow(), handle)

    def _refuse_rules(self, handle: Any) -> None:
        """Parts are no files of a partition, nor in the order of a table that is sorted."""
        if not handle.spec().is_unpartitioned():
            raise CommitRefused(
                f"the table {self.title} is partitioned by {handle.spec()}, and parts of a job are not"
            )

    def number(self, seen: Seen, app: str) -> int:
        """See `Table.number`. The number stands in a property, which outlives snapshots."""
        return 0 if seen.handle is None else int(seen.handle.properties.get(_key(app), 0))

    def places(self, seen: Seen) -> list[str]:
        """See `Table.places`. Where there is no table yet, the catalog says where it will be."""
        return [] if seen.handle is None else [_bare(seen.handle.location())]

    def names(self, seen: Seen) -> set[str]:
        """See `Table.names`."""
        return set() if seen.handle is None else {_bare(file.file_path) for file in _files(seen)}

    def misfit(self, seen: Seen, schema: pa.Schema) -> str | None:
        """See `Table.misfit`."""
        return None if seen.schema is None else columns.misfit(schema, seen.schema, "iceberg")

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
                except (
                    OverflowError
                ):  # a moment that Python's dates do not have, such as a database's infinity
                    transaction = self._filled(seen, change, {METRICS: "counts"})
                return version_of(transaction.commit_transaction())
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            raise CommitLost(f"{self.title} has another version than {seen.version}") from error
        except CommitStateUnknownException as error:
            raise StorageUnavailable(
                f"the catalog did not say whether {self.title} has the commit"
            ) from error
        except OSError as error:
            raise StorageUnavailable(
                f"the table {self.title} cannot be written now: {error}"
            ) from error

    def _filled(self, seen: Seen, change: Change, in_memory: dict[str, str]) -> Any:
        """The transaction of a change. Properties `in_memory` hold for it alone, and are not written."""
        if seen.handle is not None:
            transaction = seen.handle.transaction()
        else:
            transaction = self._catalog.create_table_transaction(self.name, schema=change.schema)
        transaction._table.metadata.properties.update({TRIES: "0", **in_memory})
        transaction.set_properties({_key(change.app): str(change.number)})
        self._fill(seen, transaction, change)
        return transaction

    def _fill(self, seen: Seen, transaction: Any, change: Change) -> None:
        if change.merge is not None and seen.handle is not None:
            transaction.upsert(self._whole(change), join_cols=[change.key])
            return
        gone = _files(seen) if change.overwrite else _of(seen, change.remove)
        if not gone:
            transaction.add_files([_uri(file.uri) for file in change.add])
            return
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
        for batch in change.merge.batches():
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
