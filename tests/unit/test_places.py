"""Links in an output directory: storage follows none of them, whatever it is told to do there."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from nightshift.common import storage
from nightshift.common.errors import BadInput, StorageUnavailable
from nightshift.common.formats import input_copies, part_names
from nightshift.common.storage import objects


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output directory whose `_attempts` leads to a folder of somebody else."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "part-000000-a1.parquet").write_bytes(b"of somebody else")
    found = tmp_path / "out"
    found.mkdir()
    (found / "_attempts").symlink_to(other)
    return found


def staged(output: Path, name: str = "part-000000-a1.parquet") -> str:
    return part_names.staged(str(output), name)


CALLS: dict[str, Callable[[Path], object]] = {
    "write": lambda output: storage.write_bytes(staged(output), b"x", replace=False),
    "write another": lambda output: storage.write_bytes(staged(output, "b"), b"x", replace=False),
    "replace": lambda output: storage.write_bytes(staged(output), b"x"),
    "stat": lambda output: storage.stat(staged(output)),
    "exists": lambda output: storage.exists(staged(output)),
    "open": lambda output: storage.open_input(staged(output)),
    "list": lambda output: storage.list_names(staged(output, "")),
    "delete": lambda output: storage.delete(staged(output)),
    "move": lambda output: storage.move(staged(output), str(output / "part-000000-a1.parquet")),
    "locate": lambda output: part_names.located(str(output), "part-000000-a1.parquet"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_link_in_place_of_a_folder_of_ours_is_refused(output: Path, call: str) -> None:
    with pytest.raises(BadInput, match="links in an output directory are not followed"):
        CALLS[call](output)
    other = output.parent / "other"
    assert [each.name for each in other.iterdir()] == ["part-000000-a1.parquet"]
    assert (other / "part-000000-a1.parquet").read_bytes() == b"of somebody else"
    assert [each.name for each in output.iterdir()] == ["_attempts"]


def test_a_link_in_a_folder_of_ours_is_no_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    link = tmp_path / "out" / "_attempts" / "part-1.parquet"
    link.parent.mkdir(parents=True)
    link.symlink_to(other)
    assert not storage.exists(str(link))
    with pytest.raises(StorageUnavailable):
        storage.open_input(str(link))
    with pytest.raises(BadInput, match="no regular file"):
        storage.write_bytes(str(link), b"x", replace=False)
    storage.delete(str(link))
    assert not link.is_symlink()
    assert other.read_bytes() == b"of somebody else"


def test_a_link_under_the_name_of_a_part_is_no_part_and_gives_way_to_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"part")
    (tmp_path / "out").mkdir()
    final = tmp_path / "out" / "part-1.parquet"
    final.symlink_to(other)
    assert part_names.located(str(tmp_path / "out"), "part-1.parquet") is None
    storage.write_bytes(staged(tmp_path / "out", "part-1.parquet"), b"part", replace=False)
    storage.move(staged(tmp_path / "out", "part-1.parquet"), str(final))
    assert not final.is_symlink()
    assert (final.read_bytes(), other.read_bytes()) == (b"part", b"part")


def test_an_output_directory_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large disk")
    storage.write_bytes(staged(tmp_path / "out", "p"), b"part", replace=False)
    storage.move(staged(tmp_path / "out", "p"), str(tmp_path / "out" / "p"))
    assert (tmp_path / "large disk" / "p").read_bytes() == b"part"


def test_storage_knows_every_folder_that_we_make_in_an_output() -> None:
    made = {part_names.STAGING, part_names.JUDGED, part_names.ARCHIVE, part_names.GENERATIONS}
    made |= {input_copies.FOLDER}
    assert made == storage.OWN_FOLDERS


# ---------------------------------------------------------------- files that are made once


def test_a_file_is_made_by_one_of_many_and_never_seen_half(tmp_path: Path) -> None:
    uri = str(tmp_path / "out" / "_owner.json")
    contents = [f"{number} ".encode() * 500 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda data: storage.create(uri, data), contents))
    assert sum(made) == 1
    assert Path(uri).read_bytes() == contents[made.index(True)]
    assert storage.list_names(str(tmp_path / "out")) == ["_owner.json"]
    assert not storage.create(uri, b"late")


def test_a_file_that_is_made_once_takes_no_link_for_a_free_name(tmp_path: Path) -> None:
    (tmp_path / "_owner.json").symlink_to(tmp_path / "nowhere")
    assert not storage.create(str(tmp_path / "_owner.json"), b"x")
    assert not (tmp_path / "nowhere").exists()


def test_without_hard_links_a_file_is_made_once_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_links(*_: object, **_at: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", without_links)
    uri = str(tmp_path / "_owner.json")
    assert storage.create(uri, b"first")
    assert not storage.create(uri, b"second")
    assert (tmp_path / "_owner.json").read_bytes() == b"first"
    assert storage.list_names(str(tmp_path)) == ["_owner.json"]


def test_a_store_that_refuses_conditions_gets_a_plain_put(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MemoryFileSystem.pipe_file

    def pipe_file(self: object, path: str, value: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise OSError(errno.ENOSYS, "NotImplemented")
        plain(self, path, value)

    assert storage.create("memory://once/_owner.json", b"first")
    assert not storage.create("memory://once/_owner.json", b"second")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    assert storage.create("memory://plain/_owner.json", b"first")
    assert storage.read_range("memory://plain/_owner.json", 0, 9) == b"first"
    for folder in ("once", "plain"):
        storage.delete(f"memory://{folder}/_owner.json")
    objects.DRIVERS.pop("memory", None)
