"""The job spec: what is accepted, what it means, and one clear sentence for each mistake."""

import copy
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import JobSpec, load_spec, parse_spec
from nightshift.common.templates.sandbox import template_columns

GENERATE: dict[str, Any] = {
    "name": "review-sentiment",
    "input": {"uri": "s3://bucket/reviews/", "id": "review_id"},
    "task": {
        "kind": "generate",
        "messages": [
            {"role": "system", "content": "Name the sentiment."},
            {"role": "user", "content": "{{ text }}"},
        ],
        "sampling": {"temperature": 0, "max_tokens": 4},
        "output": {"choice": ["positive", "neutral", "negative"]},
    },
    "engine": {"backend": "vllm", "model": "org/model", "args": {"max_model_len": 2048}},
    "output": {"uri": "s3://bucket/scored/", "columns": ["product"]},
}
FUNCTION: dict[str, Any] = {
    "name": "shout",
    "input": {"uri": "rows.parquet", "id": "id"},
    "task": {"kind": "function"},
    "engine": {"backend": "function", "callable": "rules:shout"},
    "output": {"uri": "out/"},
}


def changed(spec: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy of `spec` with another value at a dotted place; None takes the key away."""
    copied = copy.deepcopy(spec)
    *sections, key = place.split(".")
    section = copied
    for name in sections:
        section = section.setdefault(name, {})
    if value is None:
        section.pop(key, None)
    else:
        section[key] = value
    return copied


def parsed(spec: dict[str, Any], place: str = "priority", value: Any = 0) -> JobSpec:
    return parse_spec(changed(spec, place, value), "job.yaml")


@pytest.mark.parametrize("spec", [GENERATE, FUNCTION], ids=["generate", "function"])
def test_a_spec_survives_its_way_through_the_ledger(spec: dict[str, Any]) -> None:
    first = parsed(spec)
    assert JobSpec.model_validate_json(first.model_dump_json(by_alias=True)) == first


MISTAKES = [
    (GENERATE, "colour", "red", "colour: unknown key"),
    (GENERATE, "task.sampling.heat", 1, "task.sampling.heat: unknown key"),
    (GENERATE, "input.uri", None, "input.uri: the key is missing"),
    (GENERATE, "input.uri", "  ", "input.uri: name at least one file, directory or glob"),
    (GENERATE, "input.uri", [], "input.uri: name at least one file, directory or glob"),
    (GENERATE, "input.limit", 0, "input.limit: "),
    (GENERATE, "input.format", "xlsx", "input.format: "),
    (GENERATE, "task.sampling.temperature", -1, "task.sampling.temperature: "),
    (GENERATE, "task.sampling.temperature", 2.5, "task.sampling.temperature: "),
    (GENERATE, "task.sampling.top_p", 0, "task.sampling.top_p: "),
    (GENERATE, "task.sampling.max_tokens", 0, "task.sampling.max_tokens: "),
    (
        GENERATE,
        "task.sampling.min_tokens",
        9,
        "task.sampling: min_tokens is larger than max_tokens",
    ),
    (
        GENERATE,
        "task.output",
        {"json_schema": {"type": "no such type"}},
        "task.output.json_schema: is no JSON schema: ",
    ),
    (
        GENERATE,
        "task.output",
        {"choice": ["a"], "regex": "a"},
        "task.output: give exactly one of choice, json_schema, regex, grammar",
    ),
    (GENERATE, "task.output", {}, "task.output: give exactly one of"),
    (GENERATE, "task.output", {"choice": []}, "task.output: choice needs at least one string"),
    (
        GENERATE,
        "task.output",
        {"choice": ["a", "a"]},
        "task.output: choice names the same string twice",
    ),
    (GENERATE, "task.prompt", "{{ text }}", "task: give either messages or prompt"),
    (GENERATE, "task.messages", None, "task: give either messages or prompt"),
    (GENERATE, "task.messages", [], "task: messages is empty"),
    (GENERATE, "task.messages", [{"role": "boss", "content": "x"}], "task.messages.0.role: "),
    (
        GENERATE,
        "task.messages",
        [{"role": "user", "content": "{{ text "}],
        "task: messages.0.content: template does not parse: ",
    ),
    (GENERATE, "task.kind", "paint", "task: "),
    (
        GENERATE,
        "task",
        {"kind": "function"},
        "engine.backend vllm runs task.kind classify or embed or generate or requests or score, not "
        "function",
    ),
    (
        FUNCTION,
        "task",
        {"kind": "generate", "prompt": "{{ text }}"},
        "engine.backend function runs task.kind function, not generate",
    ),
    (FUNCTION, "engine.callable", "rules.shout", "engine.callable: "),
    (FUNCTION, "engine.callable", "rules:shout()", "engine.callable: "),
    (GENERATE, "engine.args", {"model": "other"}, "engine.args: say model beside args"),
    (
        GENERATE,
        "engine.args",
        {"allowed_local_media_path": "/"},
        "engine.args: allowed_local_media_path has no use: vLLM fetches nothing",
    ),
    (
        GENERATE,
        "engine.args",
        {"allowed_media_domains": ["a.example"]},
        "engine.args: allowed_media_domains has no use: vLLM fetches nothing",
    ),
    (
        GENERATE,
        "engine.args",
        {"chat_template": "t.jinja"},
        "engine.args.chat_template is for vLLM's OpenAI server, which task.kind requests asks and "
        "generate does not",
    ),
    (GENERATE, "engine.backend", "magic", "engine: "),
    (GENERATE, "output.columns", ["error"], "the column name 'error' is reserved for the output"),
    (GENERATE, "input.id", "row_index", "the column name 'row_index' is reserved for the output"),
    (GENERATE, "output.columns", ["a", "a"], "output.columns names a column twice"),
    (GENERATE, "output.columns", ["review_id"], "output.columns names a column twice"),
    (GENERATE, "output.schema", {"score": "double"}, "output.schema is for functions"),
    (FUNCTION, "output.schema", {"id": "int64"}, "output.schema names 'id', which the output"),
    (FUNCTION, "output.schema", {"error": "int64"}, "output.schema names 'error', which the"),
    (GENERATE, "name", "12345", "name is only digits, which would look like a job number"),
    (GENERATE, "name", "two words", "name: "),
    (GENERATE, "name", "", "name: "),
    (GENERATE, "batch.rows", 0, "batch.rows: "),
    (GENERATE, "retry.max_attempts", 0, "retry.max_attempts: "),
    (GENERATE, "limits.max_failed_fraction", 1.5, "limits.max_failed_fraction: "),
    (GENERATE, "priority", 1001, "priority: "),
]


@pytest.mark.parametrize(
    ("spec", "place", "value", "said"),
    MISTAKES,
    ids=[f"{place}={str(value)[:24]}" for _, place, value, _ in MISTAKES],
)
def test_a_mistake_is_one_sentence_that_names_its_place(
    spec: dict[str, Any], place: str, value: Any, said: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parsed(spec, place, value)
    message = str(refused.value)
    assert message.startswith(f"job.yaml: {said}")
    assert "\n" not in message
    assert len(message) < 300


def test_every_mistake_is_named_at_once() -> None:
    spec = changed(changed(GENERATE, "colour", "red"), "batch.rows", 0)
    with pytest.raises(BadInput, match=r"^job\.yaml: (batch\.rows: .*|colour: .*); "):
        parse_spec(spec, "job.yaml")


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_a_spec_is_a_mapping(data: object) -> None:
    with pytest.raises(BadInput, match=r"^job\.yaml: a job spec is a mapping of sections"):
        parse_spec(data, "job.yaml")


def test_a_spec_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: shout\ninput: {uri: rows.parquet}\ntask: {kind: function}\n"
        "engine: {backend: function, callable: 'rules:shout'}\noutput: {uri: out/}\n"
    )
    assert load_spec(path).name == "shout"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: [unclosed\n", "no valid YAML"),
        (b"name: \xff\xfe\n", "cannot be read"),
        (b"\x00\x01", "no valid YAML"),
        (b"", "a job spec is a mapping of sections"),
        (b"!!python/object/apply:os.getcwd []\n", "no valid YAML"),
        (b"# " + b"x" * 10_000_000, "this is no job spec"),
    ],
    ids=["broken", "not-utf8", "control", "empty", "python-tag", "ten-megabytes"],
)
def test_a_file_that_is_no_spec_is_refused_by_name(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as refused:
        load_spec(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_spec_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.yaml: cannot be read"):
        load_spec(tmp_path / "nothing.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        load_spec(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("name", "renamed"),
        ("priority", 9),
        ("pool", "night"),
        ("output.uri", "elsewhere/"),
        ("batch.rows", 7),
        ("limits.max_parallel", 3),
        ("task.sampling.temperature", 1),
        ("retry.max_attempts", 9),
    ],
)
def test_the_engine_key_stays_when_the_loaded_engine_would(place: str, value: Any) -> None:
    assert parsed(GENERATE, place, value).engine_key == parsed(GENERATE).engine_key


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("engine.model", "org/other"),
        ("engine.revision", "v2"),
        ("engine.args", {"max_model_len": 4096}),
        ("engine.args", {}),
    ],
)
def test_the_engine_key_changes_with_what_is_loaded(place: str, value: Any) -> None:
    assert parsed(GENERATE, place, value).engine_key != parsed(GENERATE).engine_key


@pytest.mark.parametrize(
    ("engine", "keys"),
    [
        ({"backend": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}, 1),
        ({"backend": "vllm", "model": "org/m"}, 2),
    ],
)
def test_one_client_of_a_remote_server_sends_the_requests_of_every_task(
    engine: dict[str, Any], keys: int
) -> None:
    tasks = [
        {"kind": "generate", "prompt": "{{ text }}"},
        {"kind": "embed", "text": "{{ text }}"},
        {"kind": "requests", "endpoint": "/v1/chat/completions"},
        {"kind": "requests", "endpoint": "/v1/embeddings"},
    ]
    found = set()
    for task in tasks:
        form = {"format": "openai"} if task["kind"] == "requests" else {}
        spec = {**GENERATE, "input": {"uri": "x.jsonl", **form}, "task": task, "engine": engine}
        found.add(parse_spec(spec, "test").engine_key)
    assert len(found) == keys


def test_the_engine_key_does_not_depend_on_the_order_of_args() -> None:
    one = parsed(GENERATE, "engine.args", {"a": 1, "b": 2})
    two = parsed(GENERATE, "engine.args", {"b": 2, "a": 1})
    assert one.engine_key == two.engine_key
    assert len(one.engine_key) == 16


def test_a_worker_reads_only_what_templates_and_output_name() -> None:
    assert parsed(GENERATE).read_columns == ["review_id", "product", "text"]
    assert parsed(GENERATE, "output.columns", ["text"]).read_columns == ["review_id", "text"]


def test_a_function_sees_every_column_unless_told_otherwise() -> None:
    assert parsed(FUNCTION).read_columns is None
    assert parsed(FUNCTION, "input.columns", ["text", "id"]).read_columns == ["id", "text"]


@pytest.mark.parametrize(
    ("template", "columns"),
    [
        ("no column", set()),
        ("{{ a }} and {{ b.c }}", {"a", "b"}),
        ("{% for x in items %}{{ x }}{{ loop.index }}{% endfor %}", {"items"}),
        ("{% if flag %}{{ text | upper }}{% endif %}", {"flag", "text"}),
        ("{% set t = text %}{{ t }}{% for i in range(3) %}{% endfor %}", {"text"}),
    ],
)
def test_the_columns_of_a_template_are_those_it_takes_from_the_row(
    template: str, columns: set[str]
) -> None:
    assert template_columns(template) == columns


def test_one_uri_or_several_read_the_same() -> None:
    assert parsed(FUNCTION).input.uris == ["rows.parquet"]
    assert parsed(FUNCTION, "input.uri", ["a", "b"]).input.uris == ["a", "b"]


@pytest.mark.parametrize(
    ("task", "place"),
    [
        ({"prompt": "{{ text | nofilter }}"}, "nofilter"),
        ({"prompt": "{% if text is nosuch %}x{% endif %}"}, "nosuch"),
        ({"prompt": "{{ text }}", "output": {"regex": "("}}, "regex"),
        ({"prompt": "{{ text }}", "output": {"regex": ""}}, "regex"),
        ({"prompt": "{{ text }}", "output": {"grammar": ""}}, "grammar"),
        ({"prompt": "{{ text }}", "sampling": {"stop": [""]}}, "stop"),
    ],
)
def test_what_can_never_work_is_refused_before_anything_runs(
    task: dict[str, object], place: str
) -> None:
    data = {
        "name": "t",
        "input": {"uri": "x.parquet"},
        "task": {"kind": "generate", **task},
        "engine": {"backend": "vllm", "model": "m"},
        "output": {"uri": "out"},
    }
    with pytest.raises(BadInput, match=place) as caught:
        parse_spec(data, "job.yaml")
    assert "\n" not in str(caught.value)


def test_a_column_of_lengths_is_read_but_changes_no_engine_key() -> None:
    with_lengths = parsed(GENERATE, "task.sampling.max_tokens_column", "budget")
    assert with_lengths.read_columns == ["review_id", "product", "budget", "text"]
    assert with_lengths.engine_key == parsed(GENERATE).engine_key


def test_a_spec_without_a_column_of_lengths_is_the_one_it_was_before_there_were_any() -> None:
    assert "max_tokens_column" not in parsed(GENERATE).model_dump_json()
