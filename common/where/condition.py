"""A condition as a tree, as it was read: columns and constants."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Literal as OneOf

Operator = OneOf["=", "<>", "<", "<=", ">", ">="]

MIRRORED: dict[Operator, Operator] = {
    "=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
"""What a comparison is with its sides exchanged."""

DECIMAL_DIGITS = 38
"""Most digits of DuckDB's DECIMAL."""

Kind = OneOf["text", "number", "boolean", "null", "date", "timestamp", "timestamptz", "time"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the input, or with more than one step a field inside of it."""

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The column of the input."""
        return self.path[0]

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant as it was written; the value of a date or a moment is its text."""

    kind: Kind
    value: str | Decimal | bool | None

    def __str__(self) -> str:
        return f"{self.kind} {self.value}" if self.value is not None else "NULL"


def number_literal(number: Decimal) -> str:
    """Return a number as DuckDB's literal: without an exponent, which is a DECIMAL or an integer, if it has at most
    DECIMAL_DIGITS digits, else a DOUBLE with an exponent.
    """
    plain = f"{number:f}"
    return plain if sum(map(str.isdigit, plain)) <= DECIMAL_DIGITS else f"{number:E}"


@dataclass(frozen=True, slots=True)
class Compare:
    """A column beside a constant or another column."""

    left: Column
    operator: Operator
    right: Column | Constant


@dataclass(frozen=True, slots=True)
class In:
    """A column whose value is one of some constants."""

    column: Column
    values: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A text that looks like a pattern. Without `escape` no character of the pattern stands for itself."""

    column: Column
    pattern: str
    escape: str = ""
    ignores_case: bool = False


@dataclass(frozen=True, slots=True)
class Holds:
    """A column of booleans, by itself."""

    column: Column


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column has no value; never null itself."""

    column: Column


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for every row; None is SQL's null."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Not:
    """True of what is false, null of null."""

    of: "Condition"


@dataclass(frozen=True, slots=True)
class And:
    """True where all are, false where one is."""

    of: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True where one is, false where all are."""

    of: tuple["Condition", ...]


Condition = Compare | In | Like | Holds | IsNull | Fixed | Not | And | Or
"""As it was read."""


def columns(condition: Condition) -> list[str]:
    """Return the columns of the input that a condition reads, each once."""
    return list(dict.fromkeys(column.name for column in column_paths(condition)))


def column_paths(condition: Condition) -> list[Column]:
    """Return the columns and fields that a condition reads, each once."""
    return list(dict.fromkeys(_columns(condition)))


def _columns(node: object) -> Iterator[Column]:
    if isinstance(node, Column):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from _columns(each)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _columns(getattr(node, field.name))
