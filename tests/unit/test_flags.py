"""Flags become the spec that a YAML file would be, or lie over one."""

import json
from pathlib import Path

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import (
    FunctionEngineSpec,
    GenerateTask,
    OpenaiEngineSpec,
    VllmEngineSpec,
    load_spec,
)
from nightshift.producer.cli.flags import Flags
from nightshift.producer.cli.job_spec import job_spec
from nightshift.producer.submit.names import job_name

MODEL = Flags(model="M", prompt="Sentiment of: {{ text }}", out="scored/")

SPEC = """
name: night
input: {uri: rows.parquet, id: id}
task:
  kind: generate
  messages: [{role: user, content: "{{ text }}"}]
  sampling: {temperature: 0.5, max_tokens: 4}
  output: {choice: [yes please, no thanks]}
engine: {backend: vllm, model: M, args: {max_model_len: 2048}}
output: {uri: out/}
batch: {rows: 8}
"""


def said(**flags: object) -> Flags:
    """The least that is enough for a model, and more."""
    return Flags(**{"model": "M", "prompt": "{{ text }}", "out": "o", **flags})  # type: ignore[arg-type]


@pytest.fixture
def spec_file(tmp_path: Path) -> str:
    path = tmp_path / "night.yaml"
    path.write_text(SPEC)
    return str(path)


def test_the_command_line_of_the_readme_is_a_whole_spec() -> None:
    spec = job_spec(
        "data/reviews.parquet",
        Flags(
            id="review_id",
            model="M",
            prompt="Sentiment of: {{ text }}",
            choice=["positive,neutral,negative"],
            out="scored/",
        ),
    )
    assert spec.name == "reviews"
    assert spec.input.id == "review_id"
    assert isinstance(spec.task, GenerateTask)
    assert spec.task.output is not None
    assert spec.task.output.choice == ["positive", "neutral", "negative"]
    assert isinstance(spec.engine, VllmEngineSpec)
    assert spec.output.uri == "scored/"


def test_a_callable_makes_a_function_job() -> None:
    spec = job_spec("rows.jsonl", Flags(callable="rules:shout", out="o"))
    assert spec.task.kind == "function"
    assert isinstance(spec.engine, FunctionEngineSpec)
    assert spec.engine.callable == "rules:shout"


def test_every_flag_reaches_its_place(tmp_path: Path) -> None:
    schema = tmp_path / "form.json"
    schema.write_text(json.dumps({"type": "object"}))
    spec = job_spec(
        "x.parquet",
        said(
            system="Be brief.",
            schema=schema,
            max_tokens=7,
            temperature=0.25,
            seed=3,
            revision="main",
            engine_arg=["max_model_len=512", "dtype=bfloat16", 'nested={"a": [1]}'],
            format="jsonl",
            columns=["a,b", "c"],
            batch_rows=5,
            where="stars > 3",
            limit=9,
            pool="p",
            priority=2,
            max_parallel=4,
            name="n",
        ),
    )
    assert isinstance(spec.task, GenerateTask)
    assert isinstance(spec.engine, VllmEngineSpec)
    assert [message.role for message in spec.task.messages or ()] == ["system", "user"]
    assert spec.task.output is not None
    assert spec.task.output.json_schema == {"type": "object"}
    sampling = spec.task.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (7, 0.25, 3)
    assert spec.engine.args == {"max_model_len": 512, "dtype": "bfloat16", "nested": {"a": [1]}}
    assert (spec.engine.revision, spec.output.format) == ("main", "jsonl")
    assert spec.output.columns == ["a", "b", "c"]
    assert (spec.batch.rows, spec.input.limit, spec.pool, spec.priority) == (5, 9, "p", 2)
    assert spec.input.where == "stars > 3"
    assert (spec.limits.max_parallel, spec.name) == (4, "n")


def test_a_grammar_comes_from_a_file(tmp_path: Path) -> None:
    grammar = tmp_path / "form.ebnf"
    grammar.write_text('root ::= "yes" | "no"\n')
    spec = job_spec("x.parquet", said(grammar=grammar))
    assert isinstance(spec.task, GenerateTask)
    assert spec.task.output is not None
    assert spec.task.output.grammar == 'root ::= "yes" | "no"\n'
    with pytest.raises(BadInput, match="--regex and --grammar both say"):
        job_spec("x.parquet", said(grammar=grammar, regex="a"))


