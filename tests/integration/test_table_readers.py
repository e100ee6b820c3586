"""The rows of jobs in tables, as the libraries of others see them: each once, with its values, and none hidden by
the statistics that stand beside our files.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import QueryBuilder

from nightshift.common.ledger import Ledger
from nightshift.common.states import JobState
from nightshift.worker.engines.function.host import Rows
from tests.integration.test_retry import number
from tests.support import other_duckdb
from tests.support.lake import TableSite, opened

pytestmark = pytest.mark.slow

SCHEMA = {
    "n": "int64",
    "small": "int32",
    "word": "string",
    "long": "string",
    "nothing": "string",
    "few": "int64",
    "day": "date32",
    "moment": "timestamp[us, UTC]",
    "share": "double",
    "even": "bool",
}

COLUMNS = ", ".join(["id", *SCHEMA, "error IS NULL AS good"])


def values_of(at: int) -> dict[str, Any]:
    """The answer to the row of this number: values below and above zero, long ones, ones that are missing."""
    return {
        "n": (at - 20) * 10**12,
        "small": at - 20,
        "word": f"λόγος {at:02d} 🌙",
        "long": f"{'ein sehr langer Text ' * 10}{at:02d}",
        "nothing": None,
        "few": None if at % 10 < 8 else -at,
        "day": date(1969, 12, 10) + timedelta(days=at),
        "moment": datetime(1969, 12, 31, 12, tzinfo=UTC) + timedelta(hours=at, microseconds=at),
        "share": float("nan") if at % 7 == 0 else -at / 8,
        "even": at % 2 == 0,
    }


def telling(
    *failing: int, shift: int = 0, columns: Sequence[str] = tuple(SCHEMA)
) -> Callable[[Rows], Sequence[dict[str, Any]]]:
    """A function that fails for rows whose number ends with one of these digits."""

    def function(rows: Rows) -> list[dict[str, Any]]:
        if any(number(row) % 10 in failing for row in rows):
            raise ValueError("not today")
        answers = [values_of(number(row) + shift) for row in rows]
        return [{column: answer[column] for column in columns} for answer in answers]

    return function


@pytest.fixture(params=["delta", "iceberg"])
def site(request: pytest.FixtureRequest, ledger: Ledger, tmp_path: Path) -> Iterator[TableSite]:
    with opened(request.param, request, ledger, tmp_path) as found:
        yield found


def in_arrow(question: str, rows: Any) -> list[tuple[Any, ...]]:
    """A question to rows of PyArrow, by the DuckDB of this project, which asks them to leave out what it can."""
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        return values(connection.sql(question))


def values(relation: duckdb.DuckDBPyRelation) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in relation.to_arrow_table().to_pylist()]


def in_datafusion(site: TableSite, question: str) -> list[tuple[Any, ...]]:
    found = pa.table(QueryBuilder().register("rows", site.delta).execute(question).read_all())
    return [tuple(row.values()) for row in found.to_pylist()]


def in_other_duckdb(site: TableSite, *questions: str) -> list[list[tuple[Any, ...]]]:
    place = (
        f"delta_scan('{site.root}')"
        if site.kind == "delta"
        else f"iceberg_scan('{site.iceberg.metadata_location}')"
    )
    asked = [question.replace("FROM rows", f"FROM {place}") for question in questions]
    return [[tuple(row) for row in rows] for rows in other_duckdb.answers(*asked)]


def files(site: TableSite) -> ds.Dataset:
    """The files of the table as a folder of Parquet, by PyArrow alone."""
    if site.kind == "delta":
        return ds.dataset(site.delta.file_uris(), format="parquet")
    paths = [task.file.file_path for task in site.iceberg.scan().plan_files()]
    return ds.dataset([path.removeprefix("file://") for path in paths], format="parquet")


def readings(site: TableSite, question: str) -> dict[str, list[tuple[Any, ...]]]:
    """What each reader answers."""
    found = {
        "PyArrow over the files": in_arrow(question, files(site)),
        "DuckDB with extensions": in_other_duckdb(site, question)[0],
    }
    if site.kind == "delta":
        found["deltalake"] = in_arrow(question, site.delta.to_pyarrow_table())
        found["DuckDB over PyArrow's dataset"] = in_arrow(question, site.delta.to_pyarrow_dataset())
        found["DataFusion"] = in_datafusion(site, question)
    else:
        found["pyiceberg"] = in_arrow(question, site.iceberg.scan().to_arrow())
        with site.iceberg.scan().to_duckdb("rows") as connection:
            found["pyiceberg in DuckDB"] = values(connection.sql(question))
    return found


def told(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows by their values, whichever types a reader gives them: moments at UTC, NaN as itself."""

    def text(value: Any) -> str:
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat(sep=" ")
        return str(value)

    return sorted(json.dumps([text(value) for value in row], ensure_ascii=False) for row in rows)


