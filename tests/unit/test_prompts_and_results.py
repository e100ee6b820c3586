"""Rows to requests, and outcomes to the table of a part: no row is lost on either way."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nightshift.common.descriptor import RowRanges
from nightshift.common.formats import output_schema, part_rows
from nightshift.common.formats.owner_marker import Owner
from nightshift.common.formats.part_rows import PartStore
from nightshift.common.formats.values import for_python
from nightshift.common.ledger import Ledger
from nightshift.common.row_errors import Failure
from nightshift.common.spec import REQUEST_COLUMNS, JobSpec, parse_spec
from nightshift.common.states import RowErrorKind
from nightshift.common.text import MESSAGE_CHARACTERS
from nightshift.worker.engines import pooling
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal, Request
from nightshift.worker.job_cache import JobCache, KnownJob
from nightshift.worker.outages import PatientLedger
from nightshift.worker.rows.columns import answer_column
from nightshift.worker.rows.prompts import Renderer
from nightshift.worker.rows.results import PartTable, RowResults, part_table, with_kept_rows
from nightshift.worker.telemetry.recorder import Recorder
from tests.support.parts import read_part


def spec(task: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
    task = task or {"kind": "function"}
    engine = (
        {"backend": "function", "callable": "rules:f"}
        if task["kind"] == "function"
        else {"backend": "vllm", "model": "m"}
    )
    data = {
        "name": "t",
        "input": {"uri": "x.parquet", "id": "id"},
        "task": task,
        "engine": engine,
        "output": {"uri": "out"},
        **sections,
    }
    return parse_spec(data, "test")


def generate(prompt: str) -> dict[str, Any]:
    return {"kind": "generate", "prompt": prompt}


INPUTS = pa.schema([("id", pa.string()), ("text", pa.string())])


def rendered(prompt: str, rows: list[dict[str, Any]]) -> tuple[list[Request], dict[int, Refusal]]:
    table = pa.Table.from_pylist(rows, schema=INPUTS)
    return Renderer(spec(generate(prompt)).task).render(table, range(len(rows)))


def test_a_prompt_is_one_user_message() -> None:
    (request,), _ = rendered("Say: {{ text }}", [{"id": "a", "text": "hé"}])
    assert request.messages == [{"role": "user", "content": "Say: hé"}]
    assert request.is_plain_prompt


def test_a_row_that_cannot_be_rendered_is_refused_alone() -> None:
    good, bad = rendered(
        "{{ text.upper() }}", [{"id": "a", "text": "x"}, {"id": "b", "text": None}]
    )
    assert [request.row_index for request in good] == [0]
    assert {row: refusal.kind for row, refusal in bad.items()} == {1: RowErrorKind.RENDER_ERROR}


@pytest.mark.parametrize(
    ("count", "is_refused"), [(100, False), (200, True)], ids=["within it", "beyond it"]
)
def test_the_budget_is_one_of_the_row_over_all_its_templates(
    count: int, *, is_refused: bool
) -> None:
    """Each template alone makes less than a hundredth of what a row may."""
    content = "{{ 'x' * 150000 }}"
    messages = [{"role": "user", "content": content} for _ in range(count)]
    table = pa.table({"text": ["a", "b"]})
    task = spec({"kind": "generate", "messages": messages}).task
    requests, refused = Renderer(task).render(table, range(2))
    assert (len(requests), len(refused)) == ((0, 2) if is_refused else (2, 0))
    assert all("characters or steps" in each.message for each in refused.values())


def test_a_row_may_bring_its_own_longest_answer() -> None:
    task = {**generate("{{ text }}"), "sampling": {"max_tokens_column": "budget"}}
    table = pa.table({"text": ["a", "b", "c"], "budget": [7, None, 0]})
    requests, refused = Renderer(spec(task).task).render(table, range(3))
    assert [request.max_tokens for request in requests] == [7, None]
    assert list(refused) == [2]
    assert "'budget' holds 0" in refused[2].message


@pytest.mark.parametrize(
    "template",
    [
        "{{ text.__len__ }}",
        "{{ [text]|map(attribute='__cla%s__' % 'ss')|first }}",
        "{{ '{0.__dict__}'.format(text) }}",
    ],
)
def test_templates_cannot_reach_python_objects(template: str) -> None:
    requests, refused = rendered(template, [{"id": "a", "text": "x"}])
    assert requests == []
    assert refused[0].kind is RowErrorKind.RENDER_ERROR


def results(outcomes: dict[int, Outcome], failures: dict[int, Failure] | None = None) -> RowResults:
    rows = sorted(outcomes)
    passed = pa.table({"id": [f"r{row}" for row in rows]})
    return RowResults(rows, passed, dict(outcomes), failures or {})


def table_of(job: JobSpec, found: RowResults, schema: pa.Schema | None = None) -> PartTable:
    schema = schema or output_schema.output_schema(job, INPUTS)
    schema = schema or output_schema.inferred_schema(job, INPUTS, found.answers())
    assert schema is not None
    return part_table(job, schema, found)


@pytest.mark.parametrize(
    ("own", "message", "of_function"),
    [
        (None, "OSError: no file /srv/hub/model", "OSError: no file /srv/hub/model"),
        (
            (),
            "OSError: the message is left out, since it names a file of the worker",
            "OSError: no file model",
        ),
        (("/srv/hub",), "OSError: no file /srv/hub/model", "OSError: no file /srv/hub/model"),
    ],
)
def test_the_message_of_a_library_or_function_names_no_file_of_the_worker_to_a_tenant(
    own: Sequence[str] | None, message: str, of_function: str
) -> None:
    why = "OSError: no file /srv/hub/model"
    given = {
        0: Refusal(RowErrorKind.REFUSED, why, of_library=True),
        1: Refusal(RowErrorKind.FUNCTION_ERROR, why),
    }
    found = results(given)
    found.own = own
    errors = table_of(spec(generate("{{ text }}")), found).errors
    assert [error.message for error in errors] == [message, of_function]


def test_a_generate_part_has_the_documented_columns_in_order() -> None:
    part = table_of(
        spec(generate("{{ text }}")),
        results({0: Answer({"output": "yes"}, "stop", prompt_tokens=3, output_tokens=2)}),
    )
    assert part.table.to_pylist() == [
        {
            "row_index": 0,
            "id": "r0",
            "output": "yes",
            "finish_reason": "stop",
            "prompt_tokens": 3,
            "output_tokens": 2,
            "answered_by": None,
            "error": None,
        }
    ]
    assert list(part.table.column_names) == [
        "row_index",
        "id",
        "output",
        "finish_reason",
        "prompt_tokens",
        "output_tokens",
        "answered_by",
        "error",
    ]
    assert (part.prompt_tokens, part.output_tokens, part.errors) == (3, 2, [])


def test_a_refused_row_keeps_its_line_its_id_and_its_tokens_but_no_output() -> None:
    part = table_of(
        spec(generate("{{ text }}")),
        results({7: Refusal(RowErrorKind.TRUNCATED, "cut", 4, 9, cached_tokens=3)}),
    )
    (row,) = part.table.to_pylist()
    assert row["id"] == "r7"
    assert row["output"] is None
    assert row["error"] == {"kind": "truncated", "message": "cut"}
    assert (row["prompt_tokens"], part.output_tokens, part.cached_tokens) == (4, 9, 3)
    assert [(error.row_index, error.row_id) for error in part.errors] == [(7, "r7")]


def test_a_record_that_could_not_be_read_has_a_line_without_id() -> None:
    found = results({0: Answer({"x": 1})})
    found.failures[1] = Failure.of(RowErrorKind.BAD_RECORD, "line 2 is no JSON")
    part = table_of(spec(), found)
    assert part.table.column("row_index").to_pylist() == [0, 1]
    assert part.table.column("id").to_pylist() == ["r0", None]
    assert part.errors[0].kind is RowErrorKind.BAD_RECORD


def test_later_answers_are_cast_and_what_cannot_be_is_a_row_error() -> None:
    schema = pa.schema(
        [
            ("row_index", pa.int64()),
            ("id", pa.string()),
            ("score", pa.float64()),
            pa.field("error", output_schema.ERROR_TYPE),
        ]
    )
    part = table_of(
        spec(), results({0: Answer({"score": 1}), 1: Answer({"score": "high"})}), schema
    )
    assert part.table.column("score").to_pylist() == [1.0, None]
    assert part.errors[0].kind is RowErrorKind.BAD_TYPE
    assert "high" in part.errors[0].message


def test_a_column_that_the_schema_lacks_is_a_row_error_not_silence() -> None:
    schema = output_schema.inferred_schema(spec(), INPUTS, [{"x": 1}])
    part = table_of(spec(), results({0: Answer({"x": 1}), 1: Answer({"x": 2, "y": 3})}), schema)
    assert [error.row_index for error in part.errors] == [1]
    assert "'y'" in part.errors[0].message


def test_a_function_may_hand_the_id_back_but_not_change_it() -> None:
    part = table_of(
        spec(), results({0: Answer({"id": "r0", "x": 1}), 1: Answer({"id": "zz", "x": 2})})
    )
    assert part.table.column("id").to_pylist() == ["r0", "r1"]
    assert [error.row_index for error in part.errors] == [1]


def test_answers_with_nulls_and_surrogates_are_kept() -> None:
    part = table_of(spec(), results({0: Answer({"x": "a\x00b\ud800"}), 1: Answer({"x": None})}))
    assert part.errors == []
    assert part.table.column("x").to_pylist() == ["a\x00b\ufffd", None]


def test_two_keys_of_an_answer_that_differ_in_half_a_character_are_no_one_key() -> None:
    answers = {
        0: Answer({"x": {"\ud800": 1}}),
        1: Answer({"x": dict.fromkeys(("\ud800", "\ud801"), 1)}),
    }
    part = table_of(spec(), results(answers))
    assert part.table.column("x").to_pylist() == [{"\ufffd": 1}, None]
    assert [(each.row_index, each.kind) for each in part.errors] == [(1, RowErrorKind.BAD_TYPE)]


def test_a_part_keeps_the_rows_that_did_not_run_again(tmp_path: Path) -> None:
    job = spec(generate("{{ text }}"))
    old = table_of(
        job,
        results(
            {
                0: Answer({"output": "a"}, "stop", 1, 1),
                1: Answer({"output": "b"}, "stop", 9, 9),
                2: Answer({"output": "c"}, "stop", 1, 1),
            }
        ),
    )
    new = table_of(job, results({1: Answer({"output": "B"}, "stop", 5, 5)}))
    uri = str(tmp_path / "old.parquet")
    part_rows.write_part(uri, old.table, "parquet", {"attempt": "1"})
    parts = PartStore(job, INPUTS, new.table.schema)
    redone = RowRanges.of((1, 2))
    table, made_by = parts.merge(new.table, {"attempt": "2"}, redone, "old.parquet", uri)
    assert made_by == {"attempt": "2", "rows_redone": "[[1, 2]]", "kept": '{"attempt": "1"}'}
    part = with_kept_rows(new, table, "id")
    assert part.table.column("output").to_pylist() == ["a", "B", "c"]
    assert (part.prompt_tokens, part.output_tokens) == (7, 7)


def test_messages_are_cut_and_cleaned_once() -> None:
    failure = Failure.of(RowErrorKind.REFUSED, "a\x00\ud800" + "x" * 1000)
    assert len(failure.message) == MESSAGE_CHARACTERS
    assert failure.message.startswith("a\\x00\\ud800")


def test_a_null_that_a_template_prints_is_a_row_error_and_not_the_word_none() -> None:
    requests, refused = rendered("Say: {{ text }}", [{"id": "a", "text": None}])
    assert requests == []
    assert refused[0].kind is RowErrorKind.RENDER_ERROR
    assert "null" in refused[0].message
    allowed, _ = rendered("Say: {{ text or '-' }}", [{"id": "a", "text": None}])
    assert len(allowed) == 1


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 1.5),
        (True, 5),
        (1, True),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1, 2], [1.5]),
        ("text", {"a": 1}),
        (1, [1]),
    ],
)
def test_a_value_that_its_column_cannot_hold_whole_is_an_error_of_its_row(
    first: object, later: object
) -> None:
    schema = output_schema.inferred_schema(spec(), INPUTS, [{"v": first}])
    part = table_of(spec(), results({0: Answer({"v": first}), 1: Answer({"v": later})}), schema)
    assert [(error.row_index, error.kind) for error in part.errors] == [(1, RowErrorKind.BAD_TYPE)]
    assert part.table.column("v").to_pylist() == [first, None]


@pytest.mark.parametrize("value", [2.0, 7, None])
def test_a_value_that_loses_nothing_is_cast(value: object) -> None:
    schema = output_schema.inferred_schema(spec(), INPUTS, [{"v": 1}])
    part = table_of(spec(), results({0: Answer({"v": value}), 1: Answer({"v": 3})}), schema)
    assert part.errors == []
    assert part.table.column("v").to_pylist() == [value, 3]


def test_values_that_nothing_can_hold_are_errors_of_their_rows() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    schema = output_schema.inferred_schema(spec(), INPUTS, [{"v": 1}])
    found = results({0: Answer({"v": endless}), 1: Answer({"v": object()}), 2: Answer({"v": 2})})
    part = table_of(spec(), found, schema)
    assert [error.row_index for error in part.errors] == [0, 1]


def test_an_empty_dict_does_not_make_a_part_that_cannot_be_written() -> None:
    schema = output_schema.inferred_schema(spec(), INPUTS, [{"e": {}, "n": None, "x": 1}])
    assert schema is not None
    assert schema.field("e").type == pa.string()
    assert schema.field("n").type == pa.string()


def test_nanoseconds_reach_a_function_as_microseconds() -> None:
    table = pa.table({"at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))})
    (row,) = for_python(table).to_pylist()
    assert row["at"].microsecond == 123456


def test_a_part_is_bare_by_the_schema_that_it_was_given() -> None:
    """Others may fix the job's schema before the part has its name."""
    cache = JobCache(PatientLedger(Ledger("postgresql://localhost/none"), Recorder()))
    job = KnownJob(1, Owner("ledger", "job"), spec(), INPUTS, Renderer(spec().task), {}, None)
    assert cache.output_schema(job, results({})) == (
        output_schema.bare_schema(job.spec, INPUTS),
        True,
    )
    job.output = pa.schema([("row_index", pa.int64())])
    assert cache.output_schema(job, results({})) == (job.output, False)


