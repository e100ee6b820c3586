"""Images of rows: where they may come from, what is refused, and how messages carry them."""

import asyncio
import base64
import errno
import io
import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image as Pillow

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.producer.submit.checks import check_images
from nightshift.worker.engines import images
from nightshift.worker.engines.images import BadImage, BatchReads, Image, Reads
from nightshift.worker.engines.protocol import Request
from nightshift.worker.rows.prompts import Renderer


def png(width: int = 3, height: int = 2, color: str = "red") -> bytes:
    buffer = io.BytesIO()
    Pillow.new("RGB", (width, height), color).save(buffer, "PNG")
    return buffer.getvalue()


def spec(*parts: dict[str, Any]) -> JobSpec:
    return parse_spec(
        {
            "name": "t",
            "input": {"uri": "x.parquet"},
            "task": {
                "kind": "generate",
                "messages": [
                    {"role": "system", "content": "Look at {{ what }}."},
                    {"role": "user", "content": list(parts)},
                ],
            },
            "engine": {"backend": "vllm", "model": "m"},
            "output": {"uri": "out"},
        },
        "test",
    )


PHOTO = {"type": "image", "column": "photo"}
ASK = {"type": "text", "text": "{{ name }}?"}


def rendered(photo: Any, roots: tuple[str, ...] = ()) -> Request:
    table = pa.table({"what": ["it"], "name": ["cat"], "photo": [photo]})
    (request,), _ = Renderer(spec(PHOTO, ASK, PHOTO).task, roots).render(table, [5])
    return request


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("value", [png(), "s3://bucket/cat.png", "data:image/png;base64,AA=="])
def test_parts_come_in_order_with_the_row_s_own_image(value: bytes | str) -> None:
    request = rendered(value, ("/data",))
    image = {"type": "image", "image": Image(value, ("/data",))}
    assert request.messages == [
        {"role": "system", "content": "Look at it."},
        {"role": "user", "content": [image, {"type": "text", "text": "cat?"}, image]},
    ]


@pytest.mark.parametrize("value", [None, b"", ""])
def test_a_row_without_an_image_is_refused(value: Any) -> None:
    table = pa.table({"what": ["it"], "name": ["cat"], "photo": pa.array([value])})
    requests, refused = Renderer(spec(PHOTO).task).render(table, [5])
    assert requests == []
    assert refused[5].kind is RowErrorKind.RENDER_ERROR
    assert "the column 'photo' holds no image" in refused[5].message


def test_columns_of_images_are_read_and_must_hold_bytes_or_text() -> None:
    job = spec(PHOTO, ASK)
    assert job.task.columns == {"what", "name", "photo"}
    assert set(job.read_columns or ()) == {"what", "name", "photo"}
    for kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
        check_images(job, pa.schema([("photo", kind)]))
    with pytest.raises(BadInput, match="images of the column 'photo', which is int64"):
        check_images(job, pa.schema([("photo", pa.int64())]))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "image"}, "column: the key is missing"),
        ({"type": "video", "column": "x"}, "video"),
        ({"type": "text", "text": "{{"}, "template does not parse"),
        ({"type": "image", "column": "x", "url": "y"}, "url: unknown key"),
    ],
)
def test_a_part_that_cannot_be_is_refused_at_its_place(part: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        spec(part)


def test_a_message_needs_a_part_and_mistakes_name_their_place() -> None:
    with pytest.raises(BadInput, match=r"task\.messages\.1\.content: names no part"):
        spec()
    with pytest.raises(
        BadInput, match=r"task\.messages\.1\.content\.0\.column: the key is missing"
    ):
        spec({"type": "image"})


# ---------------------------------------------------------------- bytes and URIs


def test_bytes_paths_and_data_uris_are_the_same_image(tmp_path: Path) -> None:
    data = png()
    path = tmp_path / "a cat.png"
    path.write_bytes(data)
    encoded = base64.b64encode(data).decode()
    for value in (data, str(path), f"file://{path}", f"data:image/png;base64,{encoded}"):
        image = Image(value)
        assert image.content() == (data, "image/png")
        assert image.picture().size == (3, 2)
        assert image.data_url() == f"data:image/png;base64,{encoded}"


def test_the_type_is_what_the_bytes_are_whatever_the_name_says(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Pillow.new("RGB", (2, 2)).save(buffer, "JPEG")
    path = tmp_path / "a.png"
    path.write_bytes(buffer.getvalue())
    assert Image(str(path)).content()[1] == "image/jpeg"


def test_an_image_is_turned_upright() -> None:
    buffer = io.BytesIO()
    exif = Pillow.Exif()
    exif[0x0112] = 6
    Pillow.new("RGB", (4, 2)).save(buffer, "JPEG", exif=exif)
    assert Image(buffer.getvalue()).picture().size == (2, 4)


def test_uris_of_rows_are_held_to_the_allowed_roots(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    for folder in (inside, outside):
        (folder / "a.png").write_bytes(png())
    (inside / "link.png").symlink_to(outside / "a.png")
    roots = (str(inside),)
    assert Image(str(inside / "a.png"), roots).content()[0] == png()
    for place in (
        outside / "a.png",
        inside / "link.png",
        inside / ".." / "out" / "a.png",
        "s3://other/a.png",
    ):
        with pytest.raises(BadImage, match="outside the folders that NIGHTSHIFT_ALLOWED_ROOTS"):
            Image(str(place), roots).content()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("cat.png", "no absolute path"),
        ("/no/such/cat.png", "is not there"),
        ("/", "is not there"),
        ("/dev/zero", "no regular file"),
        ("http://example.org/cat.png", "not fetched from the web"),
        ("HTTPS://example.org/cat.png", "not fetched from the web"),
        ("ftp://example.org/cat.png", "not supported"),
        ("data:image/png;base64,%%%", "no base64"),
        ("data:image/png,raw", "no absolute path"),
        ("/a\x00b", "NUL"),
        (b"no image", "no image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image of a known format"),
    ],
)
def test_what_is_no_image_is_said_in_a_sentence(value: bytes | str, says: str) -> None:
    with pytest.raises(BadImage, match=says):
        Image(value).content()


def claimed(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header says that it is so large."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", len(header))
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + b"\x00\x00\x00\x00IEND\xaeB`\x82"
    )


