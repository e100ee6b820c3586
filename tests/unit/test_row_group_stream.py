"""Row groups larger than the cache: how often the file is read, counted in bytes."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common import storage
from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.errors import SourceChanged, StorageUnavailable
from nightshift.common.formats.input_rows import read_file_rows
from nightshift.common.formats.parquet import read as reader
from nightshift.common.formats.parquet.read_cache import ReadCache, RowGroupStream
from nightshift.common.formats.parquet.row_groups import RowGroup
from nightshift.common.storage import streams

ROWS, BATCH_ROWS = 40_000, 256


@pytest.fixture
def source(tmp_path):
    """One row group of about 8 MB, in pages small enough to be read one by one."""
    random.seed(4)
    text = [random.randbytes(100).hex() for _ in range(ROWS)]
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": range(ROWS), "text": text, "unused": text}),
        path,
        row_group_size=ROWS,
        data_page_size=64 * 1024,
        compression="none",
        use_dictionary=False,
    )
    info = storage.stat(str(path))
    return SourceFile(info.uri, "parquet", info.size, info.fingerprint, ROWS, 0)


@pytest.fixture
def read_bytes(monkeypatch):
    """How many bytes were asked of files so far."""
    counted, readinto, lock = [0], streams._Source.readinto, threading.Lock()

    def counting(self, buffer):
        got = readinto(self, buffer)
        with lock:
            counted[0] += got
        return got

    monkeypatch.setattr(streams._Source, "readinto", counting)
    return lambda: counted[0]


def batches(source: SourceFile) -> list[Descriptor]:
    return [
        Descriptor(source, RowRanges.of((first, min(first + BATCH_ROWS, ROWS))))
        for first in range(0, ROWS, BATCH_ROWS)
    ]


def read(descriptor: Descriptor, cache: ReadCache) -> list[int]:
    rows = read_file_rows(descriptor, ["id", "text"], cache, schema=pa.schema([]))
    assert not rows.bad
    found = rows.table.column("id").to_pylist()
    assert found == list(descriptor.rows)
    assert len(rows.table.column("text")) == len(found)
    return found


def used_bytes(source: SourceFile) -> int:
    group = pq.read_metadata(source.uri).row_group(0)
    return sum(group.column(at).total_compressed_size for at in (0, 1))


def test_a_row_group_that_only_a_dictionary_makes_small_is_streamed(tmp_path, monkeypatch):
    """Once 6 MB were decoded for a cache of 1 MiB, since the footer said 50 kB."""
    documents = pa.array([f"{number} ".ljust(3000, "x") for number in range(10)])
    path = tmp_path / "a.parquet"
    texts = documents.take(pa.array([row % 10 for row in range(2000)]))
    pq.write_table(pa.table({"id": range(2000), "text": texts}), path)
    info = storage.stat(str(path))
    source = SourceFile(info.uri, "parquet", info.size, info.fingerprint, 2000, 0)
    monkeypatch.delattr(RowGroup, "_whole")
    cache = ReadCache(2**20)
    for first in (0, 1000, 1016):
        read(Descriptor(source, RowRanges.of((first, first + 16))), cache)


@pytest.mark.parametrize("limit_bytes", [512 * 2**20, 4 * 2**20, 2**20, 2**16])
def test_a_row_group_is_read_at_most_twice_for_all_its_batches(source, read_bytes, limit_bytes):
    cache = ReadCache(limit_bytes)
    for descriptor in batches(source):
        read(descriptor, cache)
        assert cache.held_bytes <= limit_bytes
    assert read_bytes() < 2 * used_bytes(source)


@pytest.mark.parametrize("limit_bytes", [4 * 2**20, 2**20])
def test_batches_that_overtake_one_another_do_not_start_it_again(source, read_bytes, limit_bytes):
    cache = ReadCache(limit_bytes)
    asked, random_order = batches(source), random.Random(7)
    with ThreadPoolExecutor(8) as pool:
        for first in range(0, len(asked), 8):
            wave = asked[first : first + 8]
            random_order.shuffle(wave)
            for _ in pool.map(lambda one: read(one, cache), wave):
                pass
    assert read_bytes() < 2 * used_bytes(source)


def test_a_sibling_that_takes_every_other_batch_reads_it_once(source, read_bytes):
    cache = ReadCache(2**20)
    for descriptor in batches(source)[1::2]:
        read(descriptor, cache)
    assert read_bytes() < 1.2 * used_bytes(source)


def test_a_batch_far_behind_costs_one_more_start_and_comes_out_right(source):
    cache = ReadCache(2**20)
    asked = batches(source)
    for descriptor in (asked[-1], asked[0], asked[60], asked[1]):
        read(descriptor, cache)


def test_damage_spoils_what_lies_behind_it_and_is_met_once(source, read_bytes):
    chunk = pq.read_metadata(source.uri).row_group(0).column(1)
    with open(source.uri, "r+b") as file:
        file.seek(chunk.data_page_offset + chunk.total_compressed_size // 2)
        file.write(b"\xff" * 200_000)
    info = storage.stat(source.uri)
    broken = SourceFile(info.uri, "parquet", info.size, info.fingerprint, ROWS, 0)
    cache, bad, good = ReadCache(2**20), 0, 0
    for descriptor in batches(broken):
        rows = read_file_rows(descriptor, ["id", "text"], cache, schema=pa.schema([]))
        bad, good = bad + len(rows.bad), good + len(rows.row_index)
        assert all("row group 0 is damaged" in why.message for why in rows.bad.values())
    assert good >= ROWS // 3
    assert bad >= ROWS // 4
    assert read_bytes() < 2 * used_bytes(broken)


def test_an_outage_in_the_middle_is_over_for_the_next_who_asks(source, monkeypatch):
    cache, asked = ReadCache(2**20), batches(source)
    read(asked[0], cache)
    readinto = streams._Source.readinto

    def broken(self, buffer):
        raise StorageUnavailable("down")

    monkeypatch.setattr(streams._Source, "readinto", broken)
    with pytest.raises(StorageUnavailable):
        read(asked[-1], cache)
    monkeypatch.setattr(streams._Source, "readinto", readinto)
    read(asked[-1], cache)


@pytest.mark.parametrize("limit_bytes", [512 * 2**20, 2**20])
def test_too_little_memory_is_an_outage_and_no_damage(source, monkeypatch, limit_bytes):
    cache, asked = ReadCache(limit_bytes), batches(source)

    def too_large(*_args, **_options):
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetFile, "read_row_group", too_large)
        patched.setattr(pq.ParquetFile, "iter_batches", too_large)
        with pytest.raises(StorageUnavailable, match="not enough memory to decode row group 0"):
            read(asked[0], cache)
    read(asked[0], cache)


def test_pieces_of_an_earlier_stream_of_another_size_are_left_alone(source):
    cache, asked = ReadCache(2**20), batches(source)
    read(asked[20], cache)
    footer = reader.footer_of(source, cache)
    footer.group_bytes[0, ("id", "text")] = 64 * 2**20
    cache._streams.clear()
    read(asked[3], cache)


def test_a_file_that_changes_under_an_open_reader_is_noticed(source):
    cache, asked = ReadCache(2**20), batches(source)
    read(asked[0], cache)
    pq.write_table(pa.table({"id": [1], "text": ["new"]}), source.uri)
    with pytest.raises(SourceChanged):
        read(asked[-1], cache)


def test_only_a_few_row_groups_stay_open(tmp_path):
    table = pa.table({"id": range(60_000)})
    path = tmp_path / "b.parquet"
    pq.write_table(table, path, row_group_size=10_000, use_dictionary=False)
    info = storage.stat(str(path))
    many = SourceFile(info.uri, "parquet", info.size, info.fingerprint, 60_000, 0)
    cache = ReadCache(0)
    for first in [*range(0, 60_000, 10_000), 0, 30_000]:
        rows = read_file_rows(
            Descriptor(many, RowRanges.of((first, first + 9))), None, cache, schema=pa.schema([])
        )
        assert rows.table.column("id").to_pylist() == list(range(first, first + 9))
    assert len([one for one in cache._streams.values() if one._batches is not None]) <= 4


def test_who_waits_for_a_piece_that_is_passed_gets_it():
    """The thread that is at it reads for the others, whatever the order they came in."""
    starts, entered, go = [], threading.Event(), threading.Event()

    def opened(rows, stack):
        starts.append(1)
        entered.set()
        assert go.wait(60)
        for number in range(10):
            yield pa.record_batch({"n": [number] * rows})

    stream = RowGroupStream(opened, 3, ReadCache(0), ())
    with ThreadPoolExecutor(4) as pool:
        last = pool.submit(stream.piece, 9)
        assert entered.wait(60)
        others = [pool.submit(stream.piece, number) for number in (4, 2, 7)]
        while len(stream._wanted) < 4:
            threading.Event().wait(0.001)
        go.set()
        found = [one.result(60).column("n").to_pylist() for one in (last, *others)]
    assert found == [[9] * 3, [4] * 3, [2] * 3, [7] * 3]
    assert starts == [1]


def test_pieces_are_whole_whatever_batches_they_come_in():
    def opened(rows, stack):
        for sizes in (1, 5, 2, 9, 3):
            yield pa.record_batch({"n": pa.array([sizes] * sizes)})

    one = RowGroupStream(opened, 4, ReadCache(0), ())
    found = [one.piece(number).column("n").to_pylist() for number in range(5)]
    assert found == [[1, 5, 5, 5], [5, 5, 2, 2], [9] * 4, [9] * 4, [9, 3, 3, 3]]
    assert one.piece(1).num_rows == 4
    one.close()
    assert one.piece(4).num_rows == 4
