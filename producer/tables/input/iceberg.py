"""An Iceberg table as the input of a job; its versions are its snapshots.

Data files are read as they are where all that the job reads stands in them under the names of now, and no row of
them is deleted. Rows of other tables are copied by pyiceberg, in the order of the data files and one of them in
memory at a time. pyiceberg opens every file by our storage.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, BinaryIO

import pyarrow as pa

from nightshift.common.errors import BadInput
from nightshift.common.formats.known import FORMATS
from nightshift.common.public_text import marked, private
from nightshift.common.settings import Settings
from nightshift.common.spec import InputSpec
from nightshift.common.spec.table_uris import TableRows, iceberg_name, table_rows
from nightshift.common.storage import FileInfo, resolve
from nightshift.producer.submit.table_input import Added
from nightshift.producer.tables import catalogs
from nightshift.producer.tables.input import data_files
from nightshift.producer.tables.input.data_files import NO_WAY_ON, FileGone
from nightshift.producer.tables.input.rows import bounded, first_rows

FIELD_ID = b"PARQUET:field_id"


class IcebergInput:
    """A table by its uri, `iceberg:CATALOG.NAMESPACE.TABLE`; see `table_input.InputTable`."""

    def __init__(self, uri: str, settings: Settings) -> None:
        self.uri = uri
        self._catalog, self._name = iceberg_name(uri)
        self._properties = settings.catalog(self._catalog) or {}
        with closing(catalogs.open_catalog(settings, self._catalog)) as catalog:
            found = catalogs.load_table(catalog, self._name)
        if found is None:
            raise BadInput(f"there is no table {self._name} in catalog {self._catalog}")
        self._table = found

    def newest(self) -> int:
        """The newest snapshot."""
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            raise BadInput(f"{private(self.uri)} has no rows: nothing was ever written to it")
        return int(snapshot.snapshot_id)

    def identity(self) -> str:
        """The id of the table."""
        return str(self._table.metadata.table_uuid)

    def check(self, version: int) -> None:
        """BadInput for a snapshot that is not there, or is there no longer."""
        self._snapshot(version)

    def files(
        self, version: int, spec_input: InputSpec, columns: Sequence[str] | None
    ) -> list[FileInfo]:
        """The data files of a snapshot, or the snapshot where it is copied."""
        with self._errors():
            self._refuse_equality_deletes(version)
            tasks = list(self._table.scan(snapshot_id=version).plan_files())
            files = [task.file for task in tasks]
            _refuse_doubles(files, f"snapshot {version} of {private(self.uri)}")
            if any(task.delete_files for task in tasks) or not self._are_plain(
                files, version, columns
            ):
                return [self._copied(TableRows(self.uri, version, False), files)]
            return data_files.infos(
                list(map(_address, files)), f"snapshot {version} of {private(self.uri)}"
            )

    def added(
        self, after: int, columns: Sequence[str] | None, is_known: Callable[[str], bool]
    ) -> Added:
        """What later snapshots have appended, up to one that takes rows away or changes them."""
        found: list[FileInfo] = []
        until = after
        with self._errors():
            later = self._later(after)
            if later is None:
                why = (
                    f"snapshot {after}, the last of {private(self.uri)} whose rows jobs have read, is no longer in its "
                    "history, and nobody can tell what came later"
                )
                return Added([], after, (self.newest(), BadInput(why)))
            for snapshot in later:
                version = int(snapshot.snapshot_id)
                kind = snapshot.summary.operation.value if snapshot.summary else "overwrite"
                if kind == "append":
                    try:
                        found += self._not_known(snapshot, columns, is_known)
                    except FileGone as error:
                        return Added(
                            found, until, (version, BadInput(f"{marked(error)}: {NO_WAY_ON}"))
                        )
                elif kind != "replace":
                    why = (
                        f"snapshot {version} of {private(self.uri)} deletes or changes rows that jobs have read ({kind}): "
                        "its rows are not taken, nor later ones"
                    )
                    return Added(found, until, (version, BadInput(why)))
                until = version
        return Added(found, until)

    def copy(
        self, info: FileInfo, spec_input: InputSpec, limit: int | None, sink: BinaryIO
    ) -> None:
        """Writes the rows of a snapshot, or those that it appended."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.table import FileScanTask

        rows = table_rows(info.uri)
        assert rows is not None
        if str(self._table.metadata.table_uuid) != info.fingerprint:
            raise BadInput(
                f"{private(self.uri)} is another table than the one that was read before"
            )
        snapshot = self._snapshot(rows.version)
        with self._errors():
            scan = self._table.scan(snapshot_id=rows.version)
            schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
            if rows.is_appended:
                tasks = [FileScanTask(file) for file in self._appended(snapshot)]
            else:
                self._refuse_equality_deletes(rows.version)
                tasks = list(scan.plan_files())
            tasks.sort(key=lambda task: str(task.file.file_path))
            batches = bounded(self._read(scan, tasks, schema))
            FORMATS["table"].write(first_rows(batches, limit), schema, sink, {})

    def _read(self, scan: Any, tasks: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of data files in this order. Of several at once pyiceberg would hold all in memory."""
        from pyiceberg.io.pyarrow import ArrowScan

        reader = ArrowScan(
            self._table.metadata,
            self._table.io,
            scan.projection(),
            scan.row_filter,
            scan.case_sensitive,
        )
        for task in tasks:
            for batch in reader.to_record_batches([task]):
                yield batch.select(schema.names).cast(schema)

    def _snapshot(self, version: int) -> Any:
        found = self._table.snapshot_by_id(version)
        if found is None:
            raise BadInput(
                f"{private(self.uri)} has no snapshot {version}: it has expired, or never was one"
            )
        return found

    def _later(self, after: int) -> list[Any] | None:
        """The snapshots that lead from one to the newest; None where it is not among those before the newest."""
        found: list[Any] = []
        snapshot = self._table.current_snapshot()
        while snapshot is not None and int(snapshot.snapshot_id) != after:
            found.append(snapshot)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return None if snapshot is None else found[::-1]

    def _not_known(
        self, snapshot: Any, columns: Sequence[str] | None, is_known: Callable[[str], bool]
    ) -> list[FileInfo]:
        version = int(snapshot.snapshot_id)
        rows = TableRows(self.uri, version, True)
        if is_known(rows.uri):
            return []
        files = self._appended(snapshot)
        _refuse_doubles(files, f"snapshot {version} of {private(self.uri)}")
        new = [file for file in files if not is_known(_address(file))]
        if not new:
            return []
        if self._are_plain(new, version, columns):
            return data_files.infos(
                list(map(_address, new)), f"snapshot {version} of {private(self.uri)}"
            )
        return [self._copied(rows, files)]

    def _appended(self, snapshot: Any) -> list[Any]:
        """The data files that a snapshot added itself."""
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        version = snapshot.snapshot_id
        return [
            entry.data_file
            for manifest in snapshot.manifests(self._table.io)
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == version
            for entry in manifest.fetch_manifest_entry(self._table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == version
        ]

    def _refuse_equality_deletes(self, version: int) -> None:
        from pyiceberg.manifest import DataFileContent, ManifestContent

        for manifest in self._snapshot(version).manifests(self._table.io):
            if manifest.content != ManifestContent.DELETES:
                continue
            for entry in manifest.fetch_manifest_entry(self._table.io):
                if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                    raise BadInput(
                        f"snapshot {version} of {private(self.uri)} deletes rows by their values (equality deletes), which "
                        "are not read here: let the engine that writes the table compact it first"
                    )

    def _are_plain(self, files: Sequence[Any], version: int, columns: Sequence[str] | None) -> bool:
        """Whether the files are Parquet and have all that is read of them, under its names of now."""
        from pyiceberg.manifest import FileFormat

        if any(file.file_format != FileFormat.PARQUET for file in files):
            return False
        wanted = {
            field.name: field
            for field in self._table.scan(snapshot_id=version).projection().fields
            if columns is None or field.name in columns
        }
        found = data_files.schemas(
            list(map(_address, files)), f"snapshot {version} of {private(self.uri)}"
        )
        if not data_files.are_whole(found, list(wanted)):
            return False
        if len(self._table.metadata.schemas) == 1:
            return True
        return all(
            _is_column(schema.field(name), field)
            for schema in found
            for name, field in wanted.items()
        )

    def _copied(self, rows: TableRows, files: Sequence[Any]) -> FileInfo:
        total = sum(int(file.file_size_in_bytes) for file in files)
        return FileInfo(rows.uri, total, str(self._table.metadata.table_uuid))

    def _errors(self) -> AbstractContextManager[None]:
        return catalogs.answering(self._catalog, self._properties, table=self._name)


def _is_column(found: pa.Field, field: Any) -> bool:
    """Whether a column of a file is this one of the table, whose columns had other names or types once. What is
    nested may have changed inside.
    """
    number = (found.metadata or {}).get(FIELD_ID)
    return number == str(field.field_id).encode() and not pa.types.is_nested(found.type)


def _refuse_doubles(files: Sequence[Any], which: str) -> None:
    """BadInput for a data file that stands twice in a table, as a writer leaves it that tries a lost commit again."""
    counted = Counter(map(_address, files))
    doubled = next((uri for uri, count in counted.items() if count > 1), None)
    if doubled is not None:
        raise BadInput(
            f"{which} names the file {doubled} twice: its rows would count twice; take one of them out of the table first"
        )


def _address(file: Any) -> str:
    from nightshift.producer.tables.file_io import location_uri

    return resolve(location_uri(str(file.file_path)))