# ---------------------------------------------------------------- requests

REQUEST_INPUTS = pa.schema([(name, pa.string()) for name in REQUEST_COLUMNS])


def requests_spec() -> JobSpec:
    task = {"kind": "requests", "endpoint": "/v1/completions"}
    return spec(task, input={"uri": "x.jsonl", "format": "openai"})


def test_a_request_is_its_body_and_another_url_is_refused() -> None:
    rows = [
        {"custom_id": "a", "method": "POST", "url": url, "body": '{"prompt": "x", "n": 1}'}
        for url in ("/v1/completions", "/v1/embeddings")
    ]
    table = pa.Table.from_pylist(rows, schema=REQUEST_INPUTS)
    good, bad = Renderer(requests_spec().task).render(table, range(2))
    assert [request.body for request in good] == [{"prompt": "x", "n": 1}]
    assert bad[1].kind is RowErrorKind.BAD_RECORD
    assert bad[1].message == "the url is '/v1/embeddings', and the job is for /v1/completions"


def test_half_of_a_character_in_a_body_is_sent_as_elsewhere() -> None:
    url, body = "/v1/completions", r'{"prompt": "a\ud800", "k\udfff": ["\ud83d\ude00"]}'
    row = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    table = pa.Table.from_pylist([row], schema=REQUEST_INPUTS)
    (good,), bad = Renderer(requests_spec().task).render(table, range(1))
    assert (good.body, bad) == ({"prompt": "a\ufffd", "k\ufffd": ["\U0001f600"]}, {})


