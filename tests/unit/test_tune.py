"""A tuning without engines: which candidate is kept, what is shown, which values a flag may have."""

from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from nightshift.common.errors import BadInput
from nightshift.common.ledger.engines.tunings import MachineLoads
from nightshift.producer.tune import commands as command
from nightshift.producer.tune import halving, table
from nightshift.producer.tune.refusal import ALONE_SECONDS, refusal
from nightshift.producer.tune.trials import Candidate, Trials
from nightshift.producer.tune.tune import Tuned, search

STEPS = halving.rungs(5, 30)


class KnownTrials(Trials):
    """Trials whose rates are known: by the candidate's `speed`. One whose engine `breaks_at` so many
    rows has no rate with them.
    """

    def __init__(self, most: int = 100) -> None:
        """The budget is spent after `most` trials."""
        self.console = Console(quiet=True)
        self.most = most
        self.asked = {}
        self.ran: list[tuple[int, int]] = []

    def is_budget_spent(self) -> bool:
        return len(self.ran) >= self.most

    def run(self, candidate: Candidate, rows: int) -> float | None:
        speed = candidate.args["speed"]
        self.ran.append((speed, rows))
        if rows >= candidate.args.get("breaks_at", 1000):
            candidate.problem = f"out of memory at {speed}"
            return None
        candidate.rates[rows] = float(speed)
        return float(speed)


def candidates(*speeds: int, broken: Sequence[int] = (), at: int = 0) -> list[Candidate]:
    return [
        Candidate({"speed": speed, **({"breaks_at": at} if speed in broken else {})})
        for speed in speeds
    ]


def shown(tuned: Tuned) -> str:
    out = Console(width=140)
    with out.capture() as text:
        table.show(tuned, out)
    return text.get()


def test_a_search_ends_with_the_fastest_and_a_trial_that_breaks_is_a_result() -> None:
    found, trials = candidates(5, 1, 2, 9, 7, broken=[2]), KnownTrials()
    best = search(found, trials, STEPS)
    assert best is found[3]
    assert trials.ran[:5] == [(5, 10), (1, 10), (2, 10), (9, 10), (7, 10)]
    assert sorted(trials.ran[5:]) == [(5, 30), (7, 30), (9, 30)]
    assert found[2].problem == "out of memory at 2"
    made = Tuned(found, best, "2 CPU cores", "m", "generate")
    assert made.gain == pytest.approx(9 / 5)
    told = table.as_json(made)
    assert (told["kept"], told["tried"][3]["rows_per_second"]) == ({"speed": 9}, {10: 9.0, 30: 9.0})
    text = shown(made)
    assert "out of memory at 2" in text
    assert "Kept: speed=9, 1.80 times the rows/s of the spec's own, for m, generate" in text


@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        # All that went on broke with more rows: the fastest of the others is known from fewer.
        ([5, 9, 7], 2),
        ([9, 7], 5),
        ([9], 7),
    ],
)
def test_candidates_that_break_later_leave_what_was_known_before(
    broken: list[int], kept: int
) -> None:
    found = candidates(5, 1, 2, 9, 7, broken=broken, at=30)
    best = search(found, KnownTrials(), STEPS)
    assert best is not None
    assert best.args["speed"] == kept


@pytest.mark.parametrize(("most", "kept"), [(3, 5), (5, 9), (6, 9), (7, 9), (8, 9)])
def test_where_the_budget_ends_the_fastest_of_the_last_whole_step_is_kept(
    most: int, kept: int
) -> None:
    found = candidates(5, 1, 2, 9, 7)
    best = search(found, KnownTrials(most), STEPS)
    assert best is not None
    assert best.args["speed"] == kept
    assert all(each.problem is None for each in found)


def test_without_a_trial_that_ran_the_table_and_the_reason_are_shown() -> None:
    found = candidates(1, 2, broken=[1, 2])
    made = Tuned(
        found,
        search(found, KnownTrials(), [halving.Rung(2, 30)]),
        "h",
        "m",
        "generate",
    )
    assert (made.best, made.gain, table.as_json(made)["kept"]) == (None, None, None)
    text = shown(made)
    assert "out of memory at 2" in text
    assert "Nothing is kept" in text
    with pytest.raises(BadInput, match="no trial came to its end: out of memory at 1"):
        made.refuse_without_result()


def test_secrets_among_the_arguments_are_not_shown() -> None:
    secret = {"hf_token": "hf_abc", "loader": {"api_key": "sk-1"}, "max_num_batched_tokens": 2048}
    own, best = Candidate({}, {1: 1.0}), Candidate(secret, {1: 2.0})
    made = Tuned([own, best], best, "h", "m", "generate")
    for text in (shown(made), str(table.as_json(made))):
        assert "hf_abc" not in text
        assert "sk-1" not in text
        assert "2048" in text


READY = MachineLoads(has_engine=True)
UNTRIED = MachineLoads()


def failed(failures: int, *, passes: bool = True, has_engine: bool = False) -> MachineLoads:
    return MachineLoads(has_engine, failures, passes, "no memory")


@pytest.mark.parametrize(
    ("machines", "alone_seconds", "is_refused"),
    [
        ([UNTRIED], 0, False),
        ([READY], 0, False),
        # What may pass is tried three times, by however many machines.
        ([failed(2)], 0, False),
        ([failed(3)], 0, True),
        ([failed(1), failed(1)], 0, False),
        ([failed(2), failed(1)], 0, True),
        # What cannot pass is tried once on each machine.
        ([failed(1, passes=False)], 0, True),
        ([failed(1, passes=False), UNTRIED], 0, False),
        ([failed(1, passes=False), failed(1, passes=False)], 0, True),
        # Three machines speak for all.
        ([failed(9), failed(9), *[UNTRIED] * 6], 0, False),
        ([failed(1), failed(1), failed(1), *[UNTRIED] * 6], 0, True),
        # A machine that has the engine, or loads it, may still run the trial.
        ([failed(3), READY], 0, False),
        ([failed(3, has_engine=True)], 0, False),
        # A pool that is away for long.
        ([], ALONE_SECONDS - 1, False),
        ([], ALONE_SECONDS, True),
    ],
)
def test_a_trial_that_no_machine_can_load_is_refused(
    machines: list[MachineLoads], alone_seconds: float, is_refused: bool
) -> None:
    said = refusal(machines, alone_seconds)
    assert (said is not None) is is_refused
    if said is not None and machines:
        assert "no memory" in said


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,0.5,true,auto,null", [1, 0.5, True, "auto", None]),
        ("a=fp8, auto", ["fp8", "auto"]),
        ('a={"mode":3,"cudagraph_mode":"NONE"}', [{"mode": 3, "cudagraph_mode": "NONE"}]),
        ("a=[1,2],[4]", [[1, 2], [4]]),
        ('a="x,y","z"', ["x,y", "z"]),
    ],
)
def test_the_values_of_a_flag_are_json_or_words(text: str, values: list[Any]) -> None:
    assert command.values_of(text) == ("a", values)


@pytest.mark.parametrize(
    "texts", [["a"], ["a="], ["=1"], ["a=1,,2"], ['a={"b":1'], ["a={b},c"], ["a=1", "a=2"]]
)
def test_values_of_another_form_and_arguments_that_are_named_twice_are_refused(
    texts: list[str],
) -> None:
    with pytest.raises(BadInput):
        command.tried_values(texts)
