"""Pools and machines as the page of the fleet tells them: what each does, and which of them needs a person. Pure."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from nightshift.common import text
from nightshift.common.text import counted, counted_batches, plural
from nightshift.producer.serve.console.pictures.fleet import Cell
from nightshift.producer.views.rates import Values

MOST_TABLED = 64
"""Slots that have a line in a table of the page. In larger fleets only machines that say something have their table
there; the others have a page of their own.
"""

MOST_HOVERED = 200
"""Slots of a page whose cells say on hover what they do; in larger fleets the tables do."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Letters of engines; those beyond share the last."""

OTHERS = "another tenant's engine"

OTHERS_LETTER = "·"

SILENT_SECONDS = 30.0
"""A machine that was silent for longer has something to say; after LIVING_SECONDS it is gone."""

WORDS = ("at work", "idle", "loading", "draining", "lost", "free")
"""What slots do, the busiest first."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of the fleet: the letter that stands for it, and its name; `slots` have it."""

    letter: str
    name: str
    slots: int


@dataclass(frozen=True, slots=True)
class Host:
    """The slots of one machine in one pool. `notes` are what a person should know of it."""

    name: str
    pool: str
    slots: Sequence[Values]
    cells: Sequence[Cell]
    notes: Sequence[str]

    @property
    def key(self) -> str:
        """Its name in its pool for identifiers of elements, in which a name may have no dot."""
        return hashlib.sha256(f"{self.pool}/{self.name}".encode()).hexdigest()[:10]

    @property
    def cordoned(self) -> bool:
        """Whether a slot takes no new work."""
        return any(slot["cordoned"] for slot in self.slots)

    @property
    def summary(self) -> str:
        """How many slots do what."""
        return by_word(Counter(cell.word for cell in self.cells))


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool: how many of its slots do what, what waits, its machines, and what stops its work if anything does."""

    name: str
    words: Counter[str]
    slots: int
    cordoned: int
    waiting: int
    leased: int
    wanted: int
    set_aside: int
    hosts: Sequence[Host] = field(default=())

    @property
    def living(self) -> int:
        """Its workers: at work, idle or about to be."""
        return self.words["at work"] + self.words["idle"] + self.words["loading"]

    @property
    def largest(self) -> int:
        """Workers that its bar must have room for."""
        return max(self.slots, self.living, self.wanted)

    @property
    def has_gpus(self) -> bool:
        """Whether a driver told of a GPU."""
        return any(cell.busy is not None for host in self.hosts for cell in host.cells)

    @property
    def summary(self) -> str:
        """How many slots do what."""
        return by_word(self.words) or "no machine"

    @property
    def label(self) -> str:
        """The bar in words."""
        return f"{self.summary}; {self.wanted:,} wanted, {counted_batches(self.waiting)} {plural(self.waiting, 'waits', 'wait')}"


def by_word(words: Counter[str]) -> str:
    """`6 at work, 2 idle`: the busiest first."""
    return ", ".join(f"{words[word]:,} {word}" for word in WORDS if words[word])


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nobody takes the work of a pool, and what to do; `needs_workers` where that is to start some."""

    sentence: str
    advice: str = ""
    needs_workers: bool = False


def trouble(pool: Pool, *, has_reaper: bool) -> Trouble | None:
    """Why a pool with work has no worker; None where one works, loads, or is on its way."""
    if not pool.waiting or pool.living:
        return None
    waits = f"{pool.waiting:,} batch{'es wait' if pool.waiting > 1 else ' waits'}, and"
    if not pool.slots:
        return Trouble(f"{waits} no machine works for this pool", needs_workers=True)
    if pool.cordoned == pool.slots:
        return Trouble(f"{waits} every slot is cordoned", "uncordon a machine")
    if pool.words["lost"] == pool.slots:
        return Trouble(
            f"{waits} every slot has a killed worker that does not end", "start the machine again"
        )
    if pool.set_aside:
        machines = f"{counted(pool.set_aside, 'machine')}"
        return Trouble(
            f"{waits} {machines} could not load an engine",
            "the page of a job that waits says why, and lets them try again",
        )
    if not has_reaper:
        return Trouble(f"{waits} no reaper gives the free slots an engine")
    return Trouble(f"{waits} no slot has an engine yet", "a reaper plans engines within seconds")


def word(slot: Values, child: Values) -> str:
    """What a slot does, in a word."""
    state: str = slot["state"]
    if state == "ready":
        return "at work" if child.get("rows_leased") else "idle"
    return state


def engines(
    slots: Sequence[Values], names: Mapping[str, str], *, is_guest: bool
) -> dict[str, Engine]:
    """The engines of slots by their key, each with a letter, in the order of their names. Those whose model a
    guest has no job of are all the same.
    """
    count = Counter(slot["engine_key"] for slot in slots if slot["engine_key"])
    known = sorted((names[key], key) for key in count if key in names)
    unknown = sorted(key for key in count if key not in names)
    if is_guest:
        others = Engine(OTHERS_LETTER, OTHERS, sum(count[key] for key in unknown))
        found = dict.fromkeys(unknown, others)
    else:
        known += [(f"an engine without a job ({key})", key) for key in unknown]
        found = {}
    for place, (name, key) in enumerate(known):
        found[key] = Engine(LETTERS[min(place, len(LETTERS) - 1)], name, count[key])
    return found


