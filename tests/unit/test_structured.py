"""Answers held against their form: cut off, invalid, asked again, and typed in their own column."""

import asyncio
import dataclasses
import json
import re
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.common.errors import BadInput
from nightshift.common.formats import output_schema, part_rows
from nightshift.common.spec import STORED, GenerateTask, JobSpec, StructuredOutput, parse_spec
from nightshift.common.spec.json_schema import SCALARS, scalar_properties
from nightshift.common.spec.patterns import UnusablePatternError, matched_by_re2
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request
from nightshift.worker.engines.resampling import (
    RowSampling,
    drawn_again,
    row_seed,
    sample_until_valid,
)
from nightshift.worker.engines.structured import AnswerCheck, typed
from nightshift.worker.rows.results import PartTable, RowResults, part_table
from tests.support.parts import read_part

INPUTS = pa.schema([("id", pa.string()), ("text", pa.string()), ("parsed", pa.string())])

MOOD = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}


def job(output: dict[str, Any] | None, /, **sections: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "input": {"uri": "x.parquet", "id": "id"},
        "task": {"kind": "generate", "prompt": "{{ text }}", "output": output},
        "engine": {"backend": "vllm", "model": "m"},
        "output": {"uri": "out"},
        **sections,
    }


def spec(output: dict[str, Any] | None, /, **sections: Any) -> JobSpec:
    return parse_spec(job(output, **sections), "test")


def objects(**properties: Any) -> dict[str, Any]:
    return {"json_schema": {"type": "object", "properties": properties}}


def checked(output: dict[str, Any], text: str, finish_reason: str = "stop") -> Outcome:
    return AnswerCheck(StructuredOutput.model_validate(output)).outcome(text, finish_reason, 3, 5)


def refusal(output: dict[str, Any], text: str, finish_reason: str = "stop") -> Refusal:
    outcome = checked(output, text, finish_reason)
    assert isinstance(outcome, Refusal), outcome
    assert (outcome.prompt_tokens, outcome.output_tokens) == (3, 5)
    return outcome


# ---------------------------------------------------------------- cut off, or of another form


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"json_schema": MOOD}, '{"mood": "good"}'),
        ({"json_schema": {"type": "integer"}}, "12"),
        ({"regex": "[0-9]+"}, "12"),
        ({"grammar": 'root ::= "a"+'}, "aa"),
        ({"choice": ["neg", "negative"]}, "neg"),
        ({"choice": ["neg", "negative"]}, "ne"),
    ],
)
def test_what_max_tokens_ended_is_cut_off_though_it_may_look_whole(
    output: dict[str, Any], text: str
) -> None:
    assert refusal(output, text, "length").kind is RowErrorKind.TRUNCATED


def test_a_choice_that_none_goes_on_from_is_whole_at_max_tokens() -> None:
    for text in ("negative", "pos"):
        found = checked({"choice": ["neg", "negative", "pos"]}, text, "length")
        assert isinstance(found, Answer)


def test_free_text_is_an_answer_however_it_ended() -> None:
    assert isinstance(AnswerCheck(None).outcome("any", "length", 1, 1), Answer)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"mood": "good"', "not JSON"),
        ('{"mood": "good"} and more', "not JSON"),
        ("", "not JSON"),
        ('{"mood": "so so"}', "'so so' is not one of"),
        ('{"mood": "bad", "mood": "good"}', "the key 'mood' twice"),
        ('{"mood": NaN}', "the value NaN"),
        ('{"mood": -Infinity}', "the value -Infinity"),
        ('{"mood": 1e999}', "the value 1e999"),
        ('{"mood": "good", "x": "\\ud800"}', "lone surrogate"),
        ('{"mood": "good", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"mood": "good", "x": ' + "9" * 5_000 + "}", "not JSON"),
        ("[]", "is not of type 'object'"),
    ],
)
def test_json_that_readers_could_differ_on_is_invalid(text: str, says: str) -> None:
    found = refusal({"json_schema": MOOD}, text)
    assert found.kind is RowErrorKind.INVALID_OUTPUT
    assert says in found.message
    assert len(found.message) < 500


