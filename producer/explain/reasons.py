"""Why is nothing happening, in one sentence, and the command that helps: pure functions over facts."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from nightshift.common.allocation.deadlines import Standing
from nightshift.common.allocation.demand import MOST_PRIORITY
from nightshift.common.states import JobState
from nightshift.common.text import counted, counted_batches, duration, first_few, plural, rate
from nightshift.producer.advice.advice import Action, Advice, Need, Subject, advise, load_log
from nightshift.producer.advice.here import Works
from nightshift.producer.explain.snapshot import Facts, SlotFact

OTHERS_JOB = "a job of another tenant"
"""A job that the reader may not see."""

BACK = "until a reaper takes the leases back"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: a word for machines, a sentence for people, and what helps, the best first. `brief` is the sentence
    without figures that change by the second, if it has any.
    """

    kind: str
    sentence: str
    advice: Sequence[Advice] = ()
    brief: str = ""

    @property
    def commands(self) -> list[str]:
        """The commands that help, the best first; several actions may have one command."""
        return list(dict.fromkeys(each.command for each in self.advice if each.command))

    @property
    def lasting(self) -> str:
        """The sentence without such figures."""
        return self.brief or self.sentence


def explain(facts: Facts) -> list[Reason]:
    """The reasons why a job stands where it stands, the one that explains most first; never empty."""
    if facts.state is not JobState.RUNNING and (facts.closed or facts.state is JobState.PAUSED):
        return [at_rest(facts)]
    found = [
        *_nobody(facts),
        *_outages(facts),
        *_all_over(facts),
        *_at_work(facts),
        *_waiting(facts),
        *_late(facts),
    ]
    return found or [Reason("soon", "its next batches are handed out within seconds")]


MOST_NAMED = 3
"""Pools, or cordons, that are advised each by name."""


def _command(need: Need, facts: Facts) -> str:
    return advise(need, facts.here, _subject(facts))


def _subject(facts: Facts) -> Subject:
    return Subject(facts.job_id, facts.pool, facts.engine_key, facts.reason, facts.pools)


def _work(facts: Facts) -> list[Advice]:
    """Advice to start what works on the job; none for a reader who keeps no machines."""
    return [] if facts.is_guest else [Advice(Action.WORKER, _command(Need.WORK, facts))]


def _fleet(facts: Facts) -> list[Advice]:
    return [] if facts.is_guest else [Advice(Action.FLEET, "nightshift workers")]


def _pools(facts: Facts) -> list[Advice]:
    """Advice to move the job to another pool that has workers."""
    others = [pool for pool in facts.pools if pool != facts.pool]
    return [
        Advice(Action.POOL, f"nightshift set {facts.job_id} --pool {pool}", pool) for pool in others
    ]


def _priority(facts: Facts, value: int) -> Advice:
    command = f"nightshift set {facts.job_id} --priority {value}"
    return Advice(Action.PRIORITY, command, str(value))


def _resume(facts: Facts) -> list[Advice]:
    job, command = _subject(facts), _command(Need.RESUME, facts)
    if job.over_budget:
        return [Advice(Action.RESUME, command, asks="budget")]
    retry = [Advice(Action.RETRY)] if job.refused else []
    return [*retry, Advice(Action.RESUME, command)]


def _settings(facts: Facts, flag: str) -> Advice:
    return Advice(Action.SETTINGS, f"nightshift set {facts.job_id} {flag}")


def _read(command: str) -> Advice:
    return Advice(Action.READ, command)


def at_rest(facts: Facts) -> Reason:
    """Why a job that is paused, or over, is."""
    job = facts.job_id
    match facts.state:
        case JobState.PAUSED:
            why = f": {facts.reason}" if facts.reason else ""
            if facts.paused_by and not why:
                why = f" {facts.paused_by}"
            ends = facts.leased and not facts.alone
            busy = f"; {_verb(facts.leased, 'ends', 'end')} as usual" if ends else ""
            sentence = f"it is paused{why}"
            return Reason("paused", sentence + busy, _resume(facts), sentence)
        case JobState.COMPLETED if facts.rows_failed:
            helps = [_read(f"nightshift errors {job}")]
            if not facts.is_archived:
                helps.append(Advice(Action.RETRY, _command(Need.RETRY_ROWS, facts)))
            failed = f"{facts.rows_failed:,} of {counted(facts.rows_total, 'row')} failed"
            return Reason("completed", f"it is completed, and {failed}", helps)
        case JobState.COMPLETED:
            return Reason("completed", "it is completed, and every row has an answer")
        case JobState.FAILED:
            why = f": {facts.reason}" if facts.reason else ", since some of its batches are dead"
            again = Advice(Action.RETRY, _command(Need.RETRY, facts))
            if facts.is_archived:
                again = Advice(Action.SUBMIT, _command(Need.AFRESH, facts))
            return Reason("failed", f"it failed{why}", [again])
        case _:
            return Reason("cancelled", "it is cancelled, which is final; its parts stay")


