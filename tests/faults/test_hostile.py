"""Hostile input is refused with one sentence and leaves nothing behind, or it does no harm."""

import datetime
import io
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from jinja2 import Environment, Template
from jinja2.exceptions import SecurityError

from nightshift.common.errors import BadInput, EngineLoadFailed
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import FunctionEngineSpec, load_spec, parse_spec
from nightshift.common.templates.sandbox import compiled, rendered_all
from nightshift.producer.cli.app import main
from nightshift.producer.cli.console import SafeConsole
from nightshift.producer.submit.submit import submit
from nightshift.producer.views import row_tables
from nightshift.worker.engines.function.engine import FunctionEngine
from tests.support.fleet import function_spec, write_rows
from tests.support.rig import Rig

ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e\r"

# A row error for each row of a batch must not take minutes of a core.
SECONDS_A_ROW = 20


def spec_of(folder: Path, **sections: Any) -> dict[str, Any]:
    return function_spec("hostile", folder / "in", folder / "out", **sections)


def generating(folder: Path, template: str) -> dict[str, Any]:
    task = {"kind": "generate", "prompt": template}
    return spec_of(folder, task=task, engine={"backend": "vllm", "model": "org/model"})


def rendered(template: Template, row: dict[str, Any]) -> str:
    (text,) = rendered_all([template], row)
    return text


Refused = Callable[..., str]


@pytest.fixture
def refused(ledger: Ledger, tmp_path: Path) -> Refused:
    """Submits a spec that must be refused in one sentence with nothing left behind."""
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "in", [("a.jsonl", 3)])

    def refuse(data: dict[str, Any], *roots: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        settings = Settings(allowed_roots=roots)
        with pytest.raises(BadInput) as caught:
            submit(ledger, parse_spec(data, "spec.yaml"), settings)
        said = str(caught.value)
        assert "\n" not in said
        with ledger.transaction() as connection:
            assert job_pace.listed(connection) == []
        assert sorted(tmp_path.rglob("*")) == before
        return said

    return refuse


# ---------------------------------------------------------------- templates


REFUSED_TEMPLATES = [
    # 126 bytes that print gigabytes, step by step.
    "{% set n=namespace() %}{% for i in range(99) %}{% set n.a=namespace(a=n.a,b=n.a) %}{% endfor %}{{ n }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ text.__init__.__globals__ }}",
    "{{ text['__class__'] }}",
    "{{ text|attr('__class__') }}",
    "{{ cycler.__init__ }}",
    "{{ lipsum(n=1000000) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% for a in [1] %}" * 40 + "{% endfor %}" * 40,
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ text" + "|upper" * 3000 + " }}",
    "{{ text|attr('__cla%s__' % 'ss') }}",
    "{{ row.clear() }}",
    "{{ text|batch(10**10, 'a')|list }}",
    "{{ text.rfind('y' + text[:500000]) }}",
    "{{ text.encode('punycode') }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ [text] * 10**10 }}",
    "{{ 10 ** 100000000 }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ text|center(10**10) }}",
    "{{ text|center(9) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '%*d' % (9, 1) }}",
    "{{ '%.9999999999f'|format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**10) }}",
    "{{ '{:{w}}'.format(1, w=9) }}",
    "{{ row|tojson(indent=10**10) }}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ ('{:f}' * 1000).format(price ** 999999) }}",
    "{{ [(10 ** 4000)] * 1000000 }}",
    "{{ text|indent(-10**9) }}{{ a * 100 }}",
    "{% set encode = ('é' * 180000).encode %}{{ encode('punycode') }}",
    "{{ ('%.000000000900000000d' % 1)|length }}",
    "{{ ('{:0000000000900000000}'.format('x'))|length }}",
    "{{ ('%(a(b))1000000000d' % {'a(b)': 1})|length }}",
    "{{ ([cycler(a)] * 1000)|join(attribute='current')|length }}",
    "{% set c = cycler(a) %}{{ ('{0.current}' * 200).format(c)|length }}",
    "{{ range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1)|unique|list|length }}",
    "{{ ('f' * 4000000)|int(0, 16) is divisibleby(('e' * 2000000)|int(0, 16)) }}",
    # These take the square of their number to compile.
    "{% if a %}"
    + "".join(f"{{% elif b %}}{{% set a{n} = 1 %}}" for n in range(2000))
    + "{% endif %}",
    "".join(f"{{% if a{n} %}}{{% endif %}}" for n in range(3000)),
]


