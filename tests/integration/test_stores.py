"""Object stores over HTTP: S3 by moto's server, Google's by its emulator."""

import gc
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
import s3fs
from gcp_storage_emulator.server import create_server
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from nightshift.common import storage
from nightshift.common.errors import BadInput, Permanent, StorageUnavailable
from nightshift.common.formats import input_rows, part_rows
from nightshift.common.formats.hive import with_partitioning
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import parse_spec
from nightshift.common.storage import objects
from nightshift.producer.submit.planning import planner
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.parts import read_part

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def google() -> Iterator[str]:
    """A bucket of Google's on loopback, found by the usual environment."""
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server._api._httpd.server_port}")
        objects.DRIVERS.pop("gs", None)
        yield f"gs://{BUCKET}"
        driver = objects.DRIVERS.pop("gs")
        driver.close_session(driver.loop, driver.session)
        driver.clear_instance_cache()
    server.stop()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    """Pieces as small as S3 takes them, in bytes."""
    monkeypatch.setattr(objects, "UPLOAD_PIECE_BYTES", 5 * 2**20)
    return 5 * 2**20


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest, fresh: str) -> str:
    if request.param == "gs":
        return str(request.getfixturevalue("google"))
    request.getfixturevalue("client")
    return f"s3://{fresh}"


def spec_of(uri: str, output: str, **inputs: Any):
    return parse_spec(
        {
            "name": "stores",
            "input": {"uri": uri, **inputs},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": "rules:shout"},
            "output": {"uri": output},
        },
        "test",
    )


def test_thousands_of_keys_are_all_found_and_only_as_many_files_opened_as_a_limit_needs(
    store: ObjectStore, client: s3fs.S3FileSystem, fresh: str
) -> None:
    moto = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for at in range(2500):
        moto.put_object(fresh, f"many/day={at % 5}/{at:05d}.jsonl", b'{"id": %d}\n' % at)
    moto.put_object(fresh, "many/_SUCCESS", b"")
    moto.put_object(fresh, "many/day=0/.hidden.jsonl", b"no row")
    store.did.clear()
    infos = storage.expand([f"s3://{fresh}/many"])
    assert len({info.uri for info in infos}) == 2500
    assert store.did["LIST", None] >= 3
    assert len(storage.expand([f"s3://{fresh}/many/day=[34]/*.jsonl"])) == 1000

    spec = spec_of(f"s3://{fresh}/many", f"s3://{fresh}/out", limit=7)
    spec = with_partitioning(spec, infos)
    store.did.clear()
    plan = planner.plan(spec.input, 100, infos=infos, output_uri=spec.output.uri)
    assert (plan.rows_total, len(plan.files)) == (7, 2500)
    assert sum(store.did.values()) < 100
    found = [
        row
        for batch in plan.batches()
        for row in input_rows.read_rows(
            spec, batch, None, ReadCache(0), plan.schema
        ).table.to_pylist()
    ]
    assert found == [{"id": at * 5, "day": 0} for at in range(7)]


@pytest.mark.parametrize("pieces", [0, 0.2, 1, 2.4])
def test_a_streamed_file_goes_up_as_it_comes_and_is_seen_once_it_is_whole(
    client: s3fs.S3FileSystem, fresh: str, small_pieces: int, pieces: float
) -> None:
    data = os.urandom(int(small_pieces * pieces))
    uri, seen = f"s3://{fresh}/streamed", list[bool]()

    def write(sink: BinaryIO) -> None:
        for at in range(0, len(data), 2**20):
            sink.write(data[at : at + 2**20])
            seen.append(storage.exists(uri))

    written = storage.write_streamed(uri, write)
    assert written.bytes == len(data)
    assert storage.checksum(uri) == written.checksum
    assert not any(seen)


def test_a_streamed_file_that_is_given_up_was_never_there(
    store: ObjectStore, client: s3fs.S3FileSystem, fresh: str, small_pieces: int
) -> None:
    uri = f"s3://{fresh}/given-up"
    store.did.clear()

    def write(sink: BinaryIO) -> None:
        for _ in range(3):
            sink.write(bytes(small_pieces))
        raise KeyError("no more")

    with pytest.raises(KeyError):
        storage.write_streamed(uri, write)
    gc.collect()
    assert not storage.exists(uri)
    assert store.did["PART", None] >= 2, "its bytes were on their way"
    assert store.did["DELETE", None] == 1, "and the store was told"


def test_a_store_that_fails_in_the_middle_of_a_stream_is_an_outage_and_leaves_nothing(
    store: ObjectStore, client: s3fs.S3FileSystem, fresh: str, small_pieces: int
) -> None:
    uri = f"s3://{fresh}/cut"
    store.rule = lambda operation: "403" if operation == "PART" else None
    try:
        with pytest.raises(StorageUnavailable):
            storage.write_streamed(uri, lambda sink: sink.write(bytes(3 * small_pieces)))
    finally:
        store.rule = lambda _operation: None
    gc.collect()
    assert not storage.exists(uri)


def test_large_files_go_up_in_pieces_and_come_back_whole(
    store: ObjectStore, client: s3fs.S3FileSystem, fresh: str, small_pieces: int
) -> None:
    data = os.urandom(2 * small_pieces + 5)
    store.did.clear()
    written = storage.write_bytes(f"s3://{fresh}/large.bin", data)
    assert written.bytes == len(data)
    assert (store.did["PART", None], store.did["PUT", None]) == (3, 0)
    assert storage.checksum(f"s3://{fresh}/large.bin") == written.checksum
    storage.move(f"s3://{fresh}/large.bin", f"s3://{fresh}/moved.bin")
    assert storage.checksum(f"s3://{fresh}/moved.bin") == written.checksum
    assert storage.list_names(f"s3://{fresh}") == ["moved.bin"]


