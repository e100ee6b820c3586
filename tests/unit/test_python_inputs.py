"""Tables from Python become one Parquet file, named by what it holds."""

import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift import inputs
from nightshift.common.errors import BadInput
from nightshift.staging import stage

ROWS = [{"id": f"r{number}", "text": f"say {number}", "n": number} for number in range(25_000)]
TABLE = pa.Table.from_pylist(ROWS)
DAY, NOON = date(2026, 7, 14), datetime(2026, 7, 14, 12)


def pandas_frame(folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame(ROWS)


def filtered_pandas(folder: Path) -> Any:
    """Its index has gaps and no name."""
    import pandas as pd

    frame = pd.DataFrame([{"id": "no", "text": "no", "n": -1}, *ROWS])
    return frame[frame.n >= 0]


def polars_frame(folder: Path) -> Any:
    import polars as pl

    return pl.DataFrame(ROWS)


def lazy_polars(folder: Path) -> Any:
    return polars_frame(folder).lazy()


def hugging_face(folder: Path) -> Any:
    import datasets

    return datasets.Dataset(TABLE)


def streamed_hugging_face(folder: Path) -> Any:
    return hugging_face(folder).to_iterable_dataset()


def relation(folder: Path) -> Any:
    import duckdb

    return duckdb.from_arrow(TABLE)


def adbc(folder: Path) -> Any:
    from adbc_driver_sqlite import dbapi

    with dbapi.connect(str(folder / "rows.db")) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("rows", TABLE)
        connection.commit()
    return inputs.sql(f"sqlite:///{folder}/rows.db", "SELECT * FROM rows ORDER BY n")


MAKERS: list[Any] = [
    lambda _: TABLE,
    lambda _: TABLE.to_reader(max_chunksize=1000),
    lambda _: TABLE.combine_chunks().to_batches()[0],
    pandas_frame,
    filtered_pandas,
    polars_frame,
    lazy_polars,
    hugging_face,
    pytest.param(streamed_hugging_face, marks=pytest.mark.slow),
    relation,
    adbc,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_table_is_staged_with_its_rows_in_order(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    uri = stage(make(tmp_path), str(tmp_path / "staging"))
    found = pq.read_table(uri)
    assert found.schema.metadata is None or b"pandas" not in found.schema.metadata
    assert found.to_pylist() == ROWS
    assert [path.name for path in (tmp_path / "staging").iterdir()] == [Path(uri).name]


def test_the_same_rows_are_the_same_file_which_is_not_written_again(tmp_path: Path) -> None:
    first = stage(TABLE, str(tmp_path))
    written = Path(first).stat().st_mtime_ns
    assert stage(pandas_frame(tmp_path), str(tmp_path)) != stage(TABLE.slice(1), str(tmp_path))
    assert stage(TABLE, str(tmp_path)) == first
    assert Path(first).stat().st_mtime_ns == written


MEASURED = """
import os, resource, sys
import pyarrow as pa
from nightshift.staging import stage

block = os.urandom(2**20)

def batches(count):
    for number in range(count):
        yield pa.record_batch({"blob": [number.to_bytes(4) + block for _ in range(8)]})

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

schema = pa.schema([("blob", pa.binary())])
stage(pa.RecordBatchReader.from_batches(schema, batches(16)), sys.argv[1])
before = peak()
stage(pa.RecordBatchReader.from_batches(schema, batches(48)), sys.argv[1])
print(peak() - before)
"""


@pytest.mark.slow
def test_a_long_stream_takes_the_memory_of_a_short_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, tmp_path], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 64 * 2**20
    biggest = max(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_size)
    groups = pq.read_metadata(biggest)
    sizes = [groups.row_group(place).total_byte_size for place in range(groups.num_row_groups)]
    assert sum(sizes) > 300 * 2**20
    assert max(sizes) < 80 * 2**20


@pytest.mark.slow
def test_one_large_batch_becomes_many_row_groups(tmp_path: Path) -> None:
    batch = pa.record_batch({"text": ["x" * 2**20] * 200})
    groups = pq.read_metadata(stage(batch, str(tmp_path))).num_row_groups
    assert groups >= 3


def test_a_named_index_of_pandas_is_a_column(tmp_path: Path) -> None:
    frame = pandas_frame(tmp_path).set_index("id")
    assert set(pq.read_schema(stage(frame, str(tmp_path))).names) == {"id", "text", "n"}


def test_a_staged_category_comes_back_with_its_values(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"kind": pd.Categorical(["a", "b", "a"])})
    found = pq.read_table(stage(frame, str(tmp_path)))
    assert found.column("kind").to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("rows", [0, 25_000])
def test_categories_of_polars_are_staged_with_their_values_at_every_depth(
    rows: int, lazy: bool, tmp_path: Path
) -> None:
    import polars as pl

    kinds = ["a", None, "b"] * rows
    frame = pl.DataFrame(
        {"kind": kinds[:rows], "kinds": [[kind] for kind in kinds[:rows]]},
        {"kind": pl.Categorical, "kinds": pl.List(pl.Enum(["b", "a"]))},
    )
    found = pq.read_table(stage(frame.lazy() if lazy else frame, str(tmp_path)))
    assert found.column("kind").to_pylist() == kinds[:rows]
    assert found.column("kinds").to_pylist() == [[kind] for kind in kinds[:rows]]


def mixed(folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame({"fine": [1, 2], "odd one": [1, "two"]})


def too_large(folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame({"odd one": [2**70, 1]})


def of_objects(*values: object) -> Any:
    import pandas as pd

    return pd.DataFrame({"odd one": pd.Series(list(values), dtype=object)})


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((1, 2.5, None), [1.0, 2.5, None]),
        (("a", None, math.nan), ["a", None, None]),
        (([1], [2, 3]), [[1], [2, 3]]),
        ((np.array([1.5, 2.5]), None), [[1.5, 2.5], None]),
        (({"a": 1}, {"b": "x"}), [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ((Decimal("1.5"), Decimal("1.25")), [Decimal("1.5"), Decimal("1.25")]),
    ],
)
def test_objects_of_pandas_that_arrow_keeps_are_staged(
    values: tuple[object, ...], found: list[object], tmp_path: Path
) -> None:
    staged = pq.read_table(stage(of_objects(*values), str(tmp_path)))
    assert staged.column("odd one").to_pylist() == found


def test_a_level_without_a_name_beside_one_with_a_name_is_staged(tmp_path: Path) -> None:
    import pandas as pd

    index = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=[None, "k"])
    staged = pq.read_table(stage(pd.DataFrame({"x": [3, 4]}, index=index), str(tmp_path)))
    assert staged.column("k").to_pylist() == ["a", "b"]


def test_what_an_index_is_advised_to_do_helps(tmp_path: Path) -> None:
    frame = of_objects(b"a", "b").assign(n=[1, 2]).set_index("odd one")
    with pytest.raises(BadInput, match=r"frame\.reset_index\('odd one', drop=True\)"):
        stage(frame, str(tmp_path))
    stage(frame.reset_index("odd one", drop=True), str(tmp_path))


INDEX = "the index 'odd one' of the DataFrame holds values of bytes and str"


def odd_name() -> Any:
    import pandas as pd

    return pd.DataFrame([[1]], columns=pd.Index(["x\ud800"], dtype=object))


def periods() -> Any:
    import pandas as pd

    return pd.DataFrame({"odd one": pd.period_range("2020", periods=2, freq="Y")})


def twice(folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame([[1, 2]], columns=["odd one", "odd one"])


def sparse(folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame({"odd one": pd.arrays.SparseArray([0, 1])})


def indexed_twice(folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame({"odd one": [1]}, index=pd.Index([2], name="odd one"))


def one_column(folder: Path) -> Any:
    return polars_frame(folder)["text"]


def splits(folder: Path) -> Any:
    import datasets

    return datasets.DatasetDict(train=datasets.Dataset(TABLE))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (mixed, "the column 'odd one' of the DataFrame holds values of int and str"),
        (too_large, "the column 'odd one' of the DataFrame holds int values"),
        (lambda _: of_objects("a", b"b"), "'odd one' .* holds values of bytes and str"),
        (lambda _: of_objects(DAY, NOON), "'odd one' .* holds values of date and datetime"),
        (lambda _: of_objects(NOON, NOON.replace(tzinfo=UTC)), "'odd one' .* datetime values"),
        (lambda _: of_objects(["a"], [b"b"]), "'odd one' of the DataFrame holds list values"),
        (lambda _: of_objects("a", "b\ud800"), "'odd one' .* holds half of a character"),
        (lambda _: of_objects(b"a", "b").set_index("odd one"), INDEX),
        (lambda _: of_objects(b"a", "b").astype("category"), "holds values of bytes and str"),
        (lambda _: periods(), "holds Period values, .*astype"),
        (lambda _: of_objects(["b\ud800"]), "'odd one' .* holds half of a character"),
        (lambda _: odd_name(), r"the name 'x\\ud800' of the DataFrame holds half of a character"),
        (twice, "two columns called 'odd one'"),
        (sparse, r"cannot become Arrow: Sparse pandas data \(column odd one\)"),
        (indexed_twice, "a column and an index called 'odd one'"),
        (one_column, r"a Series is one column: give a table, such as series.to_frame\(\)"),
        (lambda f: one_column(f).to_pandas(), "a Series is one column"),
        (lambda _: pa.table([[1], [2]], names=["a", "a"]), "two columns called 'a'"),
        (lambda _: pa.table({}), "no columns"),
        (lambda _: 7, "builtins.int is no input"),
        (lambda _: [{"text": "a"}], "builtins.list is no input"),
        (splits, r"several splits"),
        (lambda _: inputs.sql("mysql://h/d", "SELECT 1"), "another database"),
        (lambda f: inputs.sql(f"sqlite:///{f}/no/such.db", "SELECT 1"), "cannot connect"),
        (lambda f: inputs.sql(f"sqlite:///{f}/x.db", "SELECT no FROM such"), "no such table"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_an_input_is_refused_in_one_sentence_and_nothing_stays(
    make: Callable[[Path], Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words) as raised:
        stage(make(tmp_path), str(tmp_path / "staging"))
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "staging").glob("*"))


def test_a_query_does_not_show_its_password() -> None:
    assert "secret" not in repr(inputs.sql("postgresql://me:secret@host/db", "SELECT 1"))


@pytest.mark.parametrize(
    ("early", "late", "why"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, "the column 'x' has the key 'b' in later rows alone"),
        ([{"a": 1}], [{"a": 1, "b": 2}], "has the key 'b' in later rows alone"),
        (1, "007", "the column 'x' is string in later rows and was int64"),
        ("7", 7, "is int64 in later rows"),
        (1, 1.5, "the rows cannot be read"),
        (1, 2.0, None),
        ({"a": 1}, {"a": None}, None),
    ],
)
def test_rows_that_come_later_are_not_changed_to_fit_the_first(
    tmp_path: Path, early: Any, late: Any, why: str | None
) -> None:
    tables = iter([pa.table({"x": [early]}), pa.table({"x": [late]})])
    reader = inputs._joined(tables, None)
    if why is None:
        assert reader.read_all().column("x").to_pylist() == [early, late]
        return
    with pytest.raises(BadInput, match=why), inputs.opened(reader) as rows:
        rows.read_all()
