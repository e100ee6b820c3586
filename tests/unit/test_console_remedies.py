"""What a page offers for each reason: the buttons of its advice."""

from dataclasses import replace

import pytest

from nightshift.common.ledger.jobs import failure_limits
from nightshift.common.states import JobState
from nightshift.producer.advice.advice import Action, Advice
from nightshift.producer.explain.reasons import Reason, explain
from nightshift.producer.explain.snapshot import Facts, SlotFact
from nightshift.producer.serve.console.remedies import Remedy, Shown, remedies
from nightshift.producer.serve.ledger.tenants import Tenant
from tests.unit.test_explain import CASES, FACTS, FREE, TAKEN

FIELDS = {"pool": "gpus", "priority": "0", "budget": "25"}

OPERATOR = Shown(FIELDS)


def tenant(max_priority: int = 0, pools: tuple[str, ...] | None = None) -> Shown:
    """A page of a user whose tenant has these limits."""
    limits = dict.fromkeys(Tenant.__dataclass_fields__)
    limits |= {"max_priority": max_priority, "pools": pools}
    return Shown(FIELDS, tenant=Tenant(**limits))  # type: ignore[arg-type]


def test_every_action_is_a_button_or_has_a_command() -> None:
    seen: dict[Action, tuple[set[str], bool]] = {}
    full = {"leased": 4, "children_at_work": 2, "max_parallel": 4}
    for changes in (full, *(case[1] for case in CASES), *(case[1] for case in TABLE)):
        known = replace(FACTS, **changes)  # type: ignore[arg-type]
        for reason in explain(known):
            for advice in reason.advice:
                shown = replace(OPERATOR, cordons={advice.value: "cordoned"})
                labels, commands = seen.get(advice.action, (set(), False))
                alone = replace(reason, advice=[advice])
                found = {each.label for each in remedies(alone, known, shown)}
                seen[advice.action] = (labels | found, commands or bool(advice.command))
    assert seen.keys() == set(Action)
    on_command_lines = {action for action, (labels, _) in seen.items() if not labels}
    assert on_command_lines == {Action.READ, Action.SUBMIT, Action.REAPER}
    on_pages = {action for action, (_, command) in seen.items() if not command}
    assert on_pages == {Action.LOAD}


def buttons(reason: Reason, facts: Facts, shown: Shown = OPERATOR) -> list[str]:
    return [each.label for each in remedies(reason, facts, shown)]


def at(changes: dict[str, object], shown: Shown = OPERATOR) -> list[str]:
    """The buttons beside the first reason of a job with these facts."""
    known = replace(FACTS, **changes)  # type: ignore[arg-type]
    seen = known if shown.tenant is None else known.for_guest()
    return buttons(explain(seen)[0], seen, shown)


HELD = SlotFact("a", "ready", cordon="a")

TABLE: list[tuple[str, dict[str, object], Shown, list[str]]] = [
    ("paused", {"state": JobState.PAUSED}, tenant(), ["Resume"]),
    (
        "its budget is spent",
        {"state": JobState.PAUSED, "reason": "24.8 is spent, which reaches limits.budget 25"},
        tenant(),
        ["Resume with this budget"],
    ),
    (
        "every row was refused",
        {
            "state": JobState.PAUSED,
            "rows_failed": 2,
            "reason": f"{failure_limits.REFUSED} all 2 rows that ran, in the same words: no",
        },
        tenant(),
        ["Run 2 failed rows again", "Resume"],
    ),
    (
        "failed rows",
        {"state": JobState.COMPLETED, "closed": True, "rows_failed": 1200},
        tenant(),
        ["Run 1,200 failed rows again"],
    ),
    ("all well", {"state": JobState.COMPLETED, "closed": True}, tenant(), []),
    (
        "failed before a row",
        {"state": JobState.FAILED, "closed": True},
        tenant(),
        ["Run the job again"],
    ),
    ("no worker, no pool", {"pools": ()}, OPERATOR, ["How to start a worker"]),
    ("no worker, no pool", {"pools": ()}, tenant(), []),
    (
        "no worker",
        {"pools": ("a", "b", "gpus")},
        OPERATOR,
        ["Move to pool a", "Move to pool b", "How to start a worker"],
    ),
    ("no worker", {"pools": ("a", "b")}, tenant(pools=("b", "c")), ["Move to pool b"]),
    ("slots taken", {"slots": [TAKEN]}, OPERATOR, ["Raise priority to 6"]),
    ("slots taken", {"slots": [TAKEN]}, tenant(max_priority=6), ["Raise priority to 6"]),
    ("slots taken", {"slots": [TAKEN]}, tenant(max_priority=5), []),
    ("cordoned", {"slots": [HELD]}, Shown(FIELDS, {"a": "drained"}), ["Uncordon a"]),
    ("cordoned", {"slots": [HELD]}, tenant(), []),
    (
        "many cordons",
        {"slots": [SlotFact(name, "ready", cordon=name) for name in "abcd"]},
        Shown(FIELDS, dict.fromkeys("abcd", "cordoned")),
        ["Uncordon a", "Uncordon b", "Uncordon c", "To the fleet"],
    ),
    ("soon", {"slots": [FREE]}, OPERATOR, []),
]


@pytest.mark.parametrize(("_case", "changes", "shown", "wanted"), TABLE)
def test_what_is_offered(
    _case: str, changes: dict[str, object], shown: Shown, wanted: list[str]
) -> None:
    assert at(changes, shown) == wanted


def test_one_of_several_buttons_of_a_kind_does_not_stand_out() -> None:
    def out(pools: tuple[str, ...], *cordons: str) -> list[bool]:
        slots = [SlotFact(name, "ready", cordon=name) for name in cordons]
        known = replace(FACTS, pools=pools, slots=slots)
        shown = Shown(FIELDS, dict.fromkeys(cordons, "cordoned"))
        found = remedies(explain(known)[0], known, shown)
        return [each.stands_out for each in found if each.form]

    assert out(("a",)) == out((), "m") == [True]
    assert out(("a", "b")) == out((), "m", "n") == [False, False]


def test_a_link_leads_to_the_form_of_the_job_from_every_page() -> None:
    advice = Advice(Action.SETTINGS, "nightshift set 7 --finish-by LATER")
    [link] = remedies(Reason("late", "", [advice]), FACTS, OPERATOR)
    assert (link.place, dict(link.form)) == ("/jobs/7#change", {})


def test_a_button_carries_what_the_page_shows() -> None:
    known = Facts(7, JobState.RUNNING, "gpus", "own", pools=("a",))
    [pool] = remedies(Reason("no_worker", "", [Advice(Action.POOL, "", "a")]), known, OPERATOR)
    assert pool == Remedy(
        "Move to pool a",
        "/jobs/7/set",
        {"was-state": "running", "was-pool": "gpus", "pool": "a"},
        kind=Action.POOL,
    )
    assert pool.id != Remedy(pool.label, pool.place, {**pool.form, "was-state": "paused"}).id
    alike = [
        Remedy(f"Move to pool {name}", pool.place, {"pool": name}).id
        for name in ("a.b", "a-b", "a_b")
    ]
    assert len(set(alike)) == 3


def test_whatever_the_facts_are_there_is_an_answer() -> None:
    for _, changes, *_ in CASES:
        at(changes)
