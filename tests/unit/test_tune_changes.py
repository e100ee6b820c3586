"""Which arguments may change answers, which are tried beside the sizes, and which of these are kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.common.ledger.engines.tunings import Tuning
from nightshift.common.permits.vllm_arguments import OPERATOR, PLAIN, RUNS_CODE
from nightshift.common.spec import parse_spec
from nightshift.producer.tune import changes, checkpoint, commands, table
from nightshift.producer.tune.agreement import Agreement, agreement
from nightshift.producer.tune.trials import Candidate, Trials, greedy_task
from nightshift.producer.tune.tune import (
    Tuned,
    detail,
    form_of,
    rounds_of,
    try_changes,
    try_sizes,
)

ONE_SIZE = {"max_num_seqs": [8], "max_num_batched_tokens": [2048]}
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
KV, WEIGHTS = {"kv_cache_dtype": "fp8"}, {"quantization": "fp8"}
BOTH_WEIGHTS = [{"quantization": "fp8_per_tensor"}, {"quantization": "fp8_per_channel"}]
SPECULATION = {"speculative_config": dict(changes.NGRAM)}
FASTER = {"performance_mode": "throughput"}


@pytest.mark.parametrize(
    ("own", "args", "changed"),
    [
        ({}, SIZES, {}),
        ({"max_num_seqs": 1}, {"max_num_seqs": 2, "gpu_memory_utilization": 0.95}, {}),
        ({}, {**SIZES, **KV}, KV),
        # The spec's own choice is what answers are compared with.
        (KV, {**SIZES, **KV}, {}),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        ({}, SPECULATION, SPECULATION),
        # The same as no value.
        ({}, {"kv_cache_dtype": "auto", "quantization": None, "dtype": "auto"}, {}),
        ({}, {"kv_cache_dtype": None}, {}),
        (KV, {}, {"kv_cache_dtype": "auto"}),
        # Other kernels round otherwise.
        ({}, {"optimization_level": 3}, {"optimization_level": 3}),
        ({}, {"compilation_config": {"mode": 0}}, {"compilation_config": {"mode": 0}}),
        # What nobody knows may change answers.
        ({}, {"an_argument_of_tomorrow": 1}, {"an_argument_of_tomorrow": 1}),
        ({}, {"max_model_len": 128}, {"max_model_len": 128}),
    ],
)
def test_which_arguments_may_change_answers(
    own: dict[str, Any], args: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert changes.changed(own, args) == changed


def test_every_argument_that_keeps_answers_is_one_of_vllm() -> None:
    assert changes.KEEP_ANSWERS <= PLAIN | OPERATOR | RUNS_CODE
    assert not changes.KEEP_ANSWERS & changes.FURTHER.keys()


@pytest.mark.parametrize(
    ("base", "named", "kind", "on_gpu", "first", "further", "left_out"),
    [
        ({}, {}, "generate", True, [SIZES, FASTER], [KV, *BOTH_WEIGHTS, SPECULATION], []),
        ({}, {}, "generate", False, [SIZES, FASTER], [KV, SPECULATION], ["quantization"]),
        (
            {},
            {},
            "embed",
            True,
            [SIZES, FASTER],
            BOTH_WEIGHTS,
            ["kv_cache_dtype", "speculative_config"],
        ),
        # What the spec says is not changed unless somebody asks for it.
        (KV, {}, "generate", True, [SIZES, FASTER], [*BOTH_WEIGHTS, SPECULATION], ["kv_cache_dtype"]),
        (
            KV,
            {"kv_cache_dtype": ["fp8", "fp8_e5m2", "auto"]},
            "generate",
            True,
            [SIZES, FASTER],
            [
                {"kv_cache_dtype": "fp8_e5m2"},
                {"kv_cache_dtype": "auto"},
                *BOTH_WEIGHTS,
                SPECULATION,
            ],
            [],
        ),
        # Where the spec names both sizes, the mode has nothing left to double.
        ({"max_num_seqs": 4, "max_num_batched_tokens": 64}, {}, "generate", True, [SIZES],
         [KV, *BOTH_WEIGHTS, SPECULATION], []),
        # No value leaves an argument out.
        ({}, {"quantization": [None], "speculative_config": [None]}, "generate", True,
         [SIZES, FASTER], [KV], []),
        # What is named is tried on a CPU, too.
        ({}, {"quantization": ["fp8"]}, "generate", False, [SIZES, FASTER], [WEIGHTS, KV, SPECULATION], []),
    ],
)  # fmt: skip
def test_what_is_tried(
    base: dict[str, Any],
    named: dict[str, list[Any]],
    kind: str,
    on_gpu: bool,
    first: list[dict[str, Any]],
    further: list[dict[str, Any]],
    left_out: list[str],
) -> None:
    found = changes.search_of(base, {**ONE_SIZE, **named}, kind, on_gpu=on_gpu)
    assert found.first == [base, *({**base, **each} for each in first)]
    assert found.further == further
    assert [each.split()[0] for each in found.left_out] == left_out


@pytest.mark.parametrize(
    ("named", "further", "left_out"),
    [
        (
            {},
            [KV, SPECULATION],
            ["quantization is not tried: the weights of the model are quantised"],
        ),
        ({"quantization": ["fp8"]}, [WEIGHTS, KV, SPECULATION], []),
    ],
)
def test_a_checkpoint_that_is_quantised_is_not_quantised_again_unless_somebody_asks(
    named: dict[str, list[Any]], further: list[dict[str, Any]], left_out: list[str]
) -> None:
    tried = {**ONE_SIZE, **named}
    found = changes.search_of({}, tried, "generate", on_gpu=True, is_quantised=True)
    assert found.further == further
    assert [each.removesuffix(" already") for each in found.left_out] == left_out


@pytest.mark.parametrize(
    ("config", "is_quantised"),
    [
        ('{"quantization_config": {"quant_method": "awq"}}', True),
        ('{"quantization_config": null}', False),
        ("{}", False),
        ("[]", False),
        ("no JSON", False),
        (None, False),
    ],
)
@pytest.mark.parametrize("place", ["a folder", "the cache of the hub"])
def test_a_config_says_whether_a_checkpoint_is_quantised(
    place: str,
    config: str | None,
    is_quantised: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(hub), raising=False)
    model, folder = str(tmp_path), tmp_path
    if place == "the cache of the hub":
        model, cached = "org/model", hub / "models--org--model"
        folder = cached / "snapshots" / ("a" * 40)
        folder.mkdir(parents=True)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("a" * 40)
    if config is not None:
        (folder / "config.json").write_text(config)
    assert checkpoint.is_quantised(model, None) is is_quantised


@pytest.mark.parametrize(
    ("own", "cheaper"),
    [
        ({**KV, **WEIGHTS, **SPECULATION, **SIZES}, {**KV, **WEIGHTS, **SPECULATION}),
        ({"dtype": "float16"}, {"dtype": "float16"}),
        # As many bits as there are, and the same as no value.
        ({"dtype": "float32", "kv_cache_dtype": "auto", "quantization": None}, {}),
        # Which model is meant, and how far it reads.
        ({"max_model_len": 128, "hf_overrides": {"num_labels": 2}, "hf_token": "hf_abc"}, {}),
    ],
)
def test_which_arguments_of_a_spec_make_it_faster_and_may_change_answers(
    own: dict[str, Any], cheaper: dict[str, Any]
) -> None:
    assert changes.cheaper(own) == cheaper


def test_a_search_without_names_has_nine_sizes_and_few_loads() -> None:
    found = changes.search_of({}, {}, "generate", on_gpu=True)
    assert (len(found.first), len(found.further)) == (11, 4)


def test_nothing_to_compare_is_refused_and_one_further_argument_is_enough() -> None:
    only = {**ONE_SIZE, "kv_cache_dtype": [None], "speculative_config": [None]}
    with pytest.raises(BadInput, match="nothing to compare"):
        changes.search_of(SIZES, {**only, "quantization": [None]}, "generate", on_gpu=True)
    found = changes.search_of(SIZES, {**only, "quantization": ["fp8"]}, "generate", on_gpu=True)
    assert (found.first, found.further) == ([SIZES], [WEIGHTS])


@pytest.mark.parametrize(
    ("best", "tried", "sizes"),
    [
        ({"max_num_batched_tokens": 8192}, [], [4096, 16384]),
        ({"max_num_batched_tokens": 8192}, [{"max_num_batched_tokens": 16384}], [4096]),
        # With other sequences a size is not the same.
        ({"max_num_batched_tokens": 8192}, [{"max_num_batched_tokens": 4096, "max_num_seqs": 1}],
         [4096, 16384]),
        ({"max_num_batched_tokens": 1024}, [], [2048]),
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 2048}, [], [4096]),
        ({}, [], []),
        ({"max_num_batched_tokens": "many"}, [], []),
    ],
)  # fmt: skip
def test_the_sizes_beside_the_best_that_were_not_tried(
    best: dict[str, Any], tried: list[dict[str, Any]], sizes: list[int]
) -> None:
    found = changes.sizes_beside(best, tried)
    assert [each["max_num_batched_tokens"] for each in found] == sizes


@pytest.mark.parametrize(
    ("equal", "least", "is_allowed"),
    [
        (1.0, None, False),
        (None, 0.0, False),
        (0.97, 0.97, True),
        (0.969, 0.97, False),
        (0.1, 0.0, True),
    ],
)
def test_what_may_change_answers_is_kept_by_the_users_word_and_a_measured_share_alone(
    equal: float | None, least: float | None, is_allowed: bool
) -> None:
    assert changes.is_allowed(equal, least) is is_allowed


class KnownTrials(Trials):
    """Trials whose rates and shares of equal answers are known, by the names of the arguments that may
    change answers. The arguments without any have the rate 100.
    """

    def __init__(self, known: Mapping[str, tuple[float | None, float | None]], most: int = 100):
        self.console = Console(quiet=True)
        self.known, self.most = known, most
        self.asked = {}
        self.ran: list[str] = []

    @property
    def is_sampled(self) -> bool:
        return False

    def is_budget_spent(self) -> bool:
        return len(self.ran) >= self.most

    def run(self, candidate: Candidate, rows: int) -> float | None:
        name = "+".join(sorted(candidate.changed))
        self.ran.append(name)
        rate, _ = self.known[name]
        if rate is None:
            candidate.problem = f"{name} broke"
        else:
            candidate.rates[rows] = rate
        return rate

    def compare(self, candidate: Candidate, own: Candidate, rows: int) -> None:
        assert own.changed == {}
        _, equal = self.known["+".join(sorted(candidate.changed))]
        candidate.agreement = None if equal is None else Agreement(rows, equal)


BOTH = "kv_cache_dtype+quantization"


@pytest.mark.parametrize(
    ("known", "least", "kept", "offered", "ran"),
    [
        # Never without the user's word.
        ({"kv_cache_dtype": (130, 1.0), "quantization": (120, 0.9)}, None, "", "kv_cache_dtype", 2),
        ({"kv_cache_dtype": (120, 1.0), "quantization": (150, 0.9)}, None, "", "quantization", 2),
        # With it what agrees well enough.
        ({"kv_cache_dtype": (130, 0.98), "quantization": (120, 0.9)}, 0.97, "kv_cache_dtype", "", 2),
        ({"kv_cache_dtype": (130, 0.9), "quantization": (120, 0.98)}, 0.97, "quantization",
         "kv_cache_dtype", 2),
        # Two that are allowed run together.
        ({"kv_cache_dtype": (130, 0.98), "quantization": (120, 0.99), BOTH: (160, 0.97)}, 0.97, BOTH,
         "", 3),
        ({"kv_cache_dtype": (130, 0.98), "quantization": (120, 0.99), BOTH: (160, 0.96)}, 0.97,
         "kv_cache_dtype", "", 3),
        ({"kv_cache_dtype": (130, 0.98), "quantization": (120, 0.99), BOTH: (131, 0.99)}, 0.97,
         "kv_cache_dtype", "", 3),
        # What is slower, or faster by less than noise, is neither kept nor offered.
        ({"kv_cache_dtype": (104, 1.0), "quantization": (90, 1.0)}, 0.5, "", "", 2),
        # Nor what is faster than what is kept by less than noise.
        ({"kv_cache_dtype": (124, 0.9), "quantization": (120, 0.98)}, 0.97, "quantization", "", 2),
        # What broke, and what was not measured.
        ({"kv_cache_dtype": (None, None), "quantization": (130, None)}, 0.0, "", "", 2),
    ],
)  # fmt: skip
def test_what_may_change_answers_is_kept_or_offered(
    known: dict[str, tuple[float | None, float | None]],
    least: float | None,
    kept: str,
    offered: str,
    ran: int,
) -> None:
    own = Candidate({}, {30: 100.0})
    found, trials = [own], KnownTrials(known)
    best, left = try_changes(found, own, trials, [KV, WEIGHTS], least)
    assert "+".join(sorted(best.changed)) == kept
    assert ("" if left is None else "+".join(sorted(left.changed))) == offered
    assert len(trials.ran) == ran == len(found) - 1


def test_each_is_tried_on_top_of_the_best_and_two_values_of_one_argument_never_together() -> None:
    own, best = Candidate({}, {30: 50.0}), Candidate(SIZES, {30: 100.0})
    found = [own, best]
    trials = KnownTrials({"kv_cache_dtype": (130, 1.0)})
    values = [KV, {"kv_cache_dtype": "fp8_e5m2"}]
    kept, _ = try_changes(found, best, trials, values, 0.9)
    assert [each.args for each in found[2:]] == [{**SIZES, **each} for each in values]
    assert kept is found[2]


def test_where_changes_are_allowed_at_most_three_more_are_tried_together() -> None:
    """Which docs/tuning.md counts."""
    further = changes.search_of({}, {}, "generate", on_gpu=True).further
    singles = {
        "kv_cache_dtype": (130, 1.0),
        "quantization": (120, 1.0),
        "speculative_config": (110, 1.0),
    }
    pairs = {f"kv_cache_dtype+{name}": (90, 1.0) for name in ("quantization", "speculative_config")}
    own = Candidate({}, {30: 100.0})
    trials = KnownTrials({**singles, **pairs})
    try_changes([own], own, trials, further, 0.9)
    assert len(trials.ran) == len(further) + 3


def test_where_the_budget_is_spent_the_best_stays() -> None:
    own = Candidate({"max_num_batched_tokens": 2048}, {30: 100.0})
    found, trials = [own], KnownTrials({}, most=0)
    assert try_sizes(found, own, trials) is own
    assert try_changes(found, own, trials, [KV], 0.0) == (own, None)
    assert found == [own]


def test_a_larger_step_is_kept_where_it_is_faster() -> None:
    own = Candidate({"max_num_batched_tokens": 2048}, {30: 90.0})
    found = [own]
    best = try_sizes(found, own, KnownTrials({"": (100, None)}))
    assert [each.args["max_num_batched_tokens"] for each in found] == [2048, 1024, 4096]
    assert best is found[1]  # as fast as the last, and earlier


def tuned(best: Candidate, offered: Candidate | None, *others: Candidate) -> Tuned:
    return Tuned(
        [Candidate({}, {30: 100.0}), *others],
        best,
        "h",
        "m",
        "generate",
        "reviews, choice",
        offered,
    )


def shown(made: Tuned) -> str:
    out = Console(width=200)
    with out.capture() as text:
        table.show(made, out)
    return text.get()


def test_what_may_change_answers_is_marked_and_what_was_left_is_named_with_its_figures() -> None:
    best = Candidate(SIZES, {30: 200.0}, agreement=Agreement(30, 1.0))
    left = Candidate({**SIZES, **KV}, {30: 260.0}, changed=KV, agreement=Agreement(30, 0.9667))
    made = tuned(best, left, best, left)
    said = shown(made)
    assert "100.0 % of 30 equal" in said
    assert "may change answers" in said
    assert (
        "With kv_cache_dtype=fp8 it would be 1.30 times as fast as what is kept, and answers may change "
        "(96.7 % of 30 equal): the same command with --min-agreement 0.95"
    ) in said
    told = table.as_json(made)
    assert told["offered"] == {"args": {**SIZES, **KV}, "gain": 1.3, "min_agreement": 0.95}
    assert told["tried"][2]["may_change_answers"] == KV
    assert told["tried"][2]["agreement"] == {"rows": 30, "equal": 0.9667, "by": "answers"}
    assert detail(made, 4) == {"offered": 4}


def test_what_is_kept_by_the_users_word_says_how_far_it_agrees() -> None:
    best = Candidate({**SIZES, **KV}, {30: 260.0}, changed=KV, agreement=Agreement(30, 0.9667))
    made = tuned(best, None, best)
    assert "kv_cache_dtype=fp8 may change answers, 96.7 % of 30 equal, for m" in shown(made)
    kept = detail(made, 4)
    assert (kept["changed"], kept["agreement"]["equal"]) == (KV, 0.9667)
    assert "offered" not in kept
    assert kept["said"].endswith("tuned, measured on the rows of reviews, choice")
    assert kept["own"] == {}
    assert Tuning("h", best.args, 1.0, detail=kept).changed == KV
    # A tuning of an older release keeps other arguments, and does not know the detail.
    assert Tuning("h", SIZES, 1.0, detail=kept).changed == {}


@pytest.mark.parametrize(
    ("before", "least", "rounds"),
    [
        (None, 0.9, 0),
        (Tuning("h", {}, 1.0, rounds=2), 0.9, 2),
        (Tuning("h", {}, 1.0, rounds=5, detail={"offered": 3}), None, 5),
        (Tuning("h", {}, 1.0, rounds=5, detail={"offered": 0}), 0.9, 0),
    ],
)
def test_the_round_that_left_something_goes_on_once_it_is_allowed(
    before: Tuning | None, least: float | None, rounds: int
) -> None:
    assert rounds_of(before, least) == rounds


@pytest.mark.parametrize(
    ("equal", "least"), [(1.0, 0.99), (0.975, 0.96), (0.97, 0.96), (0.29, 0.28), (0.004, 0.0)]
)
def test_the_share_that_is_advised_is_one_that_the_measured_one_passes(
    equal: float, least: float
) -> None:
    assert table.enough(equal) == least
    assert changes.is_allowed(equal, least)


def chunked(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    half = len(values) // 2
    kind = kind or pa.array(values).type
    return pa.chunked_array([pa.array(values[:half], kind), pa.array(values[half:], kind)])


@pytest.mark.parametrize(
    ("kind", "ours", "theirs", "equal"),
    [
        ("generate", ["a", "b", "c", "d"], ["a", "b", "c", "x"], 0.75),
        ("generate", [None, "b"], [None, "b"], 1.0),
        (
            "generate",
            [[{"output": "a", "tokens": 1}], [{"output": "b", "tokens": 1}]],
            [[{"output": "a", "tokens": 2}], [{"output": "x", "tokens": 1}]],
            0.5,
        ),
        ("classify", ["good", "bad"], ["good", "good"], 0.5),
        ("score", [0.5, 0.5, 0.5, 0.5], [0.5, 0.505, 0.52, 0.4], 0.5),
        (
            "requests",
            ['{"id": "1", "choices": [{"text": "a"}], "usage": {"n": 1}}', '{"id": "2"}'],
            ['{"id": "8", "choices": [{"text": "a"}], "usage": {"n": 2}}', '{"error": "no"}'],
            0.5,
        ),
    ],
)
def test_the_share_of_rows_with_equal_answers(
    kind: str, ours: list[Any], theirs: list[Any], equal: float
) -> None:
    found = agreement(kind, chunked(ours), chunked(theirs))
    assert (found.rows, found.equal, found.least) == (len(ours), equal, None)


def test_vectors_agree_by_their_cosine() -> None:
    kind = pa.list_(pa.float32(), 2)
    ours = chunked([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [0.0, 0.0]], kind)
    theirs = chunked([[2.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], kind)
    found = agreement("embed", ours, theirs)
    assert (found.by, found.rows) == ("vectors", 4)
    assert (found.equal, found.least) == (pytest.approx(0.5), pytest.approx(0.0, abs=1e-6))
    assert str(found) == "mean cosine 0.5000, least 0.0000"
    half = agreement("embed", ours.cast(pa.list_(pa.float16(), 2)), ours)
    assert np.isclose(half.least or 0, 0.0)


@pytest.mark.parametrize(
    ("task", "greedy"),
    [
        ({"kind": "generate"}, {"kind": "generate", "sampling": {"temperature": 0, "n": 1}}),
        (
            {"sampling": {"temperature": 0.7, "n": 3, "max_tokens": 4}, "vote": "choice"},
            {"sampling": {"temperature": 0, "n": 1, "max_tokens": 4}},
        ),
        (
            {"sampling_columns": {"temperature": "t", "max_tokens": "m"}},
            {
                "sampling": {"temperature": 0, "n": 1},
                "sampling_columns": {"max_tokens": "m"},
            },
        ),
        ({"sampling_columns": {"temperature": "t"}}, {"sampling": {"temperature": 0, "n": 1}}),
    ],
)
def test_a_task_without_its_samples(task: dict[str, Any], greedy: dict[str, Any]) -> None:
    assert greedy_task(task) == greedy


@pytest.mark.parametrize(
    ("task", "form"),
    [
        ({"kind": "generate", "prompt": "{{ text }}"}, "free text"),
        ({"kind": "generate", "prompt": "{{ text }}", "output": {"choice": ["a", "b"]}}, "choice"),
        (
            {
                "kind": "generate",
                "prompt": "{{ text }}",
                "output": {"json_schema": {"type": "object"}},
            },
            "JSON",
        ),
        ({"kind": "generate", "prompt": "{{ text }}", "output": {"regex": "a+"}}, "regex"),
        ({"kind": "embed", "text": "{{ text }}"}, "embed"),
    ],
)
def test_the_form_of_the_answers_that_were_measured(task: dict[str, Any], form: str) -> None:
    data = {
        "name": "form",
        "engine": {"backend": "vllm", "model": "org/model"},
        "input": {"uri": "in", "format": "parquet"},
        "output": {"uri": "out"},
        "task": task,
    }
    assert form_of(parse_spec(data, "test")) == form


@pytest.mark.parametrize("share", ["-0.1", "1.01", "98", "nan"])
def test_a_share_that_is_none_is_refused_before_anything_runs(share: str) -> None:
    with pytest.raises(BadInput, match="is not a share from 0 to 1"):
        commands.share(float(share))
