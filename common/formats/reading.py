"""What a plan may read: rows, unpacked bytes and the ratio of unpacking are counted while they come.

Whoever plans for somebody else does so inside `held_to`; a plan outside reads without bounds. Copies that
are made inside are known, so that those of a plan that came to nothing can go.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.public_text import private
from nightshift.common.text import counted

FREE_BYTES = 64 * 2**20
"""Unpacked bytes of a file that its ratio does not bound: a small file may hold equal lines."""

FREE_DECODED_BYTES = 256 * 2**20
"""The same of what the rows of Parquet files are decoded to: a column may hold few different texts."""

MOST_GROUP_BYTES = 64 * 2**30
"""Most bytes that one row group is decoded to, however large its file is."""


class TooManyRows(BadInput):
    """The input has more rows than `most`."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the input has more than {counted(most, 'row')}")
        self.most = most


class NoRoom(BadInput):
    """Whoever owns the job may not have more rows now; later there may be room."""


class CutOff(Retryable):
    """The process ends, or nobody waits for the plan any more."""


class Reading:
    """The bounds of one plan, what it has read so far, and the copies that it has made or found.

    `begin` is called once, before anything is read: it gives the most rows, None for any number, or
    raises what refuses the plan. `most_bytes` bounds what is unpacked into copies, `most_ratio` how many
    times its own size a compressed file becomes beyond FREE_BYTES, and Parquet beyond FREE_DECODED_BYTES.
    `most_line_bytes` bounds each JSON line. `is_over` says that the plan is to end.
    """

    def __init__(
        self,
        *,
        begin: Callable[[], int | None] = lambda: None,
        most_bytes: int | None = None,
        most_ratio: float | None = None,
        most_line_bytes: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._begin, self._is_over = begin, is_over
        self._most_bytes, self._most_ratio = most_bytes, most_ratio
        self.most_line_bytes = most_line_bytes
        self._most_rows: int | None = None
        self._rows = self._bytes = 0
        self._begun = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Asks whether anything may be read, and how many rows."""
        with self._lock:
            if not self._begun:
                self._most_rows, self._begun = self._begin(), True

    @property
    def counts_rows(self) -> bool:
        """Whether rows are bounded."""
        return self._most_rows is not None

    def check(self) -> None:
        """CutOff once the plan is to end."""
        if self._is_over():
            raise CutOff("the server ends: send the request again")

    def within(self, limit: int | None) -> int | None:
        """The most rows of a file that are read, where `limit` rows are wanted. That is one more than there is
        room for: the extra row shows that a file has too many.
        """
        if self._most_rows is None:
            return limit
        room = self._most_rows - self._rows + 1
        return room if limit is None else min(room, limit)

    def check_rows(self, more: int) -> None:
        """TooManyRows where `more` rows of a file are too many together with the rows of the files before."""
        if self._most_rows is not None and self._rows + more > self._most_rows:
            raise TooManyRows(self._most_rows)

    def check_line(self, uri: str, size: int) -> None:
        """BadInput for a file that has a line of at least `size` bytes where that is too much."""
        if self.most_line_bytes is not None and size > self.most_line_bytes:
            raise BadInput(
                f"{private(uri)} has a line of more than {counted(self.most_line_bytes, 'byte')}, which this server does not "
                "read: send large values as Parquet, or in several rows"
            )

    def add_rows(self, count: int) -> None:
        """Counts the rows of a file; TooManyRows where these are too many."""
        with self._lock:
            self._rows += count
        self.check_rows(0)

    def add_bytes(self, count: int) -> None:
        """Counts `count` bytes that were unpacked into a copy; BadInput where the tenant may not store so many."""
        with self._lock:
            self._bytes += count
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            raise BadInput(
                f"the input unpacks to more than {self._most_bytes:,} bytes, which is what this tenant "
                "may still store"
            )

    def check_ratio(self, uri: str, size: int, unpacked: int) -> None:
        """BadInput for a file of `size` bytes whose `unpacked` bytes are too many times that."""
        if self._most_ratio is None or unpacked <= max(FREE_BYTES, size * self._most_ratio):
            return
        raise BadInput(
            f"{private(uri)} unpacks to more than {self._most_ratio:g} times its size, which this server does not "
            "read: send it as plain text, or as Parquet"
        )

    def decoding(self) -> "Decoding | None":
        """What counts one pass over the rows of Parquet files; None where nothing bounds these."""
        return None if self._most_ratio is None else Decoding(self._most_ratio, self.check)


class Decoding:
    """Counts what one pass over Parquet files decodes, for `ReadCache`; many threads may call."""

    def __init__(self, most_ratio: float, check: Callable[[], None]) -> None:
        self._most_ratio, self._check = most_ratio, check
        self._files: set[str] = set()
        self._parts: dict[tuple[str, Hashable], int] = {}
        self._size = self._decoded = 0
        self._lock = threading.Lock()

    def __call__(self, uri: str, size: int, part: Hashable, decoded: int) -> None:
        """BadInput where a part of a file of `size` bytes is too much together with the parts before: `decoded`
        are its bytes when it is decoded. CutOff once the plan is to end.
        """
        self._check()
        with self._lock:
            if uri not in self._files:
                self._files.add(uri)
                self._size += size
            known = self._parts.get((uri, part), 0)
            self._parts[uri, part] = max(known, decoded)
            self._decoded += max(0, decoded - known)
            is_too_much = self._decoded > max(FREE_DECODED_BYTES, self._size * self._most_ratio)
        if decoded > MOST_GROUP_BYTES:
            raise BadInput(
                f"{private(uri)} has a row group of more than {MOST_GROUP_BYTES >> 30} GiB once it is unpacked, which "
                "this server does not read: write smaller row groups"
            )
        if is_too_much:
            raise BadInput(
                f"{private(uri)} unpacks to more than {self._most_ratio:g} times its size, which this server does not "
                "read: write a text that many rows share into the task, or send plain JSON lines"
            )


_current: ContextVar[Reading | None] = ContextVar("reading", default=None)

_UNBOUND = Reading()


def current() -> Reading:
    """The bounds of the plan that is made here."""
    return _current.get() or _UNBOUND


@contextmanager
def held_to(reading: Reading) -> Iterator[Reading]:
    """Plans inside are held to these bounds; a thread of a plan enters the same ones."""
    token = _current.set(reading)
    try:
        yield reading
    finally:
        _current.reset(token)


class _Copies:
    """The copies that plans of this process make and use. A plan that came to nothing removes a copy only if no
    other plan uses that copy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[tuple[str, str], set[Reading]] = {}
        self._made: set[tuple[str, str]] = set()

    def use(self, output_uri: str, uri: str) -> None:
        """The plan that is made here uses a copy beside the output of a job."""
        reading = current()
        if reading is not _UNBOUND:
            with self._lock:
                self._users.setdefault((output_uri, uri), set()).add(reading)

    def made(self, output_uri: str, uri: str) -> None:
        """The same, of a copy that the plan has made."""
        self.use(output_uri, uri)
        if current() is not _UNBOUND:
            with self._lock:
                self._made.add((output_uri, uri))

    def release(self, reading: Reading, *, stored: bool) -> dict[str, list[str]]:
        """Ends a plan. Returns, by output, the copies that plans without a job have made and no plan uses any
        more; a copy that a `stored` job reads is never among them. An output without such copies may have an
        empty folder.
        """
        unwanted: dict[str, list[str]] = {}
        with self._lock:
            for place in [each for each, users in self._users.items() if reading in users]:
                users = self._users[place]
                users.discard(reading)
                if stored:
                    self._made.discard(place)
                if users:
                    continue
                del self._users[place]
                if not stored:
                    unwanted.setdefault(place[0], [])
                if place in self._made:
                    self._made.discard(place)
                    unwanted.setdefault(place[0], []).append(place[1])
        return unwanted


copies = _Copies()
"""Those of this process."""
