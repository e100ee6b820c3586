"""The first hour, once a job is done: its output read by others, and collected as one file."""

import csv
import json
from collections.abc import Iterator

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.support.fleet import Fleet, logs

ROWS = 300

CODE = """
def tag(rows):
    if any(row["id"] == 7 for row in rows):
        raise ValueError("a seven")
    return [{"tags": [row["text"], "é"], "text": row["text"].upper()} for row in rows]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A finished job over a CSV file, whose copy lies below the output; one row failed."""
    found = Fleet(tmp_path_factory.mktemp("results"))
    (found.folder / "rules.py").write_text(CODE)
    lines = [f'{row},"text {row}",{row / 4}' for row in range(ROWS)]
    (found.folder / "t.csv").write_text("\n".join(["id,text,score", *lines, ""]))
    run = ("run", "t.csv", "--callable", "rules:tag", "--id", "id", "--out", "out")
    ended = found.command(*run, "--batch-rows", "100")
    assert ended.returncode == 1, ended.stderr + logs(found.folder)
    yield found
    found.end()


@pytest.mark.slow
def test_a_reader_of_all_parquet_below_the_output_counts_each_row_once(done: Fleet) -> None:
    assert [path.suffix for path in (done.folder / "out" / "_input").iterdir()] == [".copy"]
    query = f"SELECT count(*), count(DISTINCT id) FROM '{done.folder}/out/**/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(ROWS, ROWS)]
    assert done.command("verify", "t").returncode == 0


@pytest.mark.slow
def test_collect_writes_csv_with_nested_values_as_json(done: Fleet) -> None:
    collected = done.command("collect", "t", "--to", "all.csv")
    assert collected.returncode == 0, collected.stderr
    with (done.folder / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == ROWS
    assert [int(row["row_index"]) for row in rows] == list(range(ROWS))
    assert json.loads(rows[8]["tags"]) == ["text 8", "é"]
    assert (rows[8]["text"], rows[8]["error"]) == ("TEXT 8", "")
    assert json.loads(rows[7]["error"])["kind"] == "function_error"
    assert rows[7]["tags"] == ""


def test_collect_puts_columns_of_the_input_beside_the_output(done: Fleet) -> None:
    command = ("collect", "t", "--with-input", "score,text,id", "--to")
    collected = done.command(*command, "with.parquet")
    assert collected.returncode == 0, collected.stderr
    table = pq.read_table(done.folder / "with.parquet")
    assert table.column_names[:4] == ["row_index", "id", "score", "input_text"]
    assert table.num_rows == ROWS
    row = table.slice(8, 1).to_pylist()[0]
    assert (row["id"], row["score"], row["input_text"], row["text"]) == (8, 2.0, "text 8", "TEXT 8")
    failed = table.slice(7, 1).to_pylist()[0]
    assert (failed["input_text"], failed["text"]) == ("text 7", None)

    unknown = done.command("collect", "t", "--with-input", "scores", "--to", "x.csv")
    assert unknown.returncode == 2
    assert "did you mean 'score'?" in unknown.stderr
    with (done.folder / "t.csv").open("a") as file:
        file.write("1000,x,1\n")
    changed = done.command(*command, "gone.csv")
    assert changed.returncode == 0, changed.stderr  # the copy is what was planned
