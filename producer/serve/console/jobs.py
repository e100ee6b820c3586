"""The page of jobs: what runs, how fast, until when; pause, resume and cancel of many."""

import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.ledger.queries.standings import START, Filter, Key
from nightshift.common.states import JobState, ShownState
from nightshift.producer.advice.here import Here
from nightshift.producer.control import job_moves
from nightshift.producer.control.answer import Answer
from nightshift.producer.control.seen import Stale
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.failures import Failures, Kinds
from nightshift.producer.serve.console.helping import helped
from nightshift.producer.serve.console.mending import refusal, seen
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    job_of,
    live,
    page,
    seen_at,
)
from nightshift.producer.serve.console.remedies import Remedy
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import tenant_jobs, tenants
from nightshift.producer.views.deadlines import with_deadlines
from nightshift.producer.views.standings import board

PAGE_JOBS = 50

MOST_HELPED = 5
"""Jobs that need a person whose first button the list has; the others have theirs on their pages."""

MOST_BUTTONS = 2
"""Buttons of such a job in the list."""

MOST_NAMES = 200
"""Names that the filter completes."""

MOVES: Mapping[str, Callable[..., Answer]] = {
    "pause": job_moves.pause,
    "resume": job_moves.resume,
    "cancel": job_moves.cancel,
}
"""What can be done with many jobs."""

FILTER = ("status", "needs", "name", "tenant")
"""Words of the address that choose jobs."""

PERSON = "person"
"""The word of the filter `needs`."""

PLACE = re.compile(r"(needs-)?([0-9]{1,18})", re.ASCII)
"""A place in the list, as an address has it."""

TRAIL_VALUES, MOST_TRAILS = 60, 1000


