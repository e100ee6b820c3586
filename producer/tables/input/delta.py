"""A Delta table as the input of a job.

Data files are read as they are where all that the job reads stands in them. Rows of other tables are copied: by
our own reader where columns stand in the log or are missing, in the order of the files; by delta-rs where rows are
deleted by vectors or columns are mapped, ordered by the id, since it promises no order.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from nightshift.common import storage
from nightshift.common.errors import BadInput, NightshiftError, StorageUnavailable
from nightshift.common.formats import reading
from nightshift.common.formats.known import FORMATS
from nightshift.common.formats.streams import content_errors
from nightshift.common.own_folder import own_folder
from nightshift.common.public_text import marked, private
from nightshift.common.spec import InputSpec
from nightshift.common.spec.table_uris import DELTA, TableRows, table_rows
from nightshift.common.storage import FileInfo
from nightshift.producer.submit.table_input import Added
from nightshift.producer.tables import delta_log
from nightshift.producer.tables.input import data_files
from nightshift.producer.tables.input.data_files import NO_WAY_ON, FileGone
from nightshift.producer.tables.input.rows import bounded, first_rows, ordered
from nightshift.producer.tables.store_options import storage_options

MAPPING = "delta.columnMapping.mode"

VECTORS = "deletionVectors"
"""The table feature that lets versions delete rows by vectors."""

PARQUET = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
"""Spark writes timestamps in 96 bits."""


PRIVATE = "nightshift-delta-"
"""Begins the names of folders with files of a table as delta-rs opens them, where roots hold."""

COPY_BYTES = 2**20

KEPT_FREE_BYTES = 2**30
"""What private copies leave of the disk to others."""

BY_ID = "/by-id"
"""Ends the fingerprint of rows that delta-rs reads, and that are put in the order of their ids."""


class DeltaInput:
    """A table by its uri, `delta:ROOT`; see `table_input.InputTable`."""

    def __init__(self, uri: str) -> None:
        self.uri, self.root = uri, uri.removeprefix(DELTA)
        delta_log.check_place(self.root)
        delta_log.check_sidecars(self.root)
        self._newest = self._opened(None)

    def newest(self) -> int:
        """The newest version."""
        return int(self._newest.version())

    def check(self, version: int) -> None:
        """BadInput for a version that is not there, or is there no longer."""
        if version > self.newest():
            raise BadInput(
                f"{private(self.uri)} has no version {version}: the newest is {self.newest()}"
            )
        self._at(version)

    def files(
        self, version: int, spec_input: InputSpec, columns: Sequence[str] | None
    ) -> list[FileInfo]:
        """The data files of a version, or the version where it is copied."""
        table = self._at(version)
        uris = list(self._added(table))
        if self._is_native(table, uris):
            if spec_input.id is None:
                raise BadInput(
                    f"{private(self.uri)} deletes rows by vectors or maps columns, and is read in no certain order: "
                    "name the column that tells its rows apart as input.id"
                )
            return [self._copied(table, TableRows(self.uri, version, False), BY_ID)]
        if not self._are_plain(table, uris, columns):
            return [self._copied(table, TableRows(self.uri, version, False))]
        return data_files.infos(uris, self._named_version(table))

    def added(
        self, after: int, columns: Sequence[str] | None, is_known: Callable[[str], bool]
    ) -> Added:
        """What later versions have added, up to one that takes rows away or changes them."""
        found: list[FileInfo] = []
        for version in range(after + 1, self.newest() + 1):
            actions = delta_log.commit(self.root, version)
            why = self._refusal(version, actions)
            if why is not None or actions is None:
                return Added(found, version - 1, (version, BadInput(str(why))))
            adds = [action["add"] for action in actions if _changes(action.get("add"))]
            uris = [delta_log.data_uri(self.root, add["path"]) for add in adds]
            try:
                found += self._not_known(version, uris, columns, is_known)
            except FileGone as error:
                return Added(
                    found, version - 1, (version, BadInput(f"{marked(error)}: {NO_WAY_ON}"))
                )
        return Added(found, max(after, self.newest()))

    def copy(
        self, info: FileInfo, spec_input: InputSpec, limit: int | None, sink: BinaryIO
    ) -> None:
        """Writes the rows of a version, or those that it added."""
        rows = table_rows(info.uri)
        assert rows is not None
        table = self._at(rows.version)
        number, _, order = info.fingerprint.partition(BY_ID[0])
        if str(table.metadata().id) != number:
            raise BadInput(
                f"{private(self.uri)} is another table than the one that was read before"
            )
        schema = pa.schema(table.schema().to_arrow())
        added = self._added(table)
        # As it was decided when the rows were planned: the numbers of rows stand on their order.
        native = bool(order)
        if native:
            delta_log.check_files(self.root, self._named, added.keys())
        with self._errors(), ExitStack() as stack:
            if native:
                if storage.is_held(self.root):
                    folder = stack.enter_context(own_folder(PRIVATE))
                    self._copy_private(rows.version, added, folder)
                    table = self._loaded(rows.version, str(folder))
                batches = ordered(bounded(self._scan(table, schema)), schema, spec_input.id)
            else:
                wanted = set(self._commit_uris(rows.version)) if rows.is_appended else set(added)
                chosen = {uri: added[uri] for uri in sorted(wanted)}
                batches = bounded(self._read(chosen, table.metadata().partition_columns, schema))
            FORMATS["table"].write(first_rows(batches, limit), schema, sink, {})

    def _copy_private(self, version: int, added: Collection[str], folder: Path) -> None:
        """Copies what delta-rs opens by name for a version: its log, and its `added` data files with their vectors.
        Each is opened by our storage, which follows no link out of the roots, at whatever time it was made.
        """
        self._copy_log(version, folder)
        with storage.unheld():
            # As delta-rs will read it: the table's own log may say something else by now.
            named = list(delta_log.named_files(str(folder)))
        for each in named:
            paths = list(filter(None, (each.path, each.vector)))
            for path in paths:
                if not delta_log.is_below(path):
                    raise BadInput(
                        f"the log of {private(self.root)} names the file '{private(path)}' by an absolute address or outside of the "
                        "table's folder: copy the table"
                    )
            if delta_log.data_uri(self.root, each.path) not in added:
                continue
            for path in paths:
                # A vector of another version may be gone.
                with suppress(FileNotFoundError):
                    uri = delta_log.data_uri(self.root, path)
                    self._refuse_to_fill(folder, storage.stat(uri).size)
                    _copy_file(uri, folder / unquote(path))

    def _refuse_to_fill(self, folder: Path, size: int) -> None:
        if shutil.disk_usage(folder).free - size < KEPT_FREE_BYTES:
            raise BadInput(
                f"{private(self.uri)} deletes rows by vectors or maps columns, and its files have no room here in the folder of "
                "temporary files (TMPDIR): write the table without them, or enlarge that disk"
            )

    def _copy_log(self, version: int | None, folder: Path) -> None:
        """Copies the log up to a version, None for all of it, so that no link leads delta-rs to another one."""
        for name in delta_log.log_names(self.root, version):
            _copy_file(
                f"{self.root}/{delta_log.FOLDER}/{name}",
                folder / delta_log.FOLDER / name,
                links=False,
            )
        with storage.unheld():
            delta_log.check_sidecars(str(folder))

    def _not_known(
        self,
        version: int,
        uris: list[str],
        columns: Sequence[str] | None,
        is_known: Callable[[str], bool],
    ) -> list[FileInfo]:
        rows = TableRows(self.uri, version, True)
        new = [uri for uri in uris if not is_known(uri)]
        if not new or is_known(rows.uri):
            return []
        table = self._at(version)
        if self._are_plain(table, new, columns):
            return data_files.infos(new, self._named_version(table))
        return [self._copied(table, rows)]

    def _refusal(self, version: int, actions: list[dict[str, Any]] | None) -> str | None:
        """Why the rows of a version cannot be taken; None where they can."""
        which = f"version {version} of {private(self.uri)}"
        if actions is None:
            return f"{which} is no longer in its log, and nobody can tell what it added"
        if any(_changes(action.get("remove")) for action in actions):
            return f"{which} deletes or changes rows that jobs have read: its rows are not taken, nor later ones"
        if any(
            _changes(add := action.get("add")) and add and add.get("deletionVector")
            for action in actions
        ):
            return f"{which} adds files of which some rows are deleted (deletion vectors): its rows are not taken, nor later ones"
        if self._mapping(self._newest) and any(_changes(action.get("add")) for action in actions):
            return f"{which} maps columns, and rows of such a table are taken at submit alone"
        return None

    def _named_version(self, table: Any) -> str:
        return f"version {table.version()} of {private(self.uri)}"

    def _commit_uris(self, version: int) -> list[str]:
        actions = delta_log.commit(self.root, version)
        if actions is None:
            raise BadInput(f"version {version} of {private(self.uri)} is no longer in its log")
        adds = [action["add"] for action in actions if _changes(action.get("add"))]
        return [delta_log.data_uri(self.root, add["path"]) for add in adds]

    @cached_property
    def _named(self) -> list[delta_log.Named]:
        return list(delta_log.named_files(self.root))

    def identity(self) -> str:
        """The id of the table."""
        return str(self._newest.metadata().id)

    def _is_native(self, table: Any, uris: Sequence[str]) -> bool:
        """Whether delta-rs must read the rows: columns are mapped, or rows may be deleted by a vector."""
        if self._mapping(table):
            return True
        if VECTORS not in (table.protocol().reader_features or ()):
            return False
        # Up to this version alone: the answer stays the same whatever comes later.
        named = delta_log.named_files(self.root, int(table.version()))
        with_vector = {
            delta_log.data_uri(self.root, each.path) for each in named if each.has_vector
        }
        return not with_vector.isdisjoint(uris)

    @staticmethod
    def _mapping(table: Any) -> bool:
        return bool(table.metadata().configuration.get(MAPPING, "none") != "none")

    def _are_plain(self, table: Any, uris: Sequence[str], columns: Sequence[str] | None) -> bool:
        """Whether the files have all that is read of them."""
        if columns is None:
            columns = [field.name for field in table.schema().fields]
        if set(columns) & set(table.metadata().partition_columns):
            return False
        known = {field.name for field in table.schema().fields}
        return data_files.are_whole(
            data_files.schemas(uris, self._named_version(table)),
            [name for name in columns if name in known],
        )

    @staticmethod
    def _copied(table: Any, rows: TableRows, order: str = "") -> FileInfo:
        sizes = pa.table(table.get_add_actions())
        total = sum(sizes.column("size_bytes").to_pylist())
        return FileInfo(rows.uri, total, f"{table.metadata().id}{order}")

    def _added(self, table: Any) -> dict[str, dict[str, Any]]:
        """The data files of a version by address, each with the values of the partition columns."""
        with self._errors():
            actions = pa.table(table.get_add_actions())
        parts = (
            actions.column("partition").to_pylist()
            if "partition" in actions.column_names
            else [{}] * actions.num_rows
        )
        paths = actions.column("path").to_pylist()
        found = {
            delta_log.data_uri(self.root, path): part or {}
            for path, part in zip(paths, parts, strict=True)
        }
        if len(found) < len(paths):
            raise BadInput(
                f"{self._named_version(table)} names a file twice, by two names: its rows would count twice"
            )
        return found

    def _read(
        self, added: dict[str, dict[str, Any]], partitions: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The rows of files in their order, each file opened by our storage."""
        for uri, values in added.items():
            storage.check_object(uri)
            with (
                data_files.there(uri, self.uri),
                storage.open_input(uri) as file,
                content_errors(uri),
            ):
                known = [_is(schema.field(name), values.get(name)) for name in partitions]
                expression = None
                for each in known:
                    expression = each if expression is None else expression & each
                fragment = PARQUET.make_fragment(file, partition_expression=expression)
                yield from fragment.scanner(schema=schema, use_threads=False).to_batches()

    @staticmethod
    def _scan(table: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in pa.RecordBatchReader.from_stream(table.scan()):
            yield batch.select(schema.names).cast(schema)

    def _at(self, version: int) -> Any:
        if version == self.newest():
            return self._newest
        return self._opened(version)

    def _opened(self, version: int | None) -> Any:
        if not storage.is_held(self.root):
            return self._loaded(version, self.root)
        with own_folder(PRIVATE) as folder:
            self._copy_log(version, folder)
            return self._loaded(version, str(folder))  # reads all that it needs of the log

    def _loaded(self, version: int | None, root: str) -> Any:
        try:
            from deltalake import DeltaTable
        except ModuleNotFoundError as error:
            raise BadInput(
                f"{private(self.uri)} needs the package deltalake: pip install 'nightshift-fleet[delta]'"
            ) from error
        with self._errors(version):
            return DeltaTable(root, version=version, storage_options=storage_options(root))

    @contextmanager
    def _errors(self, version: int | None = None) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        which = (
            private(self.uri) if version is None else f"version {version} of {private(self.uri)}"
        )
        try:
            yield
        except NightshiftError:
            raise
        except OSError as error:
            raise StorageUnavailable(
                f"{which} cannot be read: {marked(_first_line(error))}"
            ) from error
        except (DeltaError, pa.ArrowException, ValueError) as error:
            raise BadInput(f"{which} cannot be read: {marked(_first_line(error))}") from error


def _copy_file(uri: str, target: Path, *, links: bool = True) -> None:
    with storage.open_input(uri, sequential=True, links=links) as source:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as sink:
            while piece := source.read(COPY_BYTES):
                reading.current().check()
                sink.write(piece)


def _changes(action: dict[str, Any] | None) -> bool:
    """Whether an action adds rows or takes some away, and does not only rewrite them (Delta protocol, dataChange)."""
    return action is not None and action.get("dataChange", True) is not False


def _is(field: pa.Field, value: Any) -> Any:
    column = pc.field(field.name)
    return column.is_null() if value is None else column == pa.scalar(value, field.type)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
