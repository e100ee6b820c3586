"""The copy of a CSV file and the types of its columns.

The copy is Parquet with the texts as they stand in the file. The type of a column is decided over every
file of a dataset, and the texts become values of that type when they are read. A record that is no row of the
table is kept as a row with the reason.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.formats.parquet.footer import METADATA_PREFIX, Footer
from nightshift.common.formats.values import beyond_64_bits

Candidate = Literal["int64", "double", "bool"]


CANDIDATES: tuple[Candidate, ...] = ("int64", "double", "bool")
"""Types that a column of texts may get in place of string; the first that all texts fit counts."""


WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""Whole numbers that give the same text back: 007 and +7 do not."""


REAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"


REAL_DIGITS = r"^-?(0\.0*)?([0-9]\.?){1,17}([eE].*)?$"


LONG_WHOLE = r"^-?[0-9]{16,}$"
"""A double surely keeps 17 digits of a fraction, and 15 of a whole number."""


WHY = "\0why"
"""Column of the copy with the reason why a record is no row; null for a row."""


TYPES = f"{METADATA_PREFIX}types"
"""Key in the copy's metadata: for each column the candidates that all of its texts fit."""


Types = dict[str, list[Candidate]]


def encoded_types(types: Mapping[str, Sequence[Candidate]]) -> dict[str, str]:
    """Metadata for the copy."""
    return {TYPES: json.dumps(types)}


def types_of(footer: Footer) -> Types:
    """The candidates that a copy names, column by column in the order of the file."""
    found: Types = json.loads(footer.metadata.metadata[TYPES.encode()])
    return found


def schema_of(types: Types) -> pa.Schema:
    """The first candidate of each column, string where there is none; null where all are left,
    since no text fits all of them.
    """
    return pa.schema([(name, _type(fit)) for name, fit in types.items()])


def _type(fit: Sequence[Candidate]) -> pa.DataType:
    if len(fit) == len(CANDIDATES):
        return pa.null()
    return pa.type_for_alias(fit[0]) if fit else pa.string()


def common_types(every: Sequence[Types], id_column: str | None) -> Types:
    """What the texts of all files fit, for each column of any. Ids are whole numbers or texts:
    as another type two that differ could become the same.
    """
    names = dict.fromkeys(name for types in every for name in types)
    found = {
        name: [
            each
            for each in CANDIDATES
            if all(each in types.get(name, CANDIDATES) for types in every)
        ]
        for name in names
    }
    if id_column in found and found[id_column] != list(CANDIDATES):
        found[id_column] = [each for each in found[id_column] if each == "int64"]
    return found


def fitting(texts: pa.Array, kind: Candidate) -> pa.Array:
    """Which of the texts are values of the type that can be written back unchanged; null for null."""
    match kind:
        case "bool":
            known = pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"]))
            return pc.if_else(pc.is_valid(texts), known, None)
        case "int64":
            short = pc.match_substring_regex(texts, WHOLE)
            # Texts of 19 digits may be too large.
            return short if _casts(pc.if_else(short, texts, None)) else _are_int64(texts, short)
        case "double":
            plain = pc.and_(
                pc.match_substring_regex(texts, REAL), pc.match_substring_regex(texts, REAL_DIGITS)
            )
            plain = pc.and_not(plain, pc.match_substring_regex(texts, LONG_WHOLE))
            numbers = pc.if_else(plain, texts, None).cast(pa.float64())
            return pc.and_(plain, pc.fill_null(pc.is_finite(numbers), False))


def _casts(texts: pa.Array) -> bool:
    with suppress(pa.ArrowException):
        texts.cast(pa.int64())
        return True
    return False


def _are_int64(texts: pa.Array, short: pa.Array) -> pa.Array:
    pairs = zip(texts.to_pylist(), short.to_pylist(), strict=True)
    return pa.array([fit and not beyond_64_bits(int(text)) for text, fit in pairs], pa.bool_())
