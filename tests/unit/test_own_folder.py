"""Folders of processes that were killed go, those of living processes stay."""

import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.common.own_folder import LOCK, own_folder

HOLDS = """
import sys, time
from pathlib import Path
from nightshift.common.own_folder import own_folder
with own_folder("mine-", Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        (theirs / "file").write_text("x")
        (tmp_path / "mine-too").mkdir()  # without a lock: of nobody who could be asked
        with own_folder("mine-", tmp_path) as mine:
            assert mine.name.startswith("mine-")
            assert (theirs / "file").exists()
        assert not mine.exists()
        other.kill()
        other.wait(60)
        assert theirs.exists()
        with own_folder("mine-", tmp_path):
            assert not theirs.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["mine-too"]


def test_a_place_where_no_folder_can_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"), own_folder("mine-", tmp_path / "missing"):
        pass


def test_a_folder_is_locked_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts at this moment would else take the new folder for one of a dead process."""
    seen: list[bool] = []
    rename = Path.rename

    def look(path: Path, target: Path) -> Path:
        seen.append((path / LOCK).exists())
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", look)
    with own_folder("mine-", tmp_path):
        pass
    assert seen == [True]
