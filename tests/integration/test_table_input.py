"""Jobs over tables: which rows they read, that a version stays the version, and what is refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import text

from nightshift.common.errors import BadInput, LedgerUnavailable
from nightshift.common.formats import input_copies, part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import input_versions, job_submit, jobs, watches
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.control.deletion import delete
from nightshift.producer.estimate.estimate import estimate
from nightshift.producer.results.collect import collect
from nightshift.producer.submit import append_command
from nightshift.producer.submit.append_command import Taken
from nightshift.producer.submit.before import check_before
from nightshift.producer.submit.intake import NOTHING
from nightshift.producer.submit.submit import Submitted, submit
from nightshift.producer.tables import delta_log
from nightshift.producer.tables.catalogs import open_catalog
from nightshift.producer.tables.input import delta as delta_input
from nightshift.producer.tables.store_options import storage_options
from nightshift.producer.verify.verify import verify
from nightshift.producer.watch import look
from tests.integration.test_retry import Site, agreed, moody
from tests.support import delta_tables
from tests.support.fleet import function_spec, output_ids
from tests.support.rest_catalog import RestCatalogServer

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    import s3fs

    from tests.support.object_store import ObjectStore

SHOUT = moody()


def rows(name: str, count: int) -> pa.Table:
    """Rows of one name, as functions of these tests take them."""
    ids = [f"{name}-{number}" for number in range(count)]
    return pa.table({"id": ids, "text": [f"say {each}" for each in ids]})


class Lake(Site):
    """A job over a table, with its worker, its reaper and its command in this process."""

    uri: str
    settings: Settings

    def append(self, table: pa.Table) -> None:
        """A version that adds rows."""
        raise NotImplementedError

    def compact(self) -> None:
        """A version with the same rows in other files."""
        raise NotImplementedError

    def delete(self, row_id: str) -> None:
        """A version without a row."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """The newest version."""
        raise NotImplementedError

    def worker_roots(self) -> tuple[str, ...]:
        return self.settings.allowed_roots

    def begin(self, **of_input: Any) -> Submitted:
        """Submits a job over the table, or finds it."""
        data = function_spec("moody", Path(self.uri), self.folder / "out", batch={"rows": 10})
        data["input"] = {"uri": self.uri, "id": "id", **of_input}
        done = submit(self.ledger, parse_spec(data, "test"), self.settings)
        self.job_id = done.job_id
        return done

    def take(self, **how: bool) -> Taken:
        """What is new in the table."""
        return append_command.take(self.ledger, self.job, [], self.settings, **how)

    def look(self) -> None:
        """One look of a reaper, which is due now whatever the pace is."""
        with self.ledger.transaction() as connection:
            connection.execute(
                text("""
                    UPDATE job_watches SET next_look_at = now(); UPDATE holds SET until = '-infinity';
                    UPDATE unplanned_files SET seen_at = seen_at - interval '1 hour'
                """)
            )
        assert look.look_once(self.ledger, self.settings)

    def noted(self) -> list[watches.UnplannedFile]:
        """What looks found and did not take."""
        with self.ledger.transaction() as connection:
            return watches.unplanned(connection, self.job_id)

    def taken(self) -> int | None:
        """Up to which version the job has everything."""
        with self.ledger.transaction() as connection:
            found = input_versions.get(connection, self.job_id)
        return None if found is None else found[0]

    def done(self) -> list[str]:
        """All rows are run; the ids in the output."""
        assert self.work(SHOUT) is JobState.COMPLETED
        assert agreed(self.ledger, self.job, self.folder) == {}
        return output_ids(self.folder / "out")

    def copies(self) -> list[Path]:
        """Copies in the output directory."""
        return sorted((self.folder / "out" / input_copies.FOLDER).glob("*"))


class DeltaLake(Lake):
    @property
    def root(self) -> Path:
        return self.folder / "lake" / "reviews"

    def make(self, first: pa.Table, **how: Any) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_deltalake(self.root, first, **how)
        self.uri, self.settings = f"delta:{self.root}", Settings()

    def append(self, table: pa.Table) -> None:
        write_deltalake(self.root, table, mode="append", schema_mode="merge")

    def compact(self) -> None:
        DeltaTable(self.root).optimize.compact()

    def delete(self, row_id: str) -> None:
        DeltaTable(self.root).delete(f"id = '{row_id}'")

    @property
    def version(self) -> int:
        return DeltaTable(self.root).version()


class IcebergLake(Lake):
    catalog: Any

    @property
    def properties(self) -> dict[str, str]:
        place = {"uri": f"sqlite:///{self.folder}/c.db", "warehouse": f"file://{self.folder}/lake"}
        return {"type": "sql", **place}

    def make(self, first: pa.Table) -> None:
        self.settings = Settings()
        self.catalog = open_catalog(self.settings, "lake")
        self.catalog.create_namespace("shop")
        self.catalog.create_table("shop.reviews", first.schema)
        self.uri = "iceberg:lake.shop.reviews"
        self.append(first)

    @property
    def table(self) -> Any:
        return self.catalog.load_table("shop.reviews")

    def append(self, table: pa.Table) -> None:
        self.table.append(table)

    def compact(self) -> None:
        from pyiceberg.table.snapshots import Operation, Summary

        table = self.table
        with table.transaction() as transaction:
            files = [task.file for task in table.scan().plan_files()]
            [new] = _written(transaction, table.scan().to_arrow())
            rewrite: Any = transaction.update_snapshot().overwrite()
            rewrite._summary = lambda _: Summary(Operation.REPLACE)
            for file in files:
                rewrite.delete_data_file(file)
            rewrite.append_data_file(new)
            rewrite.commit()

    def delete(self, row_id: str) -> None:
        self.table.delete(f"id = '{row_id}'")

    @property
    def version(self) -> int:
        return int(self.table.current_snapshot().snapshot_id)


def _written(transaction: Any, table: pa.Table) -> list[Any]:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    return list(_dataframe_to_data_files(transaction.table_metadata, table, transaction._table.io))


@pytest.fixture
def delta(ledger: Ledger, tmp_path: Path) -> DeltaLake:
    return DeltaLake(ledger, tmp_path)


@pytest.fixture
def iceberg(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[IcebergLake]:
    found = IcebergLake(ledger, tmp_path)
    # For retries, which take their settings from the environment.
    monkeypatch.setenv("NIGHTSHIFT_CATALOGS", json.dumps({"lake": found.properties}))
    yield found
    found.catalog.close()


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest) -> Any:
    """A table of each format with 15 rows."""
    found = request.getfixturevalue(request.param)
    found.make(rows("a", 15))
    return found


def ids(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


# ---------------------------------------------------------------- a version


def test_a_plain_table_is_read_from_its_own_files(lake: Lake) -> None:
    lake.append(rows("b", 5))
    done = lake.begin()
    assert (done.is_new, done.rows) == (True, 20)
    assert sorted(lake.done()) == sorted(ids("a", 15) + ids("b", 5))
    assert lake.copies() == []
    manifest = json.loads((lake.folder / "out" / "_manifest.json").read_text())
    assert manifest["input_table"].pop("id")
    assert manifest["input_table"] == {
        "uri": lake.uri,
        "version": lake.version,
        "appended_until": lake.version,
    }


def test_the_same_spec_continues_its_version_although_the_table_has_moved_on(lake: Lake) -> None:
    first = lake.begin()
    read = lake.version
    lake.append(rows("b", 5))
    again = lake.begin()
    assert (again.job_id, again.is_new) == (first.job_id, False)
    assert lake.job.spec.input.version == read
    [remark] = again.remarks
    assert f"has read version {read} of {lake.uri}, and the newest is {lake.version}" in remark
    assert f"`nightshift submit --append {first.job_id}`" in remark
    assert lake.done() == ids("a", 15)
    assert lake.begin(version=read).job_id == first.job_id
    with pytest.raises(BadInput, match=r"differs in input\.version"):
        lake.begin(version=lake.version)


def test_an_older_version_is_read_as_it_was(lake: Lake) -> None:
    read = lake.version
    lake.append(rows("b", 5))
    lake.delete("a-3")
    assert lake.begin(version=read).rows == 15
    assert lake.done() == ids("a", 15)


def test_a_version_that_never_was_is_refused(lake: Lake) -> None:
    with pytest.raises(BadInput, match=r"has no (version|snapshot) 77"):
        lake.begin(version=77)


def test_a_version_whose_files_are_gone_is_refused(delta: DeltaLake) -> None:
    delta.make(rows("a", 15))
    delta.delete("a-3")
    table = DeltaTable(delta.root)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(
        BadInput, match=r"version 0 of .* can be read no longer: its file .* is gone"
    ):
        delta.begin(version=0)


def test_a_job_goes_on_where_rows_that_came_later_are_gone(delta: DeltaLake) -> None:
    delta.make(rows("a", 15))
    first = delta.begin()
    delta.append(rows("b", 5))
    delta.compact()
    [b_file] = [
        each["add"]["path"] for each in delta_tables.actions(delta.root, 1) if "add" in each
    ]
    (delta.root / b_file).unlink()
    again = delta.begin()
    assert again.job_id == first.job_id
    assert "version 1 of" in again.remarks[0]
    assert delta.done() == ids("a", 15)


def test_a_snapshot_that_has_expired_is_refused(iceberg: IcebergLake) -> None:
    iceberg.make(rows("a", 15))
    read = iceberg.version
    iceberg.append(rows("b", 5))
    iceberg.table.maintenance.expire_snapshots().by_id(read).commit()
    with pytest.raises(BadInput, match=f"has no snapshot {read}: it has expired"):
        iceberg.begin(version=read)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"uri": "delta:"}, "a Delta table is named as delta:ROOT"),
        ({"uri": ["delta:a", "b.parquet"]}, "an input by itself"),
        ({"uri": "iceberg:lake.reviews"}, "an Iceberg table is named as"),
        ({"uri": "delta:a", "format": "jsonl"}, "has no input.format"),
        ({"uri": "delta:a", "partitioning": "hive"}, "are for files"),
        ({"uri": "a.parquet", "version": 3}, "version is for a table"),
    ],
)
def test_what_does_not_go_with_a_table_is_refused(given: dict[str, Any], why: str) -> None:
    data = function_spec("moody", Path("x"), Path("out"))
    data["input"] |= given
    with pytest.raises(BadInput, match=why):
        parse_spec(data, "test")


def test_a_table_that_is_not_there_is_refused_before_servers_start(lake: Lake) -> None:
    data = function_spec("moody", Path("x"), lake.folder / "out")
    for uri in (f"delta:{lake.folder}/nowhere", "iceberg:lake.shop.nowhere", "iceberg:sea.a.b"):
        data["input"] = {"uri": uri, "id": "id"}
        with pytest.raises(BadInput, match=r"nowhere|there is no catalog"):
            check_before(parse_spec(data, "test"), lake.settings, has_ledger=False, adopt=False)


def test_without_the_wing_a_table_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightshift.producer import wings

    others = tuple(each for each in wings.modules() if not each.__name__.endswith("tables.wing"))
    monkeypatch.setattr(wings, "modules", lambda: others)
    with pytest.raises(BadInput, match="this installation reads none"):
        lake.begin()


def test_a_table_of_a_rest_catalog_is_read(ledger: Ledger, tmp_path: Path) -> None:
    with RestCatalogServer(tmp_path, f"file://{tmp_path}/lake").running() as server:
        lake = IcebergLake(ledger, tmp_path)
        lake.settings = Settings(catalogs={"lake": server.properties})
        lake.catalog = server.catalog
        lake.catalog.create_namespace("shop")
        lake.catalog.create_table("shop.reviews", rows("a", 15).schema)
        lake.uri = "iceberg:lake.shop.reviews"
        lake.append(rows("a", 15))
        assert lake.begin().rows == 15
        lake.append(rows("b", 5))
        assert lake.take().appended.rows == 5
        assert sorted(lake.done()) == sorted(ids("a", 15) + ids("b", 5))


# ---------------------------------------------------------------- copies


def partitioned(delta: DeltaLake) -> None:
    kinds = pa.array(["x y", "é", None] * 5)
    delta.make(rows("a", 15).append_column("kind", kinds), partition_by=["kind"])


def with_vector(delta: DeltaLake) -> None:
    delta.make(rows("a", 17))
    delta_tables.delete_by_vector(delta.root, [15, 16])


def mapped(delta: DeltaLake) -> None:
    delta_tables.mapped_table(delta.root, rows("a", 15))
    delta.uri, delta.settings = f"delta:{delta.root}", Settings()


def renamed(iceberg: IcebergLake) -> None:
    iceberg.make(rows("a", 15).rename_columns(["id", "words"]))
    with iceberg.table.update_schema() as update:
        update.rename_column("words", "text")
    iceberg.append(rows("b", 1))
    iceberg.delete("b-0")


def with_positions(iceberg: IcebergLake) -> None:
    from tests.support import iceberg_deletes

    iceberg.make(rows("a", 17))
    iceberg_deletes.delete_positions(iceberg.table, [15, 16])


COPIED = {
    "partitioned": ("delta", partitioned),
    "vector": ("delta", with_vector),
    "mapped": ("delta", mapped),
    "renamed": ("iceberg", renamed),
    "positions": ("iceberg", with_positions),
}


@pytest.fixture(params=list(COPIED))
def copied(request: pytest.FixtureRequest) -> Any:
    """Tables of 15 rows whose files say too little or too much by themselves."""
    name, make = COPIED[request.param]
    found = request.getfixturevalue(name)
    make(found)
    return found


def test_a_table_whose_files_do_not_have_all_is_read_from_a_copy(copied: Lake) -> None:
    assert copied.begin(columns=None).rows == 15
    [copy] = copied.copies()
    assert copy.suffix == input_copies.SUFFIX
    assert sorted(copied.done()) == sorted(ids("a", 15))
    [again] = copied.copies()
    assert again == copy  # a retry may need it


def test_a_copy_that_is_gone_is_made_again_from_its_version(copied: Lake) -> None:
    first = copied.begin()
    [copy] = copied.copies()
    before = pq.read_table(copy)
    copy.unlink()
    if not _is_by_hand(copied):
        copied.append(rows("late", 3))
    again = copied.begin()
    assert (again.job_id, again.is_new) == (first.job_id, False)
    assert pq.read_table(copy).equals(before)
    copy.unlink()
    copied.run(SHOUT)
    assert copied.finish() is JobState.FAILED
    copied.retry(dead=True)
    assert sorted(copied.done()) == sorted(ids("a", 15))
    assert pq.read_table(copy).equals(before)


def _is_by_hand(lake: Lake) -> bool:
    """Whether delta-rs cannot write to the table."""
    return isinstance(lake, DeltaLake) and bool(DeltaTable(lake.root).protocol().reader_features)


def test_a_submit_that_was_cut_off_leaves_no_copy_behind_once_the_table_has_moved_on(
    delta: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitioned(delta)

    def cut_off(*_: Any) -> int:
        raise LedgerUnavailable("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(job_submit, "insert", cut_off)
        with pytest.raises(LedgerUnavailable):
            delta.begin()
    assert (delta.folder / "out" / part_names.OWNER).exists()
    [left] = delta.copies()
    delta.append(rows("b", 5).append_column("kind", pa.array(["x y"] * 5)))
    assert delta.begin().rows == 20
    assert left in delta.copies()
    assert sorted(delta.done()) == sorted(ids("a", 15) + ids("b", 5))
    [copy] = delta.copies()
    assert copy != left


def test_the_copy_goes_with_the_output(copied: Lake) -> None:
    copied.begin()
    copied.done()
    delete(copied.ledger, copied.job, copied.settings, output=True)
    assert not (copied.folder / "out").exists()


def test_rows_in_no_order_need_an_id(delta: DeltaLake) -> None:
    with_vector(delta)
    with pytest.raises(BadInput, match=r"read in no certain order: .* as input\.id"):
        delta.begin(id=None)


def test_the_first_rows_of_a_copy_are_those_of_its_order(delta: DeltaLake) -> None:
    with_vector(delta)
    assert delta.begin(limit=4).rows == 4
    assert delta.done() == sorted(ids("a", 15))[:4]


def test_values_of_partitions_and_null_are_columns(delta: DeltaLake) -> None:
    partitioned(delta)
    delta.begin()
    [copy] = delta.copies()
    found = pq.read_table(copy).to_pylist()
    kinds = ["x y", "é", None]
    assert {row["id"]: row["kind"] for row in found} == {
        f"a-{number}": kinds[number % 3] for number in range(15)
    }


def test_a_condition_takes_some_rows_of_a_table(copied: Lake) -> None:
    done = copied.begin(where="id IN ('a-3', 'a-12')")
    assert done.rows == 2
    assert copied.work(SHOUT) is JobState.COMPLETED
    assert sorted(output_ids(copied.folder / "out")) == ["a-12", "a-3"]
    assert verify(copied.ledger, copied.job) == []


def test_a_condition_may_be_about_a_column_of_the_log(delta: DeltaLake) -> None:
    partitioned(delta)
    assert delta.begin(columns=["text"], where="kind = 'é'").rows == 5
    assert delta.work(SHOUT) is JobState.COMPLETED
    found = sorted(output_ids(delta.folder / "out"))
    assert found == sorted(f"a-{number}" for number in range(1, 15, 3))


def test_a_job_that_reads_no_column_of_the_log_reads_the_files(delta: DeltaLake) -> None:
    partitioned(delta)
    assert delta.begin(columns=["text"]).rows == 15
    assert delta.copies() == []


def test_equality_deletes_are_refused(iceberg: IcebergLake) -> None:
    from tests.support import iceberg_deletes

    iceberg.make(rows("a", 15))
    iceberg_deletes.delete_equal(iceberg.table, "id", ["a-3"])
    with pytest.raises(BadInput, match="equality deletes"):
        iceberg.begin()


def test_ids_of_a_copied_table_are_told_apart_when_rows_are_appended(delta: DeltaLake) -> None:
    partitioned(delta)
    delta.begin(unique_id=True)
    for copy in delta.copies():
        copy.unlink()  # the ids of rows that have not run stand nowhere else
    delta.append(rows("a", 1).append_column("kind", pa.array(["x y"])))
    with pytest.raises(BadInput, match="a-0"):
        delta.take()


def test_rows_of_a_table_that_share_beginnings_can_be_arranged(copied: Lake) -> None:
    data = function_spec("moody", Path("x"), copied.folder / "out")
    data["input"] = {"uri": copied.uri, "id": "id"}
    data["task"] = {"kind": "generate", "prompt": "{{ text }}"}
    data["engine"] = {"backend": "vllm", "model": "M"}
    data["batch"] = {"arrange": "prefix", "rows": 10}
    done = submit(copied.ledger, parse_spec(data, "test"), copied.settings)
    assert (done.rows, done.arranged) == (15, True)


def test_columns_of_a_copied_table_stand_beside_the_output(copied: Lake) -> None:
    copied.begin()
    copied.done()
    target = copied.folder / "beside.parquet"
    assert collect(copied.ledger, copied.job, str(target), inputs=["text"]) == 15
    found = pq.read_table(target, columns=["id", "text"]).to_pylist()
    assert {row["id"]: row["text"] for row in found} == {
        each: f"say {each}" for each in ids("a", 15)
    }


def test_an_estimate_of_a_table_leaves_nothing_behind(copied: Lake) -> None:
    data = function_spec("moody", Path("x"), copied.folder / "out")
    data["input"] = {"uri": copied.uri, "id": "id"}
    found = estimate(parse_spec(data, "test"), copied.settings, copied.ledger)
    assert found.rows == 15
    assert not (copied.folder / "out").exists()


# ---------------------------------------------------------------- stores


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_a_delta_table_in_a_store_is_read(
    ledger: Ledger,
    tmp_path: Path,
    store: "ObjectStore",
    client: "s3fs.S3FileSystem",
    fresh: str,
    kind: str,
) -> None:
    lake = DeltaLake(ledger, tmp_path)
    lake.uri, lake.settings = f"delta:s3://{fresh}/lake/reviews", Settings()
    place, options = f"s3://{fresh}/lake/reviews", storage_options(f"s3://{fresh}")
    how: dict[str, Any] = {"partition_by": ["text"]} if kind == "partitioned" else {}
    write_deltalake(place, rows("a", 15), storage_options=options, **how)
    lake.begin()
    assert len(lake.copies()) == (kind == "partitioned")
    write_deltalake(place, rows("b", 5), mode="append", storage_options=options)
    assert lake.take().appended.rows == 5
    assert sorted(lake.done()) == sorted(ids("a", 15) + ids("b", 5))


def test_a_table_in_a_store_that_names_objects_outside_the_roots_is_refused(
    ledger: Ledger, tmp_path: Path, client: "s3fs.S3FileSystem", fresh: str
) -> None:
    lake = DeltaLake(ledger, tmp_path)
    place = f"s3://{fresh}/lake/reviews"
    lake.uri = f"delta:{place}"
    lake.settings = Settings(allowed_roots=(place, str(tmp_path)))
    write_deltalake(place, rows("a", 15), storage_options=storage_options(place))
    with client.open(f"{fresh}/secret/rows.parquet", "wb") as file:
        pq.write_table(rows("secret", 3), file)
    add = {"path": f"s3://{fresh}/secret/rows.parquet", "size": 1, "partitionValues": {}}
    action = {"add": {**add, "modificationTime": 1, "dataChange": True}}
    client.pipe(f"{fresh}/lake/reviews/_delta_log/{1:020}.json", f"{json.dumps(action)}\n".encode())
    with pytest.raises(BadInput, match=OUTSIDE):
        lake.begin()


# ---------------------------------------------------------------- roots


@pytest.fixture
def held(delta: DeltaLake) -> DeltaLake:
    """A table whose root is all that may be read."""
    delta.make(rows("a", 15))
    roots = (str(delta.root), str(delta.folder / "out"))
    delta.settings = Settings(allowed_roots=roots)
    (delta.folder / "secret").mkdir()
    pq.write_table(rows("secret", 3), delta.folder / "secret" / "rows.parquet")
    return delta


OUTSIDE = "is outside the folders that NIGHTSHIFT_ALLOWED_ROOTS"


def test_a_table_inside_the_roots_is_read(held: DeltaLake) -> None:
    assert held.begin().rows == 15


@pytest.mark.parametrize("whose", ["worker", "job"])
def test_rows_that_are_read_from_a_copy_run_where_roots_hold(copied: Lake, whose: str) -> None:
    roots = (str(copied.folder / "lake"), str(copied.folder / "out"))
    if whose == "worker":
        copied.settings = copied.settings.model_copy(update={"allowed_roots": roots})
    copied.begin(columns=None)
    if whose == "job":
        with copied.ledger.transaction() as connection:
            for statement in (
                "INSERT INTO tenants (name, roots) VALUES ('acme', :roots)",
                "UPDATE jobs SET tenant = 'acme', roots = :roots",
            ):
                connection.execute(text(statement), {"roots": list(roots)})
    assert sorted(copied.done()) == sorted(ids("a", 15))


def test_a_copy_of_a_table_outside_the_roots_of_a_worker_is_not_read(delta: DeltaLake) -> None:
    mapped(delta)
    delta.begin()
    delta.settings = Settings(allowed_roots=(str(delta.folder / "out"),))
    delta.run(SHOUT)
    [error] = delta.ask("SELECT error FROM attempts WHERE outcome = 'failed' LIMIT 1")
    assert OUTSIDE in error.error


def test_a_root_outside_the_roots_is_refused(held: DeltaLake) -> None:
    held.settings = Settings(allowed_roots=(str(held.folder / "out"),))
    with pytest.raises(BadInput, match=OUTSIDE):
        held.begin()


@pytest.mark.parametrize(
    "form",
    ["file://{}", "{}", "../../secret/rows.parquet", "%2e%2e/%2e%2e/secret/rows.parquet"],
)
@pytest.mark.parametrize("native", [False, True], ids=["read", "scanned"])
def test_a_data_file_outside_the_roots_is_refused(held: DeltaLake, form: str, native: bool) -> None:
    if native:
        delta_tables.delete_by_vector(held.root, [3])
    action = delta_tables.added(held.root, "../../secret/rows.parquet")
    action["add"]["path"] = form.format(held.folder / "secret" / "rows.parquet")
    delta_tables.commit(held.root, action)
    with pytest.raises(BadInput, match=OUTSIDE):
        held.begin()


@pytest.mark.parametrize(
    "form",
    [
        "..\\..\\secret\\rows.parquet",
        "FILE://{}",
        "file:{}",
        "//{}",
        ".\t./.\t./secret/rows.parquet",
        " {}",
        "rows.parquet#x",
    ],
)
@pytest.mark.parametrize("native", [False, True], ids=["read", "scanned"])
def test_a_name_that_libraries_take_for_another_one_is_refused(
    held: DeltaLake, form: str, native: bool
) -> None:
    """delta-rs would open each of them outside the roots, or may."""
    if native:
        delta_tables.delete_by_vector(held.root, [3])
    action = delta_tables.added(held.root, "../../secret/rows.parquet")
    action["add"]["path"] = form.format(held.folder / "secret" / "rows.parquet")
    delta_tables.commit(held.root, action)
    with pytest.raises(BadInput, match="is no address of a file"):
        held.begin()


@pytest.mark.parametrize("name", ["%2e%2e", "a%20b", "a\\b", "a[b]"])
def test_a_root_that_delta_rs_takes_for_another_one_is_refused(delta: DeltaLake, name: str) -> None:
    delta.make(rows("a", 3))
    delta.root.rename(delta.folder / "lake" / name)
    delta.uri = f"delta:{delta.folder}/lake/{name}"
    with pytest.raises(BadInput, match="reads this name as another one"):
        delta.begin()


def test_a_deletion_vector_outside_the_roots_is_refused(held: DeltaLake) -> None:
    vector = delta_tables.absolute_vector(held.folder / "secret" / "vector.bin", [3])
    delta_tables.delete_by_vector(held.root, [3], vector)
    with pytest.raises(BadInput, match=OUTSIDE):
        held.begin()


@pytest.mark.parametrize("native", [False, True], ids=["read", "scanned"])
def test_a_data_file_that_is_a_link_out_of_the_roots_is_refused(
    held: DeltaLake, native: bool
) -> None:
    if native:
        delta_tables.delete_by_vector(held.root, [3])
    [file] = held.root.glob("*.parquet")
    file.rename(held.folder / "secret" / "moved.parquet")
    file.symlink_to(held.folder / "secret" / "moved.parquet")
    with pytest.raises(BadInput, match=OUTSIDE):
        held.begin()


@pytest.mark.parametrize("name", ["", f"{0:020}.json"], ids=["log", "commit"])
def test_a_link_in_the_log_is_refused(held: DeltaLake, name: str) -> None:
    place = held.root / "_delta_log" / name
    place.rename(held.root / "moved")
    place.symlink_to(held.root / "moved")
    with pytest.raises(BadInput, match="links in the log of a table are not followed"):
        held.begin()


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_a_checkpoint_that_names_files_elsewhere_is_refused(held: DeltaLake, suffix: str) -> None:
    name = f"{0:020}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.{suffix}"
    sidecar = {"path": f"file://{held.folder}/secret/rows.parquet", "sizeInBytes": 1}
    place = held.root / "_delta_log" / name
    if suffix == "json":
        place.write_text(json.dumps({"sidecar": sidecar}))
    else:
        pq.write_table(pa.table({"sidecar": [None, sidecar]}), place)
    with pytest.raises(BadInput, match="which does not lie beside it"):
        held.begin()


def test_an_iceberg_file_outside_the_roots_is_refused(iceberg: IcebergLake) -> None:
    iceberg.make(rows("a", 15))
    pq.write_table(rows("secret", 3), iceberg.folder / "secret.parquet")
    iceberg.settings = iceberg.settings.model_copy(
        update={"allowed_roots": (str(iceberg.folder / "lake"), str(iceberg.folder / "out"))}
    )
    assert iceberg.begin().rows == 15
    iceberg.table.add_files([f"file://{iceberg.folder}/secret.parquet"])
    with pytest.raises(BadInput, match=OUTSIDE):
        iceberg.take()


# ---------------------------------------------------------------- tables that change under a job


def test_a_copy_that_is_made_again_has_the_order_that_was_planned(delta: DeltaLake) -> None:
    """A vector that somebody adds later makes delta-rs read the table, in another order than its files."""
    late = rows("a", 15).take(list(range(14, -1, -1)))
    delta.make(late.append_column("day", pa.array(["d"] * 15)), partition_by=["day"])
    known = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **delta_tables.VECTORS}}
    delta_tables.commit(delta.root, known)
    delta.begin()
    delta.run(SHOUT, most=1)
    [path] = [each["add"]["path"] for each in delta_tables.actions(delta.root, 0) if "add" in each]
    vector = delta_tables.absolute_vector(delta.root / "vector.bin", [0])
    again = delta_tables.added(
        delta.root, path, partitionValues={"day": "d"}, deletionVector=vector
    )
    delta_tables.commit(delta.root, delta_tables.removed(path), again)
    for copy in delta.copies():
        copy.unlink()
    delta.begin()
    assert sorted(delta.done()) == sorted(ids("a", 15))


def test_rows_that_a_later_version_adds_with_a_vector_are_not_taken(delta: DeltaLake) -> None:
    delta.make(rows("a", 15))
    delta.begin()
    delta.append(rows("b", 5))
    [path] = [each["add"]["path"] for each in delta_tables.actions(delta.root, 1) if "add" in each]
    vector = delta_tables.absolute_vector(delta.root / "vector.bin", [0, 1])
    known = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **delta_tables.VECTORS}}
    again = delta_tables.added(delta.root, path, deletionVector=vector)
    log = delta_tables.log_file(delta.root, 1)
    log.write_text(f"{json.dumps(known)}\n{json.dumps(again)}\n")
    taken = delta.take()
    assert taken.appended == NOTHING
    assert "deletion vectors" in str(taken.linked_twice)


def test_a_table_that_is_made_anew_under_its_name_is_another_one(lake: Lake) -> None:
    lake.begin()
    lake.done()
    if isinstance(lake, DeltaLake):
        shutil.rmtree(lake.root)
        lake.make(rows("x", 4))
    else:
        assert isinstance(lake, IcebergLake)
        lake.catalog.drop_table("shop.reviews")
        lake.catalog.create_table("shop.reviews", rows("x", 4).schema)
        lake.append(rows("x", 4))
    lake.append(rows("y", 3))
    taken = lake.take()
    assert taken.appended == NOTHING
    assert "is another table" in str(taken.linked_twice)


def test_an_iceberg_table_that_names_a_file_twice_is_refused(iceberg: IcebergLake) -> None:
    iceberg.make(rows("a", 15))
    [task] = iceberg.table.scan().plan_files()
    iceberg.table.add_files([task.file.file_path], check_duplicate_files=False)
    with pytest.raises(BadInput, match="twice: its rows would count twice"):
        iceberg.begin()


def test_versions_before_one_that_is_gone_are_taken(delta: DeltaLake) -> None:
    delta.make(rows("a", 15))
    delta.begin()
    delta.append(rows("b", 5))
    delta.append(rows("c", 3))
    [gone] = [each["add"]["path"] for each in delta_tables.actions(delta.root, 2) if "add" in each]
    (delta.root / gone).unlink()
    taken = delta.take()
    assert taken.appended.rows == 5
    assert "is gone, as after a vacuum" in str(taken.linked_twice)


# ---------------------------------------------------------------- newer versions


def test_rows_that_newer_versions_append_become_a_generation(lake: Lake) -> None:
    lake.begin()
    assert lake.done() == ids("a", 15)
    lake.append(rows("b", 5))
    lake.append(rows("c", 3))
    assert lake.take().appended.rows == 8
    assert lake.begin().remarks == []
    assert lake.take().appended == NOTHING
    assert lake.taken() == lake.version
    assert sorted(lake.done()) == sorted(ids("a", 15) + ids("b", 5) + ids("c", 3))
    lake.delete("b-3")
    [remark] = lake.begin().remarks
    assert "deletes or changes rows" in remark


def test_files_of_a_compaction_are_never_taken(lake: Lake) -> None:
    lake.begin()
    lake.append(rows("b", 5))
    lake.compact()
    assert lake.take().appended.rows == 5
    lake.compact()
    assert lake.take().appended == NOTHING
    lake.append(rows("c", 3))
    assert lake.take().appended.rows == 3
    assert sorted(lake.done()) == sorted(ids("a", 15) + ids("b", 5) + ids("c", 3))


def test_a_version_that_deletes_is_a_sentence_and_the_job_stays_where_it_is(lake: Lake) -> None:
    lake.begin()
    lake.append(rows("b", 5))
    lake.delete("a-3")
    refused = lake.version
    lake.append(rows("c", 3))
    taken = lake.take()
    assert taken.appended.rows == 5
    assert any(
        f"{refused} of {lake.uri} deletes or changes rows" in line
        for line in append_command.summary(lake.job, taken)
    )
    assert lake.take().appended == NOTHING
    assert sorted(lake.done()) == sorted(ids("a", 15) + ids("b", 5))


def test_a_watched_table_takes_new_versions_and_notes_one_that_deletes(lake: Lake) -> None:
    done = lake.begin(watch="1h")
    assert done.watch_seconds == 3600
    lake.append(rows("b", 5))
    lake.look()
    lake.look()
    lake.compact()
    lake.look()
    assert lake.noted() == []
    assert lake.begin(watch="1h").rows == 20
    lake.delete("b-3")
    lake.look()
    [noted] = lake.noted()
    assert (noted.uri, noted.state) == (f"{lake.uri}?version={lake.version}", "refused")
    assert "deletes or changes rows" in str(noted.why)
    lake.append(rows("c", 3))
    lake.look()
    lake.look()
    assert lake.begin(watch="1h").rows == 20


def test_rows_that_are_appended_to_a_copied_table_are_copied_alone(delta: DeltaLake) -> None:
    partitioned(delta)
    delta.begin()
    delta.append(rows("b", 5).append_column("kind", pa.array(["x y"] * 5)))
    assert delta.take().appended.rows == 5
    assert delta.take().appended == NOTHING
    assert len(delta.copies()) == 2
    assert sorted(delta.done()) == sorted(ids("a", 15) + ids("b", 5))


def test_a_table_of_other_rows_in_the_same_place_is_another_table(delta: DeltaLake) -> None:
    import shutil

    partitioned(delta)
    delta.begin()
    [copy] = delta.copies()
    copy.unlink()
    shutil.rmtree(delta.root)
    partitioned(delta)
    with pytest.raises(BadInput, match="another table"):
        delta.begin()


def test_versions_that_the_log_has_no_longer_are_a_sentence(delta: DeltaLake) -> None:
    delta.make(rows("a", 15))
    delta.begin()
    delta.append(rows("b", 5))
    delta.append(rows("c", 5))
    DeltaTable(delta.root).create_checkpoint()
    delta_tables.log_file(delta.root, 1).unlink()
    taken = delta.take()
    assert taken.appended == NOTHING
    assert "no longer in its log" in " ".join(append_command.summary(delta.job, taken))


def test_a_job_of_files_takes_no_table(delta: DeltaLake) -> None:
    delta.make(rows("a", 15))
    delta.begin()
    with pytest.raises(BadInput, match="is a table"):
        append_command.take(delta.ledger, delta.job, [delta.uri], Settings())


def test_the_ledger_forgets_the_version_with_the_job(lake: Lake) -> None:
    lake.begin()
    lake.append(rows("b", 5))
    lake.take()
    lake.take()
    assert lake.taken() is not None
    lake.done()
    job_id = lake.job_id
    delete(lake.ledger, lake.job, lake.settings, output=True)
    with lake.ledger.transaction() as connection:
        assert jobs.get(connection, job_id) is None
        assert input_versions.get(connection, job_id) is None


@pytest.mark.parametrize("kind", ["mapped", "vector"])
def test_a_data_file_that_becomes_a_link_while_delta_rs_reads_brings_nothing(
    delta: DeltaLake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What delta-rs opens by name it opens from a private copy: the check and the open were two looks at one name."""
    if kind == "mapped":
        mapped(delta)
    else:
        with_vector(delta)
    delta.settings = Settings(allowed_roots=(str(delta.root), str(delta.folder / "out")))
    checked = delta_log.check_files

    def swapped(*given: Any) -> None:
        checked(*given)
        for number, file in enumerate(delta.root.glob("*.parquet")):
            secret = delta.folder / f"secret-{number}.parquet"
            file.rename(secret)
            file.symlink_to(secret)

    monkeypatch.setattr(delta_log, "check_files", swapped)
    with pytest.raises(BadInput, match=OUTSIDE):
        delta.begin()


