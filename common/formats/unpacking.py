"""Compressed files as streams of what they hold, and the true cause where one cannot be unpacked.

A gzip or bzip2 file may have several members and zeros behind them, as tapes and block devices leave
them. A zstd file may have several frames, skippable ones among them.
"""

import bz2
import io
import zlib
from typing import Any, BinaryIO

import pyarrow as pa

from nightshift.common.errors import BadInput
from nightshift.common.public_text import marked, private

CHUNK_BYTES = 2**20

MOST_WINDOW_BYTES = 128 * 2**20
"""Largest window of a zstd frame, which is held in memory: what zstd itself allows without --long."""

ZSTD_MAGIC = 0xFD2FB528
SKIPPABLE_MAGIC = range(0x184D2A50, 0x184D2A60)


def opened(raw: BinaryIO, codec: str, uri: str) -> Any:
    """What a file holds, as a file of Arrow. Reading raises BadInput where a gzip or bzip2 file cannot be
    unpacked; of zstd it raises Arrow's errors, and `zstd_fault` has the cause.
    """
    source = pa.PythonFile(raw, mode="r")
    if codec == "zstd":
        return pa.CompressedInputStream(source, codec)
    return pa.PythonFile(_Members(raw, codec, uri), mode="r")


class _Members(io.RawIOBase):
    """The members of a gzip or bzip2 file one after the other, without the zeros behind them."""

    def __init__(self, raw: BinaryIO, codec: str, uri: str) -> None:
        self._raw, self._codec, self._uri = raw, codec, uri
        self._packed, self._at = b"", 0  # bytes that are read, and where in the file they end
        self._member: Any = None
        self._members = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        """Memory of Arrow, which is freed once no reader uses it."""
        buffer = pa.allocate_buffer(size, resizable=True)
        filled = self.readinto(buffer)
        buffer.resize(filled)
        return buffer

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, except at the end of the file: the reader of CSV takes a shorter read for the end."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and (self._member is not None or self._begin()):
            data = self._unpacked(min(CHUNK_BYTES, len(view) - filled))
            view[filled : filled + len(data)] = data
            filled += len(data)
            if self._member.eof:
                self._packed = self._member.unused_data
                self._member, self._members = None, self._members + 1
        return filled

    def _begin(self) -> bool:
        """Begins with the next member; False at the end of the file."""
        while self._members:
            self._packed = self._packed.lstrip(b"\0")
            if self._packed or not self._more():
                break
        if not self._packed and not self._more():
            return False
        is_gzip = self._codec == "gzip"
        magic = b"\x1f\x8b" if is_gzip else b"BZh"
        while len(self._packed) < len(magic) and self._more():
            pass
        if self._members and not magic.startswith(self._packed[: len(magic)]):
            raise BadInput(
                f"{private(self._uri)} has something at byte {self._at - len(self._packed):,}, behind its last "
                f"{self._codec} member, that is no {self._codec} data: cut it off, or copy the file again"
            )
        if not magic.startswith(self._packed[: len(magic)]):
            raise BadInput(
                f"{private(self._uri)} is no {self._codec} file: rename it, or copy it again"
            )
        self._member = zlib.decompressobj(31) if is_gzip else bz2.BZ2Decompressor()
        return True

    def _unpacked(self, most: int) -> bytes:
        """The next bytes of the member, `most` of them; none where more packed bytes are needed."""
        try:
            needs_input = self._codec == "gzip" or self._member.needs_input
            if needs_input and not self._packed and not self._more():
                raise BadInput(
                    f"{private(self._uri)} is cut off: its last {self._codec} member has no end; copy it again"
                )
            data: bytes = self._member.decompress(self._packed, most)
        except (zlib.error, OSError) as error:
            raise BadInput(
                f"{private(self._uri)} is damaged before byte {self._at:,}: {marked(error)}; copy it again"
            ) from error
        self._packed = self._member.unconsumed_tail if self._codec == "gzip" else b""
        return data

    def _more(self) -> bool:
        data = self._raw.read(CHUNK_BYTES)
        self._packed, self._at = self._packed + data, self._at + len(data)
        return bool(data)


def zstd_fault(raw: BinaryIO) -> str:
    """Why a zstd file cannot be unpacked, behind its name: its frames are walked from block to block."""
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    frames = 0
    while (at := raw.tell()) < size:
        magic = _number(raw, 4)
        if magic in SKIPPABLE_MAGIC:
            raw.seek(_number(raw, 4), io.SEEK_CUR)
        elif magic == ZSTD_MAGIC:
            window, checksum_bytes = _frame_header(raw)
            if window > MOST_WINDOW_BYTES:
                return (
                    f"needs a window of {window >> 20:,} MiB in memory to be unpacked, and "
                    f"{MOST_WINDOW_BYTES >> 20} MiB are the most here: pack it again without --long, as by "
                    f"`zstd -dc --long={(window - 1).bit_length()} OLD | zstd -o NEW`"
                )
            is_last = False
            while not is_last and raw.tell() < size:
                block = _number(raw, 3)
                is_last = bool(block & 1)
                raw.seek(1 if block >> 1 & 3 == 1 else block >> 3, io.SEEK_CUR)
            raw.seek(checksum_bytes if is_last else 1, io.SEEK_CUR)
        elif not frames:
            return "is no zstd file: rename it, or copy it again"
        else:
            return (
                f"has something at byte {at:,}, behind its last zstd frame, that is no zstd data: cut it "
                "off, or copy the file again"
            )
        frames += 1
    is_cut = raw.tell() > size
    return "is cut off: its last zstd frame has no end; copy it again" if is_cut else ""


def _number(raw: BinaryIO, size: int) -> int:
    """The next bytes as a number; behind the end of the file the position is moved all the same."""
    data = raw.read(size)
    raw.seek(size - len(data), io.SEEK_CUR)
    return int.from_bytes(data, "little")


def _frame_header(raw: BinaryIO) -> tuple[int, int]:
    """The window of a frame, and how many bytes of a checksum stand behind it (RFC 8878, 3.1.1.1)."""
    descriptor = _number(raw, 1)
    is_single = bool(descriptor >> 5 & 1)
    window = 0
    if not is_single:
        byte = _number(raw, 1)
        base = 1 << (10 + (byte >> 3))
        window = base + (base >> 3) * (byte & 7)
    _number(raw, (0, 1, 2, 4)[descriptor & 3])
    content = _number(raw, (1 if is_single else 0, 2, 4, 8)[descriptor >> 6])
    return window or content, 4 * (descriptor >> 2 & 1)
