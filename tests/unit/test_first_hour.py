"""What a new user meets in the first hour, as decisions: which step a known job takes, what stays."""

from typing import Any

import pyarrow as pa
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.formats import output_schema
from nightshift.common.formats.jsonl.columns import to_table
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.spec.parse import PATTERNS
from nightshift.common.states import JobState
from nightshift.producer.local.known_job import Step, next_step
from nightshift.producer.submit.submitted import Submitted, differing_sections, kept_fields
from nightshift.worker.rows.columns import answer_column

R, P, F, C, X = (
    JobState.RUNNING,
    JobState.PAUSED,
    JobState.FAILED,
    JobState.COMPLETED,
    JobState.CANCELLED,
)

STEPS = [
    # state, rows done, rows failed, too many failed, step
    (R, 5, 5, False, Step.GO_ON),
    (P, 5, 0, False, Step.RESUME),
    (P, 5, 5, False, Step.RESUME),
    (P, 0, 250, True, Step.RESUME_AND_RETRY),
    (F, 0, 0, False, Step.RETRY),
    (F, 5, 5, False, Step.RETRY),
    (C, 0, 9, False, Step.RETRY),
    (C, 1, 9, False, Step.NONE),
    (C, 9, 0, False, Step.NONE),
    (X, 0, 9, False, Step.NONE),
]


@pytest.mark.parametrize(("state", "done", "failed", "too_often", "step"), STEPS)
def test_the_same_command_goes_on_with_what_failed_by_its_code(
    state: JobState, done: int, failed: int, too_often: bool, step: Step
) -> None:
    found = next_step(state, rows_done=done, rows_failed=failed, failed_too_often=too_often)
    assert found is step


def spec_of(**sections: Any) -> JobSpec:
    data = {
        "name": "t",
        "input": {"uri": "in.jsonl"},
        "task": {"kind": "generate", "prompt": "{{ text }}"},
        "engine": {"backend": "vllm", "model": "M", "price_per_hour": 1.0},
        "output": {"uri": "out"},
    }
    return parse_spec({**data, **sections}, "test")


def test_an_equal_spec_leaves_nothing_to_say() -> None:
    assert kept_fields(spec_of(), spec_of()) == ()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"priority": 7}, "keeps priority 0, not 7: `nightshift set 3 --priority 7` changes it"),
        ({"pool": "b"}, "keeps pool default, not b: `nightshift set 3 --pool b` changes it"),
        (
            {"limits": {"max_parallel": 4}},
            "keeps limits.max_parallel none, not 4: `nightshift set 3 --max-parallel 4` changes it",
        ),
        (
            {"limits": {"budget": 2.5}},
            "keeps limits.budget none, not 2.5: `nightshift set 3 --budget 2.5` changes it",
        ),
        ({"weight": 2}, "keeps weight 1, not 2: `nightshift set 3 --weight 2` changes it"),
        ({"batch": {"rows": 9}}, "keeps batch.rows 256, not 9: it is fixed at the first submit"),
        ({"name": "u"}, "keeps name t, not u: it is fixed at the first submit"),
    ],
)
def test_resubmitting_with_another_value_says_that_it_changes_nothing(
    sections: dict[str, Any], message: str
) -> None:
    (field,) = kept_fields(spec_of(), spec_of(**sections))
    assert field.message(3) == f"job 3 {message}"
    again = Submitted(3, False, 1, 1, JobState.RUNNING, kept=(field,))
    assert again.remarks == [field.message(3)]


def test_a_changed_prompt_or_model_is_named_as_what_makes_another_job() -> None:
    task = {"kind": "generate", "prompt": "Loud: {{ text }}"}
    engine = {"backend": "vllm", "model": "N", "price_per_hour": 2.0}
    other = spec_of(task=task, engine=engine, priority=3)
    assert differing_sections(spec_of(), other) == ["task.prompt", "engine.model"]


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"name": "Über cool"}, "name"),
        ({"pool": "a b"}, "pool"),
        ({"input": {"uri": "in", "watch": "often"}}, "input.watch"),
        (
            {"engine": {"backend": "openai", "model": "M", "base_url": "host:8000"}},
            "engine.base_url",
        ),
        (
            {"engine": {"backend": "function", "callable": "shout"}, "task": {"kind": "function"}},
            "engine.callable",
        ),
    ],
)
def test_a_pattern_is_never_shown_as_error_text(sections: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInput) as caught:
        spec_of(**sections)
    message = str(caught.value)
    assert message.startswith(f"test: {place}: ")
    assert not any(sign in message for sign in ("pattern", "^", "[", "\\"))


def test_every_pattern_of_a_spec_has_words() -> None:
    found: set[str] = set()

    def look(schema: Any) -> None:
        values = schema.values() if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and isinstance(schema.get("pattern"), str):
            found.add(schema["pattern"])
        for value in values:
            if isinstance(value, dict | list):
                look(value)

    look(JobSpec.model_json_schema())
    assert found == PATTERNS.keys()


def said_of(kind: pa.DataType, value: Any) -> str:
    """What is said of the second of two answers of a column of this type."""
    _, failures = answer_column(pa.field("v", kind), [None, value])
    return failures[1].message


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            pa.int64(),
            10**20,
            "the column 'v' holds 100000000000000000000, a whole number beyond 64 bits: answer with a "
            "text or a float",
        ),
        (
            pa.int64(),
            "a",
            "the column 'v' holds 'a', a text, and its answers are int64: all need one type",
        ),
        (
            pa.bool_(),
            1,
            "the column 'v' holds 1, a whole number, and its answers are bool: all need one type",
        ),
        (
            pa.string(),
            [1],
            "the column 'v' holds a list and its answers are string: all need one type",
        ),
    ],
)
def test_integers_beyond_64_bits_and_mixed_types_are_said_as_what_they_are(
    kind: pa.DataType, value: Any, message: str
) -> None:
    assert said_of(kind, value) == message


def test_an_integer_beyond_64_bits_makes_no_text_of_a_column_of_numbers() -> None:
    function = {"backend": "function", "callable": "m:f"}
    spec = spec_of(engine=function, task={"kind": "function"})
    answers = [{"v": 10**25}, {"v": 1}, {"v": 2}]
    schema = output_schema.inferred_schema(spec, pa.schema([]), answers)
    assert schema is not None
    assert schema.field("v").type == pa.int64()


def test_an_integer_of_the_input_beyond_64_bits_is_said_as_one() -> None:
    _, bad = to_table([{"n": 1}, {"n": 10**20}], ["n"], pa.schema([("n", pa.int64())]))
    assert bad == {
        1: "column 'n' holds 100000000000000000000, a whole number beyond 64 bits, which does not "
        "fit its type int64"
    }
