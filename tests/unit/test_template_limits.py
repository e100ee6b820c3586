"""The list of filters and methods: what is on the list makes no more than is charged; all else is refused."""

import datetime
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from jinja2.exceptions import SecurityError
from pydantic import ValidationError

from nightshift.common.spec import STORED, GenerateTask
from nightshift.common.templates.budget import STEP_UNITS, weight
from nightshift.common.templates.limits import FILTERS, METHODS
from nightshift.common.templates.sandbox import compiled, rendered
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
            "forceescape",
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
            "urlencode",
            "wordcount",
        ]
    ),
    *(
        (f"text.{name}()", st.tuples())
        for name in ["casefold", "split", "splitlines", "strip", "swapcase"]
    ),
    ("text|center(first)", st.tuples(SMALL)),
    ("text.zfill(first)", st.tuples(SMALL)),
    ("text|indent(first, true, true)", st.tuples(SMALL | TEXTS)),
    ("text|replace(first, second)", st.tuples(TEXTS, TEXTS)),
    ("text.replace(first, second)", st.tuples(TEXTS, TEXTS)),
    ("first|join(text)", st.tuples(st.lists(TEXTS))),
    ("text.join(first)", st.tuples(st.lists(TEXTS))),
    ("text.split(first)", st.tuples(TEXTS.filter(len))),
    ("first|tojson(second)", st.tuples(st.dictionaries(TEXTS, st.lists(TEXTS)), SMALL)),
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
    """The cost from the table, beside what Jinja and Python really make."""
    name = re.split(r"[|.(]", call)[1]
    cost = (FILTERS if "|" in call else METHODS)[name].cost
    run = Environment().compile_expression(call)

    @given(TEXTS, others)
    def holds(text: str, given: tuple[Any, ...]) -> None:
        row = {"text": text, **dict(zip(("first", "second"), given, strict=False))}
        arguments = [row[each] for each in re.findall(r"\b(?:text|first|second)\b", call)]
        charged = STEP_UNITS + sum(map(weight, arguments)) + cost(*arguments)
        assert size_bytes(run(row)) <= 4 * charged  # a unit is a character of at most four bytes

    holds()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ [text]|map('wordwrap')|list }}", "'wordwrap', which is not a filter of templates"),
        ("{{ [text]|select('pretty')|list }}", "'pretty', which is not a test of templates"),
        ("{{ [text]|_joined }}", "'_joined', which is not a filter of templates"),
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
        ("{% set text.a = 1 %}", "sets an attribute, which only namespaces have"),
    ],
)
def test_what_is_not_on_the_list_is_refused_at_submit(template: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        compiled(template)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% set call = text.encode %}{{ call('punycode') }}", "encode is not a method"),
        ("{% set call = text['rfind'] %}{{ call('a') }}", "rfind is not a method"),
        (
            "{{ dict.fromkeys([1]) if 0 }}{% set call = dict['fromkeys'] %}{{ call([1]) }}",
            "fromkeys",
        ),
        (
            "{% set name = 'attr' %}{{ (row.values()|map(name, 'a')|list) }}",
            "No filter named 'attr'",
        ),
        ("{% set call = at.now %}{{ call() }}", "now is not a method"),
        ("{% set call = namespace %}{{ call(a=1) }}", "it uses 'namespace', which templates do"),
    ],
)
def test_what_is_reached_without_its_name_is_refused_when_the_row_is_rendered(
    template: str, says: str
) -> None:

    row = {"text": "a", "row": {"a": 1}, "at": datetime.datetime(2026, 1, 1)}
    with pytest.raises(Exception, match=says):
        rendered(compiled(template), row)


def test_a_method_that_is_printed_is_an_error_of_the_row() -> None:
    """A struct may have a field named as a method of dicts."""
    row = {"column": {"items": "three"}}
    assert rendered(compiled("{{ column['items'] }}"), row) == "three"
    says = re.escape("the method 'items' as a value (write column['items'] for a field")
    for printed in ("column.items", "'a' ~ column.items", "[column.items]", "column.items|string"):
        with pytest.raises(SecurityError, match=says):
            rendered(compiled(f"{{{{ {printed} }}}}"), row)


def test_the_page_names_all_filters_and_methods_of_text_that_are_left_out() -> None:
    page = (ROOT / "docs" / "spec.md").read_text()
    filters = re.search(r"- the filters (.*?), and `lipsum`;", page, re.DOTALL)
    methods = re.search(r"- of text (.*?)\n  \(", page, re.DOTALL)
    assert filters
    assert methods
    left_out = Environment().filters.keys() - FILTERS.keys()
    assert set(re.findall(r"`(\w+)`", filters[1])) == left_out
    of_text = {name for name in dir(str) if not name.startswith("_")} - METHODS.keys()
    of_text -= {"maketrans"}  # makes a table for translate
    assert set(re.findall(r"`(\w+)`", methods[1])) == of_text


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
