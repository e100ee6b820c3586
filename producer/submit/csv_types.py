"""What types the texts of each CSV column would fit."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats import csv_copy
from nightshift.common.formats.csv_copy import CANDIDATES, WHY, Candidate

WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""Whole numbers that give the same text back: 007 and +7 do not."""

REAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
REAL_DIGITS = r"^-?(0\.0*)?([0-9]\.?){1,17}([eE].*)?$"
LONG_WHOLE = r"^-?[0-9]{16,}$"
"""A double surely keeps 17 digits of a fraction, and 15 of a whole number."""


@dataclass(slots=True)
class ColumnTypes:
    """The columns of a file, each with the types that all of its texts so far fit."""

    names: list[str]
    types: csv_copy.Types = field(init=False)

    def __post_init__(self) -> None:
        self.types = {name: list(CANDIDATES) for name in self.names}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the copy, whose columns are all texts."""
        return pa.schema([(name, pa.string()) for name in [*self.names, WHY]])

    def narrow(self, batch: pa.RecordBatch) -> None:
        """Drops the types that a text of the batch does not fit."""
        for name, left in self.types.items():
            if left:
                texts = batch.column(name).drop_null()
                left[:] = [each for each in left if _fits(texts, each)]


def _fits(texts: pa.Array, kind: Candidate) -> bool:
    match kind:
        case "bool":
            return _all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"])))
        case "int64":
            return _match(texts, WHOLE) and _casts(texts, pa.int64())
        case "double":
            return (
                _match(texts, REAL)
                and _match(texts, REAL_DIGITS)
                and not pc.any(pc.match_substring_regex(texts, LONG_WHOLE)).as_py()
                and _all(pc.is_finite(texts.cast(pa.float64())))
            )


def _match(texts: pa.Array, pattern: str) -> bool:
    return _all(pc.match_substring_regex(texts, pattern))


def _all(flags: pa.Array) -> bool:
    # Null where there are no values.
    return pc.all(flags).as_py() is not False


def _casts(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
