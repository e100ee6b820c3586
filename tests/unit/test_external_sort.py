"""Rows that do not fit into memory: sorted by their number on disk, whole, and nothing left behind."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from nightshift.common.errors import Permanent, StorageUnavailable
from nightshift.producer.external_sort import boxes
from nightshift.producer.external_sort.spill import COPIES, PREFIX, copies_folder, spill_folder

SORTS_UNTIL_KILLED = """
import pathlib, sys
from nightshift.producer.external_sort import spill
with getattr(spill, sys.argv[1])() as folder:
    pathlib.Path(folder, "rows").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "BOX_BYTES", 700)
    monkeypatch.setattr(boxes, "LARGE_BYTES", 2_800)
    monkeypatch.setattr(boxes, "HEAD_BYTES", 500)
    monkeypatch.setattr(boxes, "HELD_BYTES", 900)


def shuffled(rows: int) -> list[int]:
    return [(7 * at) % rows for at in range(rows)]


def in_order(table: pa.Table, rows_total: int) -> pa.Table:
    batches = iter(table.to_batches(max_chunksize=13))
    return pa.Table.from_batches(boxes.in_order(batches, "row_index", rows_total))


@pytest.mark.usefixtures("small")
def test_rows_come_back_in_order_out_of_many_boxes(temporary: Path) -> None:
    kind = pa.list_(pa.float16(), 2)
    table = pa.table(
        {
            "row_index": shuffled(1000),
            "half": pa.FixedSizeListArray.from_arrays(
                pa.array(range(2000)).cast(pa.float16()), type=kind
            ),
            "text": pa.array([f"row {at}" for at in range(1000)]).dictionary_encode(),
        }
    )
    found = in_order(table, 1000)
    assert found.num_rows == 1000
    assert found.equals(table.sort_by("row_index"))
    assert list(boxes.in_order(iter(()), "row_index", 0)) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("few", [2, 512])
def test_boxes_that_are_too_large_are_boxed_once_more(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(boxes, "MOST_BOXES", few)
    largest = 0
    of_box = boxes._sorted

    def sorted_box(table: pa.Table, by: str) -> pa.Table:
        nonlocal largest
        largest = max(largest, table.nbytes)
        return of_box(table, by)

    monkeypatch.setattr(boxes, "_sorted", sorted_box)
    # The first rows say nothing of the size of the others.
    texts = ["" if at < 100 else "long " * (at % 90) for at in range(1000)]
    table = pa.table({"row_index": shuffled(1000), "text": texts})
    assert in_order(table, 1000).equals(table.sort_by("row_index"))
    assert 0 < largest <= 3_500


@pytest.mark.usefixtures("small")
def test_some_of_the_numbers_are_enough() -> None:
    table = pa.table({"row_index": [number for number in shuffled(1000) if number % 3]})
    assert in_order(table, 1000).equals(table.sort_by("row_index"))


@pytest.mark.usefixtures("small")
def test_a_number_that_comes_twice_is_an_error() -> None:
    table = pa.table({"row_index": [*shuffled(1000), 512]})
    with pytest.raises(Permanent, match="row_index comes twice"):
        in_order(table, 1000)


def test_a_full_disk_is_an_outage_of_the_storage(temporary: Path) -> None:
    table = pa.table({"row_index": shuffled(100_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StorageUnavailable, match="TMPDIR"):
            in_order(table, 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(temporary.iterdir()) == []


def test_an_error_of_the_rows_stays_what_it_is() -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"row_index": [1, 0]})
        raise FileNotFoundError("the input is gone")

    with pytest.raises(FileNotFoundError):
        list(boxes.in_order(rows(), "row_index", 2))


@pytest.mark.parametrize(
    ("kind", "prefix"), [(spill_folder, PREFIX), (copies_folder, COPIES)], ids=["sort", "copies"]
)
def test_the_next_one_removes_what_a_killed_one_left_and_nothing_of_a_living_one(
    temporary: Path,
    kind: Callable[[], AbstractContextManager[Path | str]],
    prefix: str,
) -> None:
    argv = [sys.executable, "-c", SORTS_UNTIL_KILLED, kind.__name__]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    folders: list[Path] = []
    started: list[subprocess.Popen[str]] = []
    try:
        for _ in range(2):
            child = subprocess.Popen(
                argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            started.append(child)
            assert child.stdout is not None
            folders.append(Path(child.stdout.readline().strip()))
        started[0].kill()
        started[0].wait(120)
        with kind() as own:
            assert {Path(own), folders[1]} == set(temporary.glob(f"{prefix}*"))
            assert (folders[1] / "rows").stat().st_size == 1000
        started[1].communicate("\n", timeout=120)
        assert list(temporary.iterdir()) == []
    finally:
        for child in started:
            child.kill()
            child.communicate()