def test_what_a_refusal_says_in_columns_stands_beside_its_error() -> None:
    job = requests_spec()
    said = {"status_code": 404, "request_id": "r", "response": '{"error": {}}'}
    found = RowResults(
        [0, 1, 2],
        pa.table({"custom_id": ["a", "b", "c"]}),
        {
            0: Refusal(RowErrorKind.REFUSED, "no", 3, columns=said),
            1: Answer({**said, "status_code": "many"}, prompt_tokens=1, output_tokens=2),
            2: Refusal(RowErrorKind.TIMEOUT, "late"),
        },
    )
    refused, unfit, late = part_table(
        job, output_schema.output_schema(job, REQUEST_INPUTS), found
    ).table.to_pylist()
    assert {name: refused[name] for name in said} == said
    assert refused["error"]["kind"] == "refused"
    assert refused["prompt_tokens"] == 3
    assert unfit["error"]["kind"] == "bad_type"
    assert {unfit[name] for name in said} == {late["response"]} == {None}


EMBED = {"kind": "embed", "text": "{{ text }}"}
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def embedded(dtype: str = "float32") -> PartTable:
    """Four vectors, one failed row, one vector of another length, and one that is none."""
    found: dict[int, Outcome] = {
        row: Answer({"embedding": vector.astype(dtype)}, prompt_tokens=2)
        for row, vector in enumerate(VECTORS)
    }
    found[4] = Refusal(RowErrorKind.TOO_LONG, "too long")
    found[5] = Answer({"embedding": np.zeros(4, np.float32)}, prompt_tokens=2)
    found[6] = Answer({"embedding": "far away"})
    return table_of(spec({**EMBED, "dtype": dtype}), results(found))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_are_a_list_of_one_length_that_every_format_brings_back(
    dtype: str, tmp_path: Path
) -> None:
    table = embedded(dtype).table
    number = pa.float32() if dtype == "float32" else pa.float16()
    assert table.schema.field("embedding").type.equals(pa.list_(number, 3))
    assert table.schema.names == [
        *("row_index", "id", "embedding", "prompt_tokens"),
        *("answered_by", "error"),
    ]
    stacked = np.stack(table.column("embedding").slice(0, 4).to_pylist())
    assert np.array_equal(stacked.astype(dtype), VECTORS.astype(dtype))
    for kind in ("parquet", "jsonl"):
        uri = str(tmp_path / f"part.{kind}")
        part_rows.write_part(uri, table, kind, {})
        assert read_part(uri, kind, table.schema).equals(table)


