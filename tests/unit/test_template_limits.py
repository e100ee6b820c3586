"""The list of filters and methods: what is on the list makes no more than is charged; all else is refused."""

import datetime
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from jinja2.exceptions import SecurityError, UndefinedError
from pydantic import ValidationError

from nightshift.common.spec import STORED, GenerateTask
from nightshift.common.templates.budget import RENDER_UNITS, Budget
from nightshift.common.templates.limits import FILTERS, METHODS, PIECE_UNITS, TESTS
from nightshift.common.templates.sandbox import TEMPLATE_TOKENS, compiled, rendered
from nightshift.worker.rows.prompts import Renderer

ROOT = Path(__file__).parents[2]

SIGNS = "aZ ßΐ'\"<&>%{}\n\u2028\x00é😀,."
TEXTS = st.text(SIGNS, max_size=60) | st.text(max_size=20)
SMALL = st.integers(0, 40)
CALLS: list[tuple[str, Any]] = [
    *(
        (f"text|{name}", st.tuples())
        for name in [
            "capitalize",
            "e",
            "escape",
            "list",
            "lower",
            "sort|list",
            "string",
            "striptags",
            "title",
            "tojson",
            "trim",
            "truncate",
            "unique|list",
            "upper",
            "wordcount",
        ]
    ),
    *(
        (f"text.{name}()", st.tuples())
        for name in ["capitalize", "split", "splitlines", "strip", "title"]
    ),
    ("text|indent(first, true, true)", st.tuples(SMALL | TEXTS)),
    ("text|replace(first, second)", st.tuples(TEXTS, TEXTS)),
    ("text.replace(first, second)", st.tuples(TEXTS, TEXTS)),
    ("first|join(text)", st.tuples(st.lists(TEXTS))),
    ("text.join(first)", st.tuples(st.lists(TEXTS))),
    ("text.split(first)", st.tuples(TEXTS.filter(len))),
    ("first|tojson(second)", st.tuples(st.dictionaries(TEXTS, st.lists(TEXTS)), SMALL)),
    ("text|format(first, second)", st.tuples(TEXTS | st.floats(), TEXTS | st.floats())),
    ("text.format(first, second)", st.tuples(TEXTS | st.floats(), TEXTS | st.floats())),
]


NESTED_NAMESPACES = "{% set n=namespace() %}{% for i in range(99) %}{% set n.a=namespace(a=n.a,b=n.a) %}{% endfor %}{{ n }}"


def size_bytes(made: Any) -> int:
    """Bytes of the characters of a text, or of those in a list, each with a word of the list."""
    if isinstance(made, list):
        return sum(8 + size_bytes(each) for each in made)
    if not isinstance(made, str):
        return 8
    width = 4 if max(made, default="") > "\uffff" else 2 if max(made, default="") > "\xff" else 1
    return width * len(made)


@pytest.mark.parametrize(("call", "others"), CALLS, ids=[call for call, _ in CALLS])
def test_a_call_makes_no_more_than_is_charged(call: str, others: Any) -> None:
    """What is charged before a call, beside what Jinja and Python really make."""
    name = re.split(r"[|.(]", call)[1]
    bound = (FILTERS if "|" in call else METHODS)[name]
    run = Environment().compile_expression(call)

    @given(TEXTS, others)
    def holds(text: str, given: tuple[Any, ...]) -> None:
        row = {"text": text, **dict(zip(("first", "second"), given, strict=False))}
        arguments = [row[each] for each in re.findall(r"\b(?:text|first|second)\b", call)]
        budget = Budget()
        try:
            made = run(row)
            bound.run(budget, lambda *_: None, *arguments)
        except (TypeError, ValueError, LookupError, SecurityError):  # not a format
            return
        charged = RENDER_UNITS - budget.units
        assert size_bytes(made) <= 4 * charged  # a unit is a character of at most four bytes

    holds()


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("{{ (text ~ text ~ 'b') is string }}", 2001),
        ("{{ (text + text) is string }}", 2000),
        ("{{ (text * 9) is string }}", 9000),
        ("{{ text[100:] is string }}", 900),
        ("{% set keys = {text: 1}.keys() %}{% set made = keys - keys %}", 3000),
        ("{{ ([text] * 50) is string }}", 50_000),
        ("{{ [text, text] is string }}", 2000),
        ("{{ ([text, text]|join(text)) is string }}", 3000),
        ("{{ (text|replace('a', 'bb')) is string }}", 2000),
        ("{{ (text|tojson) is string }}", 1000),
        ("{% set made %}{{ text }}{{ text }}{% endset %}", 2000),
        ("{% for x in [1, 2, 3] %}" + "x" * 500 + "{% endfor %}", 1500),
        ("{% macro m() %}" + "x" * 500 + "{% endmacro %}{% set made = [m(), m()] %}", 1000),
        ("{{ text }}{{ text }}", 2000),
    ],
)
def test_every_value_is_charged_and_not_only_what_is_printed(template: str, made: int) -> None:
    budget = Budget()
    rendered(compiled(template), {"text": "a" * 1000}, budget)
    assert RENDER_UNITS - budget.units >= made


