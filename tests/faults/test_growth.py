"""Datasets that grow, on a fleet of real processes that are killed in the middle."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nightshift.common.failpoints import Moment
from tests.support.fleet import logs, wait_until, write_rows
from tests.support.rig import Rig

QUICK = {"backend": "function", "callable": "rules:shout"}


def test_an_append_that_is_killed_adds_nothing_and_a_second_one_adds_all(rig: Rig) -> None:
    ids = rig.submit("grown", [("a.parquet", 12)], engine=QUICK)
    rig.reaper()
    rig.worker("--slots", "1")
    assert rig.wait_closed("grown") == "completed"
    ids += write_rows(rig.folder / "in-grown", [("b.jsonl", 7), ("c.parquet", 9)])

    rig.arm(Moment.APPENDING, "kill")
    killed = rig.command("submit", "--append", "grown")
    assert killed.returncode == -9
    for table in ("batches", "input_files"):
        query = f"SELECT count(*) FROM {table} WHERE file_index > 0"
        assert rig.value(query) == 0
    assert rig.value("SELECT state FROM jobs") == "completed"

    done = rig.command("submit", "--append", "grown")
    assert done.returncode == 0, done.stderr
    assert "has 16 rows more in 4 batches: generation 2, new files: 2" in done.stdout
    rig.finished("grown", ids)
    again = rig.command("submit", "--append", "grown")
    assert "has no new files: nothing is added" in again.stdout


def followed(output: Path) -> list[str]:
    """What a reader of the files of generations has seen so far."""
    ids: list[str] = []
    for place in sorted((output / "_generations").iterdir()):
        for part in json.loads(place.read_text())["parts"]:
            ids += pq.read_table(output / part["name"]).column("id").to_pylist()
    return ids


@pytest.mark.slow
def test_a_watched_input_is_followed_while_reapers_die_until_somebody_ends_the_watch(
    rig: Rig,
) -> None:
    folder, output = rig.folder / "in-watched", rig.folder / "watched"
    ids = write_rows(folder, [("a.parquet", 12)])
    data = rig.spec_of("watched", engine=QUICK)
    data["input"]["watch"] = "1s"
    done = rig.command("submit", str(rig.spec(data)))
    assert "a reaper looks for new files every 1 s" in done.stderr
    rig.reaper()
    rig.worker("--slots", "1")
    waited = rig.command("wait", "watched")
    assert waited.returncode == 0, waited.stdout + waited.stderr + logs(rig.folder)
    assert "every row so far is done; waits for files" in waited.stdout
    assert "--last" in waited.stdout
    assert followed(output) == ids

    rig.arm(Moment.APPENDING, "kill")
    ids += write_rows(folder, [("b.parquet", 8)])
    rig.wait_fired(Moment.APPENDING)
    assert rig.value("SELECT count(*) FROM input_files") == 1
    rig.reaper()
    rig.reaper()
    # The look of the reaper that died is not waited for.
    rig.ask("UPDATE holds SET until = '-infinity' RETURNING subject")
    wait_until(lambda: rig.rows_done("watched") == 20, what="the rows of the second file")
    ids += write_rows(folder, [("c.jsonl", 5)])
    wait_until(lambda: rig.rows_done("watched") == 25, what="the rows of the third file")
    waited = rig.command("wait", "watched")
    assert waited.returncode == 0, waited.stdout + waited.stderr + logs(rig.folder)
    assert followed(output) == ids
    assert rig.status("watched")["watch"]["generations_finished"] == 3
    said = rig.command("status", "watched").stdout
    assert re.search(r"waits for files, looks every 1 s \(3 files at \d\d:\d\d:\d\d\)", said), said

    ended = rig.command("submit", "--append", "watched", "--last")
    assert "watches its input no longer" in ended.stdout, ended.stderr
    rig.finished("watched", ids)
    assert [each["number"] for each in rig.manifest("watched")["generations"]] == [1, 2, 3]
