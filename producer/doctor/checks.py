"""`nightshift doctor`: is everything there that a fleet needs? Each check is one line, ok or what to do.

A check changes nothing, except that it writes and removes a file below a root that may be written.
"""

import importlib.util
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from nightshift.common import storage
from nightshift.common.broker import ping
from nightshift.common.errors import NightshiftError, Retryable
from nightshift.common.ledger import Ledger, Row, schema
from nightshift.common.ledger.connection import server_clock
from nightshift.common.ledger.fleet import outages, workers
from nightshift.common.ledger.fleet.outages import Outage
from nightshift.common.ledger.queries import job_facts
from nightshift.common.provenance import code_version
from nightshift.common.settings import Settings, visible_gpus
from nightshift.common.storage.addresses import local_path
from nightshift.producer.advice.advice import Need, Subject, advise
from nightshift.producer.advice.here import FLEET, Here, here
from nightshift.producer.connect import open_ledger

MOST_SKEW_SECONDS = 5.0
"""Leases are judged by Postgres's clock alone: a clock that is off only confuses people who compare
logs, and object stores, which refuse signatures that are 15 minutes off."""

REAPER_SILENT_SECONDS = 30.0
"""A reaper that was silent for longer counts as gone: a reaper notes every 5 s that it lives."""

LEAST_FREE_BYTES = 2**30
"""On a disk with less free space an embedded ledger ends soon."""

NO_JOB = Subject(0, "POOL")

ENGINES = {
    "vllm": "vllm",
    "transformers": "torch",
    "openai": "openai",
}
"""The package that an engine needs, by the name of the engine."""


class Health(StrEnum):
    """How a check ended: `note` is no error, and worth to know."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, how it is, and what to do where it is not well."""

    name: str
    health: Health
    said: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Check]:
    """Every check, in the order in which problems should be repaired."""
    yield Check("nightshift", Health.OK, f"{code_version()}, Python {platform.python_version()}")
    yield from _ledger(settings)
    if settings.database_url is not None:  # `nightshift run` brings a broker of its own
        yield _guarded("broker", partial(broker, settings.broker_url))
    for root in settings.allowed_roots:
        yield _guarded("storage", partial(_root, root))
    if not settings.allowed_roots:
        yield Check("storage", Health.OK, "no NIGHTSHIFT_ALLOWED_ROOTS: any place is allowed")
    yield _gpus(visible_gpus())
    yield engines([name for name, package in ENGINES.items() if _has(package)])


def _ledger(settings: Settings) -> Iterator[Check]:
    try:
        with open_ledger(settings, checked=False) as (ledger, alone):
            yield from _in_ledger(ledger, settings, here(settings, alone=alone))
    except NightshiftError as error:
        if settings.database_url is not None:
            advice = "start that PostgreSQL, or correct NIGHTSHIFT_DATABASE_URL"
        elif isinstance(error, Retryable):
            advice = "wait, or end what keeps it up in this folder, and start that again"
        else:
            advice = (
                "set NIGHTSHIFT_DATABASE_URL, or begin with `nightshift run SPEC` in this folder"
            )
        yield Check("database", Health.WRONG, str(error), advice)


def _in_ledger(ledger: Ledger, settings: Settings, works: Here) -> Iterator[Check]:
    with ledger.transaction() as connection:
        before = time.time()
        version, theirs = server_clock(connection)
        ours = (before + time.time()) / 2
    kind = "embedded, " if settings.database_url is None else ""
    yield Check("database", Health.OK, f"{kind}PostgreSQL {version} at {ledger.place}")
    try:
        schema.check(ledger)
    except NightshiftError as error:
        yield Check("migrations", Health.WRONG, str(error), "nightshift migrate")
        return
    yield Check("migrations", Health.OK, f"{schema.SCHEMA:04}, as this code needs")
    yield clock(ours - theirs)
    with ledger.transaction() as connection:
        away = outages.listed(connection)
        living, known = job_facts.reapers(connection), workers.status(connection)
        versions = job_facts.code_versions(connection)
    if works.nobody:
        yield Check(
            "fleet",
            Health.OK,
            "no `nightshift run` is running in this folder, so no job is worked on now",
        )
        return
    there = [each for each in known if each["seconds_since_seen"] < job_facts.LIVING_SECONDS]
    yield reapers(living, works)
    yield children(there, works)
    yield from waits(away)
    yield code({code_version(): 1}, {each["code_version"]: 1 for each in living} | versions)