def _nobody(facts: Facts) -> Iterator[Reason]:
    """Reasons of a fleet that no `run` or no reaper keeps going."""
    if facts.alone:
        nobody = "no `nightshift run` is running in this folder, so no worker runs the job"
        if facts.here.works is Works.PAGES:
            nobody += "; Ctrl-C ends these pages, which hold the folder"
        yield Reason("no_run", nobody, _work(facts))
    elif not facts.has_reaper:
        seen = facts.reaper_seconds
        ago = "no reaper is known" if seen is None else f"no reaper was seen for {duration(seen)}"
        what = "its files are not put in place"
        if facts.waiting:
            what = "nothing is handed out"
        elif facts.watch_seconds is not None and not facts.state.over:
            what = "no reaper looks for new files"
        helps = [] if facts.is_guest else [Advice(Action.REAPER, _command(Need.REAPER, facts))]
        yield Reason("no_reaper", f"{ago}, so {what}", helps, f"no reaper is alive, so {what}")


def _outages(facts: Facts) -> Iterator[Reason]:
    """Waits for things outside the fleet. A wait ends by itself, or when a person repairs the cause."""
    if not facts.alone:
        for each in facts.outages:
            sentence, brief = (
                text(is_guest=facts.is_guest) for text in (each.sentence, each.brief)
            )
            yield Reason(f"{each.kind}_away", sentence, brief=brief)


def _all_over(facts: Facts) -> Iterator[Reason]:
    """No batch is left: what comes next."""
    if facts.leased or facts.waiting or facts.alone or not facts.has_reaper:
        return
    if facts.state in (JobState.CANCELLED, JobState.FAILED):
        yield Reason("closing", f"it is {facts.state}, and its files are being put in place")
    elif facts.watch_seconds is None or facts.state.over:
        yield Reason("closing", "every row is over, and its files are being put in place")
    elif facts.watch_error is not None:
        message = f"all rows so far are finished, and the last check for new files failed: {facts.watch_error}"
        yield Reason("look_failed", message, [_read(f"nightshift status {facts.job_id}")])
    else:
        message = f"all rows so far are finished, and a reaper checks for new files every {facts.watch_seconds} s"
        helps = Advice(Action.SUBMIT, f"nightshift submit --append {facts.job_id} --last")
        if facts.files_left:
            files = f"{counted(facts.files_left, 'file')} could not be added"
            message += f"; {files}: {facts.file_left_why}"
            helps = _read(f"nightshift status {facts.job_id}")
        yield Reason("waits_for_files", message, [helps])


def _at_work(facts: Facts) -> Iterator[Reason]:
    """What is under way, and what bounds it."""
    if not facts.leased or facts.alone:
        return
    workers = counted(facts.children_at_work, "worker")
    if not facts.children_at_work:
        yield Reason(
            "leases_left",
            f"{_verb(facts.leased, 'is', 'are')} leased to workers that are gone, {BACK}",
            brief=f"its batches are leased to workers that are gone, {BACK}",
        )
    elif facts.stalled:
        yield Reason(
            "standing",
            f"{_verb(facts.leased, 'stands', 'stand')} still on {workers}",
            _fleet(facts),
            "its batches stand still",
        )
    else:
        sentence = f"{_verb(facts.leased, 'is', 'are')} at work on {workers}"
        yield Reason("working", sentence + _pace(facts), brief="its batches are at work")
        if _is_full(facts):
            yield _full(facts)


def _pace(facts: Facts) -> str:
    """How fast the rows come, else since when the oldest lease has brought none; empty where it is young."""
    if facts.rows_per_second:
        return f", at {rate(facts.rows_per_second)} rows/s"
    leased, part = facts.lease_seconds, facts.part_seconds
    if leased is None or (part is not None and part <= leased):
        return ""
    return f"; the oldest for {duration(leased)}, and none has ended since"