def test_what_is_no_vector_of_the_jobs_length_fails_its_row() -> None:
    part = embedded()
    assert [(error.row_index, error.kind) for error in part.errors] == [
        (4, RowErrorKind.TOO_LONG),
        (5, RowErrorKind.BAD_TYPE),
        (6, RowErrorKind.BAD_TYPE),
    ]
    assert "has 3 numbers, and this is a vector of 4" in part.errors[1].message
    assert part.table.column("embedding").null_count == 3
    assert part.prompt_tokens == 10


def test_a_job_whose_first_batch_has_no_vector_learns_their_length_later() -> None:
    job = spec(EMBED)
    assert output_schema.inferred_schema(job, INPUTS, []) is None
    assert output_schema.bare_schema(job, INPUTS).names == [
        "row_index",
        "id",
        "answered_by",
        "error",
    ]


def test_a_classification_has_a_column_for_its_labels_in_the_models_order() -> None:
    shares = dict(zip(["b", "a", "c"], np.float32([0.1, 0.7, 0.2]), strict=True))
    answer = Answer({"label": "a", "probability": shares["a"], "probabilities": shares})
    part = table_of(
        spec({"kind": "classify", "text": "{{ text }}"}),
        results({0: answer, 1: Refusal(RowErrorKind.TOO_LONG, "too long")}),
    )
    kind = pa.struct([(name, pa.float32()) for name in "bac"])
    assert part.table.schema.field("probabilities").type.equals(kind)
    assert part.table.schema.field("probability").type == pa.float32()
    first, second = part.table.to_pylist()
    assert first["label"] == "a"
    assert first["probabilities"] == pytest.approx({"b": 0.1, "a": 0.7, "c": 0.2})
    assert (second["label"], second["probabilities"]) == (None, None)
    assert [error.row_index for error in part.errors] == [1]