def test_a_template_with_no_good_in_it_is_refused_at_submit(
    refused: Refused, tmp_path: Path
) -> None:
    for template in REFUSED_TEMPLATES:
        assert "template" in refused(generating(tmp_path / "data", template))


def doubling(step: str) -> str:
    """A template whose text becomes twice as large sixty times."""
    return "{% set a = 'aaaa' %}" + step * 60 + "{{ a }}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ '{0.__dict__}'.format(text) }}",
        "{% for i in range(10000000000) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ [text] * 10000000000 }}",
        "{{ 'a' * -(0 - 10000000000) }}",
        "{{ ('%' ~ '10000000000d') % 1 }}",
        "{{ ('%' ~ '*d') % (10000000000, 1) }}",
        "{{ ('%.' ~ '9999999999f')|format(1) }}",
        "{{ ('{:' ~ '10000000000}').format(1) }}",
        "{{ ('{:{' ~ 'w}}').format(1, w=10000000000) }}",
        "{{ ('%' ~ '10000000000d') is odd }}",
        "{{ text.replace('', 'b' * 100000).replace('b', 'c' * 100000) }}",
        "{{ range(99999)|map('string')|join('b' * 100000) }}",
        "{{ ('\n' * 100000)|indent(100000) }}",
        "{{ row|tojson(indent=10000000000) }}",
        doubling("{% set a = a ~ a %}"),
        doubling("{% set a = a + a %}"),
        doubling("{% set a = [a, a] %}"),
        doubling("{% set a = {1: a, 2: a} %}"),
        doubling("{% set a %}{{ a }}{{ a }}{% endset %}"),
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n < 60 %}{{ m(n + 1) }}{{ m(n + 1) }}{% endif %}{% endmacro %}"
        "{{ m(1) }}",
        "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    ],
)
def test_a_template_that_would_take_the_worker_down_fails_its_row_soon(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.common.templates.budget.RENDER_SECONDS", 0.5)
    made = compiled(template)
    began = time.process_time()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it is the row's error
        rendered(made, {"text": "hi", "row": {"a": [1]}})
    assert not isinstance(caught.value, MemoryError)
    assert time.process_time() - began < SECONDS_A_ROW


PLENTY = {
    "a": "x" * 1_000_000,
    "day": datetime.date(2026, 7, 14),
    "price": Decimal("1.5"),
    "b": b"nightshift",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ ('{0}' * 100000).format(a) }}",
        "{{ ('%(a)s' * 100000) % {'a': a} }}",
        "{{ ('%(a)s' * 100000)|format(a=a) }}",
        "{% set p = price * 1000000000000000000000000000 %}"
        + "{% set p = p * p %}" * 14
        + "{{ ('{:f}' * 1000).format(p) }}",
        "{{ a.replace('x', a) }}",
        "{{ a|replace(new=a, old='x') }}",
        "{{ a.join(range(99999)|map('string')) }}",
        "{{ a.join(['x'] * 1000) }}",
        "{{ [[1] * 9] * 9999 }}{{ ([[1]] * 99999)|sum(start=[]) }}",
        "{{ ([[1]] * 99999)|sum(none, []) }}",
        "{{ [" + "9" * 4000 + "] * 1000000 }}",
        "{{ 1|round(100000000, 'floor') }}",
        "{{ a.strip('y' * 1000000 + 'x') }}",
        "{{ (a * 20)|list }}",
        "{{ (a * 20)|tojson }}",
        "{{ day.strftime('%A' * 1000000) }}",
        "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
        "{% set d = {'a': a} %}{% for i in range(99999) %}{{ d.items() }}{% endfor %}",
        "{{ text|indent(-1000000000) }}{{ a * 100 }}",
        "{{ (b * 20000).decode('punycode') }}",
        "{{ ('%.' ~ '000000000900000000d') % 1 }}",
        "{{ ('{:' ~ '0000000000900000000}').format('x')|length }}",
        "{{ ('{:' ~ '%1000Y' * 300000 ~ '}').format(day)|length }}",
        "{{ ('5' * 200000)|replace('5', ['x' * 5000])|length }}",
        "{{ ('5' * 200000)|replace(5, 'x' * 5000)|length }}",
        "{{ ('5' * 200000)|replace(old=5, new=['x' * 5000])|length }}",
        "{{ 'x'|round(9, 'ceil') }}",
        "{{ (('%(a(b))' ~ '1000000000d') % {'a(b)': 1})|length }}",
        "{{ ([{'a': a}] * 1000)|join(attribute='a')|length }}",
        "{{ ('{0[a]}' * 200).format({'a': a})|length }}",
        "{% macro m(n) %}{% for i in range(99999) %}"
        + "x" * 1000
        + "{% endfor %}{% endmacro %}{{ m(1)|length }}",
        "{% set t = a * 9 %}" + "".join(f"{{% set a{n} = t[1:] %}}" for n in range(120)),
        "{% set n = [1] %}" + "{% set n = [n] %}" * 250 + "{{ n|tojson(indent=5000)|length }}",
        "{{ ['ab-' * 5000000]|title|length }}",
        "{{ (('{0}' * 400)|e).format('\"' * 1000000)|length }}",
        "{{ ('ab ' * 8000000)|striptags|length }}",
        "{{ range(100000)|map('string')|select('in', a * 5)|list|length }}",
        "{{ (['x'] * 3000)|max(attribute='0.' * 10000 ~ '0') }}",
        # Python keeps numbers by their remainders of 2 ** 61 - 1.
        "{{ range(0, 230584300921369395100000, 2305843009213693951)|unique|list|length }}",
        "{{ ('f' * 4000000)|int(0, 16) % ('e' * 2000000)|int(0, 16) }}",
        "{% set t = [a] %}" + "{% set t = (t, t) %}" * 60 + "{{ {t: 1} }}",
    ],
)
def test_what_would_fill_the_memory_is_refused_before_it_is_made(
    template: str,
) -> None:
    made = compiled(template)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - said below
            rendered(made, {"text": "hi", **PLENTY})
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, SecurityError), caught.value
    assert most < 100_000_000
    assert time.process_time() - began < SECONDS_A_ROW


