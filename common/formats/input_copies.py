"""Copies of input files that cannot be read from the middle: where a copy lies, and what it holds.

The copy of a CSV file is Parquet with the texts as they stand in the file. The type of a column is
decided over every file of a dataset, and the texts become values of that type when they are read. A
record that is no row of the table is kept as a row with the reason.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.common.descriptor import InputFormat, SourceFile
from nightshift.common.formats import source_files
from nightshift.common.formats.jsonl.columns import misfit, to_array
from nightshift.common.formats.parquet.footer import METADATA_PREFIX, Footer
from nightshift.common.formats.values import beyond_64_bits
from nightshift.common.spec import InputSpec, digest

FOLDER = "_input"
"""Folder of copies in the output directory; readers of datasets skip names with an underscore."""

SUFFIX = ".copy"
"""Of copies: a reader of `**/*.parquet` or `**/*.jsonl` must not count their rows. Copies of older
releases have the suffix of their format alone."""

Candidate = Literal["int64", "double", "bool"]

CANDIDATES: tuple[Candidate, ...] = ("int64", "double", "bool")
"""Types that a column of texts may get in place of string; the first that all texts fit counts."""

WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""Whole numbers that give the same text back: 007 and +7 do not."""

REAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
REAL_DIGITS = r"^-?(0\.0*)?([0-9]\.?){1,17}([eE].*)?$"
LONG_WHOLE = r"^-?[0-9]{16,}$"
"""A double surely keeps 17 digits of a fraction, and 15 of a whole number."""

NARROW = (pa.float16(), pa.float32())
"""Types whose casts from texts lose digits or become infinite without a word."""

WHY = "\0why"
"""Column of the copy with the reason why a record is no row; null for a row."""

TYPES = f"{METADATA_PREFIX}types"
"""Key in the copy's metadata: for each column the candidates that all of its texts fit."""

Types = dict[str, list[Candidate]]


def is_streamed(uri: str, kind: InputFormat) -> bool:
    """True for a file that can only be read from its start, so that a copy of it is needed."""
    return kind == "csv" or source_files.compression(uri) is not None


def copy_uri(
    spec_input: InputSpec,
    output_uri: str,
    uri: str,
    kind: InputFormat,
    facts: tuple[int, str],
    limit: int | None,
) -> str:
    """Where the copy of a file lies.

    The name is made of the file, its size and fingerprint (`facts`), what the spec says about
    reading it, and how many of its first rows are copied at most.
    """
    delimiter = spec_input.delimiter if kind == "csv" else None
    identity = [uri, kind, *facts, delimiter, limit]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(uri).name)[:80]
    suffix = "parquet" if kind == "csv" else kind
    return f"{output_uri.rstrip('/')}/{FOLDER}/{digest(identity)[:16]}-{stem}.{suffix}{SUFFIX}"


def copies_of(spec_input: InputSpec, output_uri: str, source: SourceFile) -> tuple[str, ...]:
    """Where the copy of a planned file lies: the name that it gets now, and the name that an older
    release gave it. Nothing where the file needs no copy.
    """
    if not is_streamed(source.uri, source.format):
        return ()
    facts = (source.size, source.fingerprint)
    limit = rows_left(spec_input, source)
    uri = copy_uri(spec_input, output_uri, source.uri, source.format, facts, limit)
    return uri, uri.removesuffix(SUFFIX)


def rows_left(spec_input: InputSpec, source: SourceFile) -> int | None:
    """How many rows of the input's limit are left after the files before this one."""
    return None if spec_input.limit is None else spec_input.limit - source.first_row


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


def converted(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """The table with its texts as values of the planned types, and by position of the row why a
    text does not fit its type.
    """
    planned = dict(zip(schema.names, schema.types, strict=True))
    bad: dict[int, str] = {}
    for at, name in enumerate(table.column_names):
        kind = planned.get(name, pa.string())
        if kind == pa.string():
            continue
        texts = table.column(at).combine_chunks()
        candidate = _candidate(kind)
        fits = None if candidate is None else fitting(texts, candidate)
        try:
            values = (texts if fits is None else pc.if_else(fits, texts, None)).cast(kind)
        except pa.ArrowException:
            values = None
        # The type is not that of the texts only where a Parquet file of the input has it.
        if values is None or values.null_count != texts.null_count or kind in NARROW:
            values, misfits = to_array(_parsed(texts, fits, candidate), kind)
            for row in misfits:
                bad.setdefault(row, misfit(name, texts[row].as_py(), kind))
        table = table.set_column(at, name, values)
    return table, bad


def _candidate(kind: pa.DataType) -> Candidate | None:
    types = pa.types
    if types.is_integer(kind):
        return "int64"
    if types.is_floating(kind):
        return "double"
    return "bool" if types.is_boolean(kind) else None


_OF_TEXT: dict[Candidate, Callable[[str], Any]] = {
    "int64": int,
    "double": float,
    "bool": lambda text: text.lower() == "true",
}


def _parsed(texts: pa.Array, fits: pa.Array | None, candidate: Candidate | None) -> list[Any]:
    """The values that stand in the texts, as JSON would have them; other texts as they are."""
    if fits is None or candidate is None:
        return texts.to_pylist()
    pairs = zip(texts.to_pylist(), fits.to_pylist(), strict=True)
    return [_OF_TEXT[candidate](text) if fit else text for text, fit in pairs]
