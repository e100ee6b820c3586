"""What a commit asks of a table, whichever library it is reached by."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from nightshift.common.errors import BadInput, NightshiftError, Permanent


class CommitRefused(Permanent):
    """A commit that no later try can make; the message says why, and what a person can do."""


class TableAway(BadInput):
    """A table that cannot be had from here now: its catalog does not answer, or this machine does not know it."""


class CommitLost(NightshiftError):
    """Somebody else committed to the table since it was looked at: look again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A table as it was looked at: its version, None where there is no table, and its columns. `handle` is the
    library's own; a commit from it is made against this very version.
    """

    version: str | None = None
    schema: pa.Schema | None = None
    handle: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that becomes part of a table: its address, its size in bytes, its rows, and what its footer
    says of columns: a lower and an upper bound of the values, and the nulls.
    """

    uri: str
    bytes: int
    rows: int
    least: dict[str, Any]
    greatest: dict[str, Any]
    nulls: dict[str, int]


@dataclass(frozen=True, slots=True)
class Change:
    """One commit. `app` and `mark` name it in the table: the job, and the commit of the job.

    `add` become files of the table, and `remove` are none any more, by their addresses; with `overwrite` no file
    of before is. With `merge`, the rows that it gives take the place of those that
    have the same value in the column `key`, except that a row with an error replaces no row.
    """

    app: str
    mark: int
    schema: pa.Schema
    add: Sequence[DataFile] = ()
    remove: Sequence[str] = ()
    overwrite: bool = False
    merge: Callable[[], Iterator[pa.RecordBatch]] | None = None
    key: str | None = None


class Table(Protocol):
    """A table by its name. Outages are Retryable errors."""

    def look(self) -> Seen:
        """The table as it is now. Raises TableAway, and BadInput for one that cannot be read."""
        ...

    def mark(self, seen: Seen, app: str) -> int:
        """The mark of the last commit of a job that the table has; 0 for none."""
        ...

    def places(self, seen: Seen) -> list[str]:
        """The folders that the table lies in, which are held to the roots of a job."""
        ...

    def names(self, seen: Seen) -> set[str]:
        """The addresses of the files of the table."""
        ...

    def held(self, seen: Seen) -> set[str]:
        """The same with the files of other versions that the table keeps by a name, such as a tag."""
        ...

    def misfit(self, seen: Seen, schema: pa.Schema, *, replaces: bool, merges: bool) -> str | None:
        """Why a commit of Parquet files with these columns cannot be made, which takes files out of the table if it
        `replaces` and rows if it `merges`; None where it can.
        """
        ...

    def fence(self, seen: Seen, app: str, mark: int) -> None:
        """Makes a commit without files to a table that is there, so that a commit which somebody else began to the
        version that was seen fails. Raises what `commit` raises.
        """
        ...

    def commit(self, seen: Seen, change: Change) -> str:
        """Makes a change to the version that was seen, in one commit; returns the new version. Makes the table where
        there is none. Raises CommitLost where the table has another version by now, and then nothing is changed.
        """
        ...
