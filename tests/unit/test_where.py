"""`input.where`: what is taken and refused, what rows match, and what is never read."""

import datetime
import math
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common.errors import BadInput
from nightshift.common.formats.parquet.footer import read_footer
from nightshift.common.spec import STORED, InputSpec
from nightshift.common.where.condition import columns
from nightshift.common.where.parse import MOST_CHARACTERS, Refused, parse
from nightshift.producer.submit.planning.where import statistics
from nightshift.producer.submit.planning.where.evaluate import answers, holds
from nightshift.producer.submit.planning.where.prune import Facts, can_match
from nightshift.producer.submit.planning.where.typed import typed

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("small", pa.int8()),
        ("big", pa.uint64()),
        ("f", pa.float64()),
        ("narrow", pa.float32()),
        ("half", pa.float16()),
        ("m", pa.decimal128(7, 2)),
        ("s", pa.string()),
        ("other", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("ms", "UTC")),
        ("clock", pa.time64("us")),
        ("n", pa.null()),
        ("raw", pa.binary()),
        ("items", pa.list_(pa.int64())),
        ("o", pa.struct([("x", pa.int64()), ("in", pa.struct([("y", pa.string())]))])),
        ("a.b", pa.int64()),
        ("select", pa.int64()),
    ]
)


def taken(text: str, table: pa.Table) -> list[bool]:
    return holds(typed(parse(text), table.schema), table).to_pylist()


# ---------------------------------------------------------------- the text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("lang = 'de' AND stars >= 3", ["lang", "stars"]),
        ("a", ["a"]),
        ("NOT a OR b", ["a", "b"]),
        ("a <> 1", ["a"]),
        ("a != 1", ["a"]),
        ("3 < a", ["a"]),
        ("a BETWEEN -1 AND +2", ["a"]),
        ("a NOT BETWEEN 1 AND 2", ["a"]),
        ("a IN (1, 2, NULL)", ["a"]),
        ("a NOT IN ('x')", ["a"]),
        ("a LIKE 'x%'", ["a"]),
        ("a NOT LIKE 'x!%' ESCAPE '!'", ["a"]),
        ("a ILIKE 'x' OR a NOT ILIKE 'y' ESCAPE '!'", ["a"]),
        ("a IS NULL AND b IS NOT NULL", ["a", "b"]),
        ("a ISNULL", ["a"]),
        ("d >= DATE '2024-01-01'", ["d"]),
        ("d >= '2024-01-01'::date", ["d"]),
        ("CAST('2024-01-01 10:00' AS TIMESTAMP) < t", ["t"]),
        ("t < TIMESTAMP WITH TIME ZONE '2024-01-01T00:00:00Z'", ["t"]),
        ("c = TIME '06:00'", ["c"]),
        ("a = b AND b = a", ["a", "b"]),
        ('"two words" = 1 AND "a--b" = 2 AND "Ä" = 3', ["two words", "a--b", "Ä"]),
        ("a = '-- ; /* '' */'", ["a"]),
        ("a = $$it's$$", ["a"]),
        ("a = 1_000 AND b = 1.5e-3 AND c = .5", ["a", "b", "c"]),
        ("o.x = 1 AND o.y.z = 2", ["o"]),
        ("(((a = 1)))", ["a"]),
        ("a\n=\t1", ["a"]),
        ("TRUE", []),
        ("a = NULL OR NULL", ["a"]),
        (f"a IN ({', '.join(map(str, range(10_000)))})", ["a"]),
    ],
)
def test_a_condition_of_columns_and_constants_is_read(text, names):
    assert columns(parse(text)) == names