def _waiting(facts: Facts) -> Iterator[Reason]:
    """Why nothing of a job is at work although batches wait."""
    if not facts.waiting or facts.children_at_work or facts.alone:
        return
    if facts.resting and facts.resting >= facts.waiting:
        yield Reason(
            "backing_off",
            f"{_verb(facts.resting, 'waits', 'wait')} after an error, for "
            f"{duration(facts.rest_seconds)} at most: {facts.rest_error}",
            [_read(f"nightshift history {facts.job_id}")],
            f"its batches wait after an error: {facts.rest_error}",
        )
        return
    yield from _no_slot(facts)


def _no_slot(facts: Facts) -> Iterator[Reason]:
    """Why no slot runs the job: no slot of the pool can, else what those that can do now."""
    able = [slot for slot in facts.slots if slot.serves in (None, facts.engine_key)]
    usable = [slot for slot in able if slot.cordon is None and slot.state != "lost"]
    helps = [*_work(facts), *_pools(facts)]
    if not facts.slots:
        yield Reason("no_worker", f"no worker of the pool {facts.pool} is alive", helps)
    elif not able:
        yield Reason(
            "other_engine_only",
            f"the workers of the pool {facts.pool}{_on(facts, facts.slots)} were started for another "
            "engine only",
            helps,
        )
    elif not usable:
        yield _unusable(facts, able)
    else:
        yield from _what_slots_do(facts, usable)


def _what_slots_do(facts: Facts, usable: Sequence[SlotFact]) -> Iterator[Reason]:
    """What the slots that can run the job do now."""
    own = [slot for slot in usable if slot.engine_key == facts.engine_key]
    loading = [slot for slot in own if slot.state == "loading"]
    making_room = [slot for slot in usable if slot.planned_key == facts.engine_key]
    refused = _refused(facts)
    if any(slot.state in ("ready", "draining") for slot in own):
        if facts.ahead_id is not None:
            yield _others_first(facts)
    elif refused.issuperset(slot.host for slot in usable):
        yield _load_failed(facts)
    elif loading:
        yield _loading(facts, loading)
    elif making_room:
        yield Reason("making_room", f"a slot{_on(facts, making_room)} makes room for its engine")
    else:
        yield _taken(facts, usable)


def _refused(facts: Facts) -> set[str]:
    """The machines that could not load the engine."""
    return {each.host for each in facts.set_aside}


def _others_first(facts: Facts) -> Reason:
    first = OTHERS_JOB if facts.ahead_id in facts.hidden else facts.ahead
    return Reason(
        "others_first",
        f"{first} goes first on the same workers, with priority {facts.ahead_priority}",
        [_priority(facts, facts.ahead_priority)],
    )


def _load_failed(facts: Facts) -> Reason:
    last = facts.set_aside[0]
    soonest = min(each.seconds_left for each in facts.set_aside)
    where = _where(facts, _refused(facts))
    sentence = f"its engine could not be loaded{where}"
    why = last.public_error if facts.is_guest else last.error
    error = f"last error{',' if where else ''}{_where(facts, [last.host])}: {why}"
    return Reason(
        "load_failed",
        f"{sentence}; the next try comes in {duration(soonest)}; {error}",
        [_read(f"nightshift status {facts.job_id}"), Advice(Action.LOAD), *_pools(facts)],
        f"{sentence}; {error}",
    )


def _loading(facts: Facts, slots: Sequence[SlotFact]) -> Reason:
    since = max(slot.child_seconds or 0.0 for slot in slots)
    last = f"; the last load took {duration(facts.load_seconds)}" if facts.load_seconds else ""
    sentence = f"its engine is being loaded{_on(facts, slots)}"
    log = (
        "" if facts.is_guest else f"; {load_log(facts.here, sorted({slot.host for slot in slots}))}"
    )
    return Reason("loading", f"{sentence}, for {duration(since)}{last}{log}", brief=sentence)


