"""The picture of the fleet: which pool needs a person, what cells say, and how large it all is."""

import re
from collections import Counter
from typing import Any

import pytest

from nightshift.producer.serve.console import fleet_standing
from nightshift.producer.serve.console.fleet_standing import OTHERS, Host, Pool
from nightshift.producer.serve.console.pictures import fleet as pictures
from nightshift.producer.serve.console.pictures.fleet import Cell


def pool(
    slots: int = 0, waiting: int = 5, cordoned: int = 0, set_aside: int = 0, **words: int
) -> Pool:
    counted = Counter({word.replace("_", " "): count for word, count in words.items()})
    return Pool("p", counted, slots, cordoned, waiting, 0, 3, set_aside)


TROUBLES = {
    "no machine": (pool(), True, "5 batches wait, and no machine works for this pool"),
    "one batch": (pool(waiting=1), True, "1 batch waits, and no machine works for this pool"),
    "nothing waits": (pool(waiting=0), True, None),
    "a worker": (pool(2, at_work=1, free=1), True, None),
    "an idle one": (pool(2, idle=1, free=1), True, None),
    "a worker to be": (pool(2, loading=1, free=1), True, None),
    "one that leaves": (
        pool(2, draining=1, free=1),
        True,
        "5 batches wait, and no slot has an engine yet",
    ),
    "all cordoned": (
        pool(2, cordoned=2, free=2),
        True,
        "5 batches wait, and every slot is cordoned",
    ),
    "all lost": (
        pool(2, lost=2),
        True,
        "5 batches wait, and every slot has a killed worker that does not end",
    ),
    "failed loads": (
        pool(2, free=2, set_aside=1),
        True,
        "5 batches wait, and 1 machine could not load an engine",
    ),
    "no reaper": (
        pool(2, free=2),
        False,
        "5 batches wait, and no reaper gives the free slots an engine",
    ),
}


@pytest.mark.parametrize(("found", "has_reaper", "sentence"), TROUBLES.values(), ids=TROUBLES)
def test_a_pool_with_work_and_without_a_worker_says_why(
    found: Pool, has_reaper: bool, sentence: str | None
) -> None:
    told = fleet_standing.trouble(found, has_reaper=has_reaper)
    assert (told and told.sentence) == sentence
    if told is not None:
        assert told.needs_workers is (not found.slots)


def slot(host: str = "h", number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "host": host,
        "pool": "p",
        "slot": number,
        "state": "ready",
        "engine_key": "key-a",
        "worker_id": f"w-{host}-{number}",
        "gpu_figures": None,
        "cordoned": False,
        "silent_seconds": 1.0,
        **more,
    }


def standing(slots: list[dict[str, Any]], held: dict[str, Any], *, is_guest: bool = False) -> Pool:
    engines = fleet_standing.engines(slots, {"key-a": "a/model"}, is_guest=is_guest)
    [(found, _)] = fleet_standing.pools([], slots, held, {}, engines, has_reaper=True)
    return found


def test_engines_have_letters_in_the_order_of_their_names() -> None:
    slots = [slot(), slot(number=1), slot(number=2, engine_key="key-z"), slot(engine_key=None)]
    found = fleet_standing.engines(slots, {"key-z": "a", "key-a": "b"}, is_guest=False)
    assert {key: (each.letter, each.name, each.slots) for key, each in found.items()} == {
        "key-z": ("A", "a", 1),
        "key-a": ("B", "b", 2),
    }
    many = [slot(engine_key=f"key-{number}") for number in range(60)]
    assert (
        len({each.letter for each in fleet_standing.engines(many, {}, is_guest=False).values()})
        == 52
    )


def test_a_guest_knows_engines_of_others_neither_by_name_nor_by_key_nor_by_their_errors() -> None:
    slots = [slot(engine_key="key-x"), slot(number=1, engine_key="key-y"), slot(number=2)]
    held = {"w-h-0": {"error": "no folder /models/secret"}, "w-h-2": {"error": "out of memory"}}
    found = standing(slots, held, is_guest=True).hosts[0]
    assert found.notes == ["Slot 2: out of memory"]
    assert [cell.said for cell in found.cells] == [
        f"slot 0: idle · {OTHERS}",
        f"slot 1: idle · {OTHERS}",
        "slot 2: idle · a/model",
    ]
    assert fleet_standing.engine_name("key-x", {}, is_guest=True) == OTHERS
    assert len(standing(slots, held).hosts[0].notes) == 2


