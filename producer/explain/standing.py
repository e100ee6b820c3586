"""The standing of a job: a word, a sentence, and whether it needs a person. A pure function of facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from nightshift.common.allocation.deadlines import Standing as OfDeadline
from nightshift.common.ledger.queries.standings import FAILED_DAYS
from nightshift.common.states import JobState, ShownState
from nightshift.producer.explain.reasons import Reason, at_rest, explain
from nightshift.producer.explain.snapshot import Facts

GRACE_SECONDS = 30.0
"""A wait that occurs while a fleet grows, shrinks or restarts needs a person if it lasts longer, a job that is about to
begin counts as waiting after it, and a job may be late by it.
"""

AWAY_SECONDS = 300.0
"""A store or a server that is away for so long may not come back by itself."""

MOVING = frozenset({"working", "closing"})
"""Kinds of reasons of which one says that something of a running job moves."""

AT_ONCE = frozenset({"no_run", "no_reaper", "load_failed", "look_failed"})
"""Kinds that end through a person alone."""

IF_LASTING = frozenset({"no_worker", "other_engine_only", "cordoned", "lost"})
"""Kinds that end through a person, if they do not end within GRACE_SECONDS."""

IF_LONG = frozenset({"storage_away", "server_away"})
"""Kinds that end through a person, if they do not end within AWAY_SECONDS."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A word, the kind of the reason that explains most, its sentence without figures that change by the second, and
    whether only a person can end the state. A job is in it `since` a moment; None if the facts do not tell.
    """

    word: ShownState
    kind: str
    sentence: str
    needs_person: bool = False
    since: datetime | None = None

    @property
    def as_json(self) -> dict[str, object]:
        """The object `standing` of `status --json`."""
        return {
            "word": str(self.word),
            "kind": self.kind,
            "sentence": self.sentence,
            "needs_person": self.needs_person,
            "since": None if self.since is None else self.since.isoformat(),
        }


def standing(facts: Facts) -> Standing:
    """Return the standing of a job."""
    reasons = [at_rest(facts)] if facts.state is JobState.FAILED else explain(facts)
    kinds = {each.kind: each for each in reasons}
    first = reasons[0]
    if first.kind == "working" and "late" in kinds:
        first = kinds["late"]
    began = _began(facts, first.kind)
    lasted = 0.0
    if began is not None and facts.read_at is not None:
        lasted = (facts.read_at - began).total_seconds()
    word = _word(facts, reasons, lasted)
    needs = _needs_person(facts, word, first.kind, lasted)
    since = facts.state_since if word is ShownState.AT_WORK and not needs else began
    return Standing(word, first.kind, first.lasting, needs, since)


def _began(facts: Facts, kind: str) -> datetime | None:
    """Return when a wait of this kind began: not before the job got its state, its last lease ended, or rows were added."""
    known = [each for each in _beginnings(facts, kind) if each is not None]
    return max(known, default=None)


def _beginnings(facts: Facts, kind: str) -> Iterator[datetime | None]:
    yield facts.state_since
    if facts.state is not JobState.RUNNING or kind in MOVING or kind == "late":
        return
    if kind.endswith("_away"):
        # The leases of waiting workers may have ended before or after the outage began.
        yield min(each.since for each in facts.outages if kind == f"{each.kind}_away")
        return
    yield facts.moved_at
    if kind == "no_worker":
        yield facts.worker_seen_at
    if kind == "cordoned":
        able = (slot for slot in facts.slots if slot.serves in (None, facts.engine_key))
        yield max((slot.cordoned_since for slot in able if slot.cordoned_since), default=None)
    if kind == "no_reaper" and facts.read_at is not None and facts.reaper_seconds is not None:
        yield facts.read_at - timedelta(seconds=facts.reaper_seconds)


def _word(facts: Facts, reasons: list[Reason], lasted: float) -> ShownState:
    match facts.state:
        case JobState.PAUSED:
            return ShownState.PAUSED
        case JobState.COMPLETED:
            return ShownState.DONE
        case JobState.FAILED:
            return ShownState.FAILED
        case JobState.CANCELLED:
            return ShownState.CANCELLED
        case JobState.RUNNING:
            begins = reasons[0].kind == "soon" and lasted < GRACE_SECONDS
            moves = begins or any(each.kind in MOVING for each in reasons)
            return ShownState.AT_WORK if moves else ShownState.WAITS


def _needs_person(facts: Facts, word: ShownState, kind: str, lasted: float) -> bool:
    match word:
        case ShownState.FAILED:
            return (facts.finished_seconds or 0.0) < FAILED_DAYS * 86_400
        case ShownState.PAUSED:  # by the ledger itself: a budget, or too many failed rows
            return facts.reason is not None
    if kind in AT_ONCE:
        return True
    if kind in IF_LASTING:
        return lasted >= GRACE_SECONDS
    if kind == "late":
        return _is_late(facts)
    away = max((each.seconds for each in facts.outages), default=0.0)
    return kind in IF_LONG and word is ShownState.WAITS and away >= AWAY_SECONDS


def _is_late(facts: Facts) -> bool:
    late = facts.outlook
    if late is None or late.standing is not OfDeadline.LATE:
        return False
    return late.late_seconds is None or late.late_seconds >= GRACE_SECONDS