WORDS = "Seven words that make a line, once. " * 2000
LONG: dict[str, Any] = {
    "text": WORDS,
    "template": "Take the text: {text}\n" + "and do as it says " * 90,
    "big": WORDS * 40,  # 2.9 MB
    "lines": "a line of code\n" * 47_000,  # 700 kB
    "price": Decimal("12.50"),
    "numbers": list(range(500_000)),
    "names": ["Ann", "Bob"] * 5000,
    "code": "def __init__(self): pass",
    "at": datetime.datetime(2026, 7, 14, 12, 30),
    "json": '{"a": 12345, "b": {"c": 1}}' * 1000,
    "row": {"a": 1, "b": "two"},
    "raw": b"nightshift",
}


@pytest.mark.parametrize(
    "template",
    [
        "{{ template | replace('{text}', text) }}",
        "{{ template.replace('{text}', text) }}",
        "{{ template.format(text=text) }}",
        "{{ '{context} {called} {name} {value} {budget}{self}'.format(context=text, called=1, name=2, value=3, budget=4, self=5) }}",
        "{{ lines | indent(8) }}",
        "{{ price * 2000000 }}",
        "{{ text[:300000] | join('') }}",
        "{{ big | trim }}{{ big.strip() }}",
        "{{ numbers | tojson }}",
        "{{ code | replace('__init__', 'x') }}",
        "{{ names | join(', ') }}{{ ', '.join(names) }}",
        "{{ names | map('upper') | join(' ') }}",
        "{{ big }}{{ big | upper }}{{ big | length }}{{ big | replace('e', 'E') }}",
        "{% for line in lines.splitlines() %}{{ line | trim }} {% endfor %}",
        "{{ big.split('. ') | length }}",
        "{{ '%s is %.2f' | format(json, price) }}{{ '%s' % json }}{{ '{}'.format(json) }}",
        "{{ at.replace(year=2020).strftime('%Y-%m-%d %H:%M') }}{{ at.date() }}",
        "{{ numbers[:100] | sum }}{{ price | round(1) }}{{ 7 // 2 }}{{ 2 * 10 }}",
        "{{ ('<b>a</b> ' * 20000) | striptags | length }}",
        "{{ text | truncate(100) }}{{ text | title | length }}{{ names | unique | sort | list }}",
        "{% for k, v in row | dictsort %}{{ k }}={{ v }}{{ loop.cycle(',', ';') }}{% endfor %}",
        "{{ row }}{{ row.items() | list }}{{ names[:3] }}",
        "{{ raw.decode() }}{{ raw.decode('Latin-1', errors='ignore') }}",
        "{{ {'row': row, 'names': names[:2]} }}{{ names | reverse | list }}",
        "{% macro m(at) %}{{ at.index }}{% endmacro %}{% for name in names %}{{ m(loop) }}{% endfor %}",
    ],
)
def test_a_long_text_is_rendered_as_jinja_does(template: str) -> None:
    assert rendered(compiled(template), LONG) == Environment().from_string(template).render(LONG)


