"""`nightshift tune` for real: trials on this machine, one that cannot load, and a job that is auto."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet import Fleet, logs
from tests.support.models import ARGUMENTS, MODEL, reviews_spec

ROWS = 180


def trying(*values: str) -> list[str]:
    return [word for each in values for word in ("--try", each)]


SIZES_ALONE = trying("performance_mode=balanced", "kv_cache_dtype=null", "speculative_config=null")
"""Further trials are left out: each loads the model anew."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path, NIGHTSHIFT_DRAIN_SECONDS="20")
    yield found
    found.end()


def test_a_model_is_tuned_and_a_job_takes_what_was_found(fleet: Fleet) -> None:
    engine = {"backend": "vllm", "model": str(MODEL)}
    slow = {**engine, "args": {**ARGUMENTS, "max_num_seqs": 1}}
    spec = fleet.spec(reviews_spec(fleet.folder, ROWS, engine=slow))
    tried = [*trying("max_num_seqs=0,32", "max_num_batched_tokens=2048"), *SIZES_ALONE]
    tuned = fleet.command("tune", str(spec), "--rows", str(ROWS), *tried, seconds=800)
    assert tuned.returncode == 0, tuned.stderr + logs(fleet.folder)
    assert "the engine could not be loaded" in tuned.stdout
    kept = tuned.stdout[tuned.stdout.index("Kept: ") :]
    assert "max_num_seqs=32" in kept
    assert "times the rows/s of the spec's own" in kept

    auto = {**engine, "args": "auto"}
    made = reviews_spec(fleet.folder, ROWS, engine=auto, name="auto")
    made["output"]["uri"] = str(fleet.folder / "auto")
    done = fleet.command("run", str(fleet.spec(made)), seconds=300)
    assert done.returncode == 0, done.stderr + logs(fleet.folder)
    assert "auto stands for" in done.stdout
    assert "max_num_seqs=32" in done.stdout
    assert json.loads((fleet.folder / "auto" / "_manifest.json").read_text())["rows"] == ROWS


def test_speculation_by_ngrams_is_measured_and_kept_once_its_flag_is_typed(fleet: Fleet) -> None:
    """One row at a time and answers that repeat themselves: what n-grams are made for."""
    one = {**ARGUMENTS, "max_num_seqs": 1, "max_num_batched_tokens": 2048}
    engine = {"backend": "vllm", "model": str(MODEL)}
    made = reviews_spec(fleet.folder, 60, engine={**engine, "args": one})
    del made["task"]["output"]
    made["task"]["sampling"] = {"max_tokens": 64, "ignore_eos": True}
    words = ["tune", str(fleet.spec(made)), "--rows", "60"]
    words += trying("max_num_seqs=1", "max_num_batched_tokens=2048", "kv_cache_dtype=null")
    first = fleet.command(*words, seconds=600)
    assert first.returncode == 0, first.stderr + logs(fleet.folder)
    assert "quantization is not tried: " in first.stdout
    assert "None was faster than the arguments of the spec, which are kept" in first.stdout
    advised = re.search(r"the same command with (--min-agreement) ([\d.]+)", first.stdout)
    assert advised is not None, first.stdout

    again = fleet.command(*words, *advised.groups(), "--json", seconds=100)
    assert again.returncode == 0, again.stderr + logs(fleet.folder)
    told = json.loads(again.stdout)
    own, ngrams = told["tried"]
    assert (own["args"], told["kept"]) == (one, ngrams["args"])
    assert ngrams["may_change_answers"]["speculative_config"]["method"] == "ngram"
    assert ngrams["agreement"]["rows"] == 60
    assert ngrams["agreement"]["equal"] >= float(advised[2])
    # Those of the first command were found again.
    assert "The trials stay as jobs 1, 2, with their files in" in again.stderr

    auto = {**made, "name": "auto", "engine": {**engine, "args": "auto"}}
    auto["output"] = {**made["output"], "uri": str(fleet.folder / "auto")}
    done = fleet.command("run", str(fleet.spec(auto)), seconds=300)
    assert done.returncode == 0, done.stderr + logs(fleet.folder)
    assert "may change answers: " in done.stdout
    assert " of 60 equal to those of the arguments that were tuned" in done.stdout