REFUSED = [
    ("", "empty"),
    ("  \n", "empty"),
    ("x = 1;", "syntax error"),
    ("x = 1; SELECT 2", "syntax error"),
    ("x = 1; DROP TABLE t", "syntax error"),
    ("1=1) UNION SELECT * FROM t WHERE (1=1", "more than a condition"),
    ("1=1) UNION SELECT (1", "more than a condition"),
    ("x = 1) OR (y = 2", "no condition"),
    ("x = 1 UNION SELECT 1", "syntax error"),
    ("x = 1 ORDER BY x", "syntax error"),
    ("x = 1 LIMIT 1", "syntax error"),
    ("x = 1 GROUP BY x", "syntax error"),
    ("x = 1 HAVING x", "syntax error"),
    ("x = 1 QUALIFY true", "syntax error"),
    ("x = 1 WINDOW w AS (ORDER BY x)", "syntax error"),
    ("x = 1 USING SAMPLE 1", "syntax error"),
    ("SELECT 1", "syntax error"),
    ("FROM t", "syntax error"),
    ("x = 1 -- AND y = 2", "comment"),
    ("x = 1 --", "comment"),
    ("x = 1 /* AND y = 2 */", "comment"),
    ("x = (SELECT 1)", "subquery"),
    ("(SELECT true)", "subquery"),
    ("EXISTS (SELECT 1)", "subquery"),
    ("x IN (SELECT 1)", "subquery"),
    ("x = ANY (SELECT 1)", "subquery"),
    ("x = ANY ([1])", "subquery"),
    ("x IN (FROM 'secret.parquet')", "subquery"),
    ("read_csv('/etc/passwd')", "read_csv"),
    ("x = read_text('/etc/passwd')", "read_text"),
    ("getenv('HOME') = x", "getenv"),
    ("lower(x) = 'a'", "lower"),
    ("x = now()", "now"),
    ("length(x) > 3", "length"),
    ("sum(x) OVER () = 1", "window"),
    ("count(*) = 1", "count_star"),
    ("*", r"\*"),
    ("COLUMNS(*) = 1", r"\*"),
    ("COLUMNS('a.*') = 1", r"\*"),
    ("x = ?", "parameter"),
    ("x = $1", "parameter"),
    ("x = $name", "parameter"),
    ("#1 = 2", "number"),
    ("x + 1 = 2", r"operator \+"),
    ("x = -y", "operator -"),
    ("x || 'a' = 'b'", r"\|\|"),
    ("x ~ 'a'", "regexp"),
    ("x SIMILAR TO 'a'", "regexp"),
    ("x GLOB 'a'", "~~~"),
    ("x LIKE y", "a column where"),
    ("x LIKE 1", "LIKE with something else"),
    ("x LIKE 'a' ESCAPE 'xx'", "ESCAPE"),
    ("'a' LIKE 'a'", "wants a column"),
    ("x IS TRUE", "IS TRUE"),
    ("x IS DISTINCT FROM 1", "IS DISTINCT FROM"),
    ("x COLLATE nocase = 'a'", "COLLATE"),
    ("CASE WHEN x THEN y END", "CASE"),
    ("x::int = 1", "cast"),
    ("CAST(x AS DATE) = DATE '2024-01-01'", "cast"),
    ("TRY_CAST('2024-01-01' AS DATE) = x", "cast"),
    ("x = '1'::int", "cast to INTEGER"),
    ("x = INTERVAL '1 day'", "cast to INTERVAL"),
    ("x = DECIMAL(3, 1) '1.5'", "cast to DECIMAL"),
    ("x = TIMESTAMP(3) '2024-01-01'", "cast to TIMESTAMP_MS"),
    ("x = [1, 2]", "list_value"),
    ("x = {'a': 1}", "struct_pack"),
    ("(x, y) = (1, 2)", "row"),
    ("x[1] = 2", "item of a list"),
    ("x[1:2] = 2", "slice"),
    ("x IN y", "contains"),
    ("x IN (y, 1)", "a column where"),
    ("x = x'00'", "hex"),
    ("x = DEFAULT", "DEFAULT"),
    ("1 = 1", "two constants"),
    ("1", "where a condition"),
    ("'a'", "where a condition"),
    ("x = 1e999999", "beyond"),
    ("x = 1e-999999", "beyond"),
    ("x = 'open", "unterminated"),
    ("x = 0x1F", "syntax error"),
    ("x\0 = 1", "NUL"),
    ("x = '\ud800'", "half"),
    ("x = 'a' 'b'", "syntax error"),
    ("(" * 5000 + "x" + ")" * 5000, "no condition|nested deeper"),
    ("NOT " * 150 + "x", "deeper"),
    (f"x = '{'a' * MOST_CHARACTERS}'", "characters"),
    ("list_filter(x, y -> y = 1)", "list_filter"),
    ("x -> 'a' = 1", "lambda"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_whatever_is_more_than_a_condition_is_refused_in_one_line(text, why):
    with pytest.raises(Refused, match=why) as refused:
        parse(text)
    assert "\n" not in str(refused.value)


def test_a_spec_is_checked_when_it_is_read_and_a_stored_one_is_not():
    given = {"uri": "in", "where": "lower(x) = 'a'"}
    with pytest.raises(ValueError, match="the function lower"):
        InputSpec.model_validate(given)
    assert InputSpec.model_validate(given, context=STORED).where == given["where"]
    with pytest.raises(ValueError, match="OpenAI batch file"):
        InputSpec.model_validate({"uri": "in", "where": "x = 1", "format": "openai"})
    assert "where" not in InputSpec(uri="in").model_dump()


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s = 3", "s, which is string, with the number 3: it takes texts"),
        ("i = '3'", "i, which is int64, with the text 3: it takes numbers"),
        ("i IN (1, 'x')", "i, which is int64, with the text x"),
        ("i = TRUE", "i, which is int64, with the boolean True"),
        ("b = 1", "b, which is bool, with the number 1: it takes TRUE"),
        ("m = 'x'", "m, which is decimal"),
        ("d = 'soon'", "d, which is date32"),
        ("d = '2024-02-30'", "d, which is date32"),
        ("d = DATE '2024-01-01 10:00'", "d, which is date32"),
        ("t = 3", "t, which is timestamp"),
        ("t = '2024-01-01+02:00'", "t, which is timestamp"),
        ("t = '2024-01-01 00:00:00+02:00'", "leave the offset out"),
        ("clock = '25:00'", "clock, which is time64"),
        ("clock = DATE '2024-01-01'", "clock, which is time64"),
        ("raw = 'x'", "raw, which is binary, .* IS NULL and IS NOT NULL alone"),
        ("items = 1", "items, which is list"),
        ("o = 1", "o, which is struct"),
        ("i = s", "i, which is int64, with s, which is string"),
        ("items = items", "items, which is list"),
        ("i LIKE 'x'", "LIKE for i, which is int64"),
        ("s", "s stands alone and is string"),
        ("lang = 'de'", "'lang', which the input does not have"),
        ("smal = 1", "did you mean 'small'"),
        ("S = 'x'", "'S', which the input does not have"),
        ("o.z = 1", "'z', which the column 'o' does not have"),
        ("i.x = 1", "'x', which the column 'i' does not have"),
        ('s = "de"', "texts stand in single quotes"),
        ("s LIKE 'x!' ESCAPE '!'", "ends in its escape character"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_column_and_its_type(text, why):
    with pytest.raises(BadInput, match=why):
        typed(parse(text), SCHEMA)


DAY = datetime.date(2024, 1, 31)
MOMENT = datetime.datetime(2024, 1, 31, 6)
ROW = {
    "i": 5, "small": 127, "big": 2**64 - 1, "f": math.nan, "narrow": 0.1, "m": Decimal("1.50"),
    "s": "a%b\nÄ", "b": True, "d": DAY, "t": MOMENT, "z": MOMENT, "clock": datetime.time(6),
    "o": {"x": 7, "in": {"y": "v"}}, "a.b": 8, "select": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("i > 4.5 AND i < 5.5 AND i <> 5.5 AND i BETWEEN 5 AND 5", True),
        ("i = 5.5", False),
        ("i IN (5.5, 5.0)", True),
        ("small < 128 AND small > -1e300 AND small <> 1000", True),
        ("small >= 128 OR small = 999999999999999999999999", False),
        ("big = 18446744073709551615", True),
        ("big > 18446744073709551615 OR big < 0", False),
        ("f > 1e300 AND f <> 0 AND f = f AND f >= f", True),
        ("f <= 1e300 OR f = 0 OR f IN (0, 1)", False),
        ("narrow = 0.1", True),
        ("m = 1.5 AND m > 1.499 AND m < 1.501 AND m <> 1.501 AND m < 1e30", True),
        ("m IN (1.5)", True),
        ("m IN (1.501)", False),
        ("s LIKE 'a%' AND s LIKE '__b_Ä' AND s ILIKE 'A%ä'", True),
        ("s LIKE 'a!%b%' ESCAPE '!'", True),
        ("s LIKE 'a!_b%' ESCAPE '!' OR s LIKE 'a' OR s LIKE '' OR s LIKE '_'", False),
        ("s LIKE 'a\\%b%'", False),
        ("b AND b = TRUE AND b > FALSE", True),
        ("d = '2024-01-31' AND d > TIMESTAMP '2024-01-30 23:59:59.999999999'", True),
        ("d < TIMESTAMP '2024-01-31 00:00:00.000000001'", True),
        ("d = TIMESTAMP '2024-01-31 06:00:00'", False),
        ("t = '2024-01-31 06:00' AND t > DATE '2024-01-31' AND t < '2024-01-31T06:00:00.0000001'", True),
        ("z = '2024-01-31T07:00:00+01:00' AND z = '2024-01-31 06:00:00Z' AND z = '2024-01-31 06:00'", True),
        ("clock = '06:00' AND clock < TIME '06:00:00.0000001'", True),
        ("o.x = 7 AND o.in.y = 'v' AND o IS NOT NULL", True),
        ('"a.b" = 8 AND "select" = 9', True),
        ("n = 'x' OR n > 3 OR n IN (1) OR n LIKE 'x' OR n = i", None),
        ("n IS NULL AND half IS NULL AND raw IS NULL", True),
        ("i = NULL OR i IN (1, NULL)", None),
        ("i NOT IN (1, NULL)", None),
        ("i NOT IN (5, NULL)", False),
        ("half > 1 OR half < 1", None),
        ("NULL AND i = 5", None),
        ("NULL AND i = 6", False),
        ("s = other OR s <> other", None),
    ],
)  # fmt: skip
def test_values_compare_as_their_types_do(text, said):
    table = pa.Table.from_pylist([ROW], SCHEMA)
    assert answers(typed(parse(text), SCHEMA), table).to_pylist() == [said]


def test_a_large_pattern_is_refused_before_any_row_is_read():
    with pytest.raises(BadInput, match="pattern"):
        typed(parse(f"s LIKE '{'_' * 90_000}'"), SCHEMA)


# ---------------------------------------------------------------- DuckDB says the same

TEXTS = ["", "a", "A", "ab", "a%", "a_b", "a\\b", "ä", "Ä", "ß", "a\nb", "%", "_", "!", "🙂", "aa"]
FLOATS = [0.0, -0.0, 1.5, -2.0, math.nan, math.inf, -math.inf, 3.0]
DAYS = [datetime.date(1960, 2, 29), DAY, datetime.date(2024, 2, 1)]
MOMENTS = [MOMENT, MOMENT.replace(hour=0), datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]
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
OF_VALUES = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])


