"""`ns.run` with a language model, as docs/python.md begins: a DataFrame in, typed answers back."""

import subprocess
import sys
from collections.abc import Callable

from tests.support import warm
from tests.support.example import Example
from tests.support.models import ARGUMENTS

SCRIPT = f"""
import enum
from typing import Literal

import pandas as pd
from pydantic import BaseModel, Field

import nightshift as ns


class Mood(enum.Enum):
    GOOD = "positive"
    SOSO = "neutral"
    BAD = "negative"


class Verdict(BaseModel):
    sentiment: Mood
    stars: int | None = Field(default=None, ge=1, le=5)
    kind: Literal["review"]


reviews = pd.DataFrame(
    {{
        "text": ["I love this lamp.", "It broke. A waste of money."],
        "product": pd.Categorical(["lamp", "kettle"]),
        "bought": pd.to_datetime(["2026-01-02", None]).tz_localize("Europe/Berlin"),
    }},
    index=pd.Index(["a", "b"], name="review"),
)
job = ns.run(
    reviews,
    engine=ns.VllmEngineSpec(backend="vllm", model="../reviews/model", args={ARGUMENTS!r}),
    system="Name the sentiment of the review.",
    prompt="{{{{ text }}}}",
    output=Verdict,
    sampling=ns.Sampling(max_tokens=60),
    id="review",
    columns=["product", "bought"],
)
answers = job.to_pandas()
assert answers["review"].to_list() == ["a", "b"]
assert answers["error"].isna().all(), answers["error"].to_list()
assert answers["product"].dtype == reviews["product"].dtype
assert answers["bought"].equals(reviews["bought"].reset_index(drop=True))
found = [Verdict.model_validate(each) for each in answers["parsed"]]
assert [each.sentiment for each in found] == [Mood.GOOD, Mood.BAD], found
assert found == [Verdict.model_validate_json(text) for text in answers["output"]]
"""


def test_a_dataframe_goes_through_a_language_model_and_its_answers_are_the_models_of_the_caller(
    example: Callable[[str], Example],
) -> None:
    example("reviews")  # its model
    extract = example("extract")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=extract.folder,
        env=extract.environment | warm.IN_COMMANDS,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 rows, 0 failed; output in" in done.stderr
