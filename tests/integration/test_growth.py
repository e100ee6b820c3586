"""Datasets that grow: appends and watched inputs over real files, on a real ledger."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from nightshift.common import storage
from nightshift.common.errors import BadInput, LedgerUnavailable
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import job_submit, jobs, watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET
from nightshift.producer.control.deletion import delete
from nightshift.producer.reaper import generation_files, sweep_copies
from nightshift.producer.submit import append_command, intake
from nightshift.producer.submit.append_command import Taken
from nightshift.producer.submit.intake import Growth, Intake
from nightshift.producer.submit.submit import Submitted, submit
from nightshift.producer.verify.verify import verify
from nightshift.producer.views.cells import job_state
from nightshift.producer.views.standings import with_standings
from nightshift.producer.watch import look
from tests.integration.test_retry import Site, agreed, moody
from tests.support import world
from tests.support.fleet import function_spec, output_ids, wait_until, write_rows

pytestmark = pytest.mark.slow

SHOUT = moody()


def plan_by(monkeypatch: pytest.MonkeyPatch, way: str, step: Callable[[Intake], None]) -> None:
    """From now on this step of an intake plans the files."""
    steps = getattr(intake, way)
    assert steps.until_stored[0] is intake.plan_files
    changed = replace(steps, until_stored=(step, *steps.until_stored[1:]))
    monkeypatch.setattr(intake, way, changed)


class Grown(Site):
    """A job that grows, with its worker, its reaper and its command in this process."""

    def submit_files(self, *files: tuple[str, int], **of_input: Any) -> Submitted:
        self.ids += write_rows(self.folder / "in", files)
        return self.submit_again(**of_input)

    def submit_again(self, **of_input: Any) -> Submitted:
        data = function_spec("moody", self.folder / "in", self.folder / "out", batch={"rows": 10})
        data["input"].update(of_input)
        done = submit(self.ledger, parse_spec(data, "test"), Settings())
        self.job_id = done.job_id
        return done

    def come(self, *files: tuple[str, int], counted: bool = True) -> None:
        """More files come to the input."""
        came = write_rows(self.folder / "in", files)
        self.ids += came if counted else []

    def append(self, *uris: str | Path, **how: bool) -> Taken:
        return append_command.take(
            self.ledger, self.job, [str(uri) for uri in uris], Settings(), **how
        )

    def look(self, ledger: Ledger | None = None) -> bool:
        """One look of a reaper, which is due now whatever the pace is."""
        with self.ledger.transaction() as connection:
            connection.execute(
                text("""
                    UPDATE job_watches SET next_look_at = now(); UPDATE holds SET until = '-infinity';
                    UPDATE unplanned_files SET seen_at = seen_at - interval '1 hour'
                """)
            )
        return look.look_once(ledger or self.ledger, Settings())

    def done(self) -> JobState:
        return self.work(SHOUT)

    @property
    def watch(self) -> dict[str, Any]:
        with self.ledger.transaction() as connection:
            found = watches.status(connection, self.job_id)
        assert found is not None
        return dict(found)

    def generation(self, number: int) -> dict[str, Any] | None:
        place = self.folder / "out" / "_generations" / f"{number:06d}.json"
        return json.loads(place.read_text()) if place.exists() else None

    def follow(self) -> list[str]:
        """The ids of every finished generation, as a reader of their files sees them."""
        ids: list[str] = []
        for place in sorted((self.folder / "out" / "_generations").iterdir()):
            for part in json.loads(place.read_text())["parts"]:
                table = pq.read_table(self.folder / "out" / part["name"])
                assert len(table) == part["rows"]
                ids += table.column("id").to_pylist()
        return ids


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Grown:
    return Grown(ledger, tmp_path)


# ---------------------------------------------------------------- append


def test_files_that_come_later_become_further_rows_of_a_completed_job(site: Grown) -> None:
    site.submit_files(("b.parquet", 25), ("c.jsonl", 7))
    assert site.done() is JobState.COMPLETED
    site.come(("d.parquet", 12), ("a.jsonl", 5), counted=False)
    # One look sorts by path, whatever the order of arrival was.
    site.ids += [f"a-{n}" for n in range(5)] + [f"d-{n}" for n in range(12)]

    taken = site.append()
    assert (taken.appended.files, taken.appended.rows, taken.appended.generation) == (2, 17, 2)
    assert taken.appended.reopened
    assert site.job.state is JobState.RUNNING
    assert not (site.folder / "out" / "_manifest.json").exists()

    assert site.done() is JobState.COMPLETED
    assert agreed(site.ledger, site.job, site.folder) == {}
    assert output_ids(site.folder / "out") == site.ids
    assert pq.read_table(site.folder / "all.parquet").column("id").to_pylist() == site.ids
    manifest = json.loads((site.folder / "out" / "_manifest.json").read_text())
    assert [
        (each["number"], each["first_row"], each["stop_row"], each["files"])
        for each in manifest["generations"]
    ] == [(1, 0, 32, 2), (2, 32, 49, 2)]
    assert site.follow() == site.ids


def test_files_that_links_reach_again_are_rows_once_and_both_paths_are_named(site: Grown) -> None:
    """A link to the folder around it once made 82 rows of 2."""
    loop = site.folder / "in" / "loop"
    loop.parent.mkdir()
    loop.symlink_to(".")
    done = site.submit_files(("a.jsonl", 2), uri=f"{site.folder}/in/**/*.jsonl")
    assert done.rows == 2
    assert f"{loop} is {loop.parent}" in " ".join(done.remarks)
    assert site.done() is JobState.COMPLETED
    (site.folder / "in" / "alias.jsonl").symlink_to("a.jsonl")
    taken = site.append()
    assert (taken.appended, taken.changed) == (intake.NOTHING, [])
    assert "alias.jsonl" in " ".join(append_command.summary(site.job, taken))
    for uri in ("in/alias.jsonl", "in/loop/a.jsonl"):
        assert site.append(site.folder / uri).appended == intake.NOTHING, uri


def test_a_file_that_a_job_planned_by_another_path_is_neither_new_nor_gone(
    site: Grown, ledger: Ledger
) -> None:
    (site.folder / "in").mkdir()
    (site.folder / "in" / "loop").symlink_to(".")
    site.submit_files(("a.jsonl", 2), ("b.jsonl", 2))
    again = text("""
        INSERT INTO input_files (job_id, file_index, uri, format, size, fingerprint, row_count, first_row)
        SELECT job_id, 2, replace(uri, '/a.', '/loop/a.'), format, size, fingerprint, row_count, 4
        FROM input_files WHERE uri LIKE '%/a.jsonl'
    """)
    with ledger.transaction() as connection:
        connection.execute(again)
    found = site.submit_again()
    assert (found.is_new, found.new_files) == (False, 0)
    site.submit_again(watch="1h")
    site.look()
    site.look()
    with ledger.transaction() as connection:
        assert watches.unplanned(connection, site.job_id) == []
        assert len(jobs.files(connection, site.job_id)) == 3


def test_a_second_append_of_the_same_files_adds_nothing(site: Grown) -> None:
    site.submit_files(("a.parquet", 5))
    site.come(("b.parquet", 5))
    assert site.append().appended.rows == 5
    assert site.append().appended.generation is None
    assert site.append(site.folder / "in" / "b.parquet").appended.generation is None
    assert site.done() is JobState.COMPLETED
    assert site.append().appended.generation is None
    assert site.job.state is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids


def test_files_from_elsewhere_and_copied_formats_are_appended_by_name(site: Grown) -> None:
    site.submit_files(("a.jsonl", 5))
    other = site.folder / "other"
    other.mkdir()
    (other / "more.csv").write_text("id,text\n" + "".join(f"more-{n},say {n}\n" for n in range(4)))
    assert site.append(other / "more.csv").appended.rows == 4
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == [*site.ids, *(f"more-{n}" for n in range(4))]
    assert agreed(site.ledger, site.job, site.folder) == {}
    # The spec's own input has none of it, and that is not a file that is gone.
    assert site.submit_again().job_id == site.job_id
    write_rows(site.folder / "in", [("a.jsonl", 6)])
    with pytest.raises(BadInput, match=r"changed.*a\.jsonl") as refused:
        site.submit_again()
    assert "more.csv" not in str(refused.value)
    assert "--new with another output directory" in str(refused.value)


def test_the_same_spec_finds_the_job_that_grew_and_changed_files_are_refused(site: Grown) -> None:
    first = site.submit_files(("a.parquet", 5), ("b.parquet", 5))
    site.come(("c.parquet", 5))
    with pytest.raises(BadInput, match=f"submit --append {first.job_id}"):
        site.submit_again()
    site.append()
    site.come(("d.parquet", 5))
    again = site.submit_again()
    assert (again.job_id, again.is_new, again.new_files) == (first.job_id, False, 1)
    write_rows(site.folder / "in", [("c.parquet", 6)])
    with pytest.raises(BadInput, match=r"changed.*c\.parquet"):
        site.submit_again()


def test_a_file_that_does_not_fit_is_refused_and_nothing_is_appended(site: Grown) -> None:
    site.submit_files(("a.parquet", 5))
    pq.write_table(pa.table({"id": [1], "text": ["x"]}), site.folder / "in" / "c.parquet")
    with pytest.raises(BadInput, match="int64 in the column 'id', which is string in the job"):
        site.append()
    assert site.ask("SELECT count(*) FROM input_files") == [(1,)]
    assert site.done() is JobState.COMPLETED


def test_jobs_that_cannot_grow_say_why(site: Grown) -> None:
    site.submit_files(("a.parquet", 15))
    site.come(("b.parquet", 5))
    with site.ledger.transaction() as connection:
        jobs.cancel(connection, site.job_id)
    with pytest.raises(BadInput, match="cancelled"):
        site.append()


def test_a_job_of_the_first_rows_takes_no_more(site: Grown) -> None:
    site.ids = write_rows(site.folder / "in", [("a.parquet", 15)])
    site.submit_again(limit=5)
    site.come(("b.parquet", 5))
    with pytest.raises(BadInput, match=r"first 5 rows of its input \(input\.limit\)"):
        site.append()


def test_an_archived_job_does_not_grow(site: Grown) -> None:
    from nightshift.producer.archive import retention

    site.submit_files(("a.parquet", 15))
    assert site.done() is JobState.COMPLETED
    site.ask("UPDATE jobs SET closed_at = now() - interval '90 days' RETURNING id")
    retention.archive_due(site.ledger, Settings(retention_days=30), threading.Event())
    assert site.ask("SELECT count(*) FROM batches") == [(0,)]
    site.come(("b.parquet", 5))
    refused = r"was archived \(NIGHTSHIFT_RETENTION_DAYS\).* --new and another output directory"
    with pytest.raises(BadInput, match=refused):
        site.append()
    with pytest.raises(BadInput, match=refused):
        site.submit_again(watch="30s")
    assert site.job.state is JobState.COMPLETED


def test_two_appends_at_once_add_every_file_once(
    site: Grown, second_ledger: Callable[[], Ledger]
) -> None:
    site.submit_files(("a.parquet", 5))
    for number in range(6):
        site.come((f"b{number}.parquet", 3))
    ledgers = [site.ledger, second_ledger(), second_ledger(), second_ledger()]
    start = threading.Barrier(len(ledgers))

    def append(ledger: Ledger) -> int:
        start.wait(120)
        return append_command.take(ledger, site.job, [], Settings()).appended.rows

    with ThreadPoolExecutor(len(ledgers)) as pool:
        added = list(pool.map(append, ledgers))
    assert sum(added) == 18
    assert site.done() is JobState.COMPLETED
    assert sorted(output_ids(site.folder / "out")) == sorted(site.ids)
    assert [str(finding) for finding in verify(site.ledger, site.job)] == []


@pytest.mark.parametrize("ends", [False, True], ids=["begins", "begins and ends"])
def test_an_append_while_the_job_closes_is_in_the_manifest_that_stays(
    site: Grown, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The append comes behind the last look at the batches and before the close."""
    from nightshift.producer.reaper import finish, manifest

    site.submit_files(("a.parquet", 15))
    site.run(SHOUT)
    site.come(("b.parquet", 5))
    write = manifest.write

    def append_first(ledger: Ledger, job: Any) -> Any:
        written = write(ledger, job)
        monkeypatch.setattr(manifest, "write", write)
        assert site.append().appended.rows == 5
        if ends:
            site.run(SHOUT)
        return written

    monkeypatch.setattr(manifest, "write", append_first)
    finish.finish(site.ledger, site.job_id)
    assert site.job.state is JobState.RUNNING
    assert not (site.folder / "out" / "_manifest.json").exists()
    assert (site.done() if not ends else site.finish()) is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids
    manifest_now = json.loads((site.folder / "out" / "_manifest.json").read_text())
    assert (manifest_now["rows"], len(manifest_now["input_files"])) == (20, 2)