@pytest.mark.parametrize(
    "template",
    [
        "{{ text|upper }}{{ '%.1f' % n }}{{ '{:,}'.format(n) }}{{ text is string }}{{ n is odd }}",
        "{% for k, v in row.items() %}{{ loop.index }}/{{ loop.length }}{{ k }}{{ v ~ n }}{% endfor %}",
        "{% macro m(a, b='x') %}<{{ a }}{{ b }}{{ caller() }}>{% endmacro %}{% call m(n) %}{{ text }}{% endcall %}",
        "{% set t | upper %}a {{ text }}{% endset %}{{ t }}{% filter title %}{{ text }} x{% endfilter %}",
        "{% for w in chat if w.role != 'system' %}{% for x in w.text %}{{ x }}{% else %}-{% endfor %}{% endfor %}",
        "{{ chat|selectattr('role', 'eq', 'user')|map(attribute='text')|join(', ') }}{{ chat|map('length')|sum }}",
        "{{ text[1:] }}{{ text[::-1] }}{{ chat[:1] }}{{ text in ['hi'] }}{{ 'a' if n > 3 else 'b' }}",
        "{{ '{who[role]} {:.2f} {{}}'.format(1.5, who=chat[0]) }}{{ '%(a)s 100%%' % {'a': n} }}",
        "{{ chat|tojson(indent=2) }}{{ chat|groupby('role')|list }}{% with a = n %}{{ a }}{% endwith %}",
        "{{ '{text}: {n}'.format(**row_of) }}{{ none or '-' }}{{ missing is defined }}{{ text|default('x') }}",
    ],
)
def test_a_usual_template_does_what_jinja_does(template: str) -> None:
    chat = [{"role": "user", "text": "<hé>"}, {"role": "system", "text": ""}]
    row = {"text": "hi", "n": 12345, "row": {"a": 1, "b": 2}, "chat": chat}
    row["row_of"] = {"text": "a", "n": 1}
    assert rendered(compiled(template), row) == Environment().from_string(template).render(row)


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize(
    "name",
    ["os:system", "os.path:join", "rules.os:system", "builtins:eval", "rules2:shout"],
)
def test_a_function_outside_the_allowed_modules_is_not_even_imported(name: str) -> None:
    with pytest.raises(EngineLoadFailed, match="is not allowed on this worker"):
        FunctionEngine.load(
            FunctionEngineSpec(backend="function", callable=name),
            Settings(allowed_modules=("rules",), callable_paths=("/nowhere",)),
        )


def test_a_function_name_with_a_trick_in_it_is_refused(refused: Refused, tmp_path: Path) -> None:
    tricks = ["rules:os.system", "rules:f()", "../rules:f", "rules", "rules:f\n", ":f", "a b:f"]
    for name in tricks:
        engine = {"backend": "function", "callable": name}
        assert "engine.callable" in refused(spec_of(tmp_path / "data", engine=engine)), name


# ---------------------------------------------------------------- places


