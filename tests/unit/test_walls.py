"""Walls: local files are held to roots where they are opened, by whatever call and whatever name."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from nightshift.common import storage
from nightshift.common.errors import BadInput, NightshiftError
from nightshift.common.storage import local, walls
from tests.support.exchange import exchange

SECRET = b"of beta"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Roots of two tenants, each with a file and an output directory; a link leads to both roots."""
    for tenant in ("alpha", "beta"):
        root = tmp_path / "roots" / tenant
        (root / "in" / "deep").mkdir(parents=True)
        (root / "out" / "_attempts").mkdir(parents=True)
        (root / "in" / "a.jsonl").write_bytes(f"of {tenant}".encode())
        (root / "out" / "part-1").write_bytes(f"of {tenant}".encode())
        (root / "out" / "_attempts" / "part-2").write_bytes(f"of {tenant}".encode())
    (tmp_path / "alias").symlink_to(tmp_path / "roots")
    return tmp_path


def tree(root: Path) -> dict[str, bytes | None]:
    """All that lies below a folder, with the content of files."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def held(data: Path, name: str = "alpha") -> "object":
    return storage.within([str(data / "roots" / name)], storage.OF_JOB)


INSIDE: dict[str, Callable[[Path], str]] = {
    "plain": lambda alpha: "in/a.jsonl",
    "relative link": lambda alpha: linked(alpha / "in" / "l", "a.jsonl"),
    "absolute link": lambda alpha: linked(alpha / "in" / "l", alpha / "in" / "a.jsonl"),
    "link to a folder": lambda alpha: linked(alpha / "l", "in") + "/a.jsonl",
    "link up and down": lambda alpha: linked(alpha / "in" / "deep" / "l", "../../in/a.jsonl"),
    "out and in again": lambda alpha: linked(alpha / "l", "../../roots/alpha/in") + "/a.jsonl",
    "by another name": lambda alpha: (
        linked(alpha / "l", alpha.parent.parent / "alias" / "alpha" / "in") + "/a.jsonl"
    ),
    "link to a link": lambda alpha: linked(alpha / "l2", linked(alpha / "l1", "in")) + "/a.jsonl",
    "link to the root": lambda alpha: linked(alpha / "in" / "l", "..") + "/in/a.jsonl",
}
"""Ways to a file of alpha that stay in its root: each makes its links, and names the file."""

OUTSIDE: dict[str, Callable[[Path], str]] = {
    "file": lambda alpha: linked(alpha / "in" / "l", alpha.parent / "beta" / "in" / "a.jsonl"),
    "folder": lambda alpha: linked(alpha / "l", alpha.parent / "beta" / "in") + "/a.jsonl",
    "relative": lambda alpha: linked(alpha / "l", "../beta/in") + "/a.jsonl",
    "root": lambda alpha: linked(alpha / "l", alpha.parent / "beta") + "/in/a.jsonl",
    "around": lambda alpha: linked(alpha / "l", alpha.parent) + "/beta/in/a.jsonl",
    "from the top": lambda alpha: linked(alpha / "l", "/") + str(alpha.parent / "beta/in/a.jsonl"),
    "chain": lambda alpha: linked(alpha / "l2", linked(alpha / "l1", "../beta")) + "/in/a.jsonl",
    "by a link around": lambda alpha: (
        linked(alpha / "l", alpha.parent.parent / "alias" / "beta") + "/in/a.jsonl"
    ),
    "another tenant": lambda alpha: "../beta/in/a.jsonl",
    "name that begins alike": lambda alpha: longer(alpha),
}
"""Ways that lead out of the root of alpha."""


def linked(link: Path, target: str | Path) -> str:
    """Makes a link; returns its name below the root of alpha."""
    link.symlink_to(target)
    alpha = next(each for each in link.parents if each.name == "alpha")
    return str(link.relative_to(alpha))


def longer(alpha: Path) -> str:
    other = alpha.with_name("alpha-2")
    (other / "in").mkdir(parents=True)
    (other / "in" / "a.jsonl").write_bytes(SECRET)
    return "../alpha-2/in/a.jsonl"


@pytest.mark.parametrize("way", INSIDE)
@pytest.mark.parametrize("root", ["roots", "alias"])
def test_what_links_lead_to_inside_a_root_is_read_as_ever(data: Path, way: str, root: str) -> None:
    name = INSIDE[way](data / "roots" / "alpha")
    uri = str(data / root / "alpha" / name)
    with storage.within([str(data / root / "alpha")], storage.OF_JOB):
        assert storage.read_range(uri, 0, 100) == b"of alpha"
        assert storage.stat(uri).size == 8
        assert [info.uri for info in storage.expand([uri])] == [uri]
        pattern = f"{uri.removesuffix('l')}?"
        assert [info.uri for info in storage.expand([pattern])] == [uri]


CALLS: dict[str, Callable[[str], object]] = {
    "read": lambda uri: storage.read_range(uri, 0, 9),
    "open": storage.open_input,
    "stat": storage.stat,
    "exists": storage.exists,
    "expand": lambda uri: storage.expand([uri]),
    "expand a pattern": lambda uri: storage.expand([uri.replace("a.jsonl", "*.jsonl")]),
    "write": lambda uri: storage.write_bytes(uri, b"x", replace=False),
    "folder": lambda uri: storage.list_names(uri.removesuffix("/a.jsonl")),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", OUTSIDE)
def test_no_call_follows_a_way_out_of_a_root(data: Path, way: str, call: str) -> None:
    alpha, beta = (data / "roots" / name for name in ("alpha", "beta"))
    uri = os.path.join(alpha, OUTSIDE[way](alpha))  # noqa: PTH118
    before = tree(beta)
    with held(data), pytest.raises(BadInput, match="outside the folders that the job may use"):
        CALLS[call](uri)
    assert tree(beta) == before
    assert storage.read_range(uri, 0, 2) == b"of"  # without a wall as before


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda out: storage.write_bytes(f"{out}/part-3", b"x", replace=False),
    "replace": lambda out: storage.write_bytes(f"{out}/part-1", b"x"),
    "stage": lambda out: storage.write_bytes(f"{out}/_attempts/part-3", b"x", replace=False),
    "make folders": lambda out: storage.write_bytes(f"{out}/_input/deep/copy", b"x"),
    "create": lambda out: storage.create(f"{out}/_owner.json", b"x"),
    "delete": lambda out: storage.delete(f"{out}/part-1"),
    "delete staged": lambda out: storage.delete(f"{out}/_attempts/part-2"),
    "move": lambda out: storage.move(f"{out}/_attempts/part-2", f"{out}/part-2"),
    "remove folder": lambda out: storage.remove_directory(f"{out}/empty"),
    "check": lambda out: storage.check_directory(f"{out}/new"),
    "list": lambda out: storage.list_names(str(out)),
    "list staged": lambda out: storage.list_names(f"{out}/_attempts"),
    "walk": lambda out: list(storage.folders(str(out))),
    "checksum": lambda out: storage.checksum(f"{out}/part-1"),
    "locate": lambda out: storage.exists(f"{out}/part-1", links=False),
}


@pytest.mark.parametrize("call", CHANGES)
def test_an_output_directory_that_became_a_link_takes_and_gives_nothing(
    data: Path, call: str
) -> None:
    """Whoever opens it, in whatever thread: the directory itself is held."""
    alpha, beta = (data / "roots" / name for name in ("alpha", "beta"))
    (beta / "out" / "empty").mkdir()
    out = alpha / "out"
    storage.keep_within(str(out), [str(alpha)], storage.OF_JOB)
    out.rename(alpha / "own")
    out.symlink_to(beta / "out")
    before = tree(beta)
    with ThreadPoolExecutor(1) as other, pytest.raises(BadInput, match="outside the folders"):
        other.submit(CHANGES[call], out).result()
    assert tree(beta) == before
    out.unlink()
    out.symlink_to(alpha / "own")
    (alpha / "own" / "empty").mkdir()
    with suppress(FileNotFoundError):
        CHANGES[call](out)


def test_a_root_that_is_not_there_yet_is_made(data: Path) -> None:
    out = data / "new" / "root" / "out"
    with storage.within([str(out.parent)], storage.SETTING):
        storage.check_directory(str(out))
        assert not (data / "new").exists()
        assert storage.list_names(str(out.parent)) == []
        storage.write_bytes(f"{out}/_attempts/part-1", b"x", replace=False)
    assert (out / "_attempts" / "part-1").read_bytes() == b"x"


def test_every_wall_must_allow_a_file_and_no_root_allows_none(data: Path) -> None:
    uri = str(data / "roots" / "alpha" / "in" / "a.jsonl")
    with storage.within([str(data)], storage.SETTING), held(data):
        assert storage.exists(uri)
    with held(data), held(data, "beta"), pytest.raises(BadInput):
        storage.exists(uri)
    with storage.within([], storage.OF_JOB), pytest.raises(BadInput):
        storage.exists(uri)
    with storage.within(None, storage.OF_JOB):
        assert storage.exists(uri)
    with storage.within([str(data / "roots" / "beta"), str(data / "roots" / "alpha")], "x"):
        assert storage.exists(uri)


def test_another_thread_is_held_to_what_its_caller_is_held_to(data: Path) -> None:
    uri = str(data / "roots" / "beta" / "in" / "a.jsonl")
    with held(data), ThreadPoolExecutor(1) as threads:
        assert threads.submit(storage.exists, uri).result()
        with pytest.raises(BadInput):
            threads.submit(storage.carried(storage.exists), uri).result()
        assert threads.submit(storage.exists, uri).result()


def test_a_directory_is_held_to_the_latest_roots_of_each_who_names_some(data: Path) -> None:
    alpha = data / "roots" / "alpha"
    uri = f"{alpha}/out/part-1"
    storage.keep_within(f"{alpha}/out", [str(alpha)], storage.OF_JOB)
    storage.keep_within(f"{alpha}/out", [str(data)], storage.SETTING)
    assert storage.exists(uri)
    storage.keep_within(f"{alpha}/out", [], storage.OF_JOB)
    with pytest.raises(BadInput, match="the job may use"):
        storage.exists(uri)
    storage.keep_within(f"{alpha}/out", None, storage.OF_JOB)
    assert storage.exists(uri)
    storage.keep_within(f"{alpha}/out", [f"{alpha}/in"], storage.SETTING)
    with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_ROOTS names"):
        storage.exists(uri)


@pytest.fixture
def swapped(data: Path) -> Iterator[Path]:
    """The output directory of alpha, which changes places with a link to that of beta all the time."""
    alpha = data / "roots" / "alpha"
    other = alpha / "other"
    other.symlink_to(data / "roots" / "beta" / "out")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(alpha / "out", other)

    thread = threading.Thread(target=swap)
    thread.start()
    yield alpha / "out"
    stop.set()
    thread.join()


def test_a_folder_that_is_swapped_for_a_link_all_the_time_leads_nowhere(
    data: Path, swapped: Path
) -> None:
    """Between any check of a name and any use of it the name may lead elsewhere."""
    storage.keep_within(str(swapped), [str(swapped.parent)], storage.OF_JOB)
    before = tree(data / "roots" / "beta")
    done = refused = 0
    for number in range(2_000):
        if min(done, refused) > 20:
            break
        try:
            assert storage.read_range(f"{swapped}/part-1", 0, 99) == b"of alpha"
            storage.write_bytes(f"{swapped}/_attempts/part-{number + 9}", b"x", replace=False)
            storage.create(f"{swapped}/made-{number}", b"x")
            storage.write_bytes(f"{swapped}/whole", b"x")
            storage.delete(f"{swapped}/made-{number}")
            done += 1
        except (NightshiftError, FileNotFoundError):
            refused += 1
    assert refused > 0
    assert tree(data / "roots" / "beta") == before


def test_a_folder_that_is_made_is_made_inside(data: Path) -> None:
    """The way is checked before each folder that is made on it."""
    alpha, beta = (data / "roots" / name for name in ("alpha", "beta"))
    (alpha / "l").symlink_to(beta)
    with held(data), pytest.raises(BadInput):
        local.make_directory(alpha / "l" / "new" / "deep")
    assert not (beta / "new").exists()


def test_links_in_a_circle_end(data: Path) -> None:
    (data / "roots" / "alpha" / "l").symlink_to("l")
    with pytest.raises(OSError, match="levels of symbolic links"):
        walls.walk(data / "roots" / "alpha" / "l" / "x")
