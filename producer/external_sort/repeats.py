"""How many of many values differ, and which stand in two rows: counted exactly, in bounded memory.

A value is known by 128 bits of BLAKE2: two values of a dataset are taken for one with a chance of less
than one in 10**18. Digests that do not fit into memory go into files by their first bits, and each file is
sorted by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nightshift.common.formats.values import to_list

HELD_ROWS = 1_000_000
"""Digests in memory, of 24 bytes each, before they go into files."""

FILES = 256
"""100 million rows are 9 MiB in each."""

DIGEST = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])

Digests = "np.ndarray[tuple[int], np.dtype[Any]]"


@dataclass(frozen=True, slots=True)
class Repeats:
    """`rows` rows have a value, of which `different` differ; rows `without` a value are counted apart.

    If values stand in several rows, `pair` are two rows of the one that comes first.
    """

    rows: int
    without: int
    different: int
    pair: tuple[int, int] | None

    @property
    def repeated(self) -> int:
        """Rows whose value an earlier row has."""
        return self.rows - self.different


class RepeatCount:
    """Takes the values of rows in any order; a row that is given twice counts once. For one thread."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes what memory does not hold."""
        self._folder = folder
        self._held: list[Any] = []
        self._held_rows = 0
        self._without = 0
        self._spilled = False

    def add(self, row_index: Iterable[int], values: pa.ChunkedArray | pa.Array) -> None:
        """Adds a value for each row, null where it has none; OSError when the folder is full."""
        found = [
            (row, blake2b(_bytes(value), digest_size=16).digest())
            for row, value in zip(row_index, to_list(values), strict=True)
            if value is not None
        ]
        self._without += len(values) - len(found)
        digests = np.empty(len(found), DIGEST)
        halves = np.frombuffer(b"".join(digest for _, digest in found), "<u8").reshape(-1, 2)
        digests["high"], digests["low"] = halves[:, 0], halves[:, 1]
        digests["row"] = [row for row, _ in found]
        self._held.append(digests)
        self._held_rows += len(found)
        if self._held_rows >= HELD_ROWS:
            self._spill()

    def result(self) -> Repeats:
        """What was counted; nothing is added after this."""
        if not self._spilled:
            return self._of([np.concatenate(self._held)] if self._held else [])
        self._spill()
        files = (self._folder / f"{number:03}.digests" for number in range(FILES))
        return self._of(np.fromfile(file, DIGEST) for file in files if file.exists())

    def _spill(self) -> None:
        self._spilled = True
        if not self._held:
            return
        digests = np.concatenate(self._held)
        self._held, self._held_rows = [], 0
        number = digests["high"] % FILES
        order = np.argsort(number, kind="stable")
        stops = np.cumsum(np.bincount(number.astype(np.int64), minlength=FILES))
        for at, part in enumerate(np.split(digests[order], stops[:-1])):
            with (self._folder / f"{at:03}.digests").open("ab") as file:
                file.write(part.tobytes())

    def _of(self, groups: Iterable[Any]) -> Repeats:
        rows = different = 0
        pairs: list[tuple[int, int]] = []
        for digests in groups:
            ordered = digests[np.lexsort((digests["row"], digests["low"], digests["high"]))]
            high, low, row = (ordered[name] for name in ("high", "low", "row"))
            as_before = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
            again = as_before & (row[1:] == row[:-1])
            rows += len(ordered) - int(again.sum())
            different += len(ordered) - int(as_before.sum())
            others = np.flatnonzero(as_before & ~again)
            if len(others):
                at = others[np.argmin(row[others])]
                pairs.append((int(row[at]), int(row[at + 1])))
        return Repeats(rows, self._without, different, min(pairs, default=None))


def _bytes(value: Any) -> bytes:
    """A value of the column's one type as bytes, different ones for different values."""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else repr(value)).encode("utf-8", "surrogatepass")