@pytest.mark.parametrize("side", [9_000, 11_000, 40_000])
def test_an_image_of_too_many_pixels_is_not_decoded(side: int) -> None:
    with pytest.raises(BadImage, match="pixels"):
        Image(claimed(side, side)).picture()


def test_an_image_that_is_cut_off_is_bad_and_one_that_is_too_large_is_not_read(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadImage, match="cannot be decoded"):
        Image(png(500, 500)[:-40]).picture()
    large = tmp_path / "large.png"
    large.write_bytes(png())
    os.truncate(large, images.IMAGE_BYTES + 1)
    with pytest.raises(BadImage, match="larger than"):
        Image(str(large)).content()


def test_a_store_that_is_away_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    original, failures = storage.read_range, [StorageUnavailable("away")] * 2

    def flaky(uri: str, offset: int, length: int) -> bytes:
        if failures:
            raise failures.pop()
        return original(uri, offset, length)

    monkeypatch.setattr(storage, "read_range", flaky)
    assert Image(str(path)).content()[0] == png()
    assert failures == []


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    """What the next reads of a store end with; the last of them for ever."""
    errors: list[OSError] = []

    def fail(uri: str, offset: int, length: int) -> bytes:
        error = errors.pop(0) if len(errors) > 1 else errors[0]
        raise StorageUnavailable(f"{uri} cannot be read") from error

    monkeypatch.setattr(storage, "read_range", fail)
    monkeypatch.setattr(images, "READ_TRIES", 2)
    return errors


def test_a_store_that_stays_away_is_an_outage_and_no_fault_of_the_row(
    tmp_path: Path, fails: list[OSError]
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    fails.append(OSError(errno.EIO, "the disk is away"))
    for use in (Image.content, Image.picture, Image.data_url, Image.fetched):
        with pytest.raises(StorageUnavailable):
            use(Image(str(path)))


@pytest.mark.parametrize(
    "error", [PermissionError("Forbidden"), IsADirectoryError(errno.EISDIR, "a directory")]
)
def test_a_file_that_can_never_be_read_is_the_fault_of_its_row(
    tmp_path: Path, fails: list[OSError], error: OSError
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    fails.append(error)
    with pytest.raises(BadImage, match="cannot be read"):
        Image(str(path)).content()


def test_a_name_that_no_file_can_have_is_the_fault_of_its_row(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, tmp_path / ("a" * 300)):
        with pytest.raises(BadImage):
            Image(str(path)).content()


def test_a_fetched_image_needs_its_store_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    fetched = Image(str(path)).fetched()
    path.unlink()
    assert fetched.picture().size == (3, 2)


async def gathered(reads: Reads | BatchReads, count: int, read: Any) -> list[Any]:
    return await asyncio.gather(*(reads.run(read) for _ in range(count)), return_exceptions=True)


@pytest.mark.slow
def test_a_read_has_its_time_for_itself_however_long_it_stood_in_the_queue() -> None:
    reads = Reads(threads=1, seconds=5)
    assert asyncio.run(gathered(reads, 5, lambda: time.sleep(1.2))) == [None] * 5
    reads.close()


def test_a_read_that_hangs_is_an_outage_for_it_and_for_those_that_find_no_thread() -> None:
    reads, let_go = Reads(threads=1, seconds=0.3), threading.Event()
    # Nobody lets go before both have ended: neither may wait for it.
    hung, waited = asyncio.run(gathered(reads, 2, let_go.wait))
    let_go.set()
    reads.close()
    assert isinstance(hung, StorageUnavailable)
    assert isinstance(waited, StorageUnavailable)


def test_a_store_that_was_away_for_a_row_is_not_asked_for_the_others_of_its_batch() -> None:
    reads, asked = Reads(threads=1), []

    def away() -> None:
        asked.append(1)
        raise StorageUnavailable("away")

    found = asyncio.run(gathered(BatchReads(reads), 9, away))
    assert [str(each) for each in found] == ["away"] * 9
    assert len(asked) == 1
    assert asyncio.run(gathered(BatchReads(reads), 1, lambda: "another batch"))
    reads.close()
