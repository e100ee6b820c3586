"""A job whose parts become part of a table, over a ledger in this process; and the table, read by its own library."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from nightshift.common import storage
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import table_commits
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState, RowErrorKind
from nightshift.producer import retry
from nightshift.producer.reaper import finish
from nightshift.producer.submit import append_command
from nightshift.producer.submit.append_command import Taken
from nightshift.producer.submit.submit import submit
from nightshift.producer.tables.catalogs import open_catalog
from nightshift.producer.tables.store_options import storage_options
from tests.integration.test_retry import Site
from tests.support.fleet import function_spec, write_rows
from tests.support.rest_catalog import RestCatalogServer

NAME = "ns.answers"

SHOUTED = {"loud": "string"}


EVERYWHERE = (
    "delta",
    "iceberg",
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in ("iceberg rest", "delta s3", "iceberg s3", "iceberg s3 rest")
    ),
)

everywhere = pytest.mark.parametrize("site", EVERYWHERE, indirect=True)
"""On local disk and in an object store; with a catalog in SQLite and one that is reached by HTTP."""


@dataclass
class TableSite(Site):
    """A job with `output.table`, delta or iceberg, with its worker and its reaper. Tables lie in `folder`, or below
    an address in a `store`; the catalog is in SQLite, or `rest`.
    """

    kind: str = "delta"
    store: str | None = None
    rest: RestCatalogServer | None = None

    @property
    def warehouse(self) -> str:
        """Where the tables of a catalog lie."""
        return f"{self.store or f'file://{self.folder}'}/warehouse"

    @cached_property
    def settings(self) -> Settings:
        database = f"sqlite:///{self.folder}/catalog.db"
        sqlite = {"type": "sql", "uri": database, "warehouse": self.warehouse}
        return Settings(catalogs={"lake": sqlite if self.rest is None else self.rest.properties})

    def make_namespace(self) -> None:
        open_catalog(self.settings, "lake").create_namespace("ns")

    @property
    def root(self) -> Path:
        return self.folder / "lake" / "t"

    @property
    def uri(self) -> str:
        """The address of a Delta table, below which the parts of both formats lie."""
        return str(self.root) if self.store is None else f"{self.store}/lake/t"

    def table_spec(self, **more: Any) -> dict[str, Any]:
        named = (
            {"format": "delta", "uri": self.uri}
            if self.kind == "delta"
            else {"format": "iceberg", "catalog": "lake", "name": NAME}
        )
        return {**named, **more}

    def start(
        self,
        rows: int = 40,
        *,
        name: str = "moody",
        files: Sequence[tuple[str, int]] | None = None,
        of_input: dict[str, Any] | None = None,
        output: str | None = None,
        schema: dict[str, str] | None = SHOUTED,
        **of_table: Any,
    ) -> None:
        """Submits a job over new files, ten rows a batch."""
        source = self.folder / f"in-{name}"
        self.ids += write_rows(source, files or [("a.parquet", rows)])
        data = function_spec(name, source, output or f"{self.uri}/{name}", batch={"rows": 10})
        data["input"].update(of_input or {})
        if schema is not None:
            data["output"]["schema"] = schema
        data["output"]["table"] = self.table_spec(**of_table)
        self.job_id = submit(self.ledger, parse_spec(data, "test"), self.settings).job_id

    def append(self, name: str = "moody") -> Taken:
        return append_command.take(self.ledger, self.job, [], self.settings)

    def come(self, name: str, rows: int, job: str = "moody") -> None:
        self.ids += write_rows(self.folder / f"in-{job}", [(name, rows)])

    def finish(self) -> JobState:
        finish.finish(self.ledger, self.job_id, self.settings)
        return self.job.state

    def retry(self, kind: RowErrorKind | None = None, *, dead: bool = False) -> int:
        return retry.retry(
            self.ledger,
            self.job,
            failed=not dead,
            dead=dead,
            kind=kind,
            settings=self.settings,
            overtake=dead,
        ).rows

    @property
    def delta(self) -> DeltaTable:
        return self.delta_at()

    def delta_at(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.uri, version, storage_options=storage_options(self.uri))

    def parts(self, name: str = "moody") -> dict[str, object]:
        """The parts of a job by their names, each with what changes when a part is written again."""
        if self.store is None:
            found = [(path.name, path.stat()) for path in (self.root / name).glob("part-*")]
            return {each: (facts.st_ino, facts.st_mtime_ns) for each, facts in found}
        driver, place = storage.driver_of(f"{self.uri}/{name}")
        driver.invalidate_cache()
        listed = driver.ls(place, detail=True)
        return {
            name: (each["ETag"], each["LastModified"])
            for each in listed
            if (name := each["name"].rpartition("/")[2]).startswith("part-")
        }

    @property
    def iceberg(self) -> Any:
        return open_catalog(self.settings, "lake").load_table(NAME)

    def exists(self) -> bool:
        if self.kind == "delta":
            # Not by is_deltatable, which keeps all other threads of Python waiting, those of the store among them.
            with suppress(TableNotFoundError):
                return self.delta is not None
            return False
        return bool(open_catalog(self.settings, "lake").table_exists(NAME))

    def rows(self) -> pa.Table:
        """The rows of the table."""
        if self.kind == "delta":
            return self.delta.to_pyarrow_table()
        return self.iceberg.scan().to_arrow()

    def table_ids(self) -> list[str]:
        return sorted(self.rows().column("id").to_pylist())

    def versions(self) -> int:
        """How many versions the table has had."""
        if self.kind == "delta":
            return self.delta.version() + 1
        return len(self.iceberg.snapshots())

    def files(self) -> set[str]:
        """Names of the files of the table."""
        if self.kind == "delta":
            return {uri.rpartition("/")[2] for uri in self.delta.file_uris()}
        return {task.file.file_path.rpartition("/")[2] for task in self.iceberg.scan().plan_files()}

    def state(self) -> str | None:
        with self.ledger.transaction() as connection:
            found = table_commits.last(connection, self.job_id)
        return None if found is None else found.state


@contextmanager
def opened(
    where: str, request: pytest.FixtureRequest, ledger: Ledger, folder: Path
) -> Iterator[TableSite]:
    """A site by the words of its place, as in EVERYWHERE."""
    kind, *words = where.split()
    site = TableSite(ledger, folder, kind=kind)
    if "s3" in words:
        request.getfixturevalue("client")
        site.store = f"s3://{request.getfixturevalue('fresh')}"
    if "rest" not in words:
        if kind == "iceberg":
            site.make_namespace()
        yield site
        return
    with RestCatalogServer(folder, site.warehouse).running() as site.rest:
        site.make_namespace()
        yield site
