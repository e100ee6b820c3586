"""A condition in SQL is read: DuckDB's parser makes a tree of the text, of which only what is listed here is
taken. Nothing of the text is ever run.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, cast

from nightshift.common.errors import BadInput
from nightshift.common.text import unstorable
from nightshift.common.where.condition import (
    MIRRORED,
    And,
    Column,
    Compare,
    Condition,
    Constant,
    Fixed,
    Holds,
    In,
    IsNull,
    Kind,
    Like,
    Not,
    Operator,
    Or,
)

MOST_CHARACTERS = 100_000
"""Longest text of a condition: a list of ten thousand ids."""

MOST_DEPTH = 100
"""Deepest nesting of a condition."""

SESSION: Mapping[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "max_expression_depth": 10 * MOST_DEPTH,
    "memory_limit": "1GB",
    "threads": 1,
}
"""Configuration of a DuckDB that reads the values that it is given, and nothing else."""

QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
"""Texts and names in quotes."""

MOST_EXPONENT = 400
"""A number beyond 10 to this power is no value of any column."""

COMPARISONS: Mapping[str, Operator] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
OPERATORS = (
    "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "COMPARE_IN", "COMPARE_NOT_IN",
)  # fmt: skip
LIKES = {
    "~~": (False, False), "!~~": (False, True), "~~*": (True, False), "!~~*": (True, True),
    "like_escape": (False, False), "not_like_escape": (False, True),
    "ilike_escape": (True, False), "not_ilike_escape": (True, True),
}  # fmt: skip
"""DuckDB's names of LIKE: whether it ignores case, and whether it is negated."""

CASTS: Mapping[str, Kind] = {
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "TIMESTAMPTZ": "timestamptz",
}
"""Types that a text becomes a constant of: DATE '2024-01-01'."""

NAMES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "COLUMN_REF": "a column",
    "PARAMETER": "a parameter",
    "CASE": "CASE",
    "CAST": "a cast",
    "COLLATE": "COLLATE",
    "LAMBDA": "a lambda",
    "DEFAULT": "DEFAULT",
    "POSITIONAL_REFERENCE": "a column by its number",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM, IS TRUE or IS FALSE",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM, IS TRUE or IS FALSE",
    "ARRAY_EXTRACT": "an item of a list",
    "ARRAY_SLICE": "a slice of a list",
}
"""What DuckDB's tree calls it, in words."""

SELECT = frozenset(
    {"type", "cte_map", "select_list", "from_table", "where_clause", "aggregate_handling"}
)
"""All that a statement with nothing but a condition has."""

ALLOWED = "a condition has columns, constants, = <> < <= > >=, BETWEEN, AND, OR, NOT, IN, LIKE and IS NULL"


class Refused(BadInput, ValueError):
    """What is wrong with a condition, in one sentence."""


@lru_cache(maxsize=64)
def parse(text: str) -> Condition:
    """The condition that a text says; Refused where the text is none, or has more than conditions may have."""
    if not text.strip():
        raise Refused("is empty: leave it out to take every row")
    if len(text) > MOST_CHARACTERS:
        raise Refused(f"has more than {MOST_CHARACTERS:,} characters")
    if (why := unstorable(text)) is not None:
        raise Refused(why)
    _refuse_deep(text)
    _refuse_comments(text)
    # In parentheses nothing but one expression stands; without them the text closes none that it did not open.
    inside, outside = map(_tree, _serialized(f"(\n{text}\n)", text))
    if inside != outside:
        raise Refused("is not one condition")
    return _condition(outside, 0)