def _unusable(facts: Facts, slots: Sequence[SlotFact]) -> Reason:
    """Every slot that might run the job is cordoned, or lost to a process that does not die."""
    cordons = sorted({slot.cordon for slot in slots if slot.cordon is not None})
    lost = [slot for slot in slots if slot.state == "lost"]
    sentence = f"every slot of the pool {facts.pool} is"
    if not cordons:
        why = "the kernel does not end the process that has its GPUs; restart the machine"
        text = f"{sentence} lost" + ("" if facts.is_guest else f",{_on(facts, lost)}: {why}")
        return Reason("lost", text, [*_pools(facts), *_fleet(facts)])
    state = "cordoned or lost" if lost else "cordoned"
    comma = "" if facts.is_guest else ","
    helps = [] if facts.is_guest else _uncordon(cordons)
    text = f"{sentence} {state}{comma}{_on(facts, slots)}"
    return Reason("cordoned", text, [*helps, *_pools(facts)])


def _uncordon(cordons: Sequence[str]) -> list[Advice]:
    """Advice to end the first cordons; the others are seen with the machines."""
    found = [
        Advice(Action.UNCORDON, f"nightshift uncordon {name}", name)
        for name in cordons[:MOST_NAMED]
    ]
    more = [Advice(Action.FLEET, "nightshift workers")] if len(cordons) > MOST_NAMED else []
    return found + more


def _taken(facts: Facts, slots: Sequence[SlotFact]) -> Reason:
    """All slots have other engines; the job that has most of them is named."""
    held = Counter(slot.job_id for slot in slots if slot.job_id)
    refused = _refused(facts)
    if not held or any(slot.state == "free" and slot.host not in refused for slot in slots):
        return Reason(
            "soon", f"a slot of the pool {facts.pool} is given to its engine within seconds"
        )
    (job_id, count), *others = held.most_common()
    one = next(slot for slot in slots if slot.job_id == job_id)
    is_hidden = job_id in facts.hidden
    more = f" and {counted(len(others), 'more job')}" if others else ""

    def sentence(deadline: str) -> str:
        holder = OTHERS_JOB if is_hidden else _holder(one, deadline)
        return (
            f"the pool {facts.pool} has {counted(len(slots), 'slot')}, and {count} of them "
            f"{'works' if count == 1 else 'work'} for {holder}{more}"
        )

    higher = (one.priority or 0) + 1
    raised = [_priority(facts, higher)] if higher <= MOST_PRIORITY else []
    return Reason("slots_taken", sentence(_due(one)), [*raised, *_pools(facts)], sentence(""))


def _holder(slot: SlotFact, deadline: str) -> str:
    """The job that has a slot."""
    return f"job {slot.job_id} ({slot.job}, priority {slot.priority}{deadline})"


def _due(slot: SlotFact) -> str:
    """The time to the deadline of the job that has a slot, where there is one."""
    due = slot.due_seconds
    return f", with a deadline in {duration(due)}" if due is not None and due > 0 else ""


def _late(facts: Facts) -> Iterator[Reason]:
    """That a job which is at work is late for its deadline."""
    expected = facts.outlook
    if expected is None or expected.standing is not Standing.LATE:
        return
    if not facts.leased or not facts.children_at_work or facts.stalled or facts.alone:
        return
    by = "" if expected.late_seconds is None else f"{duration(expected.late_seconds)} "
    sentence = "it ends {}after its deadline with the workers that it has"
    more = expected.more_slots
    with_more, helps = "", ""
    if more is not None:
        with_more = f", and on time with {counted(more, 'more worker')}"
        helps = ", and more workers would help"
    yield Reason(
        "late",
        sentence.format(by) + with_more,
        [*(_work(facts) if more is not None else ()), _settings(facts, "--finish-by LATER")],
        sentence.format("") + helps,
    )


def _is_full(facts: Facts) -> bool:
    under_way = facts.queued + facts.leased
    return facts.max_parallel is not None and under_way >= facts.max_parallel and facts.pending > 0


def _full(facts: Facts) -> Reason:
    return Reason(
        "max_parallel",
        f"limits.max_parallel is reached: {counted_batches(facts.queued + facts.leased)} of at most "
        f"{facts.max_parallel:,} {'is' if facts.queued + facts.leased == 1 else 'are'} queued or leased",
        [_settings(facts, "--max-parallel MORE")],
    )


def _verb(count: int, one: str, many: str) -> str:
    return f"{counted_batches(count)} {plural(count, one, many)}"


def _on(facts: Facts, slots: Sequence[SlotFact]) -> str:
    return _where(facts, {slot.host for slot in slots})


def _where(facts: Facts, hosts: Collection[str]) -> str:
    """` on HOST, HOST`; empty for a guest."""
    return "" if facts.is_guest else f" on {first_few(sorted(hosts))}"
