"""The page of the fleet: pools, machines, slots, their engines and GPUs; cordon and drain by operators."""

from collections.abc import Callable, Hashable
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.ledger import audit_log
from nightshift.common.ledger.fleet import cordons, outages
from nightshift.common.ledger.queries import job_facts
from nightshift.producer.advice.advice import Need, Subject, advise
from nightshift.producer.control import machines
from nightshift.producer.control.seen import Stale
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.mending import refusal, seen
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    live,
    page,
    seen_at,
)
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.health import Health
from nightshift.producer.views import fleet_views

PAGE_CHANGES = 100

NEWEST = 2**63 - 1

ANY_JOB = Subject(0, "default")


def _refuse(visit: Visit) -> None:
    """ApiError 403 for whoever is no operator: machines serve every tenant."""
    if not visit.looker.sees_all:
        raise ApiError(403, "machines serve every tenant: this takes the role operator")


def show_fleet(visit: Visit, status: int = 200, message: str | None = None) -> Response:
    """The page; with a `message` where a change was refused."""
    _, look = live_fleet(visit)
    return visit.page("fleet.html", status, message, title="Fleet", live=render.safe(look()))


def live_fleet(visit: Visit) -> tuple[Hashable, Callable[[], str]]:
    """Pools, and slots by machine; jobs of other tenants have no name."""
    ledger, tenant, here = visit.ledger, visit.looker.scope, visit.context.here
    health: Health = visit.request.app.state.health

    def look() -> str:
        seen = fleet_views.fleet(ledger)
        with ledger.transaction() as connection:
            reapers, away = job_facts.reapers(connection), outages.listed(connection)
            named = {slot["job"] for slot in seen.slots if slot["job"]}
            hidden = job_facts.foreign(connection, tenant, named)
            held = cordons.states(connection)
        hosts: dict[str, list[Any]] = {}
        for slot in seen.slots:  # sorted by pool: a host may come twice
            hosts.setdefault(slot["host"], []).append(slot)
        return render.fragment(
            "fleet_live.html",
            seen=seen,
            hosts=hosts,
            reapers=reapers,
            hidden=hidden,
            state_of=lambda name: held.get(name, machines.IN_SERVICE),
            troubles=health.sentences() if tenant is None else [],
            away=away if tenant is None else [],
            acts=tenant is None,
            nobody=here().nobody,
            **{
                str(need): "" if tenant is not None else advise(need, here(), ANY_JOB)
                for need in (Need.REAPER, Need.WORKERS)
            },
        )

    return "fleet", look


def move_machine(visit: Visit) -> Response:
    """Cordons, drains or gives back a machine, a worker or a slot. Where it is no longer as the page showed it,
    the answer is the page of now, and says so.
    """
    _refuse(visit)
    do, name, known = visit.field("do"), visit.field("name"), seen(visit)
    try:
        if do in ("cordon", "drain"):
            machines.cordon(visit.ledger, name, drains=do == "drain", seen=known)
        elif do == "uncordon":
            machines.uncordon(visit.ledger, name, seen=known)
        else:
            raise ApiError(400, "do is not one of cordon, drain and uncordon", param="do")
    except Stale as stale:
        with visit.ledger.transaction() as connection:
            target = cordons.find(connection, name)
            changes = [] if target is None else audit_log.of_subject(connection, target.label)
        return show_fleet(visit, 409, refusal(name, stale, changes))
    return seen_at("/fleet")


def show_changes(visit: Visit) -> Response:
    """Who changed what, the newest first: everything for an operator, else the jobs of the tenant."""
    with visit.ledger.transaction() as connection:
        rows = audit_log.listed(
            connection,
            limit=PAGE_CHANGES + 1,
            before=visit.number("before", NEWEST),
            tenant=visit.looker.scope,
        )
    after = rows[PAGE_CHANGES - 1]["id"] if len(rows) > PAGE_CHANGES else None
    return visit.page("audit.html", title="Changes", changes=rows[:PAGE_CHANGES], after=after)


ROUTES: list[Route] = [
    page("/fleet", show_fleet),
    live("/live/fleet", live_fleet),
    action("/fleet", move_machine),
    page("/audit", show_changes),
]