def test_no_way_leads_out_of_the_allowed_roots(refused: Refused, tmp_path: Path) -> None:
    data = tmp_path / "data"
    outside = tmp_path / "outside"
    write_rows(outside, [("secret.jsonl", 2)])
    (data / "link").symlink_to(outside)
    (data / "in" / "linked.jsonl").symlink_to(outside / "secret.jsonl")
    write_rows(data / "clean", [("a.jsonl", 2)])
    clean = {"uri": str(data / "clean"), "id": "id"}

    outputs = [
        str(outside / "out"),
        f"{data}/../outside/out",
        f"file://{outside}/out",
        f"file://{data}/%2e%2e/outside/out",
        f"{data}-evil/out",
        str(data / "link" / "out"),
        os.path.relpath(outside / "out"),
        "s3://bucket-evil/out",
        "s3://other/bucket/out",
        "s3a://bucket-evil/out",
    ]
    for uri in outputs:
        spec = spec_of(data, input=clean, output={"uri": uri})
        said = refused(spec, str(data), "s3://bucket")
        assert "NIGHTSHIFT_ALLOWED_ROOTS" in said, uri
    spec = spec_of(data, input=clean, output={"uri": "s3://bucket/../evil/out"})
    assert "no . or .." in refused(spec, str(data), "s3://bucket")

    inputs = [
        str(outside),
        str(data / "link"),
        str(data / "in"),  # holds a link to a file outside
        str(data / "in" / "*.jsonl"),
        f"{data}/l*/*.jsonl",
        f"{data}/clean/../../outside",
        "s3://bucket-evil/in",
    ]
    for uri in inputs:
        spec = spec_of(data, input={"uri": uri, "id": "id"})
        assert "NIGHTSHIFT_ALLOWED_ROOTS" in refused(spec, str(data), "s3://bucket"), uri


