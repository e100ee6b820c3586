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
from nightshift.common.spec import STORED, InputSpec
from nightshift.common.where.condition import columns
from nightshift.common.where.parse import MOST_CHARACTERS, Refused, parse
from nightshift.producer.submit.planning.where import row_groups
from nightshift.producer.submit.planning.where.evaluate import Evaluator
from tests.support.conditions import CONDITIONS, ROWS, TYPES, table_of_rows

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
        ("nano", pa.timestamp("ns")),
        ("clock", pa.time64("us")),
        ("n", pa.null()),
        ("raw", pa.binary()),
        ("items", pa.list_(pa.int64())),
        ("o", pa.struct([("x", pa.int64()), ("in", pa.struct([("y", pa.string())]))])),
        ("a.b", pa.int64()),
        ("select", pa.int64()),
        ("wide", pa.decimal256(50, 2)),
        ("I", pa.int64()),
    ]
)


def evaluator(text: str, schema: pa.Schema) -> Evaluator:
    return Evaluator(parse(text), schema)


def answers(text: str, table: pa.Table) -> list[bool | None]:
    return evaluator(text, table.schema).answers(table).to_pylist()


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
    ("x LIKE 'a!!!' ESCAPE '!'", "ends in its escape character"),
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
        ("clock = '25:00'", "25:00"),
        ("clock = DATE '2024-01-01'", "clock, which is time64"),
        ("raw = 'x'", "raw, which is binary, .* IS NULL and IS NOT NULL alone"),
        ("items = 1", "items, which is list"),
        ("o = 1", "o, which is struct"),
        ("i = s", "i, which is int64, with s, which is string"),
        ("items = items", "items, which is list"),
        ("i LIKE 'x'", "LIKE for i, which is int64"),
        ("s", "s is used as a condition and is string"),
        ("lang = 'de'", "'lang', which the input does not have"),
        ("smal = 1", "did you mean 'small'"),
        ("S = 'x'", "'S', which the input does not have"),
        ("o.z = 1", "'z', which the column 'o' does not have"),
        ("i.x = 1", "'x', which the column 'i' does not have"),
        ('s = "de"', "texts are in single quotes"),
        ("d = '2024-01-31 06:00'", "a date without a time of day"),
        ("t = '2024-01-31 06:00:00.0000001'", "at most 6 digits of a second"),
        ("clock = '06:00:00.0000001'", "at most 6 digits of a second"),
        ("t = 'epoch' OR b", "write 2024-01-31"),
        ("wide = 1", "wide, which is decimal256.* IS NULL and IS NOT NULL alone"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_column_and_its_type(text, why):
    with pytest.raises(BadInput, match=why):
        evaluator(text, SCHEMA)


DAY = datetime.date(2024, 1, 31)
MOMENT = datetime.datetime(2024, 1, 31, 6)
ROW = {
    "i": 5, "small": 127, "big": 2**64 - 1, "f": math.nan, "narrow": 0.1, "m": Decimal("1.50"),
    "s": "a%b\nÄ", "b": True, "d": DAY, "t": MOMENT, "z": MOMENT, "clock": datetime.time(6),
    "o": {"x": 7, "in": {"y": "v"}}, "a.b": 8, "select": 9, "I": 6,
    "nano": 1706680800000000001,
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
        ("m = 15e-1 AND f > 0.15e1 AND i < 1e60 AND i > -1e-60", True),
        ("s LIKE 'a%' AND s LIKE '__b_Ä' AND s ILIKE 'A%ä'", True),
        ("s LIKE 'a!%b%' ESCAPE '!'", True),
        ("s LIKE 'a!_b%' ESCAPE '!' OR s LIKE 'a' OR s LIKE '' OR s LIKE '_'", False),
        ("s LIKE 'a\\%b%'", False),
        ("b AND b = TRUE AND b > FALSE", True),
        ("d = '2024-01-31' AND d > TIMESTAMP '2024-01-30 23:59:59.999999'", True),
        ("d < TIMESTAMP '2024-01-31 00:00:00.000001'", True),
        ("d = TIMESTAMP '2024-01-31 06:00:00'", False),
        ("t = '2024-01-31 06:00' AND t > DATE '2024-01-31' AND t < '2024-01-31T06:00:00.000001'", True),
        ("z = '2024-01-31T07:00:00+01:00' AND z = '2024-01-31 06:00:00Z' AND z = '2024-01-31 06:00'", True),
        ("clock = '06:00' AND clock < TIME '06:00:00.000001'", True),
        ("o.x = 7 AND o.in.y = 'v' AND o IS NOT NULL", True),
        ('"a.b" = 8 AND "select" = 9', True),
        ("n = 'x' OR n > 3 OR n IN (1) OR n LIKE 'x' OR n = i", None),
        ("n IS NULL AND half IS NULL AND raw IS NULL AND wide IS NULL AND items IS NULL", True),
        ("I = 6 AND i = 5 AND nano = '2024-01-31 06:00:00.000000001'", True),
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
    assert answers(text, table) == [said]


def test_a_value_that_cannot_be_compared_is_refused():
    wide = pa.table({"m": pa.array([Decimal(10**38 - 1)], pa.decimal128(38, 0))})
    assert answers("m > 1", wide) == [True]
    with pytest.raises(BadInput, match=r"cannot be evaluated: .*DECIMAL"):
        answers("m > 1.5", wide)


# ---------------------------------------------------------------- DuckDB says the same


@pytest.fixture(scope="module")
def oracle():
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@pytest.mark.slow
@settings(max_examples=400)
@given(text=CONDITIONS, rows=ROWS)
def test_duckdb_says_the_same_of_every_row(oracle, text, rows):
    table = table_of_rows(rows)
    oracle.register("given", table)
    said = [row[0] for row in oracle.sql(f"SELECT ({text}) FROM given").fetchall()]
    assert answers(text, table) == said
    assert evaluator(text, TYPES).holds(table).tolist() == [each is True for each in said]


# ---------------------------------------------------------------- what cannot match


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=CONDITIONS, rows=ROWS, size=st.integers(1, 3))
def test_no_row_group_of_a_real_file_that_is_left_out_has_a_matching_row(
    tmp_path, text, rows, size
):
    ordered = sorted(rows, key=lambda row: (row["i"] or 0, row["s"] or ""))
    table, path = table_of_rows(ordered), tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=size, use_dictionary=False)
    metadata = pq.read_metadata(path)
    possible = set(row_groups.matching(parse(text), metadata, {}))
    evaluated = evaluator(text, TYPES)
    for group in set(range(metadata.num_row_groups)) - possible:
        assert not evaluated.holds(table.slice(group * size, size)).any()