def _refuse_deep(text: str) -> None:
    """Before DuckDB's parser, which takes 600 MB for 50,000 brackets in one another."""
    depth = 0
    for sign in QUOTED.sub("", text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth > MOST_DEPTH:
            raise Refused(f"is nested deeper than {MOST_DEPTH} levels")


def _refuse_comments(text: str) -> None:
    import duckdb

    if any(kind == duckdb.token_type.comment for _, kind in duckdb.tokenize(text)):
        raise Refused("has a comment, which may hide a part of the condition: leave it out")


def _serialized(*texts: str) -> list[str]:
    """The tree of a SELECT with each of these texts as its condition, as JSON."""
    # Workers and servers read specs all the time, and conditions seldom.
    import duckdb

    statement = (
        "SELECT json_serialize_sql(CAST(? AS VARCHAR), skip_default := true, skip_null := true, "
        "skip_empty := true)"
    )
    try:
        with duckdb.connect(config=dict(SESSION)) as connection:
            connection.execute("SET lock_configuration = true")
            given = [[f"SELECT 1 FROM t WHERE {text}"] for text in texts]
            found = [connection.execute(statement, each).fetchone() for each in given]
    except duckdb.Error as error:
        raise Refused(f"cannot be read: {_first_line(str(error))}") from error
    return [row[0] for row in found if row is not None]


def _tree(serialized: str) -> Any:
    """The condition of a statement that has nothing else."""
    said = json.loads(serialized, object_hook=_without_places)
    if said.get("error"):
        raise Refused(f"is no condition in SQL: {_first_line(str(said.get('error_message')))}")
    statements = said["statements"]
    if len(statements) != 1:
        raise Refused("has several statements, and a condition is one: leave the ; out")
    node = statements[0]["node"]
    if node.get("type") != "SELECT_NODE" or set(node) - SELECT or "where_clause" not in node:
        raise Refused(f"has more than a condition: {ALLOWED}")
    return node["where_clause"]


def _without_places(node: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in node.items() if not key.startswith("query_location")}


def _first_line(text: str) -> str:
    return (text.strip() or "no reason given").splitlines()[0][:300]


def _condition(node: Mapping[str, Any], depth: int) -> Condition:
    if depth > MOST_DEPTH:
        raise Refused(f"is nested deeper than {MOST_DEPTH} levels")
    match node["class"], node["type"]:
        case "CONJUNCTION", kind:
            parts = tuple(_condition(each, depth + 1) for each in node["children"])
            return And(parts) if kind == "CONJUNCTION_AND" else Or(parts)
        case "OPERATOR", kind if kind in OPERATORS:
            return _operator(node, depth)
        case "COMPARISON", kind if kind in COMPARISONS:
            return _compare(node["left"], COMPARISONS[kind], node["right"])
        case "BETWEEN", _:
            sides: Sequence[tuple[Operator, str]] = ((">=", "lower"), ("<=", "upper"))
            return And(tuple(_compare(node["input"], op, node[side]) for op, side in sides))
        case "FUNCTION", _ if node.get("is_operator") and node["function_name"] in LIKES:
            return _like(node)
        case "COLUMN_REF", _:
            return Holds(_column(node, "a condition"))
        case "CONSTANT", _:
            constant = _constant(node)
            if constant.kind in ("boolean", "null"):
                return Fixed(cast("bool | None", constant.value))
            raise Refused(f"has the constant {constant} where a condition must stand")
    raise Refused(f"has {_named(node)}: {ALLOWED}")


def _operator(node: Mapping[str, Any], depth: int) -> Condition:
    first, *others = node["children"]
    match node["type"]:
        case "OPERATOR_NOT":
            return Not(_condition(first, depth + 1))
        case "OPERATOR_IS_NULL":
            return IsNull(_column(first, "IS NULL"))
        case "OPERATOR_IS_NOT_NULL":
            return Not(IsNull(_column(first, "IS NOT NULL")))
    found = In(_column(first, "IN"), tuple(map(_constant, others)))
    return found if node["type"] == "COMPARE_IN" else Not(found)


def _compare(left: Mapping[str, Any], operator: Operator, right: Mapping[str, Any]) -> Condition:
    one, other = _side(left), _side(right)
    if isinstance(one, Column):
        return Compare(one, operator, other)
    if isinstance(other, Column):
        return Compare(other, MIRRORED[operator], one)
    raise Refused(f"compares two constants, {one} and {other}: name a column")


def _side(node: Mapping[str, Any]) -> Column | Constant:
    return _column(node, "") if node["class"] == "COLUMN_REF" else _constant(node)


def _column(node: Mapping[str, Any], before: str) -> Column:
    if node["class"] != "COLUMN_REF":
        raise Refused(f"has {_named(node)} where {before} wants a column")
    return Column(tuple(node["column_names"]))


def _constant(node: Mapping[str, Any]) -> Constant:
    if node["class"] == "CAST" and not node.get("try_cast"):
        return _cast(node)
    if node["class"] == "FUNCTION" and node.get("is_operator") and len(node["arguments"]) == 1:
        signs: Mapping[str, Callable[[Decimal], Decimal]] = {"-": Decimal.copy_negate, "+": Decimal}
        inner = node["arguments"][0]["expression"]
        if node["function_name"] in signs and inner["class"] == "CONSTANT":
            number = _constant(inner)
            if isinstance(number.value, Decimal):
                return Constant("number", signs[node["function_name"]](number.value))
    if node["class"] != "CONSTANT":
        raise Refused(f"has {_named(node)} where a constant must stand: {ALLOWED}")
    literal = node["literal"]
    kind, text = literal["kind"], literal.get("text", "")
    match kind:
        case "STRING":
            return Constant("text", text)
        case "INTEGER" | "NUMERIC":
            return Constant("number", _number(text))
        case "BOOLEAN":
            return Constant("boolean", text == "true")
        case "NULL_LITERAL":
            return Constant("null", None)
    raise Refused(f"has a constant of the kind {kind.lower()}: {ALLOWED}")


def _cast(node: Mapping[str, Any]) -> Constant:
    child, kind = node["child"], node["type_expr"]
    name = str(kind.get("type_name", "")).upper()
    plain = set(kind) <= {"class", "type", "type_name", "qualified_name"}
    is_text = child["class"] == "CONSTANT" and child["literal"]["kind"] == "STRING"
    if name not in CASTS or not plain or not is_text:
        raise Refused(
            f"has a cast to {name or 'a type'}: DATE, TIME, TIMESTAMP and TIMESTAMPTZ before a text in quotes "
            "are the only ones"
        )
    return Constant(CASTS[name], child["literal"].get("text", ""))


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        raise Refused(f"has {text[:60]}, which is no decimal number") from None
    if not number.is_finite() or (number and abs(number.adjusted()) > MOST_EXPONENT):
        raise Refused(f"has the number {text[:60]}, which is beyond all columns")
    return number


def _like(node: Mapping[str, Any]) -> Condition:
    ignores_case, negated = LIKES[node["function_name"]]
    column, *texts = [each["expression"] for each in node["arguments"]]
    found = [_constant(each) for each in texts]
    if any(each.kind != "text" for each in found):
        raise Refused("has LIKE with something else than a text in quotes")
    pattern, escape = (str(each.value) for each in [*found, Constant("text", "")][:2])
    if len(escape) > 1:
        raise Refused("has ESCAPE with more than one character")
    if escape and re.sub(re.escape(escape) + ".", "", pattern, flags=re.DOTALL).endswith(escape):
        raise Refused(f"has the pattern {pattern[:60]!r}, which ends in its escape character")
    like = Like(_column(column, "LIKE"), pattern, escape, ignores_case)
    return Not(like) if negated else like


def _named(node: Mapping[str, Any]) -> str:
    """What is refused, in words."""
    if node["class"] == "FUNCTION":
        kind = "operator" if node.get("is_operator") else "function"
        return f"the {kind} {node['function_name']}"
    for name in (node["type"], node["class"]):
        if name in NAMES:
            return NAMES[name]
    return str(node["type"]).replace("_", " ").lower()