def test_a_log_that_becomes_a_link_while_delta_rs_opens_the_table_shows_no_other_table(
    delta: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta.make(rows("a", 15))
    other = delta.folder / "other"
    write_deltalake(other, pa.table({"secret": [1, 2]}))
    delta.settings = Settings(allowed_roots=(str(delta.root), str(delta.folder / "out")))
    checked = delta_log.check_sidecars

    def swapped(root: str) -> None:
        checked(root)
        log = delta.root / "_delta_log"
        if not log.is_symlink():
            shutil.rmtree(log)
            log.symlink_to(other / "_delta_log")

    monkeypatch.setattr(delta_log, "check_sidecars", swapped)
    with pytest.raises(BadInput, match="link"):
        delta.begin()


def test_a_private_copy_fills_no_disk(delta: DeltaLake, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped(delta)
    delta.settings = Settings(allowed_roots=(str(delta.root), str(delta.folder / "out")))
    monkeypatch.setattr(delta_input, "KEPT_FREE_BYTES", 2**62)
    with pytest.raises(BadInput, match="no room here in the folder of temporary files"):
        delta.begin()


def with_names(delta: DeltaLake, changed: Callable[[str], str]) -> None:
    """Names the data files in the log anew."""
    for log in (delta.root / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["path"] = changed(line["add"]["path"])
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))


ABSOLUTE: dict[str, Callable[[Path, str], str]] = {
    "a path": lambda root, name: f"{root}/{name}",
    "a URL": lambda root, name: f"file://{root}/{name}",
    "an encoded path": lambda root, name: f"{root}/{name}".replace("/", "%2F"),
    "a way out and back": lambda root, name: f"../{root.name}/{name}",
    "an encoded way": lambda root, name: f"%2E%2E/{root.name}/{name}",
}


@pytest.mark.parametrize("at", ["planned", "copied"])
@pytest.mark.parametrize("name", ABSOLUTE)
def test_a_name_that_leads_out_of_a_private_copy_is_refused(
    delta: DeltaLake, monkeypatch: pytest.MonkeyPatch, name: str, at: str
) -> None:
    """delta-rs would open such a file in its own place, which somebody may have replaced by a link."""
    mapped(delta)
    delta.settings = Settings(allowed_roots=(str(delta.root), str(delta.folder / "out")))
    change = partial(with_names, delta, partial(ABSOLUTE[name], delta.root))
    if at == "planned":
        change()
    else:
        checked = delta_log.check_files

        def changed(*given: Any) -> None:
            checked(*given)
            change()

        monkeypatch.setattr(delta_log, "check_files", changed)
    with pytest.raises(BadInput, match=r"by an absolute address or outside|is gone"):
        delta.begin()


@pytest.mark.parametrize("kind", ["mapped", "vector"])
def test_a_table_that_delta_rs_reads_is_read_inside_the_roots(delta: DeltaLake, kind: str) -> None:
    if kind == "mapped":
        mapped(delta)
    else:
        with_vector(delta)
    delta.settings = Settings(allowed_roots=(str(delta.root), str(delta.folder / "out")))
    assert delta.begin().rows == 15
