"""What helps a job: one shape of advice for the command line, the API and the pages, and the commands by who works here.

Each command that is advised is run by tests/integration/test_advice.py in each situation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nightshift.common.ledger.jobs import failure_limits
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.producer.advice.here import Here, Works

SPEC = "SPEC stands for the spec of the job, or its input and flags"


class Need(StrEnum):
    """What is to happen: a paused job goes on, a job that failed runs again, the failed rows of a job that
    is over run again, somebody works on a job whose rows wait, a reaper hands work out, any worker is
    there, or a job that is over starts afresh elsewhere.
    """

    RESUME = "resume"
    RETRY = "retry"
    RETRY_ROWS = "retry rows"
    WORK = "work"
    REAPER = "reaper"
    WORKERS = "workers"
    AFRESH = "afresh"


class Action(StrEnum):
    """What helps a job that does not move."""

    RESUME = "resume"
    RETRY = "retry"
    LOAD = "load"
    """Try to load the engine again, on machines that could not."""
    PRIORITY = "priority"
    POOL = "pool"
    WORKER = "worker"
    """Start a worker, or whatever works on the ledger."""
    SETTINGS = "settings"
    UNCORDON = "uncordon"
    FLEET = "fleet"
    """See the machines."""
    READ = "read"
    """Read more about the job."""
    SUBMIT = "submit"
    REAPER = "reaper"


@dataclass(frozen=True, slots=True)
class Advice:
    """An action that helps, for every reader: commands print the `command`, and pages make a button of the same action.

    `command` is as it is typed on this ledger, empty without one. `value` is the new priority or pool, or the name of a
    cordon; `asks` names a value that a person has to choose.
    """

    action: Action
    command: str = ""
    value: str = ""
    asks: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A job that somebody wants to move, with the reason of its pause; `pools` are pools of which workers
    live.
    """

    job_id: int
    pool: str = ""
    engine_key: str = ""
    reason: str | None = None
    pools: Sequence[str] = ()

    @property
    def refused(self) -> bool:
        """Whether the engine refused all of its rows."""
        return (self.reason or "").startswith(failure_limits.REFUSED)

    @property
    def over_budget(self) -> bool:
        """Whether limits.budget has paused it."""
        return not self.refused and "limits.budget" in (self.reason or "")


def advise(need: Need, here: Here, job: Subject) -> str:
    """The command that helps, as it is typed where `here` is; `nightshift run SPEC` takes the place of one
    that would wait for a run.
    """
    match need:
        case Need.RESUME:
            return _resume(here, job)
        case Need.RETRY:
            return _moved(here, job, _retry(job))
        case Need.RETRY_ROWS:
            return _then_run(here, job, _retry(job))
        case Need.WORK:
            return _work(here, job)
        case Need.REAPER:
            return "nightshift logs" if here.is_folder else "nightshift reaper"
        case Need.WORKERS:
            if here.works in (Works.RUN, Works.SERVE):  # which start them again
                return "nightshift logs"
            return _work(here, job)
        case Need.AFRESH:
            if here.works in (Works.FLEET, Works.SERVE):
                return "nightshift submit SPEC --out ANOTHER"
            return f"{_run(here, job)} --out ANOTHER"


def spec_note(command: str) -> str:
    """What SPEC is, for a command that has the word; empty for others."""
    return SPEC if " SPEC" in command else ""


def _resume(here: Here, job: Subject) -> str:
    resume = f"nightshift resume {job.job_id}"
    if job.refused:  # else the rows stay failed, and the job ends without an answer
        return _moved(here, job, f"{_retry(job)}; {resume}")
    if job.over_budget:  # a `run` would only have the budget of its spec
        return _then_run(here, job, f"{resume} --budget MORE")
    return _moved(here, job, resume)


def _retry(job: Subject) -> str:
    return f"nightshift retry {job.job_id} --failed"


def _then_run(here: Here, job: Subject, command: str) -> str:
    """The command, and behind it a `run` where nobody works on the job."""
    return command if _is_worked_on(here, job) else f"{command}; {_run(here, job)}"


def _moved(here: Here, job: Subject, command: str) -> str:
    """The command that changes the state of a job, where a worker takes its rows after that. A `run` of
    the job's spec moves the job by itself, and works on it.
    """
    return command if _is_worked_on(here, job) else _run(here, job)


def _is_worked_on(here: Here, job: Subject) -> bool:
    """Whether a worker takes the job's rows once the job runs. A `run` ends with its own job; until then its
    worker also takes rows of other jobs of the same engine.
    """
    if here.works is not Works.RUN:
        return not here.nobody
    same = (here.pool, here.engine_key) == (job.pool, job.engine_key)
    return same and here.job_id != job.job_id


def _work(here: Here, job: Subject) -> str:
    match here.works:
        case Works.FLEET:
            return f"nightshift-worker --pool {job.pool}"
        case Works.SERVE:
            others = [pool for pool in job.pools if pool != job.pool]
            return (
                f"nightshift set {job.job_id} --pool {others[0]}" if others else "nightshift logs"
            )
        case Works.RUN if here.job_id == job.job_id or _is_worked_on(here, job):
            return "nightshift logs"
        case _:
            return _run(here, job)


def _run(here: Here, job: Subject) -> str:
    """The run of the job's spec, behind what holds the folder now."""
    if here.works is Works.RUN and here.job_id not in (None, job.job_id):
        return f"nightshift wait {here.job_id}; nightshift run SPEC"
    return "nightshift run --ui SPEC" if here.works is Works.PAGES else "nightshift run SPEC"


def load_log(here: Here, hosts: Sequence[str] = ()) -> str:
    """Return a phrase that names the log of an engine's load."""
    if here.is_folder:
        return "`nightshift logs` shows its steps"
    on = f" on {', '.join(hosts)}" if hosts else ""
    return f"the standard error of nightshift-worker{on} shows its steps"


def goes_on(need: Need, here: Here, job: Job) -> str:
    """The same in a sentence: which command continues a job that rests."""
    return f"`{advise(need, here, subject(job))}` continues the job"


def nobody_works(here: Here, job: Job | Subject) -> str:
    """A sentence with the command that works on a running job which no worker takes; empty where one does."""
    found = job if isinstance(job, Subject) else subject(job)
    if _is_worked_on(here, found):
        return ""
    return f"`{_run(here, found)}` works on it"


def subject(job: Job, pools: Sequence[str] = ()) -> Subject:
    """The job for `advise`."""
    return Subject(job.id, job.spec.pool, job.engine_key, job.reason, pools)