def test_machines_that_say_something_come_first() -> None:
    slots = [slot("a"), slot("b", state="lost"), slot("c"), slot("d", silent_seconds=40.0)]
    found = standing(slots, {"w-a-0": {"rows_leased": 3}})
    assert [host.name for host in found.hosts] == ["b", "d", "a", "c"]
    assert found.summary == "1 at work, 2 idle, 1 lost"


def test_machines_are_called_without_their_domain_where_that_tells_them_apart() -> None:
    alike, apart = [slot("a.x"), slot("a.y")], [slot("a.x"), slot("b.x"), slot("c")]
    assert fleet_standing.short_names(apart) == {"a.x": "a", "b.x": "b", "c": "c"}
    assert fleet_standing.short_names(alike) == {"a.x": "a.x", "a.y": "a.y"}


def test_a_large_fleet_has_the_tables_of_machines_that_say_something_alone() -> None:
    def hosts(noted: int, count: int) -> list[Host]:
        slots = [slot(number=number) for number in range(8)]
        return [Host(f"h{n}", "p", slots, [], ["hm"] * (n < noted)) for n in range(count)]

    def tables(noted: int, count: int) -> int:
        found = Pool("p", Counter(), 8 * count, 0, 0, 0, 0, 0, hosts(noted, count))
        return len(fleet_standing.tabled([(found, None)]))

    assert [tables(0, 8), tables(0, 9), tables(3, 9), tables(100, 125)] == [8, 0, 3, 8]


def test_a_cell_says_what_its_slot_does_and_shows_no_markup() -> None:
    drawn = pictures.cells([Cell("at work", "A", "slot 0: <b>"), Cell("lost")], "1 at work, 1 lost")
    assert "<title>slot 0: &lt;b&gt;</title>" in drawn
    assert 'aria-label="1 at work, 1 lost"' in drawn
    assert '<path class="at-work"' in drawn
    assert '<path class="lost"' in drawn
    assert "<title>" not in pictures.cells([Cell("idle")], "1 idle", hover=False)


def test_every_word_has_a_shape_of_its_own() -> None:
    marks = {
        word: pictures.mark(word).partition("<path")[2]
        for word in (*fleet_standing.WORDS, "cordoned")
    }
    assert set(fleet_standing.WORDS) == set(pictures.SHAPES)
    assert len(set(marks.values())) == len(marks)


def test_the_bars_of_a_gpu_are_as_long_as_its_use_and_its_memory() -> None:
    drawn = pictures.cells([Cell("idle", busy=0.5, memory=1.0), Cell("idle", busy=0.0)], "")
    assert re.search(r'<path class="busy" d="M1 25h10M25 25h1"', drawn)
    assert re.search(r'<path class="memory" d="M1 29h20"', drawn)


def widths(drawn: str) -> dict[str, float]:
    found = re.findall(r'<rect class="([\w-]+)" x="[\d.]+" y="1" width="([\d.]+)"', drawn)
    return {kind: float(width) for kind, width in found if kind != "ground"}


def test_the_bar_of_a_pool_has_its_workers_and_what_is_wanted_beyond_them() -> None:
    found = widths(pictures.pool_bar({"at work": 10, "idle": 5, "free": 9}, 20, 40, ""))
    assert found == {"at-work": 79.0, "idle": 39.0, "wanted": 39.0}
    assert "wanted" not in widths(pictures.pool_bar({"at work": 10}, 10, 40, ""))


@pytest.mark.parametrize("most", [0, 1, 10_000])
def test_the_bar_of_a_pool_never_leaves_its_frame(most: int) -> None:
    words = {"at work": most, "idle": 1, "loading": 1, "draining": 1, "lost": 1}
    found = widths(pictures.pool_bar(words, most + 7, most, ""))
    assert sum(width + 1 for width in found.values()) <= pictures.BAR_WIDTH + len(found)
    assert min(found.values()) >= 1