def test_good_answers_of_each_form_pass() -> None:
    good = [
        ({"json_schema": MOOD}, ' {"mood":"good"}\n'),
        ({"json_schema": {}}, "[1e3, null]"),
        ({"regex": "^[a-c]{2}$"}, "ab"),
        ({"choice": ["a b", "c"]}, "a b"),
        ({"grammar": 'root ::= "x"'}, "x"),
    ]
    for output, text in good:
        found = checked(output, text)
        assert isinstance(found, Answer)
        assert dict(found.columns) == {"output": text}


def test_an_engine_that_knows_the_grammar_has_a_say() -> None:
    check = AnswerCheck(StructuredOutput(grammar='root ::= "x"'), accepts="x".__eq__)
    assert isinstance(check.outcome("x", "stop", 1, 1), Answer)
    wrong = check.outcome("xx", "stop", 1, 1)
    assert isinstance(wrong, Refusal)
    assert wrong.kind is RowErrorKind.INVALID_OUTPUT


def test_formats_that_python_knows_are_checked_and_others_are_words() -> None:
    dated = objects(day={"type": "string", "format": "date"})
    assert isinstance(checked(dated, '{"day": "2026-11-21"}'), Answer)
    assert "'2026-13-41' is not a 'date'" in refusal(dated, '{"day": "2026-13-41"}').message
    named = objects(name={"type": "string", "format": "hostname"})
    assert isinstance(checked(named, '{"name": "-- --"}'), Answer)


def test_the_draft_that_a_schema_names_is_the_one_it_is_read_by() -> None:
    pair = {"items": [{"type": "integer"}, {"type": "string"}]}
    draft = "http://json-schema.org/draft-07/schema#"
    seventh = {"json_schema": {"$schema": draft, "type": "array", **pair}}
    assert isinstance(checked(seventh, '[1, "a"]'), Answer)
    assert refusal(seventh, '["a", 1]').kind is RowErrorKind.INVALID_OUTPUT
    with pytest.raises(BadInput, match="no JSON schema"):
        spec({"json_schema": pair})