START = datetime.datetime(2024, 1, 1)
ORDERED = [0, 10, 20]
THREE_GROUPS = pa.table(
    {
        "i": ORDERED,
        "s": ["a", "c", "d"],
        "d": [START.date() + datetime.timedelta(each) for each in ORDERED],
        "t": pa.array([START + datetime.timedelta(each) for each in ORDERED], pa.timestamp("ns")),
        "h": pa.array([START + datetime.timedelta(each) for each in ORDERED], pa.timestamp("s")),
        "z": pa.array([START + datetime.timedelta(each) for each in ORDERED], pa.timestamp("ms", "Asia/Tokyo")),
        "m": [Decimal(f"{each}.5") for each in ORDERED],
        "u": pa.array([0, 1, 2**64 - 1], pa.uint64()),
        "f": [float(each) for each in ORDERED],
        "narrow": pa.array([7e-8, 0.7, 1.0], pa.float32()),
        "nan": [0.0, math.nan, 20.0],
        "zero": [-0.0, 1.0, 2.0],
        "o": [{"x": each} for each in ORDERED],
        "half": pa.array(ORDERED, pa.float32()).cast(pa.float16()),
        "p.q": ORDERED,
        "b": [True, False, None],
        "n": [None, 10, 20],
        "long": ["x" * 5000, "y" * 5000, "z" * 5000],
        "category": pa.array(["a", "c", "d"]).dictionary_encode(),
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("i >= 20", [2]),
        ("i = 9", []),
        ("i <> 10", [0, 2]),
        ("NOT i <= 10", [2]),
        ("NOT (i < 5 OR i > 15)", [1]),
        ("NOT (i > 5 AND i < 15)", [0, 2]),
        ("i IN (10, 99, NULL)", [1]),
        ("i IN (NULL)", []),
        ("i NOT IN (10, 99)", [0, 1, 2]),
        ("i NOT IN (10, NULL)", []),
        ("i BETWEEN 5 AND 10", [1]),
        ("i < 5 OR s = 'd'", [0, 2]),
        ("i < 5 AND s = s", [0]),
        ("i < 5 OR s = s", [0, 1, 2]),
        ("i = NULL", []),
        ("NULL", []),
        ("FALSE OR i = 0", [0]),
        ("s < 'c'", [0]),
        ("s LIKE 'd%'", [2]),
        ("s LIKE 'c'", [1]),
        ("s LIKE '%d'", [0, 1, 2]),
        ("s LIKE 'd!%' ESCAPE '!'", [2]),
        ("s ILIKE 'D%'", [0, 1, 2]),
        ("NOT (s LIKE 'd%')", [0, 1, 2]),
        ("d > DATE '2024-01-20'", [2]),
        ("d > '2024-01-20'", [2]),
        ("d > TIMESTAMP '2024-01-20 00:00:00'", [0, 1, 2]),
        ("t < TIMESTAMP '2024-01-02'", [0]),
        ("t <= TIMESTAMP '2024-01-11'", [0, 1]),
        ("t <= '2024-01-10 23:59:59.999999999'", [0, 1, 2]),
        ("h > TIMESTAMP '2024-01-20'", [2]),
        ("h < TIMESTAMP '2024-01-01 00:00:00.5'", [0]),
        ("z >= '2024-01-21T01:00:00+01:00'", [2]),
        ("z >= '2024-01-21'", [2]),
        ("m = 20.5", [2]),
        ("m > 20.51", [0, 1, 2]),
        ("u = 18446744073709551615", [2]),
        ("u < 1", [0]),
        ("f < 5", [0]),
        ("f = 10", [1]),
        ("f <= 1e400", [0, 1, 2]),
        ("narrow < 7e-8", [0]),
        ("narrow < 0.7 AND f > -1", [0, 1]),
        ("m = 1.05e1", [1]),
        ("m = 10.50000000000000000000000000000000000000000001", [0, 1, 2]),
        ("m > 1e40", [0, 1, 2]),
        ("NOT (f >= 5)", [0]),
        # NaN is greater than every number, and is in no statistics.
        ("f > 1000", [0, 1, 2]),
        ("f <> 10", [0, 1, 2]),
        ("nan > 1000", [0, 1, 2]),
        ("nan = 0", [0, 1]),
        ("zero < 0", [0]),
        ("zero = 0", [0]),
        ("zero IN (0)", [0, 1, 2]),
        ("o.x > 15", [2]),
        ("half > 1000", [0, 1, 2]),
        ('"p.q" = 20', [2]),
        ("b", [0]),
        ("NOT b", [1]),
        ("n IS NULL", [0]),
        ("n IS NOT NULL", [1, 2]),
        ("n > 5", [1, 2]),
        ("NOT (n > 15)", [1]),
        (f"long = '{'y' * 5000}'", [1]),
        ("category = 'c'", [1]),
    ],
)  # fmt: skip
def test_row_groups_that_cannot_match_are_left_out(tmp_path: Path, text, left):
    path = tmp_path / "a.parquet"
    pq.write_table(THREE_GROUPS, path, row_group_size=1)
    found = row_groups.matching(parse(text), pq.read_metadata(path), {})
    if text.startswith(("nan = 0", "category", "long")):
        assert set(left) <= set(found)  # more may be read
    else:
        assert list(found) == left


