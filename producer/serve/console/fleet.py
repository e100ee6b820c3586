"""The page of the fleet: pools, machines, slots, their engines and GPUs; cordon and drain by operators."""

from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.routing import Route

from nightshift.common.ledger import audit_log
from nightshift.common.ledger.fleet import cordons, outages
from nightshift.common.ledger.queries import job_facts
from nightshift.common.public_text import marked, shown
from nightshift.producer.advice.advice import Need, Subject, advise
from nightshift.producer.control import machines
from nightshift.producer.control.seen import Stale
from nightshift.producer.serve.console import fleet_standing, render
from nightshift.producer.serve.console.mending import refusal, seen
from nightshift.producer.serve.console.model_names import ModelNames
from nightshift.producer.serve.console.page_calls import (
    Visit,
    action,
    live,
    page,
    seen_at,
)
from nightshift.producer.serve.console.pictures import fleet as pictures
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.health import Health
from nightshift.producer.views import fleet_views
from nightshift.producer.views.rates import Values

PAGE_CHANGES = 100

NEWEST = 2**63 - 1

ANY_POOL = "default"

ANY_JOB = Subject(0, ANY_POOL)


def _refuse(visit: Visit) -> None:
    """ApiError 403 for whoever is no operator: machines serve every tenant."""
    if not visit.looker.sees_all:
        raise ApiError(403, "machines serve every tenant: this takes the role operator")


def show_fleet(visit: Visit, status: int = 200, message: str | None = None) -> Response:
    """The page; its address may hold one machine. With a `message` where a change was refused."""
    look = live_fleet(visit)
    host = visit.query("host")
    query = f"?host={render.quoted(host)}" if host else ""
    return visit.page(
        "fleet.html", status, message, title="Fleet", query=query, live=render.safe(look())
    )


def live_fleet(visit: Visit) -> Callable[[], str]:
    """Pools with their machines, of one machine its slots; jobs and models of other tenants have no name."""
    ledger, tenant, here = visit.ledger, visit.looker.scope, visit.context.here
    state = visit.request.app.state
    health: Health = state.health
    names: ModelNames = state.model_names
    host = visit.query("host")

    def look() -> str:
        seen = fleet_views.fleet(ledger)
        keys = {
            slot[name]
            for slot in seen.slots
            for name in ("engine_key", "planned_key", "serves")
            if slot[name]
        }
        with ledger.transaction() as connection:
            reapers, away = job_facts.reapers(connection), outages.listed(connection)
            named = {slot["job"] for slot in seen.slots if slot["job"]}
            hidden = job_facts.foreign(connection, tenant, named)
            held = cordons.states(connection)
            models = names.of(connection, keys, tenant)
        slots = [slot for slot in seen.slots if host in (None, slot["host"])]
        is_guest = tenant is not None
        children = seen.held if not is_guest else _without_paths(seen.held)
        engines = fleet_standing.engines(slots, models, is_guest=is_guest)
        pools = fleet_standing.pools(
            [] if host else seen.pools,
            slots,
            children,
            seen.rates,
            engines,
            has_reaper=bool(reapers),
        )
        return render.fragment(
            "fleet_live.html",
            seen=seen,
            host=host,
            pools=pools,
            engines=sorted(set(engines.values()), key=lambda each: each.letter),
            engine_of=engines.get,
            short=fleet_standing.short_names(slots),
            name_of=lambda key: fleet_standing.engine_name(key, models, is_guest=is_guest),
            tabled=fleet_standing.tabled(pools),
            hovered=len(slots) <= fleet_standing.MOST_HOVERED,
            words=fleet_standing.WORDS,
            drawn=pictures,
            reapers=reapers,
            hidden=hidden,
            state_of=lambda name: held.get(name, machines.IN_SERVICE),
            troubles=[] if is_guest else health.sentences(),
            away=[] if is_guest else away,
            acts=not is_guest,
            nobody=here().nobody,
            reaper="" if is_guest else advise(Need.REAPER, here(), ANY_JOB),
            workers=lambda pool: "" if is_guest else advise(Need.WORKERS, here(), Subject(0, pool)),
        )

    return look


def _without_paths(children: Mapping[str, Values]) -> dict[str, Values]:
    """Workers with the errors that tenants may read."""
    return {
        name: {**child, "error": child["error"] and shown(marked(child["error"]))}
        for name, child in children.items()
    }


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
