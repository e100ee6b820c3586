"""A job whose parts become part of a table, over a ledger in this process; and the table, read by its own library."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

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
from tests.integration.test_retry import Site
from tests.support.fleet import function_spec, write_rows

NAME = "ns.answers"

SHOUTED = {"loud": "string"}


@dataclass
class TableSite(Site):
    """A job with `output.table`, delta or iceberg, with its worker and its reaper."""

    kind: str = "delta"

    @property
    def settings(self) -> Settings:
        database = f"sqlite:///{self.folder}/catalog.db"
        warehouse = f"file://{self.folder}/warehouse"
        return Settings(catalogs={"lake": {"type": "sql", "uri": database, "warehouse": warehouse}})

    def make_namespace(self) -> None:
        open_catalog(self.settings, "lake").create_namespace("ns")

    @property
    def root(self) -> Path:
        return self.folder / "lake" / "t"

    def table_spec(self, **more: Any) -> dict[str, Any]:
        named = (
            {"format": "delta", "uri": str(self.root)}
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
        output: Path | None = None,
        schema: dict[str, str] | None = SHOUTED,
        **of_table: Any,
    ) -> None:
        """Submits a job over new files, ten rows a batch."""
        source = self.folder / f"in-{name}"
        self.ids += write_rows(source, files or [("a.parquet", rows)])
        data = function_spec(name, source, output or self.root / name, batch={"rows": 10})
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
            self.ledger, self.job, failed=not dead, dead=dead, kind=kind, settings=self.settings
        ).rows

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.root))

    @property
    def iceberg(self) -> Any:
        return open_catalog(self.settings, "lake").load_table(NAME)

    def exists(self) -> bool:
        if self.kind == "delta":
            return bool(DeltaTable.is_deltatable(str(self.root)))
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