class Unsearched(list[str]):
    def index(self, *_: object) -> int:
        raise AssertionError("searched")

    def __contains__(self, _: object) -> bool:
        raise AssertionError("searched")


def test_the_shares_of_many_labels_become_a_dict_without_a_search_for_each() -> None:
    (outcome,) = pooling.classifications(np.float32([[0.25, 0.75]]), Unsearched("ab"), [3])
    assert isinstance(outcome, Answer)
    shares = outcome.columns["probabilities"]
    assert dict(shares) == {"a": 0.25, "b": 0.75}
    assert (shares["b"], "c" in shares, len(shares)) == (0.75, False, 2)
    with pytest.raises(KeyError):
        shares["c"]


def test_a_pass_of_classifications_becomes_a_column_with_its_failed_rows() -> None:
    """A struct whose labels are others than the job's is a failure of its row, as for any answer."""
    numbers = np.float32([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25], [np.nan, 0.5, 0.5]])
    one, other, failed = pooling.classifications(numbers, ["b", "a", "c"], [3, 4, 5])
    assert isinstance(failed, Refusal)
    assert failed.prompt_tokens == 5
    (unlike,) = pooling.classifications(numbers[:1, :2], ["b", "x"], [3])
    job = spec({"kind": "classify", "text": "{{ text }}"})
    part = table_of(job, results({0: one, 1: failed, 2: other}))
    first, second, third = part.table.to_pylist()
    assert first["probabilities"] == pytest.approx({"b": 0.1, "a": 0.7, "c": 0.2})
    assert first["probability"] == pytest.approx(0.7)
    assert (second["label"], second["probabilities"]) == (None, None)
    assert (third["label"], third["probabilities"]) == ("b", {"b": 0.5, "a": 0.25, "c": 0.25})
    assert part.prompt_tokens == 12
    kind = pa.field("probabilities", pa.struct([(name, pa.float32()) for name in "bac"]))
    assert isinstance(one, Answer)
    assert isinstance(unlike, Answer)
    shares = [each.columns["probabilities"] for each in (one, unlike)]
    column, failures = answer_column(kind, [*shares, None])
    assert column.is_valid().to_pylist() == [True, False, False]
    assert [*failures] == [1]


