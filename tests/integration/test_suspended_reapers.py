"""A reaper is suspended right before it names or deletes a file about a job. Meanwhile the job is finished by
another reaper and deleted, and the same spec makes the next job in the directory, whose files must stay.
"""

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from nightshift.common import failpoints
from nightshift.common.errors import NightshiftError
from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.common.settings import Settings
from nightshift.producer.archive import retention
from nightshift.producer.control import deletion, job_moves
from nightshift.producer.reaper import finish, generation_files, manifest
from nightshift.producer.submit import owned_files
from tests.integration.test_growth import SHOUT, Grown
from tests.integration.test_retry import moody

pytestmark = pytest.mark.slow

DAYS = Settings(retention_days=30)

Act = Callable[[], None]


@pytest.fixture
def site(ledger: Ledger, tmp_path: Path) -> Grown:
    return Grown(ledger, tmp_path)


def change(site: Grown, statement: str) -> None:
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql(statement)


def lose_locks(site: Grown) -> None:
    """What Postgres does to the transaction of a suspended process."""
    change(
        site,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'idle in transaction'",
    )
    change(site, "UPDATE holds SET until = '-infinity'")


def suspend_at(
    site: Grown, monkeypatch: pytest.MonkeyPatch, moment: Moment, meanwhile: Act
) -> list[Moment]:
    """The process that reaches the moment next stands still while `meanwhile` happens. Returns a list that has
    the moment once that was so.
    """
    reached = []

    def observer(now: Moment) -> None:
        if now is moment:
            monkeypatch.setattr(failpoints, "observer", None)
            reached.append(now)
            lose_locks(site)
            meanwhile()

    monkeypatch.setattr(failpoints, "observer", observer)
    return reached


def delete(site: Grown) -> None:
    """As a person does it: `nightshift delete`, then `rm -r out/*`, which leaves hidden files."""
    deletion.delete(site.ledger, site.job, Settings(), output=False)
    for path in (site.folder / "out").iterdir():
        if not path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def the_next_job(site: Grown) -> None:
    """The job is finished by somebody else and deleted, and the same spec runs to its end as another job."""
    site.finish()
    delete(site)
    before = site.job_id
    site.submit_again()
    assert site.job_id > before
    site.done()


