"""Why rows have no answer: as readers and workers see a failure, and as the ledger keeps it."""

from dataclasses import dataclass

from nightshift.common.states import RowErrorKind
from nightshift.common.text import kept_message


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one row has no answer; the message is fit for Arrow, JSON and Postgres text."""

    kind: RowErrorKind
    message: str

    @classmethod
    def of(cls, kind: RowErrorKind, message: str) -> "Failure":
        """With the message escaped, and cut to the length that is kept."""
        return cls(kind, kept_message(message))


@dataclass(frozen=True, slots=True)
class RowError:
    """The failure of a row of the dataset; `row_id` is its id column as text."""

    row_index: int
    row_id: str | None
    kind: RowErrorKind
    message: str