def test_a_file_is_left_out_by_the_values_in_its_path(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(THREE_GROUPS, path, row_group_size=1)
    metadata = pq.read_metadata(path)

    def left(text: str, day: object) -> list[int]:
        in_path = {"day": pa.scalar(day, pa.int64())}
        return list(row_groups.matching(parse(text), metadata, in_path))

    assert left("day = 3 AND i > 5", 3) == [1, 2]
    assert left("day = 3 AND i > 5", 4) == []
    assert left("day = 3 OR i > 15", 4) == [2]
    assert left("day IS NULL AND i > 15", None) == [2]
    assert left("day > 3", None) == []


def test_int96_has_no_usable_statistics(tmp_path: Path):
    path = tmp_path / "a.parquet"
    moments = pa.table({"t": pa.array([MOMENT], pa.timestamp("ns"))})
    pq.write_table(moments, path, use_deprecated_int96_timestamps=True)
    assert list(row_groups.matching(parse("t > '2025-01-01'"), pq.read_metadata(path), {})) == [0]


@pytest.mark.slow
def test_thousands_of_comparisons_are_evaluated_and_prune_nothing(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(THREE_GROUPS, path, row_group_size=1)
    text = " OR ".join(f"i={each}" for each in range(15, 9_000))
    assert list(row_groups.matching(parse(text), pq.read_metadata(path), {})) == [0, 1, 2]
    assert answers(text, THREE_GROUPS.select(["i"])) == [False, False, True]
    for inner in ("OR", "AND"):
        few = f" {inner} ".join(["i > 0"] * row_groups.MOST_COMPARISONS)
        assert list(row_groups.matching(parse(few), pq.read_metadata(path), {})) == [1, 2]


@pytest.mark.slow
def test_a_list_of_ten_thousand_constants_prunes(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(THREE_GROUPS, path, row_group_size=1)
    text = f"i IN ({', '.join(map(str, range(15, 10_015)))})"
    assert list(row_groups.matching(parse(text), pq.read_metadata(path), {})) == [2]
    assert answers(text, THREE_GROUPS.select(["i"])) == [False, False, True]


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