def test_a_name_that_the_ledger_cannot_keep_is_refused(refused: Refused, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("nul\x00.jsonl", "half\ud800.jsonl"):
        refused(spec_of(data, input={"uri": f"{data}/{name}"}))
        refused(spec_of(data, output={"uri": f"{data}/{name}"}))
    raw = os.fsencode(data / "in") + b"/b\xff.jsonl"
    with open(raw, "wb") as file:
        file.write(b'{"id": "b-0", "text": "say b-0"}\n')
    assert "is no UTF-8" in refused(spec_of(data))


# ---------------------------------------------------------------- specs


def bomb(levels: int = 30) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{at}: &a{at} [*a{at - 1}, *a{at - 1}]" for at in range(1, levels)]
    return "\n".join(lines)


MERGES = "\n".join(
    ["m0: &m0 {x: 1}", *(f"m{at}: &m{at} {{<<: [*m{at - 1}, *m{at - 1}]}}" for at in range(1, 40))]
)


@pytest.mark.parametrize(
    "text",
    [
        "name: " + "x" * 10_000_000,
        bomb(),
        MERGES,
        "a: &a [*a]",
        "a: *nothing",
        "a: " + "[" * 100_000 + "]" * 100_000,
        "name: 2026-13-45",
        "name: " + "9" * 5000,
        "a: !!python/object/apply:os.system ['true']",
        "? [a]\n: b",
        "- a",
        "\x00",
    ],
    ids=str.__len__,
)
def test_a_file_that_is_made_to_hurt_is_refused_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(BadInput) as caught:
        load_spec(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - began < SECONDS_A_ROW


def test_a_value_that_json_does_not_have_is_refused(refused: Refused, tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    nan = float("nan")
    for value in ("a\x00b", "\ud800", nan, -1 / 1e-320, b"bytes", {"a": {b"k": 1}}, {1, 2}, deep):
        data = generating(tmp_path / "data", "{{ text }}")
        data["engine"]["args"] = {"deep": [{"x": value}]}
        assert "engine.args.deep" in refused(data)


def test_a_job_name_is_a_word(refused: Refused, tmp_path: Path) -> None:
    for name in ("a\nb", "a\n", f"a{ESCAPES}", "a'; DROP TABLE jobs;--", "../a"):
        said = refused({**spec_of(tmp_path / "data"), "name": name})
        assert said.startswith("spec.yaml: name: ")


# ---------------------------------------------------------------- terminals


def test_nothing_that_a_user_wrote_steers_the_terminal() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=False, width=200)
    row = {"row_index": 1, "id": ESCAPES, "kind": ESCAPES, "message": ESCAPES}
    console.print(row_tables.sample_table([row], list(row), list(row)))
    console.print(ESCAPES)
    assert "owned" in file.getvalue()
    assert not set(file.getvalue()) & set("\x1b\x07\u202e\r")


def test_a_refusal_is_one_line_of_plain_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["nightshift", "submit", f"{tmp_path}/{ESCAPES}\nx.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("nightshift: ")
    assert said.count("\n") == 1
    assert not set(said) & set("\x1b\x07\u202e\r")


# ---------------------------------------------------------------- a fleet


SQL = "'; DROP TABLE batches; --"
HOSTILE_COLUMNS = [SQL, 'quo"te', "line\nbreak", "select", "", "{{ 7 * 7 }}", ESCAPES]
HOSTILE_FILES = [
    "a b.jsonl",
    "c'd\"e.jsonl",
    "f\ng.jsonl",
    "h*i?j.jsonl",
    "[k].jsonl",
    "$(l);m.jsonl",
]

RULES = """
def shout(rows):
    if any(row["id"].endswith("7") for row in rows):
        raise ValueError("a seven: " + rows[0]["id"] + "\\x00\\x1b[2J\\ud800")
    return [{"loud": row["text"].upper(), "'; --": row["text"]} for row in rows]
"""


def write_hostile(folder: Path) -> list[str]:
    """Files, columns and ids of the worst kind; the ids in the order of the dataset."""
    folder.mkdir()
    ids: list[str] = []
    for number, name in enumerate(sorted([*HOSTILE_FILES, "z.parquet"])):
        mine = [f"{number}{SQL}", f"{number}{ESCAPES}", f"{number}\x00nul", f"{number} seven 7"]
        ids += mine
        rows = [
            {"id": each, "text": f"say {each}", **dict.fromkeys([*HOSTILE_COLUMNS, "\x00"], each)}
            for each in mine
        ]
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), folder / name)
        else:
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ids


def test_hostile_rows_are_only_rows_and_a_hostile_job_stops_nobody(make_rig: Any) -> None:
    rig: Rig = make_rig()
    (rig.folder / "rules.py").write_text(RULES)
    ids = write_hostile(rig.folder / "in-rows")
    spec = rig.spec_of("rows", engine={"backend": "function", "callable": "rules:shout"})
    spec["output"]["columns"] = HOSTILE_COLUMNS
    spec["limits"] = {"max_failed_fraction": 1}
    spec["output"]["uri"] = str(rig.folder / "rows")
    rig.put(spec)
    # The fleet's operator allows its folder alone, whatever a client thinks.
    outside = rig.folder.parent / "outside"
    rig.submit("outside", 2, output={"uri": str(outside)}, engine=spec["engine"])
    rig.environment["NIGHTSHIFT_ALLOWED_ROOTS"] = str(rig.folder)
    rig.reaper()
    rig.worker()

    sevens = {each: "function_error" for each in ids if each.endswith("7")}
    rig.finished("rows", ids, failed=sevens)
    assert rig.wait_closed("outside") == "failed"
    reason = rig.value("SELECT reason FROM jobs WHERE name = 'outside'")
    assert "NIGHTSHIFT_ALLOWED_ROOTS" in reason
    # The marker is of the client, which may write there; the fleet wrote nothing.
    assert [path.name for path in outside.iterdir()] == ["_owner.json"]
    table = ds.dataset(rig.folder / "rows").to_table()
    for column in HOSTILE_COLUMNS:
        assert table.column(column).to_pylist() == ids
    shown = rig.command("errors", "rows")
    assert shown.returncode == 0, shown.stderr
    assert "a seven" in shown.stdout
    assert not set(shown.stdout) & set("\x1b\x07\u202e\x00")


def test_a_link_in_place_of_the_staging_folder_writes_and_deletes_nothing_elsewhere(
    make_rig: Any,
) -> None:
    rig: Rig = make_rig()
    outside = rig.folder.parent / "outside"
    outside.mkdir()
    others = {"part-000000-a1.parquet": b"of somebody else", "letter": b"of somebody else"}
    for name, content in others.items():
        (outside / name).write_bytes(content)
    rig.environment["NIGHTSHIFT_ALLOWED_ROOTS"] = str(rig.folder)
    rig.submit("linked", 20)
    (rig.folder / "linked" / "_attempts").symlink_to(outside)
    rig.reaper()
    rig.worker()
    assert rig.wait_closed("linked") == "failed"
    reason = rig.value("SELECT reason FROM jobs WHERE name = 'linked'")
    assert f"{rig.folder}/linked/_attempts is a link" in reason
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == others