def expected(good: dict[str, int], failed: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """The rows of ids, each with the number that its values are of, and of those that failed."""
    rows: list[tuple[Any, ...]] = [(id_, *values_of(at).values(), True) for id_, at in good.items()]
    return [*rows, *((id_, *[None] * len(SCHEMA), False) for id_ in failed)]


def check(site: TableSite, rows: list[tuple[Any, ...]]) -> None:
    wanted = told(rows)
    for reader, found in readings(site, f"SELECT {COLUMNS} FROM rows").items():
        assert told(found) == wanted, reader


def ids(name: str, numbers: Sequence[int], shift: int = 0) -> dict[str, int]:
    return {f"{name}-{at}": at + shift for at in numbers}


def test_every_reader_sees_each_row_once_whatever_was_done(site: TableSite) -> None:
    unique = {"unique_id": True}
    # Below a folder that no vacuum looks into.
    site.start(40, of_input=unique, schema=SCHEMA, output=f"{site.uri}/_jobs/moody")
    site.work(telling(3))
    failed = [f"a-{at}" for at in range(40) if at % 10 == 3]
    good = {id_: at for id_, at in ids("a", range(40)).items() if id_ not in failed}
    check(site, expected(good, failed))

    site.retry()
    site.work(telling())
    check(site, expected(all_of := ids("a", range(40))))

    site.come("b.parquet", 15)
    site.append()
    site.work(telling())
    check(site, expected(all_of := all_of | ids("b", range(15))))

    more = {"schema": SCHEMA, "of_input": unique}
    site.start(name="merge", files=[("b.parquet", 20)], mode="merge", **more)
    assert site.work(telling(shift=7)) is JobState.COMPLETED
    check(site, expected(all_of := all_of | ids("b", range(20), 7)))

    site.start(name="last", files=[("c.parquet", 12)], mode="overwrite", **more)
    assert site.work(telling()) is JobState.COMPLETED
    check(site, expected(ids("c", range(12))))


FILTERS = [
    "n < 0",
    "n = -5000000000000",
    "n >= 11000000000000",
    "n <> 0",
    "small BETWEEN -11 AND -9",
    "word = 'λόγος 17 🌙'",
    "word > 'λόγος 33 🌙'",
    "word < 'λόγος 03'",
    "long >= 'ein sehr langer Text'",
    "long LIKE '%25'",
    "nothing IS NULL",
    "nothing IS NOT NULL",
    "nothing = 'x'",
    "few IS NOT NULL",
    "few IS NULL AND n > 0",
    "few = -9",
    "day = DATE '1969-12-31'",
    "day < DATE '1969-12-15'",
    "day > DATE '1970-01-10'",
    "moment < TIMESTAMP '1970-01-01 00:00:00+00:00'",
    # Readers do not agree whether NaN is greater than a number.
    "share < -4",
    "share > -1 AND NOT isnan(share)",
    "isnan(share)",
    "even",
    "NOT even AND n < 0",
    "id = 'a-21'",
    "error IS NOT NULL",
    "error IS NULL",
    "error.kind = 'function_error'",
]


WHOLE = {column: kind for column, kind in SCHEMA.items() if column != "share"}
"""Columns without one that may have NaN: the files of such a Delta table have bounds."""


@pytest.mark.parametrize("schema", [SCHEMA, WHOLE], ids=["with NaN", "without"])
def test_statistics_hide_no_row(site: TableSite, schema: dict[str, str]) -> None:
    site.start(40, schema=schema)
    site.work(telling(3, columns=tuple(schema)))
    # One file all of whose rows have failed, and nothing but nulls in its columns.
    site.start(10, name="none", files=[("f.parquet", 10)], schema=schema)
    site.run(telling(*range(10)))
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET max_failed_fraction = 1")
    site.finish()
    rows = files(site).to_table()
    assert rows.num_rows == 50
    filters = [each for each in FILTERS if "share" in schema or "share" not in each]
    questions = [f"SELECT id FROM rows WHERE {each}" for each in filters]
    for question, by_extension in zip(questions, in_other_duckdb(site, *questions), strict=True):
        wanted = told(in_arrow(question, rows))
        assert told(by_extension) == wanted, question
        if site.kind == "delta":
            assert told(in_arrow(question, site.delta.to_pyarrow_dataset())) == wanted, question
            assert told(in_datafusion(site, question)) == wanted, question


@pytest.mark.parametrize("site", ["delta"], indirect=True)
@pytest.mark.parametrize(
    ("predicate", "most"),
    [
        ("n < -11000000000000", 1),
        ("word >= 'λόγος 30'", 1),
        ("day > '1970-01-10'", 1),
        ("moment < '1970-01-01 00:00:00+00:00'", 2),
        ("long < 'ein'", 0),
        ("nothing is not null", 0),
    ],
)
def test_files_of_a_delta_table_are_left_out_by_their_statistics(
    site: TableSite, predicate: str, most: int
) -> None:
    site.start(40, schema=WHOLE)
    site.work(telling(columns=tuple(WHOLE)))
    assert len(site.delta.file_uris()) == 4
    assert len(site.delta.file_uris(file_pruning_predicate=predicate)) == most


@pytest.mark.parametrize("site", ["iceberg"], indirect=True)
@pytest.mark.parametrize(
    ("row_filter", "rows"),
    [
        ("n < -11000000000000", 9),
        ("n = -5000000000000", 1),
        ("word = 'λόγος 17 🌙'", 1),
        ("day > '1970-01-10'", 8),
        ("long >= 'ein sehr langer Text'", 40),
        ("nothing is null", 40),
        ("nothing is not null", 0),
        ("few is not null", 8),
        ("share < -4", 6),
    ],
)
def test_files_of_an_iceberg_table_are_left_out_by_their_statistics(
    site: TableSite, row_filter: str, rows: int
) -> None:
    site.start(40, schema=SCHEMA)
    site.work(telling())
    scan = site.iceberg.scan(row_filter=row_filter)
    assert scan.to_arrow().num_rows == rows
    assert len(list(scan.plan_files())) <= max(1, rows // 2)