@pytest.mark.parametrize(
    "template",
    [
        "{% macro m() %}{% endmacro %}{{ m(*values) }}",
        "{% macro m() %}{% endmacro %}{% call m(*values) %}{% endcall %}",
        "{{ '{}'.format(*values) }}",
        "{% for x in [1] %}{{ loop.cycle(*values) }}{% endfor %}",
    ],
)
def test_values_with_a_star_are_charged_one_by_one(template: str) -> None:
    """A text of 24 million characters would become a tuple of 3.5 GB."""

    def values() -> Iterator[str]:
        yield from itertools.repeat("a", RENDER_UNITS // PIECE_UNITS + 1)
        raise AssertionError("all values were read")

    with pytest.raises(SecurityError):
        rendered(compiled(template), {"values": values()}, Budget())


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ [text]|map('wordwrap')|list }}", "'wordwrap', which is not a filter of templates"),
        ("{{ [text]|select('pretty')|list }}", "'pretty', which is not a test of templates"),
        ("{{ [text]|_made }}", "'_made', which is not a filter of templates"),
        ("{{ text|wordwrap }}", "'wordwrap', which is not a filter of templates; what works: abs,"),
        ("a\n{{ text|wordwrap }}", "line 2 of the template uses 'wordwrap', which is not a filter"),
        ("a\n\n{{ text is pretty }}", "line 3 of the template uses 'pretty', which is not a test"),
        ("a\n{{ text.encode() }}", "line 2 of the template uses 'encode', which is not a method"),
        ("a\n{% set n = namespace() %}", "line 2 of the template uses"),
        ("a\n{{ text.__class__ }}", "line 2 of the template names '__class__'"),
        ("{{ text is pretty }}", "'pretty', which is not a test of templates; what works: boolean"),
        ("{{ text.encode() }}", "'encode', which is not a method of templates; what works: cap"),
        ("{% if false %}{{ row.pop('a') }}{% endif %}", "'pop', which is not a method"),
        ("{% set n = namespace(a=1) %}{{ n.a }}", "'namespace', which templates do not have"),
        (NESTED_NAMESPACES, "'namespace', which templates do not have"),
        ("{% set text.a = 1 %}", "line 1 of the template uses 'set' of an attribute, which"),
        ("a\n{{ 2 ** n }}", "line 2 of the template uses '**', which templates do not have"),
        (
            "\n{% for a in b %}{% for c in a %}\n{% for d in c %}{% endfor %}{% endfor %}{% endfor %}",
            "line 3 of the template has a loop within 2 others, which templates do not have",
        ),
        ("{% for a in b recursive %}{% endfor %}", "line 1 of the template has a recursive loop"),
        (
            "a\n{{ '%5d' % n }}",
            "line 2 of the template formats a value: the format '%5d' has a field",
        ),
        ("{{ '%r' % n }}", "the format '%r' has a field that templates do not have"),
        ("{{ '%-9s'|format(n) }}", "the format '%-9s' has a field that templates do not have"),
        ("{{ '{:>9}'.format(n) }}", "the format '{:>9}' has a field that templates do not have"),
        ("{{ '{:٩٩٩}'.format(n) }}", "the format '{:٩٩٩}' has a field that templates do not have"),
        ("{{ '{!r}'.format(n) }}", "the format '{!r}' has a field that templates do not have"),
        (
            "{{ '{:.100f}'.format(n) }}",
            "the format '{:.100f}' has a field that templates do not have",
        ),
        ("{{ text.ljust(9) }}", "'ljust', which is not a method of templates"),
        ("{{ text|center(9) }}", "'center', which is not a filter of templates"),
        ("{% set c = cycler(1) %}", "uses 'cycler', which templates do not have"),
        ("{{ joiner }}", "uses 'joiner', which templates do not have"),
        ("{{ dict(a=1) }}", "uses 'dict', which templates do not have"),
        ("{{ range }}", "uses the function 'range' as a value: call it"),
        ("{{ text() }}", "'text', which is not a function of templates; what works: caller, range"),
        ("{{ row['pop']() }}", "calls a value: functions and methods are called by their names"),
        ("{{ n is divisibleby(3) }}", "'divisibleby', which is not a test of templates"),
        ("{{ [text]|map(name) }}", "which is not a filter of templates"),
        ("{{ [text]|map(*names) }}", "gives 'map' values with a star, which only calls take"),
        (
            "a\n{% include 'b' %}",
            "line 2 of the template uses 'include', which templates do not have",
        ),
        ("{% extends 'b' %}", "uses 'extends', which templates do not have"),
        ("{% from 'b' import c %}", "uses 'from', which templates do not have"),
        ("{% block b %}{% endblock %}", "uses 'block', which templates do not have"),
        (
            "{% autoescape true %}{% endautoescape %}",
            "uses 'autoescape', which templates do not have",
        ),
        ("{% set call = text.encode %}{{ call('punycode') }}", "'call', which is not a function"),
        ("{{ dict.fromkeys([1]) if 0 }}", "'fromkeys', which is not a method of templates"),
        (
            "{% set call = namespace %}{{ call(a=1) }}",
            "uses 'namespace', which templates do not have",
        ),
    ],
)
def test_what_is_not_on_the_list_is_refused_at_submit(template: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        compiled(template)


def test_templates_too_large_to_compile_are_refused_and_static_text_is_not_counted() -> None:
    """A print has three tokens."""
    fits = {
        "kind": "generate",
        "prompt": "a text " * 50_000 + "{{ text }}" * (TEMPLATE_TOKENS // 3),
    }
    assert GenerateTask.model_validate(fits).columns == {"text"}
    message = {"role": "user", "content": "{{ text }}" * (TEMPLATE_TOKENS // 6 + 1)}
    for many in ({"prompt": fits["prompt"] + "{{ text }}"}, {"messages": [message, message]}):
        with pytest.raises(ValidationError, match="templates have more than 5,000 tokens of Jinja"):
            GenerateTask.model_validate({"kind": "generate", **many})


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% macro m() %}{% endmacro %}{% set m = text.encode %}{{ m('punycode') }}",
            "it calls 'encode'",
        ),
        ("{% macro m() %}{% endmacro %}{% set m = at.now %}{{ m() }}", "it calls 'now'"),
        ("{{ caller() }}", "it calls 'str', which is not a method of templates"),
        ("{{ [row]|sum('b') }}", "'dict object' has no attribute 'b'"),
        ("{{ [row]|join(',', 'b') }}", "'dict object' has no attribute 'b'"),
        ("{{ ('%' ~ '99d') % 1 }}", "the format '%99d' has a field"),
        ("{{ (brace ~ ':99}').format(1) }}", "the format '{:99}' has a field"),
        ("{{ at.strftime('%1000Y') }}", "the format '%1000Y' has a field"),
        ("{{ '%9d' ~ '' is odd }}", "it takes a number"),
    ],
)
def test_what_only_a_rendering_shows_is_an_error_of_the_row(template: str, says: str) -> None:
    at = datetime.datetime(2026, 1, 1)
    row = {"text": "a", "row": {"a": 1}, "at": at, "caller": "b", "brace": "{"}
    with pytest.raises((SecurityError, UndefinedError), match=re.escape(says)):
        rendered(compiled(template), row, Budget())


