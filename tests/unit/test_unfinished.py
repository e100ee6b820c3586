"""Begun files: what a killed process left goes, and what somebody writes now stays."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import pytest

from nightshift.common import storage
from nightshift.common.errors import UnfinishedGone
from nightshift.common.storage import unfinished
from tests.support.rig import BUILD

LEFT = "._owner.json.0123456789ab"


@pytest.mark.parametrize(
    ("name", "final"),
    [
        (LEFT, "_owner.json"),
        (".part-000001-a1.parquet.ffffffffffff", "part-000001-a1.parquet"),
        (".hidden.0123456789", None),
        ("part-000001-a1.parquet", None),
        (".gitignore", None),
    ],
)
def test_a_begun_file_is_known_by_its_name(name: str, final: str | None) -> None:
    assert unfinished.final_name(name) == final


def test_only_what_nobody_writes_counts_as_left(tmp_path: Path) -> None:
    for name in (LEFT, "._other.json.0123456789ab", ".notes"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.0123456789ab").mkdir()
    (tmp_path / ".link.0123456789ab").symlink_to(tmp_path / LEFT)
    seen = []

    def content(sink: BinaryIO) -> None:
        sink.write(b"x")
        seen.append(storage.left_unfinished(str(tmp_path), lambda name: name != "_other.json"))

    storage.write_whole(str(tmp_path / "whole"), content, replace=True)
    assert seen == [[str(tmp_path / LEFT)]]
    assert storage.left_unfinished(str(tmp_path / "missing")) == []
    assert storage.left_unfinished("s3://bucket/out") == []


def test_a_copy_whose_begun_file_was_removed_is_made_again(tmp_path: Path) -> None:
    """In a file system without locks, a sweep takes it for one that was left."""
    made = []

    def content(sink: BinaryIO) -> None:
        sink.write(b"whole")
        made.append(True)
        if len(made) == 1:
            (begun,) = tmp_path.glob(".copy.*")
            begun.unlink()

    storage.write_again(str(tmp_path / "copy"), content)
    assert (tmp_path / "copy").read_bytes() == b"whole"
    assert (len(made), sorted(path.name for path in tmp_path.iterdir())) == (2, ["copy"])
    with pytest.raises(UnfinishedGone, match="the unfinished file beside it was removed"):
        storage.write_again(str(tmp_path / "other"), lambda _: remove_begun(tmp_path))


def remove_begun(folder: Path) -> None:
    for path in folder.glob(".other.*"):
        path.unlink()


WRITE = """
from nightshift.common import storage
{do}
"""


@pytest.mark.parametrize(
    "do",
    [
        "storage.create('{folder}/_owner.json', b'x')",
        "storage.write_bytes('{folder}/_manifest.json', b'x')",
    ],
)
def test_what_a_killed_process_has_begun_counts_as_left(tmp_path: Path, do: str) -> None:
    orders = tmp_path / "faults"
    for name in ("armed", "fired"):
        (orders / name).mkdir(parents=True)
    (orders / "armed" / "writing.0").write_text("kill")
    out = tmp_path / "out"
    path = os.pathsep.join(filter(None, [str(BUILD), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", WRITE.format(do=do.format(folder=out))],
        env={**os.environ, "PYTHONPATH": path, "FAULTS": str(orders)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    (begun,) = out.iterdir()
    assert storage.left_unfinished(str(out)) == [str(begun)]


def test_a_spool_that_a_killed_process_left_goes_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, others = tmp_path / f"{unfinished.SPOOL}a", tmp_path / "notes"
    for path in (left, others):
        path.touch()
    with tempfile.NamedTemporaryFile(prefix=unfinished.SPOOL) as spool:
        unfinished.hold(spool.fileno())
        unfinished.remove_left_spools.__wrapped__()
        assert sorted(tmp_path.iterdir()) == sorted([Path(spool.name), others])