def snapshot(site: Grown) -> dict[str, bytes]:
    out = site.folder / "out"
    return {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def late(site: Grown, act: Act, taken: list[dict[str, bytes]], reached: list[Moment]) -> None:
    """What the suspended process does once it continues changes no file of the next job."""
    with suppress(NightshiftError, DBAPIError):
        act()
    assert reached, "the moment was not reached"
    assert snapshot(site) == taken[0]


def submitted(site: Grown, **of_input: str) -> None:
    site.submit_files(("a.parquet", 12), **of_input)


def test_a_manifest_that_is_about_to_get_its_name(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site)
    site.run(SHOUT)
    taken: list[dict[str, bytes]] = []

    def meanwhile() -> None:
        the_next_job(site)
        taken.append(snapshot(site))

    reached = suspend_at(site, monkeypatch, Moment.NAMING, meanwhile)
    late(site, lambda: finish.finish(site.ledger, 1), taken, reached)
    assert json.loads((site.folder / "out" / "_manifest.json").read_text())["job"] == 2
    assert site.agrees() == {}


def test_a_manifest_of_a_job_that_was_deleted_gets_no_name(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site)
    site.run(SHOUT)
    taken: list[dict[str, bytes]] = []

    def meanwhile() -> None:
        site.finish()
        delete(site)
        taken.append({})

    reached = suspend_at(site, monkeypatch, Moment.NAMING, meanwhile)
    late(site, lambda: finish.finish(site.ledger, 1), taken, reached)


def test_a_manifest_whose_reaper_is_suspended_after_the_last_check(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submit of the next job has removed the file that was to be renamed."""
    submitted(site)
    site.run(SHOUT)
    taken: list[dict[str, bytes]] = []
    refuse_foreign = owned_files.OwnedDirectory.refuse_foreign

    def checked(directory: owned_files.OwnedDirectory, job_id: int) -> None:
        refuse_foreign(directory, job_id)
        if list((site.folder / "out").glob("._manifest.json.job1.*")):
            monkeypatch.undo()
            lose_locks(site)
            the_next_job(site)
            taken.append(snapshot(site))

    monkeypatch.setattr(owned_files.OwnedDirectory, "refuse_foreign", checked)
    late(site, lambda: finish.finish(site.ledger, 1), taken, [Moment.NAMING])
    assert json.loads((site.folder / "out" / "_manifest.json").read_text())["job"] == 2


def test_a_manifest_that_is_about_to_be_deleted_since_a_retry_came(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site)
    site.run(moody(3))
    taken: list[dict[str, bytes]] = []
    write = manifest.write

    def retried(*given: object) -> object:
        done = write(*given)
        monkeypatch.setattr(manifest, "write", write)
        assert site.retry()
        return done

    def meanwhile() -> None:
        site.done()
        the_next_job(site)
        taken.append(snapshot(site))

    monkeypatch.setattr(manifest, "write", retried)
    reached = suspend_at(site, monkeypatch, Moment.DELETING, meanwhile)
    late(site, lambda: finish.finish(site.ledger, 1), taken, reached)


def next_with_generation(site: Grown, taken: list[dict[str, bytes]]) -> None:
    job_moves.cancel(site.ledger, site.job)
    site.finish()
    delete(site)
    site.submit_again(watch="30s")
    site.run(SHOUT)
    generation_files.write_finished(site.ledger)
    assert site.generation(1) is not None
    taken.append(snapshot(site))


def test_the_file_of_a_generation_that_is_about_to_get_its_name(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site, watch="30s")
    site.run(SHOUT)
    taken: list[dict[str, bytes]] = []
    reached = suspend_at(
        site, monkeypatch, Moment.NAMING, lambda: next_with_generation(site, taken)
    )
    late(site, lambda: generation_files.write_finished(site.ledger), taken, reached)
    assert (site.generation(1) or {})["job"] == 2


def test_the_file_of_a_generation_that_is_about_to_be_deleted_since_its_rows_run_again(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site, watch="30s")
    site.run(moody(3))
    taken: list[dict[str, bytes]] = []
    stream = manifest.stream

    def retried(*given: object) -> None:
        stream(*given)
        monkeypatch.setattr(manifest, "stream", stream)
        assert site.retry()

    monkeypatch.setattr(manifest, "stream", retried)

    reached = suspend_at(
        site, monkeypatch, Moment.DELETING, lambda: next_with_generation(site, taken)
    )
    late(site, lambda: generation_files.write_finished(site.ledger), taken, reached)


def archive(site: Grown) -> None:
    change(site, "UPDATE jobs SET closed_at = closed_at - interval '31 days'")
    change(site, "UPDATE job_archives SET needed_at = now() - interval '31 days'")
    retention.archive_due(site.ledger, DAYS, threading.Event())


def next_with_archive(site: Grown, taken: list[dict[str, bytes]]) -> None:
    the_next_job(site)
    archive(site)
    assert list((site.folder / "out" / "_ledger").glob("batches-*"))
    taken.append(snapshot(site))


def test_a_file_of_the_archive_that_is_about_to_get_its_name(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site)
    site.done()
    taken: list[dict[str, bytes]] = []
    reached = suspend_at(site, monkeypatch, Moment.NAMING, lambda: next_with_archive(site, taken))
    late(site, lambda: archive(site), taken, reached)


def test_a_part_that_a_worker_has_replaced_and_is_about_to_delete(
    site: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the next job, of another ledger, has a live part of that name."""
    submitted(site)
    site.run(moody(3))
    assert site.retry()
    taken: list[dict[str, bytes]] = []

    def parts() -> set[str]:
        return {Path(name).name for name in snapshot(site) if "part-" in name}

    before = parts()
    assert before

    def meanwhile() -> None:
        the_next_job(site)
        assert parts()
        assert not parts() & before, "no name of a part is given twice"
        for name in before:
            (site.folder / "out" / name).write_text("live")
        taken.append(snapshot(site))

    reached = suspend_at(site, monkeypatch, Moment.MOVED, meanwhile)
    late(site, lambda: site.run(SHOUT), taken, reached)


def test_a_part_that_is_about_to_be_swept(site: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next job had a live part of that name, which no ledger gives it."""
    submitted(site)
    site.run(SHOUT)
    (site.folder / "out" / "_attempts").mkdir(exist_ok=True)
    for place in ("", "_attempts/"):
        (site.folder / "out" / f"{place}part-000001-a2.parquet").write_text("of an attempt")
    taken: list[dict[str, bytes]] = []

    def meanwhile() -> None:
        the_next_job(site)
        taken.append(snapshot(site))
        (site.folder / "out" / "part-000001-a2.parquet").write_text("live")
        taken[0] = snapshot(site)

    reached = suspend_at(site, monkeypatch, Moment.DELETING, meanwhile)
    late(site, lambda: finish.finish(site.ledger, 1), taken, reached)
