"""Which fields of a stored spec may change, and what becomes of the spec."""

from typing import Any

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.spec import STORED, JobSpec, parse_spec
from nightshift.common.spec.changes import CHANGEABLE, changed

MODEL = {"backend": "vllm", "model": "org/model", "revision": "main", "price_per_hour": 2}


def stored(**sections: Any) -> dict[str, Any]:
    spec = parse_spec(
        {
            "name": "tickets",
            "input": {"uri": "rows.parquet"},
            "task": {"kind": "generate", "prompt": "{{ text }}"},
            "engine": MODEL,
            "output": {"uri": "out"},
            **sections,
        },
        "here",
    )
    return spec.model_dump(mode="json", by_alias=True, context=STORED)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ({"priority": "5"}, {"priority": (0, 5)}),
        ({"pool": "big"}, {"pool": ("default", "big")}),
        ({"weight": "2.5"}, {"weight": (1, 2.5)}),
        ({"max_parallel": "3"}, {"max_parallel": (None, 3)}),
        ({"budget": "50"}, {"budget": (None, 50.0)}),
        ({"revision": "v2"}, {"revision": ("main", "v2")}),
        ({"revision": "none"}, {"revision": ("main", None)}),
        ({"priority": "0", "pool": "default"}, {}),
        ({"priority": "1", "budget": "none"}, {"priority": (0, 1)}),
    ],
)
def test_old_and_new_values_are_said_and_stored(
    wanted: dict[str, str], changes: dict[str, tuple[object, object]]
) -> None:
    before = stored()
    after, written, found = changed(before, wanted)
    assert found == changes
    assert JobSpec.model_validate(written, context=STORED) == after
    assert {key: each for key, each in written.items() if before.get(key) != each}.keys() <= {
        CHANGEABLE[field][0] for field in changes
    }


def test_a_value_that_is_taken_away_leaves_no_key() -> None:
    _, written, _ = changed(
        stored(limits={"budget": 4}, weight=3), {"budget": "none", "weight": "1"}
    )
    assert "budget" not in written["limits"]
    assert "weight" not in written


def test_only_another_revision_needs_another_engine() -> None:
    before = JobSpec.model_validate(stored(), context=STORED)
    other = {"priority": "5", "pool": "big", "weight": "2", "max_parallel": "3", "budget": "1"}
    assert changed(stored(), other)[0].engine_key == before.engine_key
    assert changed(stored(), {"revision": "v2"})[0].engine_key != before.engine_key


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"priority": "high"}, "the job cannot be changed: priority: must be a whole number"),
        ({"priority": "5000"}, "priority: must be at most 1,000"),
        ({"pool": "a/b"}, "pool: must be letters"),
        ({"weight": "0"}, "weight: must be greater than 0"),
        ({"max_parallel": "0"}, "limits.max_parallel: must be at least 1"),
        ({"budget": "nan"}, "limits.budget"),
        ({"budget": "inf"}, "limits.budget: inf is no number"),
    ],
)
def test_what_a_spec_may_not_have_is_refused(wanted: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        changed(stored(), wanted)


def test_a_budget_needs_a_price_and_a_revision_a_model() -> None:
    function = stored(
        task={"kind": "function"}, engine={"backend": "function", "callable": "rules:shout"}
    )
    with pytest.raises(BadInput, match=r"limits\.budget needs a price"):
        changed(function, {"budget": "5"})
    with pytest.raises(BadInput, match="--revision is for models; the engine is function"):
        changed(function, {"revision": "v2"})