@pytest.mark.parametrize("operation", ["PART", "POST"])
def test_an_upload_that_fails_half_way_leaves_nothing_to_see(
    store: ObjectStore, client: s3fs.S3FileSystem, fresh: str, small_pieces: int, operation: str
) -> None:
    asked = 0

    def second(each: str) -> str | None:
        nonlocal asked
        asked += each == operation
        return "403" if each == operation and asked == 2 else None

    store.rule = second
    data = bytes(2 * small_pieces)
    with pytest.raises(StorageUnavailable, match=r"part\.parquet cannot be written"):
        storage.write_bytes(f"s3://{fresh}/out/part.parquet", data)
    store.rule = lambda _operation: None
    assert not storage.exists(f"s3://{fresh}/out/part.parquet")
    assert storage.list_names(f"s3://{fresh}/out") == []
    assert client.list_multipart_uploads(fresh) == []


def test_an_upload_that_nobody_ends_is_no_file(client: s3fs.S3FileSystem, fresh: str) -> None:
    begun = client.call_s3("create_multipart_upload", Bucket=fresh, Key="in/b.parquet")
    client.call_s3(
        "upload_part",
        Bucket=fresh,
        Key="in/b.parquet",
        UploadId=begun["UploadId"],
        PartNumber=1,
        Body=b"PAR1" * 10,
    )
    storage.write_bytes(f"s3://{fresh}/in/a.jsonl", b'{"id": 1}\n')
    assert [info.uri for info in storage.expand([f"s3://{fresh}/in"])] == [
        f"s3://{fresh}/in/a.jsonl"
    ]


def test_a_file_has_one_life_from_writing_to_deleting(bucket: str) -> None:
    uri = f"{bucket}/a folder/ü+%/x.bin"
    written = storage.write_bytes(uri, b"0123456789" * 10)
    info = storage.stat(uri)
    assert (info.size, written.bytes) == (100, 100)
    assert storage.expand([f"{bucket}/a folder"]) == [info]
    assert storage.expand([f"{bucket}/a*/**/*.bin"]) == [info]
    assert storage.read_range(uri, 15, 5) == b"56789"
    with storage.open_input(uri) as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == b"56789"
    with pytest.raises(FileNotFoundError):
        storage.stat(f"{bucket}/nothing")
    with pytest.raises(BadInput, match="no such file"):
        storage.expand([f"{bucket}/nothing"])
    storage.write_bytes(uri, b"other")
    assert storage.stat(uri).fingerprint != info.fingerprint
    storage.move(uri, f"{bucket}/there/y.bin", len(b"other"))
    storage.move(uri, f"{bucket}/there/y.bin")
    assert not storage.exists(uri)
    storage.write_bytes(uri, b"a third")
    with pytest.raises(Permanent, match="something else"):
        storage.move(uri, f"{bucket}/there/y.bin", len(b"a third"))
    assert storage.read_range(f"{bucket}/there/y.bin", 0, 9) == b"other"
    assert storage.list_names(f"{bucket}/there") == ["y.bin"]
    storage.delete(f"{bucket}/there/y.bin")
    storage.delete(f"{bucket}/there/y.bin")
    assert storage.list_names(f"{bucket}/there") == []


def test_a_file_that_is_made_once_is_found_among_the_folders(bucket: str) -> None:
    uri = f"{bucket}/made/once/_owner.json"
    assert not any(names for _, names in storage.folders(f"{bucket}/made"))
    assert storage.create(uri, b"first")
    with storage.open_input(uri, links=False) as file:
        assert file.read() == b"first"
    assert dict(storage.folders(f"{bucket}/made")) == {
        f"{bucket}/made": [],
        f"{bucket}/made/once": ["_owner.json"],
    }


def test_every_format_is_planned_read_and_written_there(bucket: str) -> None:
    """Parquet, JSON lines and CSV out of partitions, the latter by way of copies in the output."""
    root = f"{bucket}/every"
    rows = pa.table({"id": [1, 2], "text": ["a", "b"]})
    part_rows.write_part(f"{root}/in/k=1/a.parquet", rows, "parquet", {})
    part_rows.write_part(f"{root}/in/k=2/b.jsonl", rows, "jsonl", {})
    storage.write_bytes(f"{root}/in/k=3/c.csv", b"id,text\n1,a\n2,b\n")
    infos = storage.expand([f"{root}/in"])
    spec = with_partitioning(spec_of(f"{root}/in", f"{root}/out"), infos)
    plan = planner.plan(spec.input, 100, infos=infos, output_uri=spec.output.uri)
    tables = [
        input_rows.read_rows(spec, batch, None, ReadCache(2**20), plan.schema).table
        for batch in plan.batches()
    ]
    whole = pa.concat_tables(tables)
    assert whole.to_pylist() == [
        {"id": at, "text": text, "k": k} for k in (1, 2, 3) for at, text in ((1, "a"), (2, "b"))
    ]
    assert storage.list_names(f"{root}/out") == ["_input"]
    facts = part_rows.write_part(f"{root}/out/part.parquet", whole, "parquet", {})
    assert storage.checksum(f"{root}/out/part.parquet") == facts.checksum
    assert read_part(f"{root}/out/part.parquet", "parquet", whole.schema).equals(whole)