def table_of_rows(rows) -> pa.Table:
    return pa.Table.from_pylist(rows, OF_VALUES)


@pytest.fixture(scope="module")
def oracle():
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.slow
@settings(max_examples=400)
@given(text=CONDITIONS, rows=ROWS)
def test_duckdb_says_the_same_of_every_row(oracle, text, rows):
    table = table_of_rows(rows)
    oracle.register("given", table)
    said = [row[0] for row in oracle.sql(f"SELECT ({text}) FROM given").fetchall()]
    assert answers(typed(parse(text), OF_VALUES), table).to_pylist() == said
    assert taken(text, table) == [each is True for each in said]


# ---------------------------------------------------------------- what cannot match

SOME = Facts(10, 0, 10, 20)
WITH_NULLS = Facts(10, 3, 10, 20)


@pytest.mark.parametrize(
    ("text", "facts", "can"),
    [
        ("i = 9", SOME, False),
        ("i = 10", SOME, True),
        ("i = 21", SOME, False),
        ("i <> 15", SOME, True),
        ("i <> 15", Facts(10, 0, 15, 15), False),
        ("i < 10", SOME, False),
        ("i <= 10", SOME, True),
        ("i > 20", SOME, False),
        ("i >= 20", SOME, True),
        ("i > 20.5", SOME, False),
        ("NOT i <= 20", SOME, False),
        ("NOT (i > 5)", SOME, False),
        ("NOT (i > 15)", SOME, True),
        ("i IN (1, 2, 30)", SOME, False),
        ("i IN (1, 12)", SOME, True),
        ("i NOT IN (1, 12)", SOME, True),
        ("i NOT IN (1, NULL)", SOME, False),
        ("i BETWEEN 1 AND 5", SOME, False),
        ("i BETWEEN 5 AND 10", SOME, True),
        ("i < 10 OR i > 20", SOME, False),
        ("i < 10 OR s = 'x'", SOME, True),
        ("i < 10 AND s = 'x'", SOME, False),
        ("i IS NULL", SOME, False),
        ("i IS NULL", WITH_NULLS, True),
        ("i IS NULL", Facts(10, None, 10, 20), True),
        ("i IS NOT NULL", Facts(10, 10), False),
        ("i = 15 OR i <> 15", Facts(10, 10), False),
        ("i = 15", Facts(10), True),
        ("i = NULL", SOME, False),
        ("i = 5.5", SOME, False),
        ("NULL", SOME, False),
        ("FALSE", SOME, False),
        ("TRUE", SOME, True),
        ("i = i AND i <> i", SOME, True),
        # NaN is greater than every number, and no bound says that there is none.
        ("f > 30", Facts(10, 0, 10.0, 20.0, may_be_nan=True), True),
        ("f <> 10", Facts(10, 0, 10.0, 10.0, may_be_nan=True), True),
        ("f < 5", Facts(10, 0, 10.0, 20.0, may_be_nan=True), False),
        ("f = 30", Facts(10, 0, 10.0, 20.0, may_be_nan=True), False),
        ("f < 0", Facts(10, 0, -0.0, 20.0, may_be_nan=True), False),
        # The greatest text may be the beginning of a longer one.
        ("s = 'dead'", Facts(10, 0, b"a", b"de"), True),
        ("s > 'dead'", Facts(10, 0, b"a", b"de"), True),
        ("s > 'df'", Facts(10, 0, b"a", b"de"), False),
        ("s < 'a'", Facts(10, 0, b"a", b"de"), False),
        ("s = 'ä'", Facts(10, 0, b"a", b"z"), False),
        ("s LIKE 'x%'", Facts(10, 0, b"a", b"de"), False),
        ("s LIKE 'dead%'", Facts(10, 0, b"a", b"de"), True),
        ("s LIKE 'a%'", Facts(10, 0, b"b", b"de"), False),
        ("s LIKE 'b%'", Facts(10, 0, b"bc", b"de"), True),
        ("s LIKE '%x'", Facts(10, 0, b"bc", b"de"), True),
        ("s ILIKE 'x%'", Facts(10, 0, b"A", b"Z"), True),
        ("NOT (s LIKE 'x%')", Facts(10, 0, b"a", b"de"), True),
        ("b", Facts(10, 0, 0, 0), False),
        ("NOT b", Facts(10, 0, 0, 0), True),
    ],
)  # fmt: skip
def test_a_group_is_left_out_only_where_no_row_of_it_can_match(text, facts, can):
    known = {"f": facts, "s": facts, "b": facts, "i": facts}
    if not text.startswith(("s", "f", "b", "NOT b", "NOT (s")):
        known["s"] = None
    assert can_match(typed(parse(text), SCHEMA), lambda column: known.get(column.name)) is can


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=CONDITIONS, rows=ROWS, size=st.integers(1, 3))
def test_no_row_group_of_a_real_file_that_is_left_out_has_a_matching_row(
    tmp_path, text, rows, size
):
    ordered = sorted(rows, key=lambda row: (row["i"] or 0, row["s"] or ""))
    table, path = table_of_rows(ordered), tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=size, use_dictionary=False)
    condition, footer = typed(parse(text), OF_VALUES), read_footer(str(path))
    for group in range(footer.metadata.num_row_groups):

        def known(column, group=group):
            return statistics.facts(footer, group, column, OF_VALUES.field(column.name).type)

        own = table.slice(group * size, size)
        assert can_match(condition, known) or not any(holds(condition, own).to_pylist())


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("i >= 20", 1),
        ("s < 'c'", 1),
        ("s LIKE 'd%'", 1),
        ("d > DATE '2024-01-20'", 1),
        ("t < TIMESTAMP '2024-01-02'", 1),
        ("t <= TIMESTAMP '2024-01-11'", 2),
        ("m = 20.5", 1),
        ("u = 18446744073709551615", 1),
        ("u < 1", 1),
        ("f < 5", 1),
        ("f > 1000", 3),
        ("o.x > 1000", 3),
        ("half > 1000", 3),
        ('"p.q" = 20', 1),
        ("h > TIMESTAMP '2024-01-20'", 1),
    ],
)
def test_statistics_of_each_type_leave_groups_out(tmp_path: Path, text, left):
    start = datetime.datetime(2024, 1, 1)
    rows = [0, 10, 20]
    table = pa.table(
        {
            "i": rows,
            "s": ["a", "c", "d"],
            "d": [DAY.replace(day=each + 1) for each in rows],
            "t": pa.array([start + datetime.timedelta(each) for each in rows], pa.timestamp("ns")),
            "m": [Decimal(f"{each}.5") for each in rows],
            "u": pa.array([0, 1, 2**64 - 1], pa.uint64()),
            "f": [float(each) for each in rows],
            "o": [{"x": each} for each in rows],
            "half": pa.array(rows, pa.float32()).cast(pa.float16()),
            "p.q": rows,
            "h": pa.array([start + datetime.timedelta(each) for each in rows], pa.timestamp("s")),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1)
    footer = read_footer(str(path))
    condition = typed(parse(text), footer.schema)
    found = [
        can_match(
            condition,
            lambda column, group=group: statistics.facts(
                footer, group, column, footer.schema.field(column.name).type
            ),
        )
        for group in range(3)
    ]
    assert sum(found) == left


def test_nothing_is_known_of_int96_or_of_another_type_than_the_planned_one(tmp_path: Path):
    path = tmp_path / "a.parquet"
    moments = pa.table({"t": pa.array([MOMENT], pa.timestamp("ns"))})
    pq.write_table(moments, path, use_deprecated_int96_timestamps=True)
    footer = read_footer(str(path))
    (column,) = [each.left for each in [parse("t > DATE '2024-01-01'")]]
    found = statistics.facts(footer, 0, column, pa.timestamp("ns"))
    assert found is None or found.low is None
    assert statistics.facts(footer, 0, column, pa.int64()) is None


@pytest.mark.parametrize("brackets", ["(", "[", "{", "f("])
def test_a_condition_that_is_nested_deep_is_refused_before_it_is_parsed(
    brackets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightshift.common.where import parse as room

    monkeypatch.setattr(room, "_serialized", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(BadInput, match="nested deeper than 100 levels"):
        parse(brackets * 20_000 + "1")


def test_brackets_in_quotes_are_no_nesting() -> None:
    text = "(" * 500
    assert parse(f"name = '{text}' OR \"{text}\" = 'it''s'")
