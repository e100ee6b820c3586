"""Random conditions for `input.where`, and random rows to evaluate them on."""

import datetime
import math
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

TEXTS = ["", "a", "A", "ab", "a%", "a_b", "a\\b", "ä", "Ä", "ß", "a\nb", "%", "_", "!", "🙂", "aa"]
TEXTS += ["b" * 80, "b" * 70 + "c", "🙂" * 30]
FLOATS = [0.0, -0.0, 1.5, -2.0, math.nan, math.inf, -math.inf, 3.0]
DAYS = [datetime.date(1960, 2, 29), datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)]
MOMENTS = [
    datetime.datetime(2024, 1, 31, 6),
    datetime.datetime(2024, 1, 31),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
]
ZONED = [moment.replace(tzinfo=datetime.UTC) for moment in MOMENTS]
VALUES = {
    "i": (pa.int64(), [-2, -1, 0, 1, 2, 3, 2**53]),
    "j": (pa.int64(), [-2, 0, 1, 3]),
    "small": (pa.int8(), [-128, 0, 3, 127]),
    "f": (pa.float64(), FLOATS),
    "g": (pa.float64(), FLOATS),
    "m": (
        pa.decimal128(7, 2),
        [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50"), Decimal("3.00")],
    ),
    "s": (pa.string(), TEXTS),
    "r": (pa.string(), TEXTS),
    "b": (pa.bool_(), [True, False]),
    "d": (pa.date32(), DAYS),
    "t": (pa.timestamp("us"), MOMENTS),
    "z": (pa.timestamp("us", "UTC"), ZONED),
}
CONSTANTS = {
    "i": ["-2", "0", "1.5", "3", "9007199254740992", "NULL", "2.0"],
    "small": ["-129", "-128", "3", "127.5", "1000", "NULL"],
    "f": ["0", "1.5", "-2", "3", "NULL", "1e300", "-0.0"],
    "m": ["1.5", "-1.501", "0", "3", "99999.99", "NULL", "1000000"],
    "s": [*(f"'{text}'" for text in TEXTS), "NULL"],
    "b": ["TRUE", "FALSE", "NULL"],
    "d": [
        *(f"DATE '{day}'" for day in DAYS),
        "TIMESTAMP '2024-01-31 06:00:00'",
        "'2024-01-31'",
        "NULL",
    ],
    "t": [
        *(f"TIMESTAMP '{at}'" for at in MOMENTS),
        "DATE '2024-01-31'",
        "'2024-01-31 06:00:00'",
        "NULL",
    ],
    "z": [
        *(f"TIMESTAMPTZ '{at.isoformat()}'" for at in ZONED),
        "'2024-01-31T07:00:00+01:00'",
        "'2024-01-31 06:00'",
        "DATE '2024-01-31'",
        "NULL",
    ],
}
CONSTANTS |= {"j": CONSTANTS["i"], "g": CONSTANTS["f"], "r": CONSTANTS["s"]}
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
PATTERNS = st.text(alphabet="aAäÄ%_b!\\\nß🙂", max_size=6)


@st.composite
def single(draw):
    """A condition without AND, OR and NOT."""
    name = draw(st.sampled_from(sorted(VALUES)))
    constant = st.sampled_from(CONSTANTS[name])
    kind = draw(
        st.sampled_from(["compare", "mirror", "in", "between", "null", "like", "sides", "bare"])
    )
    match kind:
        case "mirror":
            return f"{draw(constant)} {draw(st.sampled_from(OPERATORS))} {name}"
        case "in":
            values = ", ".join(draw(st.lists(constant, min_size=1, max_size=4)))
            return f"{name} {draw(st.sampled_from(['IN', 'NOT IN']))} ({values})"
        case "between":
            return f"{name} BETWEEN {draw(constant)} AND {draw(constant)}"
        case "null":
            return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case "like":
            like = draw(st.sampled_from(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]))
            text = draw(PATTERNS)
            # DuckDB, too, refuses a pattern that ends in its escape character.
            escape = draw(st.booleans()) and not text.endswith("!")
            return f"s {like} '{text}'" + (" ESCAPE '!'" if escape else "")
        case "sides":
            one, other = draw(st.sampled_from([("i", "j"), ("f", "g"), ("s", "r"), ("d", "d")]))
            return f"{one} {draw(st.sampled_from(OPERATORS))} {other}"
        case "bare":
            return draw(st.sampled_from(["b", "TRUE", "FALSE", "NULL"]))
    return f"{name} {draw(st.sampled_from(OPERATORS))} {draw(constant)}"


CONDITIONS = st.recursive(
    single(),
    lambda inner: st.one_of(
        inner.map(lambda one: f"NOT ({one})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
            lambda three: f"({three[0]}) {three[1]} ({three[2]})"
        ),
    ),
    max_leaves=5,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {name: st.sampled_from([None, *values]) for name, (_, values) in VALUES.items()}
    ),
    min_size=1,
    max_size=8,
)
TYPES = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])


def table_of_rows(rows) -> pa.Table:
    return pa.Table.from_pylist(rows, TYPES)
