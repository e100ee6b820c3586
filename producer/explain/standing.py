"""Where a job stands, in a word and a sentence, and whether it needs a person: a pure function over facts and reasons."""

from dataclasses import dataclass
from datetime import datetime

from nightshift.common.ledger.queries.standings import FAILED_DAYS
from nightshift.common.states import JobState, ShownState
from nightshift.producer.explain.reasons import Reason, at_rest, explain
from nightshift.producer.explain.snapshot import Facts

GRACE_SECONDS = 30.0
"""What comes and goes while a fleet grows, shrinks or restarts needs a person once it has lasted for so long, and a job
that is about to begin waits.
"""

AWAY_SECONDS = 300.0
"""A store or a server that is away for so long may not come back by itself."""

MOVING = frozenset({"working", "closing"})
"""Kinds of reasons of which one says that something of a running job moves."""

AT_ONCE = frozenset({"no_run", "no_reaper", "load_failed", "look_failed"})
"""Kinds that end through a person alone."""

IF_LASTING = frozenset({"no_worker", "other_engine_only", "cordoned", "lost", "late"})
"""Kinds that end through a person, if they do not end within GRACE_SECONDS."""

IF_LONG = frozenset({"storage_away", "server_away"})
"""Kinds that end through a person, if they do not end within AWAY_SECONDS."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands: a word, the kind of the reason that explains most, its sentence without figures that
    change by the second, and whether the state ends through a person alone. `since` is when the kind began, None
    where nobody has told.
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


def standing(facts: Facts, kind_before: str = "", seconds: float = 0.0) -> Standing:
    """Where the job stands, of which `kind_before` has been told for so many seconds."""
    reasons = [at_rest(facts)] if facts.state is JobState.FAILED else explain(facts)
    kinds = {each.kind: each for each in reasons}
    first = reasons[0]
    if first.kind == "working" and "late" in kinds:
        first = kinds["late"]
    lasted = seconds if first.kind == kind_before else 0.0
    word = _word(facts, reasons, lasted)
    needs = _needs_person(facts, word, first.kind, lasted)
    return Standing(word, first.kind, first.lasting, needs)


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
    away = max((each.seconds for each in facts.outages), default=0.0)
    return kind in IF_LONG and word is ShownState.WAITS and away >= AWAY_SECONDS
