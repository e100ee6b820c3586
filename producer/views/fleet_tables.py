"""Machines, pools and leases as rich tables, made of rows of the ledger."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nightshift.producer.views.cells import duration, list_table, state
from nightshift.producer.views.rates import Values
from nightshift.producer.views.tables import JobTable, reasons

Rates = Mapping[str, float | None]
"""Rows a second by the id of a child."""


def workers(slots: Sequence[Values], held: Mapping[str, Values], rates: Rates) -> RenderableType:
    """One line a slot. `held` are rows of worker_status by the id of the child."""
    if not slots:
        return Text("no workers", "bright_black")
    with_gpus = any(slot["gpus"] for slot in slots)
    columns = [
        "host",
        "slot",
        "pool",
        *(["GPU"] if with_gpus else []),
        "state",
        "engine",
        "for job",
    ]
    table = list_table(*columns)
    for name in ("rows held", "rows/s", "seen"):
        table.add_column(name, justify="right", no_wrap=True)
    on_host = Counter(host for host, _ in {(slot["host"], slot["supervisor"]) for slot in slots})
    for slot in slots:
        child = held.get(slot["worker_id"], {})
        rate = rates.get(slot["worker_id"])
        own = f" {slot['supervisor']}" if on_host[slot["host"]] > 1 else ""
        table.add_row(
            escape(slot["host"] + own),
            str(slot["slot"]),
            escape(slot["pool"]),
            *([gpus(slot)] if with_gpus else []),
            _slot_state(slot),
            escape(engine(slot, child)),
            escape(_job(slot)),
            f"{child.get('rows_leased', 0):,}",
            "—" if rate is None else f"{rate:,.1f}",
            f"{slot['silent_seconds']:.0f} s ago",
        )
    return table


def _job(slot: Values) -> str:
    return f"{slot['job']} {slot['job_name']}" if slot["job"] else "—"


def _slot_state(slot: Values) -> Text:
    return state(slot["state"]).append(", cordoned" if slot["cordoned"] else "", "yellow")


def engine(slot: Values, child: Values) -> str:
    """The engine of a slot: by name once it is loaded, before by its key."""
    if child.get("engine"):
        return f"{child['engine']} {child['engine_version']}"
    return slot["engine_key"] or "—"


def gpus(slot: Values) -> str:
    """The GPUs of a slot with how busy they are and their memory, where a driver told."""
    figures = {each["gpu"]: each for each in slot["gpu_figures"] or ()}
    said = []
    for gpu in filter(None, slot["gpus"].split(",")):
        known = figures.get(gpu, {})
        busy = f" {100 * known['busy']:.0f} %" if "busy" in known else ""
        used, total = known.get("memory_used"), known.get("memory_total")
        memory = f" {used / 2**30:.0f}/{total / 2**30:.0f} GiB" if used and total else ""
        said.append(f"{gpu}{busy}{memory}")
    return ", ".join(said) or "—"


def pools(demand: Sequence[Values], slots: Sequence[Values]) -> Table:
    """One line a pool: its slots, the work that waits, how many workers would have something to do."""
    table = list_table("pool")
    for name in ("slots", "ready", "loading", "batches waiting", "leased", "wanted workers"):
        table.add_column(name, justify="right")
    for row in demand:
        own = [slot["state"] for slot in slots if slot["pool"] == row["pool"]]
        table.add_row(
            escape(row["pool"]),
            f"{len(own):,}",
            f"{own.count('ready') + own.count('draining'):,}",
            f"{own.count('loading'):,}",
            f"{row['batches_waiting']:,}",
            f"{row['batches_leased']:,}",
            f"{row['desired_workers']:,}",
        )
    return table


def top(
    jobs: Sequence[Values],
    demand: Sequence[Values],
    slots: Sequence[Values],
    held: Mapping[str, Values],
    rates: Rates,
    away: Sequence[Text] = (),
) -> RenderableType:
    """The whole fleet on one screen: jobs, what they wait for, pools, machines."""
    shown = JobTable(jobs, bars=True) if jobs else Text("no open jobs", "bright_black")
    parts: list[RenderableType] = [shown, *reasons(jobs), *away, ""]
    if demand:
        parts += [pools(demand, slots), ""]
    return Group(*parts, workers(slots, held, rates))


def attempts(rows: Sequence[Values], outcomes: Mapping[str, int], most: int) -> RenderableType:
    """One line a lease, the newest first, below how many ended how. `most` leases are asked for in all."""
    if not outcomes:
        return Text("no batch of this job was ever claimed", "bright_black")
    counted = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
    table = list_table("claimed", "batch", "try", "where")
    for name in ("rows", "took"):
        table.add_column(name, justify="right")
    table.add_column("outcome")
    table.add_column("why", overflow="fold")
    for row in rows:
        table.add_row(
            clock(row["claimed_at"]),
            str(row["seq"]),
            str(row["attempt"]),
            escape(place(row)),
            f"{row['rows']:,}",
            duration(row["seconds"]),
            state(row["outcome"] or "running"),
            escape(why(row)),
        )
    left = most - len(rows)
    more = [Text(f"{left:,} more; -n 0 shows all", "bright_black")] if left > 0 else []
    return Group(Text(counted), table, *more)


def changes(rows: Sequence[Values]) -> Table:
    """One line a change that somebody asked for, the oldest first."""
    table = list_table("changed", "by", "from", "command")
    table.add_column("what", overflow="fold")
    for row in rows:
        table.add_row(
            clock(row["happened_at"]),
            escape(row["who"]),
            escape(row["host"]),
            escape(row["action"]),
            escape(detail(row["detail"])),
        )
    return table


def detail(detail: Mapping[str, object]) -> str:
    """`priority 0 -> 5`: a pair is an old and a new value. What is empty is left out."""

    def said(value: object) -> object:
        return "none" if value is None else value

    return ", ".join(
        "{} {} -> {}".format(name, *map(said, value))
        if isinstance(value, list) and len(value) == 2
        else f"{name} {said(value)}"
        for name, value in detail.items()
        if value != ""
    )


def place(row: Values) -> str:
    """Where a lease ran: host and slot, or the id of a child that the ledger has forgotten."""
    return f"{row['host']} · slot {row['slot']}" if row["host"] else row["worker"]


def why(row: Values) -> str:
    """How a lease ended, in words; the error of the lease where there is one."""
    if row["error"]:
        return str(row["error"])
    match row["outcome"]:
        case None:
            return "under way"
        case "done":
            failed = row["rows_failed"]
            return f"committed; failed rows: {failed:,}" if failed else "committed"
        case "split":
            return "its finished rows were committed, the rest went back as another batch"
        case "released":
            if row["worker_state"] == "ended" and row["worker_ended_at"] == row["ended_at"]:
                return "given back when its worker ended"
            return "given back by its worker, which drained or made room"
        case "lost":
            return row["worker_error"] or "its worker did not renew the lease"
        case _:
            return str(row["outcome"])


def clock(moment: datetime) -> str:
    """A moment in the time zone of this machine."""
    return f"{moment.astimezone():%m-%d %H:%M:%S}"