def test_columns_named_like_functions_of_macros_are_columns() -> None:
    template = compiled("{{ caller }}{% for i in range(2) %}{{ i }}{% endfor %}")
    assert rendered(template, {"caller": "a", "range": "b"}, Budget()) == "a01"


def test_a_method_that_is_printed_is_an_error_of_the_row() -> None:
    """A struct may have a field named as a method of dicts."""
    row = {"column": {"items": "three"}}
    assert rendered(compiled("{{ column['items'] }}"), row, Budget()) == "three"
    says = re.escape("the method 'items' as a value (write column['items'] for a field")
    for printed in ("column.items", "'a' ~ column.items", "[column.items]", "column.items|string"):
        with pytest.raises(SecurityError, match=says):
            rendered(compiled(f"{{{{ {printed} }}}}"), row, Budget())


def test_the_page_names_the_filters_tests_and_methods_that_templates_have() -> None:
    page = (ROOT / "docs" / "spec.md").read_text()
    for kind, known in (("filters", FILTERS), ("tests", TESTS), ("methods", METHODS)):
        named = re.search(rf"\n- {kind}: (.*?)[;.]\n", page, re.DOTALL)
        assert named
        words = {name for name in known if name[0].isalpha()}
        assert set(re.findall(r"`(\w+)`", named[1])) == words


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("{{ text|wordwrap(80) }}", "'wordwrap', which is not a filter"),
        ("{% set n = namespace(a=text) %}{{ n.a }}", "'namespace', which templates do not have"),
    ],
)
def test_a_stored_job_whose_template_uses_what_was_left_out_since_is_read_and_ends_at_its_worker(
    prompt: str, says: str
) -> None:
    task = {"kind": "generate", "prompt": prompt}
    with pytest.raises(ValidationError, match=says):
        GenerateTask.model_validate(task)
    stored = GenerateTask.model_validate(task, context=STORED)
    assert stored.columns == {"text"}
    with pytest.raises(ValueError, match=says):
        Renderer(stored)