class Trails:
    """Rates of jobs over the last looks, for sparklines; of the jobs that somebody looked at last."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, deque[float]] = OrderedDict()
        self._noted: dict[int, float] = {}

    def note(self, row: Mapping[str, Any]) -> list[float]:
        """Adds the rate of a job, at most once a second; returns its rates while it runs, the
        newest last.
        """
        job, now = row["job"], time.monotonic()
        values = self._values.setdefault(job, deque(maxlen=TRAIL_VALUES))
        self._values.move_to_end(job)
        if row["status"] == JobState.RUNNING and now - self._noted.get(job, 0.0) > 0.9:
            values.append(float(row["rows_per_second"] or 0.0))
            self._noted[job] = now
        while len(self._values) > MOST_TRAILS:
            gone, _ = self._values.popitem(last=False)
            self._noted.pop(gone, None)
        return list(values) if row["status"] == JobState.RUNNING else []


def _wanted(visit: Visit) -> Filter:
    """The jobs of the address. A state is one that people see, or one of the ledger, which older addresses have."""
    status = visit.query("status")
    return Filter(
        tenant=visit.looker.scope or visit.query("tenant"),
        state=JobState(status) if status in list(JobState) else None,
        word=ShownState(status) if status in list(ShownState) else None,
        name=visit.query("name"),
        needs_person=visit.query("needs") == PERSON,
    )


def _after(visit: Visit) -> Key:
    """The place in the list where the page of the address begins; the start for any other word."""
    found = PLACE.fullmatch(visit.query("before") or "")
    return START if found is None else Key(bool(found[1]), int(found[2]))


def _place(key: Key) -> str:
    return f"{'needs-' if key.needs_person else ''}{key.job_id}"


def list_jobs(visit: Visit, status: int = 200, message: str | None = None) -> Response:
    """The page; its address holds the filter. With a `message` where a change was refused."""
    given = {name: visit.query(name) for name in FILTER}
    before = visit.query("before")
    query = _filter(visit) + (f"&before={render.quoted(before)}" if before else "")
    shown = _reader(visit)()
    needing = shown["needing"]
    with visit.ledger.transaction() as connection:
        names = tenant_jobs.names(connection, visit.looker.scope, MOST_NAMES)
        known = tenants.listed(connection) if visit.looker.sees_all else []
    return visit.page(
        "jobs.html",
        status,
        message,
        names=names,
        tenants=[each.name for each in known[:MOST_NAMES]],
        title=f"({needing:,}) Jobs" if needing else "Jobs",
        states=[str(state) for state in ShownState],
        given=given,
        query=query,
        live=render.safe(render.fragment("jobs_live.html", **shown)),
    )


def _filter(visit: Visit) -> str:
    """The filter of the page, as a query."""
    given = {name: visit.query(name) for name in FILTER}
    return "&".join(f"{name}={render.quoted(value)}" for name, value in given.items() if value)


def live_jobs(visit: Visit) -> Callable[[], str]:
    """The rows of the page."""
    read = _reader(visit)
    return lambda: render.fragment("jobs_live.html", **read())


def _reader(visit: Visit) -> Callable[[], dict[str, Any]]:
    """Return a function that reads the values of the rows of the page."""
    wanted, after, query = _wanted(visit), _after(visit), _filter(visit)
    ledger, acts, trails = visit.ledger, visit.looker.acts, visit.request.app.state.trails
    here, scope = visit.context.here, visit.looker.scope
    kinds = visit.request.app.state.kinds
    names = visit.request.app.state.model_names

    def read() -> dict[str, Any]:
        found = _jobs(ledger, kinds, wanted, after, here(), scope, acts=acts)
        found["jobs"] = [{**row, "trail": trails.note(row)} for row in found["jobs"]]
        filtered = bool(query or after != START)
        found["alone"] = wanted.needs_person
        found["aliases"] = names.aliases()
        return {"acts": acts, "query": query, "filtered": filtered, **found}

    return read


def _jobs(
    ledger: Ledger,
    kinds: Kinds,
    wanted: Filter,
    after: Key,
    here: Here,
    scope: str | None,
    *,
    acts: bool,
) -> dict[str, Any]:
    """A page of jobs, where the next one begins, and how many jobs need a person, on this page or not."""
    with ledger.transaction() as connection:
        known = board(connection, wanted.tenant, here, scope)
        keys = known.page(connection, wanted, limit=PAGE_JOBS + 1, after=after)
        shown = [key.job_id for key in keys[:PAGE_JOBS]]
        rows = with_deadlines(connection, job_pace.some(connection, shown))
        found = {row["job"]: row for row in known.joined(connection, rows, here, scope)}
        listed = [found[id] for id in shown if id in found]
        helps = _helps(connection, kinds, listed, here, scope, acts=acts)
        owners = tenant_jobs.owners(connection, shown) if scope is None else {}
    return {
        "jobs": listed,
        "helps": helps,
        "owners": owners,
        "after": _place(keys[PAGE_JOBS - 1]) if len(keys) > PAGE_JOBS else None,
        "needing": len(known.needing),
    }


@dataclass(frozen=True, slots=True)
class Helped:
    """What the list says of a job that needs a person: buttons, or where none is a command; and why most of its
    failed rows failed.
    """

    buttons: Sequence[Remedy]
    command: str
    failures: Failures


def _helps(
    connection: Connection,
    kinds: Kinds,
    rows: Sequence[Mapping[str, Any]],
    here: Here,
    scope: str | None,
    *,
    acts: bool,
) -> dict[int, Helped]:
    """What helps the first jobs that need a person, by job."""
    needing = [row for row in rows if row["standing"] and row["standing"].needs_person]
    found = {}
    for row in needing[:MOST_HELPED]:
        try:
            job = jobs.get(connection, row["job"])
        except ValidationError:  # a spec of another release: the list is there, with the job
            continue
        if job is not None:
            said = helped(connection, job, here, scope, acts=acts)
            buttons = [remedy for _, offered in said for remedy in offered][:MOST_BUTTONS]
            command = "" if buttons else next(iter(said[0][0].commands), "")
            found[job.id] = Helped(buttons, command, kinds.of(connection, row))
    return found


def move_jobs(visit: Visit) -> Response:
    """Pauses, resumes or cancels the jobs that are picked. One that cannot, or that is no longer as the page
    showed it, is left as it is; then the answer is the page of now, and says so.
    """
    move = MOVES.get((visit.form.get("do") or [""])[0])
    if move is None:
        raise ApiError(400, "do is not one of pause, resume and cancel", param="do")
    if "job" not in visit.form:
        return list_jobs(visit, 400, "no job is picked: pick some in the list first")
    refused, status = [], 400
    for given in visit.form.get("job", []):
        try:
            job = job_of(visit.ledger, visit.looker.scope, given)
            move(visit.ledger, job, seen=seen(visit, of=f"-{job.id}"))
        except Stale as stale:
            status = 409
            with visit.ledger.transaction() as connection:
                changes = audit_log.of_job(connection, job.id, visit.looker.scope)
            refused.append(refusal(job.label, stale, changes))
        except (BadInput, ApiError) as error:
            refused.append(visit.told(error)[1])
    return list_jobs(visit, status, "; ".join(refused)) if refused else seen_at("/")


ROUTES: list[Route] = [
    page("/", list_jobs),
    live("/live/jobs", live_jobs),
    action("/jobs", move_jobs),
]