# ---------------------------------------------------------------- schemas that name others


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.org/schema.json"},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/none"}]}},
    ],
)
def test_a_schema_that_names_something_outside_of_it_is_refused_at_submit(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(BadInput, match=r"leads out of the schema: .* nothing is fetched") as caught:
        spec({"json_schema": schema})
    assert str(caught.value).count("$ref") == 1


def test_a_property_may_be_called_ref_and_references_inside_are_followed() -> None:
    schema = {
        "type": "object",
        "properties": {"$ref": {"$ref": "#/$defs/mood"}, "again": {"$ref": "#"}},
        "$defs": {"mood": {"enum": ["good"]}},
    }
    spec({"json_schema": schema})
    assert isinstance(checked({"json_schema": schema}, '{"again": {"$ref": "good"}}'), Answer)
    assert "'bad'" in refusal({"json_schema": schema}, '{"again": {"$ref": "bad"}}').message


def test_a_remote_reference_of_a_stored_job_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(socket.socket, "connect", never)
    remote = {"json_schema": {"$ref": "http://127.0.0.1:9/schema.json"}}
    stored = JobSpec.model_validate(job(remote), context=STORED)
    assert isinstance(stored.task, GenerateTask)
    found = AnswerCheck(stored.task.output).outcome("{}", "stop", 1, 1)
    assert isinstance(found, Refusal)
    assert "the schema cannot be followed" in found.message


# ---------------------------------------------------------------- asked again


def asked(output: dict[str, Any] | None, texts: list[str], **sampling: Any) -> tuple[Outcome, Any]:
    task = GenerateTask.model_validate(
        {"kind": "generate", "prompt": "x", "output": output, "sampling": sampling}
    )
    check, seen = AnswerCheck(task.output), []

    async def ask(one: RowSampling) -> list[Outcome]:
        text = texts[len(seen)]
        seen.append(one)
        found = check.outcome(text, "length" if text == "{" else "stop", 10, len(text))
        return [dataclasses.replace(found, cached_tokens=len(seen))]

    return asyncio.run(sample_until_valid(task, Request(7), ask)), seen


RETRIED = {"json_schema": MOOD, "on_invalid": {"retries": 3}}


def test_a_row_is_asked_again_until_its_answer_fits_and_every_try_counts() -> None:
    good = '{"mood":"bad"}'
    outcome, seen = asked(RETRIED, ["{", "no", good, "never"])
    assert isinstance(outcome, Answer)
    assert outcome.columns == {"output": good}
    assert (outcome.prompt_tokens, outcome.output_tokens) == (30, 1 + 2 + len(good))
    assert outcome.cached_tokens == 1 + 2 + 3
    assert len(seen) == 3
    refused, _ = asked(RETRIED, ["no"] * 4)
    assert isinstance(refused, Refusal)
    assert refused.cached_tokens == 1 + 2 + 3 + 4


def test_the_first_try_is_the_task_s_own_and_each_other_has_its_own_seed() -> None:
    _, seen = asked(RETRIED, ["no"] * 4)
    assert seen[0] == RowSampling(0.0, None)
    assert [one.temperature for one in seen[1:]] == [0.7] * 3
    assert len({one.seed for one in seen}) == 4
    _, sampled = asked(RETRIED, ["no"] * 4, temperature=0.3, seed=5)
    assert sampled[0] == RowSampling(0.3, row_seed(5, 7))
    assert [one.temperature for one in sampled] == [0.3] * 4
    assert len({one.seed for one in sampled} | {one.seed for one in seen}) == 8
    again = {**RETRIED, "on_invalid": {"retries": 1, "temperature": 1.5}}
    assert [one.temperature for one in asked(again, ["no"] * 2)[1]] == [0.0, 1.5]


def test_seeds_of_jobs_from_before_are_what_they_were() -> None:
    assert row_seed(7, 12) == 7621079646229878345
    assert row_seed(7, 12, 0) == row_seed(7, 12) != row_seed(7, 12, 1)


def test_a_row_that_never_fits_says_how_often_it_was_asked() -> None:
    outcome, seen = asked(RETRIED, ["no", "no", "no", "{"])
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TRUNCATED
    assert outcome.message.startswith("in 4 tries, at last: the answer was cut off")
    assert (outcome.prompt_tokens, outcome.output_tokens, len(seen)) == (40, 7, 4)


def test_without_on_invalid_a_row_is_asked_once() -> None:
    outcome, seen = asked({"json_schema": MOOD}, ["no"])
    assert isinstance(outcome, Refusal)
    assert not outcome.message.startswith("in ")
    assert len(seen) == 1


def test_held_on_retry_a_first_try_is_free_and_the_next_is_held_before_any_other_sampling() -> None:
    held = {"json_schema": MOOD, "hold": "on_retry", "on_invalid": {"retries": 1}}
    good = '{"mood":"bad"}'
    outcome, seen = asked(held, [f" {good}\n"])
    assert isinstance(outcome, Answer)
    assert outcome.columns == {"output": good}
    assert seen == [RowSampling(0.0, None, is_free=True)]
    outcome, seen = asked(held, ["so: " + good, good])
    assert isinstance(outcome, Answer)
    assert seen == [RowSampling(0.0, None, is_free=True), RowSampling(0.0, None)]
    assert (outcome.prompt_tokens, outcome.output_tokens) == (20, len("so: " + good) + len(good))
    outcome, seen = asked(held, ["no"] * 3)
    assert isinstance(outcome, Refusal)
    assert outcome.message.startswith("in 3 tries, at last: ")
    assert [(each.is_free, each.temperature) for each in seen] == [
        (True, 0.0),
        (False, 0.0),
        (False, 0.7),
    ]


def test_samples_that_are_held_after_a_free_try_have_seeds_that_no_sample_had() -> None:
    task = GenerateTask.model_validate(
        {
            "kind": "generate",
            "prompt": "{{ text }}",
            "sampling": {"temperature": 1, "n": 4},
            "output": {"choice": ["a", "b"], "hold": "on_retry", "on_invalid": {"retries": 1}},
        }
    )
    seen: list[RowSampling] = []

    async def ask(one: RowSampling) -> list[Outcome]:
        seen.append(one)
        return [AnswerCheck(task.output).outcome("no label", "stop", 1, 1)] * one.n

    asyncio.run(sample_until_valid(task, Request(7), ask))
    seeds = [(one.seed or 0) + at for one in seen for at in range(one.n)]
    assert len(set(seeds)) == 12
    assert [one.temperature for one in seen] == [1, 1, 1]
    again = drawn_again(seen[1], Request(7), 2)
    assert {again.seed, (again.seed or 0) + 1}.isdisjoint(seeds)


def test_white_space_around_free_text_is_no_part_of_a_label() -> None:
    labels = {"choice": ["bad", " good"]}
    free = {**labels, "hold": "on_retry"}
    assert asked(free, [" bad\n"])[0].columns == {"output": "bad"}
    assert asked(free, [" good"])[0].columns == {"output": " good"}
    assert isinstance(asked(labels, [" bad"])[0], Refusal)


# ---------------------------------------------------------------- the column `parsed`


def table_of(job: JobSpec, texts: list[str], schema: pa.Schema | None = None) -> PartTable:
    outcomes = dict(enumerate(Answer({"output": text}, "stop", 1, 1) for text in texts))
    passed = pa.table(
        {name: pa.array([f"{name}{row}" for row in outcomes]) for name in job.passed_columns}
    )
    schema = schema or output_schema.output_schema(job, INPUTS)
    assert schema is not None
    return part_table(job, schema, RowResults(list(outcomes), passed, dict(outcomes)))


def test_an_object_of_scalars_has_a_typed_column_beside_its_text() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": ["integer", "null"]},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "ok": {"type": "boolean"},
            "mood": {"$ref": "#/$defs/mood"},
            "unit": {"const": "kg"},
        },
        "$defs": {"mood": {"enum": ["good", "bad", None]}},
    }
    found = spec({"json_schema": schema})
    assert found.task.answers == ("output", "parsed")
    part = table_of(
        found,
        ['{"name": "a", "age": 3.0, "price": 2, "ok": true, "mood": null, "unit": "kg"}', "{}"],
    )
    assert part.errors == []
    kinds = {field.name: str(field.type) for field in part.table.schema.field("parsed").type}
    assert kinds == {
        "name": "string",
        "age": "int64",
        "price": "double",
        "ok": "bool",
        "mood": "string",
        "unit": "string",
    }
    assert part.table.column_names.index("parsed") == part.table.column_names.index("output") + 1
    first, second = part.table.column("parsed").to_pylist()
    assert first == {
        "name": "a",
        "age": 3,
        "price": 2.0,
        "ok": True,
        "mood": None,
        "unit": "kg",
    }
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "array", "items": {"type": "string"}},
        {"properties": {"a": {"type": "string"}}},
        {"type": ["object", "null"], "properties": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": ["string", "integer"]}}},
        {"type": "object", "properties": {"a": {"type": "null"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"enum": ["x", 1]}}},
        {"type": "object", "properties": {"a": {"const": {}}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    ],
)
def test_any_other_schema_has_no_typed_column(schema: dict[str, Any]) -> None:
    assert scalar_properties(schema) is None
    found = spec({"json_schema": schema}, output={"uri": "out", "columns": ["parsed"]})
    assert found.task.answers == ("output",)
    part = table_of(found, ["{}"])
    assert part.table.column("parsed").to_pylist() == ["parsed0"]


def test_the_name_is_reserved_just_where_the_column_is() -> None:
    with pytest.raises(BadInput, match="'parsed' is reserved"):
        spec({"json_schema": MOOD}, output={"uri": "out", "columns": ["parsed"]})
    spec({"regex": "a"}, output={"uri": "out", "columns": ["parsed"]})


def test_a_failed_row_has_neither_text_nor_struct() -> None:
    job_spec = spec({"json_schema": MOOD})
    refused = {0: Refusal(RowErrorKind.TRUNCATED, "cut", 1, 1), 1: Answer({"output": '{"mood":1}'})}
    schema = output_schema.output_schema(job_spec, INPUTS)
    assert schema is not None
    results = RowResults([0, 1], pa.table({"id": ["a", "b"]}), dict(refused))
    part = part_table(job_spec, schema, results)
    assert part.table.column("output").to_pylist() == [None, None]
    assert part.table.column("parsed").to_pylist() == [None, None]
    kinds = [str(error.kind) for error in part.errors]
    assert kinds == ["truncated", "invalid_output"]


@pytest.mark.parametrize(
    ("kind", "value"), [("integer", 2**63), ("integer", 1e300), ("number", 10**400)]
)
def test_a_number_that_no_column_holds_is_an_invalid_answer_and_no_crash(
    kind: str, value: float
) -> None:
    output = objects(n={"type": kind}, other={"type": "string"})
    text = json.dumps({"n": value})
    assert "has no place in the column parsed" in refusal(output, text).message
    part = table_of(spec(output), ['{"n": 1}', text, '{"other": "x"}'])
    assert [error.row_index for error in part.errors] == [1]
    assert part.table.column("parsed").to_pylist()[2] == {"n": None, "other": "x"}


def test_the_ledger_keeps_the_order_of_a_schema_s_properties() -> None:
    reasoned = objects(thoughts={"type": "string"}, b={"type": "string"}, a={"type": "string"})
    found = spec(reasoned)
    text = found.model_dump_json(by_alias=True, context=STORED)
    # What Postgres makes of it: its JSON has keys sorted by length, then by bytes.
    sorted_keys = json.loads(text, object_pairs_hook=lambda pairs: dict(sorted(pairs)))
    back = JobSpec.model_validate(sorted_keys, context=STORED)
    assert list(back.task.parsed or {}) == ["thoughts", "b", "a"]  # type: ignore[union-attr]
    assert back == found
    assert back.identity == found.identity
    assert '"json_schema":{' in found.model_dump_json()


# ---------------------------------------------------------------- there and back

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
values = {
    "string": texts,
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
}


@st.composite
def objects_with_answers(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    kinds = draw(
        st.dictionaries(names, st.sampled_from(sorted(SCALARS.values())), min_size=1, max_size=5)
    )
    optional = {name: draw(st.sampled_from(["required", "nullable", "absent"])) for name in kinds}
    schema = {
        "type": "object",
        "properties": {
            name: {"type": [kind, "null"] if optional[name] == "nullable" else kind}
            for name, kind in kinds.items()
        },
        "required": [name for name in kinds if optional[name] == "required"],
    }
    answers = []
    for _ in range(draw(st.integers(1, 4))):
        answer = {}
        for name, kind in kinds.items():
            if optional[name] == "absent" and draw(st.booleans()):
                continue
            drawn = values[kind]
            answer[name] = draw(drawn | st.none() if optional[name] == "nullable" else drawn)
        answers.append(answer)
    return schema, answers


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(objects_with_answers())
def test_typed_answers_come_back_from_parquet_and_json_lines(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    schema, answers = case
    found = spec({"json_schema": schema})
    ascii_and_not = [
        json.dumps(each, ensure_ascii=row % 2 == 0) for row, each in enumerate(answers)
    ]
    check = AnswerCheck(found.task.output)  # type: ignore[union-attr]
    for text in ascii_and_not:
        assert isinstance(check.outcome(text, "stop", 1, 1), Answer)
    part = table_of(found, ascii_and_not)
    assert part.errors == []
    wanted = [{name: each.get(name) for name in schema["properties"]} for each in answers]
    folder = tmp_path_factory.mktemp("parts")
    for kind in ("parquet", "jsonl"):
        uri = str(folder / f"part.{kind}")
        part_rows.write_part(uri, part.table, kind, {})
        back = read_part(uri, kind, part.table.schema)
        assert back.schema.equals(part.table.schema)
        assert back.column("parsed").to_pylist() == wanted
        assert back.column("output").to_pylist() == ascii_and_not


def test_a_whole_number_with_more_digits_than_a_double_is_no_number_of_parsed() -> None:
    assert typed({"x": 2**53}, {"x": "number"}) == {"x": 2.0**53}
    with pytest.raises(ValueError, match="more digits than a double has"):
        typed({"x": 2**53 + 1}, {"x": "number"})


HOSTILE = "a" * 40 + "!"
"""Backtracking takes hours to see that `(a+)+$` does not match this."""

CATASTROPHIC = "^(a+)+$"

DIALECT = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize(
    "output",
    [
        {"regex": "(a+)+"},
        {"json_schema": {"pattern": CATASTROPHIC}},
        {"json_schema": {"items": {**DIALECT, "pattern": CATASTROPHIC}}},
        {"json_schema": {"patternProperties": {CATASTROPHIC: False}}},
        {"json_schema": {"patternProperties": {CATASTROPHIC: {}}, "additionalProperties": False}},
        {"json_schema": {"patternProperties": {CATASTROPHIC: {}}, "unevaluatedProperties": False}},
        {
            "json_schema": {
                **DIALECT,
                "$ref": "#/no keyword/0",
                "no keyword": [{"pattern": CATASTROPHIC}],
            }
        },
    ],
)
def test_a_pattern_is_matched_without_backtracking(output: dict[str, Any]) -> None:
    for value in (HOSTILE, [HOSTILE], {HOSTILE: 1}):
        text = HOSTILE if "regex" in output else json.dumps(value)
        outcome = checked(output, text)
        assert isinstance(outcome, Answer | Refusal)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)b", "invalid perl operator"),
        ("(?<!a)b", "invalid"),
        (r"(a)\1", r"invalid escape sequence: \\1"),
        (r"a\Z", "invalid escape sequence"),
        ("a{,3}", "write {0,n}"),
        ("((a{100}){100}){100}", "invalid repetition size"),
        ("(", "missing \\)"),
        ("a" * 10_001, "more than 10,000 characters"),
    ],
)
def test_what_cannot_be_matched_without_backtracking_is_refused_at_submit(
    pattern: str, why: str
) -> None:
    outputs: list[dict[str, Any]] = [
        {"regex": pattern},
        {"json_schema": {"properties": {"a": {"anyOf": [{"pattern": pattern}]}}}},
        {"json_schema": {"$defs": {"a": {"patternProperties": {pattern: {}}}}}},
    ]
    if pattern == "(":
        outputs = outputs[:1]  # jsonschema's own sentence
    for output in outputs:
        with pytest.raises(BadInput, match=why):
            spec(output)