def clock(skew_seconds: float) -> Check:
    """How far this machine's clock is from Postgres's."""
    said = f"{abs(skew_seconds):.1f} s {'ahead of' if skew_seconds > 0 else 'behind'} Postgres"
    if abs(skew_seconds) <= MOST_SKEW_SECONDS:
        return Check("clock", Health.OK, said)
    return Check("clock", Health.NOTE, said, "set the clock of this machine by NTP")


def reapers(living: Sequence[Row] | Sequence[Mapping[str, object]], works: Here = FLEET) -> Check:
    """Whether a reaper keeps the fleet going; two, so that one may end. A run in a folder has one."""
    seen = [each for each in living if float(str(each["silent_seconds"])) < REAPER_SILENT_SECONDS]
    hosts = ", ".join(sorted({str(each["host"]) for each in seen}))
    match len(seen):
        case 0:
            advice = advise(Need.REAPER, works, NO_JOB)
            return Check("reapers", Health.WRONG, "none is alive: nothing is handed out", advice)
        case 1 if not works.is_folder:
            advice = "run a second one, so that one may end"
            return Check("reapers", Health.NOTE, f"1 alive, on {hosts}", advice)
        case many:
            return Check("reapers", Health.OK, f"{many} alive, on {hosts}")


def children(there: Sequence[Row] | Sequence[Mapping[str, object]], works: Here = FLEET) -> Check:
    """Whether workers live, by state."""
    if not there:
        return Check("workers", Health.NOTE, "none is alive", advise(Need.WORKERS, works, NO_JOB))
    states = [str(each["state"]) for each in there]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lost = Health.WRONG if "lost" in states else Health.OK
    advice = "restart the machine: its kernel does not let a killed process go"
    return Check("workers", lost, counted, advice if lost is Health.WRONG else "")


def waits(away: Sequence[Outage]) -> Iterator[Check]:
    """What jobs wait for; each ends by itself once what is away is back."""
    for each in away:
        said = f"job {each.job_id} ({each.name}): {each.sentence()}"
        advice = "repair the cause in this message; the work then continues by itself"
        yield Check(str(each.kind), Health.WRONG, said, advice)


def code(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Check:
    """Whether the processes of the fleet run the code of this command."""
    others = sorted(version for version in theirs if version not in ours)
    if not others:
        return Check("versions", Health.OK, "every process runs this code")
    said = f"other code runs in the fleet, too: {', '.join(others)}"
    return Check("versions", Health.NOTE, said, "end the upgrade: restart what has the old code")


def broker(url: str | None) -> Check:
    """Whether Redis answers; without Redis each piece of work begins some seconds later."""
    if url is None:
        advice = "set NIGHTSHIFT_BROKER_URL, and work begins sooner"
        said = "no NIGHTSHIFT_BROKER_URL: children ask Postgres every 2 s"
        return Check("broker", Health.NOTE, said, advice)
    try:
        took = ping(url)
    except NightshiftError as error:
        return Check(
            "broker",
            Health.WRONG,
            str(error),
            "repair Redis; without Redis the work continues, but slower",
        )
    return Check("broker", Health.OK, f"Redis answers in {1000 * took:.0f} ms")


def engines(there: Sequence[str]) -> Check:
    """Which engines this machine could load, by the packages that are installed."""
    said = f"{', '.join(['function', *there])} can be loaded on this machine"
    return Check("engines", Health.OK, said)


def _root(root: str) -> Check:
    took = time.monotonic()
    if storage.is_local(root):
        try:
            storage.check_directory(root)
        except NightshiftError as error:
            return Check("storage", Health.NOTE, str(error), "no output can be written below it")
        path = local_path(root)
        there = next(each for each in (path, *path.parents) if each.exists())
        free = shutil.disk_usage(there).free
        full = free < LEAST_FREE_BYTES
        said = f"{root} can be written, {free / 2**30:,.0f} GiB are free"
        return Check("storage", Health.NOTE if full else Health.OK, said, "make room" * full)
    storage.list_names(root)
    return Check("storage", Health.OK, f"{root} answers in {time.monotonic() - took:.1f} s")


def _gpus(found: Sequence[str]) -> Check:
    if not found:
        return Check("GPU", Health.OK, "none on this machine; only workers use one")
    return Check("GPU", Health.OK, f"{len(found)} on this machine: {', '.join(found)}")


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check that breaks is one that is not well."""
    try:
        return check()
    except Exception as error:
        return Check(name, Health.WRONG, str(error) or type(error).__name__)


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