def test_an_empty_json_schema_is_still_a_schema(tmp_path: Path) -> None:
    schema = tmp_path / "any.json"
    schema.write_text("{}")
    spec = job_spec("x.parquet", said(schema=schema))
    assert isinstance(spec.task, GenerateTask)
    assert spec.task.output is not None
    assert spec.task.output.json_schema == {}


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("reviews.parquet", "reviews"),
        ("s3://bucket/reviews/", "reviews"),
        ("data/2024/*.parquet", "job-2024"),
        ("my rows (new).jsonl", "my-rows-new"),
        ("*.parquet", "job"),
    ],
)
def test_a_job_is_named_after_its_input(target: str, name: str) -> None:
    assert job_name(target) == name


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (Flags(out="o"), "nothing says what to run"),
        (Flags(model="M", out="o"), "--model needs a --prompt"),
        (Flags(model="M", prompt="x"), "--out is missing"),
        (said(callable="a:b"), "--callable runs a Python function and --model is for models"),
        (Flags(callable="a:b", out="o", max_tokens=3), "--max-tokens is for models"),
        (said(choice=["a"], regex="b"), "--choice and --regex both say"),
        (Flags(model="M", system="s", out="o"), "--system goes before a --prompt"),
        (said(engine_arg=["nonsense"]), "is not KEY=VALUE"),
        (said(temperature=-1.0), "sampling.temperature"),
        (said(choice=["a,a"]), "the same string twice"),
        (said(schema=Path("no-such.json")), "cannot be read"),
        (said(name="7"), "only digits"),
        (said(base_url="http://127.0.0.1/v1", revision="main"), "--revision is for models"),
        (said(base_url="http://me@127.0.0.1/v1"), "engine.base_url"),
    ],
)
def test_what_cannot_be_is_one_sentence(flags: Flags, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as refused:
        job_spec("x.parquet", flags)
    assert "\n" not in str(refused.value)


def test_a_spec_without_flags_is_the_spec(spec_file: str) -> None:
    assert job_spec(spec_file, Flags()) == load_spec(Path(spec_file))


def test_flags_lie_over_a_spec_and_leave_the_rest(spec_file: str) -> None:
    spec = job_spec(
        spec_file,
        Flags(
            limit=100,
            out="elsewhere",
            batch_rows=16,
            pool="p",
            priority=5,
            name="other",
            engine_arg=["seed=1"],
            max_tokens=9,
        ),
    )
    assert isinstance(spec.task, GenerateTask)
    assert isinstance(spec.engine, VllmEngineSpec)
    assert (spec.input.uri, spec.input.id, spec.input.limit) == ("rows.parquet", "id", 100)
    assert (spec.output.uri, spec.batch.rows, spec.pool) == ("elsewhere", 16, "p")
    assert (spec.priority, spec.name) == (5, "other")
    assert spec.engine.args == {"max_model_len": 2048, "seed": 1}
    assert (spec.task.sampling.max_tokens, spec.task.sampling.temperature) == (9, 0.5)
    assert spec.task.messages is not None


def test_a_flag_silences_the_other_ways_to_say_the_same(spec_file: str) -> None:
    spec = job_spec(spec_file, Flags(prompt="Hello {{ text }}", regex="[a-z]+"))
    assert isinstance(spec.task, GenerateTask)
    assert (spec.task.prompt, spec.task.messages) == ("Hello {{ text }}", None)
    assert spec.task.output is not None
    assert (spec.task.output.regex, spec.task.output.choice) == ("[a-z]+", None)


def test_a_callable_does_not_fit_a_spec_for_a_model(spec_file: str) -> None:
    with pytest.raises(BadInput, match=r"--callable does not fit .*engine.backend is vllm"):
        job_spec(spec_file, Flags(callable="a:b"))


def test_a_missing_spec_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        job_spec("no-such.yaml", Flags())


def test_an_address_makes_a_remote_engine() -> None:
    spec = job_spec("x.parquet", said(base_url="http://127.0.0.1:8000/v1", engine_arg=["seed=1"]))
    assert isinstance(spec.engine, OpenaiEngineSpec)
    assert (spec.engine.base_url, spec.engine.model) == ("http://127.0.0.1:8000/v1", "M")
    assert spec.engine.args == {"seed": 1}


def test_an_address_and_a_model_lie_over_a_remote_engine_alone(
    spec_file: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"--base-url does not fit .*engine.backend is vllm"):
        job_spec(spec_file, Flags(base_url="http://127.0.0.1/v1"))
    remote = tmp_path / "remote.yaml"
    written = load_spec(Path(spec_file)).model_dump(mode="json", by_alias=True, exclude_unset=True)
    written["engine"] = {"backend": "openai", "model": "theirs", "concurrency": 3}
    remote.write_text(json.dumps(written))
    spec = job_spec(str(remote), Flags(model="other", base_url="http://127.0.0.1/v1"))
    assert isinstance(spec.engine, OpenaiEngineSpec)
    assert (spec.engine.model, spec.engine.concurrency) == ("other", 3)
    assert spec.engine.base_url == "http://127.0.0.1/v1"


@pytest.mark.parametrize(
    ("flags", "begins"),
    [
        (
            {"prompt": "a\n{{ text } b"},
            "--prompt: template does not parse: unexpected '}' (line 2, '{{ text } b')",
        ),
        (
            {"system": "{% if x %}", "prompt": "{{ text }}"},
            "--system: template does not parse: Unexpected end of template.",
        ),
        (
            {"system": "be kind", "prompt": "{{ text"},
            "--prompt: template does not parse: unexpected end of template",
        ),
    ],
)
def test_a_template_that_does_not_parse_names_its_flag_and_its_line(
    flags: dict[str, str], begins: str
) -> None:
    with pytest.raises(BadInput) as refused:
        job_spec("rows.parquet", said(**flags))
    assert str(refused.value).startswith(begins)


def test_a_flag_switches_the_thoughts_of_a_spec_off(spec_file: str) -> None:
    path = Path(spec_file)
    path.write_text(
        path.read_text().replace("sampling:", "thinking: on\n  keep_reasoning: true\n  sampling:")
    )
    task = job_spec(spec_file, Flags(thinking="off")).task
    assert isinstance(task, GenerateTask)
    assert (task.thinking, task.keep_reasoning) == ("off", True)