def test_patterns_of_names_that_are_too_long_together_are_refused_at_submit() -> None:
    """A validator joins them, and then no answer could be matched."""
    names = {each * 6_000: {} for each in "ab"}
    with pytest.raises(BadInput, match="it has more than 10,000 characters"):
        spec({"json_schema": {"patternProperties": names, "additionalProperties": False}})


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"regex": r"\d+"}, "٣"),
        ({"regex": r"\w+"}, "é"),
        ({"regex": "a$"}, "a\n"),
        ({"json_schema": {"pattern": "^a$"}}, '"a\\n"'),
        ({"json_schema": {"pattern": r"^\d$"}}, '"٣"'),
    ],
)
def test_a_pattern_is_read_as_grammars_read_it(output: dict[str, Any], text: str) -> None:
    assert isinstance(checked(output, text), Refusal)


def test_an_escape_of_unicode_is_one() -> None:
    text = "café"
    assert isinstance(checked({"regex": r"caf\u00e9"}, text), Answer)
    assert isinstance(checked({"json_schema": {"pattern": r"^caf\u00e9$"}}, f'"{text}"'), Answer)


def test_a_stored_pattern_that_cannot_be_matched_fails_its_rows() -> None:
    for output in ({"regex": "(?=a)a"}, {"json_schema": {"pattern": "(?=a)a"}}):
        stored = StructuredOutput.model_validate(output, context=STORED)
        outcome = AnswerCheck(stored).outcome('"a"', "stop", 1, 1)
        assert isinstance(outcome, Refusal)
        assert "cannot be" in outcome.message
        assert "RE2's" in outcome.message


def test_only_answers_are_matched_by_re2() -> None:
    """Other libraries validate in the same process, with patterns that RE2 does not have."""
    ahead = {"pattern": "^(?=a)", "additionalProperties": False, "patternProperties": {"(?=b)": {}}}
    for value in ("a", {"b": 1}):
        jsonschema.validate(value, ahead)
        with pytest.raises(UnusablePatternError):
            jsonschema.validate(matched_by_re2(value), ahead)


def test_a_deep_answer_is_checked() -> None:
    deep = "[" * 900 + '"a"' + "]" * 900
    assert isinstance(checked({"json_schema": {"type": "array"}}, deep), Answer)


def test_every_use_of_patterns_in_jsonschema_is_one_that_is_replaced() -> None:
    """Fails where a newer jsonschema matches patterns elsewhere, or in another way."""
    folder = Path(jsonschema.__file__).parent
    used = {
        (path.stem, call)
        for path in folder.glob("*.py")
        for call in re.findall(r"\bre\.(search|match|fullmatch|findall|sub)\(", path.read_text())
    }
    assert used == {("_keywords", "search"), ("_legacy_keywords", "search"), ("_utils", "search")}