def test_a_function_may_answer_with_numpy() -> None:
    answers: dict[int, Outcome] = {
        0: Answer({"f": np.float32(0.5), "i": np.int64(3), "b": np.bool_(True), "v": VECTORS[0]}),
        1: Answer({"f": np.float32(1), "i": np.int64(4), "b": np.bool_(False), "v": VECTORS[1]}),
    }
    part = table_of(spec(), results(answers))
    assert [str(part.table.schema.field(name).type) for name in "fibv"] == [
        "float",
        "int64",
        "bool",
        "list<item: float>",
    ]
    assert part.errors == []
    matrix = table_of(spec(), results({0: Answer({"m": VECTORS[:2], "n": np.array(2)})}))
    assert matrix.table.to_pylist()[0]["m"] == VECTORS[:2].tolist()
    assert matrix.table.to_pylist()[0]["n"] == 2


def test_declared_vectors_and_structs_hold_what_a_function_returns() -> None:
    schema = {"v": "list<float>[3]", "s": "struct<a: int64, b: list<string>>"}
    job = spec(output={"uri": "out", "schema": schema})
    found: dict[int, Outcome] = {
        0: Answer({"v": [1, 2, 3], "s": {"a": np.int64(1), "b": ["x"]}}),
        1: Answer({"v": np.ones(3), "s": None}),
        2: Answer({"v": [1, None, 3]}),
        3: Answer({"v": None, "s": {"a": 1, "c": 2}}),
    }
    part = table_of(job, results(found))
    assert [error.row_index for error in part.errors] == [2, 3]
    assert part.table.to_pylist()[0]["v"] == [1.0, 2.0, 3.0]
    assert part.table.to_pylist()[0]["s"] == {"a": 1, "b": ["x"]}


def test_a_function_that_hands_a_passed_column_back_as_an_array_is_compared_with_it() -> None:
    job = spec()
    same = table_of(job, results({0: Answer({"x": 1, "id": np.array("r0")})}))
    assert same.errors == []
    changed = table_of(job, results({0: Answer({"x": 1, "id": np.array(["r0", "r1"])})}))
    assert [error.kind for error in changed.errors] == [RowErrorKind.BAD_TYPE]


def test_nested_arrays_and_nan_come_back_as_they_were() -> None:
    values = [[[1.0, 2.0], [3.0]], [[float("nan")]], [[5.0]]]
    inputs = pa.schema([("v", pa.list_(pa.list_(pa.float64())))])
    job = spec(input={"uri": "x.parquet"}, output={"uri": "out", "columns": ["v"]})
    found = RowResults(
        [0, 1, 2],
        pa.table({"v": values}, inputs),
        {
            0: Answer({"x": 1, "v": [np.array([1.0, 2.0]), np.array([3.0])]}),
            1: Answer({"x": 1, "v": [np.array([np.nan])]}),
            2: Answer({"x": 1, "v": [np.array([5.0, 6.0])]}),
        },
    )
    schema = output_schema.inferred_schema(job, inputs, found.answers())
    assert schema is not None
    part = part_table(job, schema, found)
    assert [error.row_index for error in part.errors] == [2]
    assert part.table.column("x").to_pylist() == [1, 1, None]