def short_names(slots: Sequence[Values]) -> dict[str, str]:
    """The names of machines without the domain, where that tells them apart."""
    hosts = {slot["host"] for slot in slots}
    short = {host: host.partition(".")[0] for host in hosts}
    return short if len(set(short.values())) == len(hosts) else {host: host for host in hosts}


def engine_name(key: str | None, names: Mapping[str, str], *, is_guest: bool) -> str:
    """What a reader is told of an engine: its model, where the reader may know the model."""
    return names.get(key or "") or (OTHERS if is_guest else key or "")


def pools(
    demand: Sequence[Values],
    slots: Sequence[Values],
    held: Mapping[str, Values],
    rates: Mapping[str, float | None],
    known: Mapping[str, Engine],
    *,
    has_reaper: bool,
) -> list[tuple[Pool, Trouble | None]]:
    """The pools with their machines, those in trouble first, and in a pool the machines that say something."""
    asked = {row["pool"]: row for row in demand}
    of_pool: dict[str, list[Values]] = {name: [] for name in asked}
    for slot in slots:
        of_pool.setdefault(slot["pool"], []).append(slot)
    found = [
        _pool(name, asked.get(name, {}), own, held, rates, known) for name, own in of_pool.items()
    ]
    told = [(pool, trouble(pool, has_reaper=has_reaper)) for pool in found]
    return sorted(told, key=lambda each: (each[1] is None, each[0].name))


def _pool(
    name: str,
    asked: Values,
    slots: Sequence[Values],
    held: Mapping[str, Values],
    rates: Mapping[str, float | None],
    known: Mapping[str, Engine],
) -> Pool:
    of_host: dict[str, list[Values]] = {}
    for slot in slots:
        of_host.setdefault(slot["host"], []).append(slot)
    hosts = [_host(host, name, own, held, rates, known) for host, own in of_host.items()]
    return Pool(
        name=name,
        words=Counter(cell.word for host in hosts for cell in host.cells),
        slots=len(slots),
        cordoned=sum(slot["cordoned"] for slot in slots),
        waiting=asked.get("batches_waiting", 0),
        leased=asked.get("batches_leased", 0),
        wanted=asked.get("desired_workers", 0),
        set_aside=asked.get("machines_set_aside", 0),
        hosts=sorted(hosts, key=lambda host: (not host.notes, host.name)),
    )


def _host(
    name: str,
    pool: str,
    slots: Sequence[Values],
    held: Mapping[str, Values],
    rates: Mapping[str, float | None],
    known: Mapping[str, Engine],
) -> Host:
    cells, notes = [], []
    for slot in slots:
        child = held.get(slot["worker_id"], {})
        engine = known.get(slot["engine_key"])
        cells.append(_cell(slot, child, engine, rates.get(slot["worker_id"])))
        notes += _notes(slot, child, engine)
    return Host(name, pool, slots, cells, notes)


def _cell(slot: Values, child: Values, engine: Engine | None, rate: float | None) -> Cell:
    does = word(slot, child)
    said = [f"slot {slot['slot']}: {does}{', cordoned' if slot['cordoned'] else ''}"]
    said += [engine.name] if engine else []
    said += [f"{text.rate(rate)} rows/s"] if rate and does == "at work" else []
    figures = slot["gpu_figures"] or ()
    return Cell(
        word=does,
        letter=engine.letter if engine and does != "lost" else "",
        said=" · ".join(said),
        cordoned=slot["cordoned"],
        busy=_mean([gpu["busy"] for gpu in figures if "busy" in gpu]),
        memory=_mean(
            [gpu["memory_used"] / gpu["memory_total"] for gpu in figures if gpu.get("memory_total")]
        ),
    )


def _mean(values: Sequence[float]) -> float | None:
    return min(1.0, max(0.0, sum(values) / len(values))) if values else None


def _notes(slot: Values, child: Values, engine: Engine | None) -> list[str]:
    """What a person should know of a slot. The error of another tenant's engine may name its model."""
    found = []
    if slot["state"] == "lost":
        found.append("its worker was killed and does not end")
    if child.get("error") and (engine is None or engine.name != OTHERS):
        found.append(child["error"])
    if slot["silent_seconds"] > SILENT_SECONDS:
        found.append(f"not heard of for {slot['silent_seconds']:.0f} s")
    return [f"Slot {slot['slot']}: {each}" for each in found]


def tabled(found: Sequence[tuple[Pool, Trouble | None]]) -> set[str]:
    """The machines, by their keys, whose tables the page has."""
    hosts = [host for pool, _ in found for host in pool.hosts]
    if sum(len(host.slots) for host in hosts) > MOST_TABLED:
        hosts = [host for host in hosts if host.notes]
    until = accumulate(len(host.slots) for host in hosts)
    return {host.key for host, slots in zip(hosts, until, strict=True) if slots <= MOST_TABLED}