def test_copies_of_an_append_outlive_a_finish_that_sweeps(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finish lists the copies after the append has made them, before it is stored."""
    from nightshift.producer.reaper import finish

    site.submit_files(("a.jsonl", 15))
    site.run(SHOUT)
    (site.folder / "in" / "b.csv").write_text("id,text\nb-0,hi\n")
    site.ids.append("b-0")
    plan = intake.plan_files

    def plan_then_finish(on_its_way: Intake) -> None:
        plan(on_its_way)
        if site.job.closed_at is None:
            finish.finish(site.ledger, site.job_id)

    plan_by(monkeypatch, "APPEND", plan_then_finish)
    assert site.append().appended.rows == 1
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids
    assert agreed(site.ledger, site.job, site.folder) == {}


def test_a_sweep_that_lost_its_lock_takes_no_copy_of_a_later_append(
    site: Grown, second_ledger: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reaper freezes between its list of copies and the first removal, and Postgres ends its
    transaction; an append that finds the copy of an earlier one stores its files meanwhile."""
    from nightshift.common.formats import convert

    site.submit_files(("a.jsonl", 15))
    assert site.done() is JobState.COMPLETED
    (site.folder / "in" / "b.csv").write_text("id,text\nb-0,hi\n")
    site.ids.append("b-0")
    files = storage.expand([str(site.folder / "in" / "b.csv")])
    growth = Growth(site.job)
    intake.plan_files(Intake(site.job.spec, given_ledger=site.ledger, growth=growth, files=files))
    (copy,) = (site.folder / "out" / "_input").iterdir()
    list_names, other = storage.list_names, second_ledger()

    def freeze(folder: str) -> list[str]:
        names = list_names(folder)
        monkeypatch.setattr(storage, "list_names", list_names)
        with other.transaction() as connection:
            connection.execute(
                text("""
                    SELECT pg_terminate_backend(pid) FROM pg_locks
                    WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
                      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                """)
            )
        wait_until(lambda: not is_locked(other, site.job), what="the end of the lock")
        assert append_command.take(other, site.job, [], Settings()).appended.rows == 1
        return names

    monkeypatch.setattr(convert.storage, "list_names", freeze)
    with pytest.raises(LedgerUnavailable):
        sweep_copies.sweep_copies(site.ledger, site.job)
    assert copy.exists()
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids


def is_locked(ledger: Ledger, job: Job) -> bool:
    with ledger.transaction() as connection:
        return not job_submit.try_lock(connection, job.identity)


# ---------------------------------------------------------------- changed files


def test_an_append_names_a_changed_file_and_leaves_its_rows_as_they_are(site: Grown) -> None:
    site.submit_files(("a.parquet", 5))
    assert site.done() is JobState.COMPLETED
    write_rows(site.folder / "in", [("a.parquet", 6)])
    site.come(("b.parquet", 5))
    taken = site.append()
    assert [Path(uri).name for uri in taken.changed] == ["a.parquet"]
    assert taken.appended.rows == 5
    [_, said] = append_command.summary(site.job, taken)
    assert "a.parquet; their rows stay as they are" in said
    assert "--new" in said
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids


# ---------------------------------------------------------------- watched inputs


def shown(site: Grown) -> str:
    """The state of the job as `jobs` and `status` show it; one that waits has no rate."""
    site.ask(
        "INSERT INTO reapers (name, host, code_version, seen_at) "
        "VALUES ('r-1', 'h', 'x', now() + interval '1 day') ON CONFLICT DO NOTHING RETURNING 1"
    )
    with site.ledger.transaction() as connection:
        [row] = with_standings(connection, job_pace.listed(connection), FLEET)
    is_open = row["batches_pending"] + row["batches_queued"] + row["batches_leased"] > 0
    assert is_open or row["rows_per_second"] is None
    return job_state(row).plain


def test_a_watched_job_plans_a_file_after_two_equal_looks_and_does_not_close(site: Grown) -> None:
    done = site.submit_files(("a.parquet", 12), watch="30s")
    assert done.watch_seconds == 30
    site.run(SHOUT)
    assert site.ask("SELECT id FROM jobs WHERE state = 'running'")
    assert site.watch["waiting_for_files"]
    assert shown(site) == "waits for files"

    site.come(("b.parquet", 3), counted=False)
    assert site.look()
    assert (site.watch["files_waiting"], site.watch["files_listed"]) == (1, 2)
    site.come(("b.parquet", 4))  # It was still being written.
    assert site.look()
    assert site.watch["files_waiting"] == 1
    assert site.ask("SELECT count(*) FROM input_files") == [(1,)]
    assert site.look()
    assert site.watch["files_waiting"] == 0
    assert not site.watch["waiting_for_files"]
    assert shown(site) == "waits", "for a worker"
    site.run(SHOUT)
    generation_files.write_finished(site.ledger)
    assert site.follow() == site.ids
    second = site.generation(2)
    assert second is not None
    assert (second["first_row"], second["stop_row"], second["files"]) == (12, 16, 1)
    assert site.job.closed_at is None

    site.come(("c.parquet", 2))
    taken = site.append(last=True)
    assert (taken.stopped, taken.appended.rows) == (True, 2)
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids
    assert agreed(site.ledger, site.job, site.folder) == {}


def test_a_job_that_is_watched_is_finished_by_nobody_until_it_is_cancelled(site: Grown) -> None:
    def finishable() -> list[int]:
        with site.ledger.transaction() as connection:
            return world.finishable(connection)

    site.submit_files(("a.parquet", 12), watch="30s")
    site.run(SHOUT)
    assert finishable() == []
    with site.ledger.transaction() as connection:
        jobs.cancel(connection, site.job_id)
    assert finishable() == [site.job_id]
    assert site.finish() is JobState.CANCELLED
    assert not site.look()


def test_what_a_look_cannot_take_is_said_and_stops_nothing_else(site: Grown) -> None:
    site.submit_files(("a.parquet", 12), ("b.parquet", 3), watch="30s")
    site.done()
    pq.write_table(pa.table({"id": [1], "text": ["x"]}), site.folder / "in" / "bad.parquet")
    (site.folder / "in" / "torn.parquet").write_bytes(b"PAR1 and no more")
    site.come(("good.parquet", 4))
    rows = [{"id": f"a-{n}", "text": "other"} for n in range(12)]
    pq.write_table(pa.Table.from_pylist(rows), site.folder / "in" / "a.parquet")
    (site.folder / "in" / "b.parquet").unlink()
    assert site.look()
    assert site.look()
    seen = site.watch
    names = ("waiting", "refused", "changed", "gone")
    assert [seen[f"files_{name}"] for name in names] == [0, 2, 1, 1]
    why = site.ask("SELECT why FROM unplanned_files WHERE uri LIKE '%bad.parquet'")[0][0]
    assert "int64 in the column 'id', which is string in the job" in why
    site.run(SHOUT)
    assert site.ask("SELECT rows_done FROM job_progress") == [(19,)]
    # What was refused is not read again until it changes.
    assert site.look()
    assert site.watch["files_refused"] == 2

    (site.folder / "in").rename(site.folder / "away")
    assert site.look()
    assert "in" in str(site.watch["error"])
    assert site.job.state is JobState.RUNNING
    (site.folder / "away").rename(site.folder / "in")
    assert site.look()
    assert site.watch["error"] is None


def test_two_reapers_that_look_at_once_plan_every_file_once(
    site: Grown, second_ledger: Callable[[], Ledger]
) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    for number in range(5):
        site.come((f"b{number}.parquet", 3))
    site.look()
    ledgers = [second_ledger(), second_ledger(), second_ledger()]
    start = threading.Barrier(len(ledgers))

    def look_at_once(ledger: Ledger) -> None:
        start.wait(120)
        site.look(ledger)

    with ThreadPoolExecutor(len(ledgers)) as pool:
        list(pool.map(look_at_once, ledgers))
    site.append(last=True)
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids
    assert site.ask("SELECT count(*) FROM input_files") == [(6,)]


def test_a_retry_takes_the_file_of_a_generation_back_until_its_rows_are_done(site: Grown) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    site.come(("b.parquet", 3))
    site.append()
    site.run(moody(1))
    generation_files.write_finished(site.ledger)
    assert (site.generation(1) is not None, site.generation(2) is not None) == (True, True)
    assert site.retry() == 3
    assert (site.generation(1), site.generation(2)) == (None, None)
    site.run(SHOUT)
    generation_files.write_finished(site.ledger)
    assert site.follow() == site.ids
    site.append(last=True)
    assert site.finish() is JobState.COMPLETED
    assert agreed(site.ledger, site.job, site.folder) == {}


def test_dead_batches_of_an_open_job_get_error_parts_with_their_generation(site: Grown) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    site.ask("""
        UPDATE batches SET state = 'dead', last_error = 'broken' WHERE seq = 0 RETURNING id
    """)
    site.run(SHOUT)
    generation_files.write_finished(site.ledger)
    assert site.follow() == site.ids
    first = site.generation(1)
    assert first is not None
    assert sum(part.get("rows_failed", 0) for part in first["parts"]) == 10


def test_a_spec_with_a_watch_submitted_again_watches_the_known_job(site: Grown) -> None:
    first = site.submit_files(("a.parquet", 12))
    assert first.watch_seconds is None
    assert site.submit_again(watch="5m").watch_seconds == 300
    assert site.submit_again().watch_seconds == 300
    assert site.submit_again(watch="10s").watch_seconds == 10
    assert site.ask("SELECT count(*) FROM jobs") == [(1,)]


def test_a_watched_job_that_is_closed_all_the_same_is_opened_by_the_next_file(
    site: Grown,
) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    assert site.done() is JobState.COMPLETED
    site.come(("b.parquet", 3))
    assert site.look()
    assert site.look()
    assert site.job.state is JobState.RUNNING
    assert not (site.folder / "out" / "_manifest.json").exists()
    assert site.done() is JobState.COMPLETED
    assert output_ids(site.folder / "out") == site.ids


def test_verify_names_a_generation_whose_file_does_not_say_what_the_ledger_says(
    site: Grown,
) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    site.come(("b.parquet", 3))
    site.append()
    site.run(SHOUT)
    generation_files.write_finished(site.ledger)
    assert verify(site.ledger, site.job) == []
    place = site.folder / "out" / "_generations" / "000001.json"
    said = json.loads(place.read_text())
    place.write_text(json.dumps({**said, "parts": said["parts"][1:]}))
    (site.folder / "out" / "_generations" / "000002.json").unlink()
    first, second = (str(finding) for finding in verify(site.ledger, site.job))
    assert "0 parts too many and 1 too few" in first
    assert "000002.json cannot be read" in second


def test_a_job_that_grew_is_deleted_with_every_file_that_it_made(site: Grown) -> None:
    site.submit_files(("a.parquet", 12), watch="30s")
    site.come(("b.csv", 0), ("c.parquet", 3))
    (site.folder / "in" / "b.csv").write_text("id,text\nb-0,hi\n")
    site.append(last=True)
    assert site.done() is JobState.COMPLETED
    assert site.generation(2) is not None
    delete(site.ledger, site.job, Settings(), output=True)
    assert not (site.folder / "out").exists()
    assert site.ask("SELECT count(*) FROM generations") == [(0,)]
