"""Two tenants behind one server: whatever one puts into its folder after a submit, its job reads and writes
nothing of the other. The server is a real one; worker and reaper run in this process.
"""

import gzip
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from sqlalchemy import text

from nightshift.common import storage
from nightshift.common.errors import NightshiftError
from nightshift.common.formats import reading
from nightshift.common.formats.jsonl.lines import MOST_LINE_BYTES
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import watches
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo
from nightshift.producer.control import garbage
from nightshift.producer.control.deletion import delete
from nightshift.producer.results.collect import collect
from nightshift.producer.results.sample import sample
from nightshift.producer.retry import retry
from nightshift.producer.submit import append_command
from nightshift.producer.verify.verify import verify
from nightshift.producer.views import watching
from nightshift.producer.watch import look
from tests.integration.test_api_jobs import Tenants, people
from tests.integration.test_retry import Site, moody
from tests.support.exchange import exchange
from tests.support.fleet import write_rows

__all__ = ["people"]

SECRET = "of-beta"


class Neighbours(Site):
    """A job of acme over HTTP, with its worker and its reaper, and the folder of beta beside that of acme."""

    def __init__(self, ledger: Ledger, tenants: Tenants) -> None:
        super().__init__(ledger, tenants.folder)
        self.tenants = tenants
        self.beta = tenants.folder.with_name("beta")
        write_rows(self.beta / "in", [(f"{SECRET}.jsonl", 3)])
        for name in ("out", "out/_attempts", "out/_input"):
            (self.beta / name).mkdir(exist_ok=True)
        (self.beta / "out" / "part-000000-a1.jsonl").write_text(
            f'{{"row_index": 0, "id": "{SECRET}"}}\n'
        )
        self.before = self.of_beta()

    @property
    def out(self) -> Path:
        return self.folder / "loud"

    def of_beta(self) -> dict[str, bytes | None]:
        """All that lies in the folder of beta."""
        return {
            str(path.relative_to(self.beta)): path.read_bytes() if path.is_file() else None
            for path in sorted(self.beta.rglob("*"))
        }

    def submit_over_http(self, **of_input: Any) -> None:
        spec = self.tenants.spec()
        spec["input"] |= of_input
        spec["batch"] = {"rows": 10}
        spec["output"]["format"] = "jsonl"
        made = self.tenants.ask("acme", "POST", "/api/jobs", json=spec)
        assert made.status_code == 201, made.text
        self.job_id = made.json()["job"]

    def look(self, roots: tuple[str, ...] = ()) -> str | None:
        """Two looks of a reaper with these allowed roots; returns what the last one could not do."""
        for _ in range(2):
            with self.ledger.transaction() as connection:
                connection.execute(
                    text("""
                        UPDATE job_watches SET next_look_at = now(); UPDATE holds SET until = '-infinity';
                        UPDATE unplanned_files SET seen_at = seen_at - interval '1 hour'
                    """)
                )
            assert look.look_once(self.ledger, Settings(allowed_roots=roots))
        with self.ledger.transaction() as connection:
            found = watches.status(connection, self.job_id)
        assert found is not None
        error: str | None = found["error"]
        return error

    def planned(self) -> set[str]:
        with self.ledger.transaction() as connection:
            found = connection.scalars(text("SELECT uri FROM input_files"))
            return {Path(uri).name for uri in found}

    def unplanned(self) -> dict[str, str]:
        with self.ledger.transaction() as connection:
            found = connection.execute(text("SELECT uri, state FROM unplanned_files"))
            return {Path(uri).name: state for uri, state in found}

    def out_becomes_a_link(self) -> None:
        own = self.folder / "own"
        own.symlink_to(self.beta / "out")
        exchange(self.out, own)

    def written(self) -> str:
        """All that is in the output of the job."""
        own = self.folder / "own"
        folder = own if own.exists() else self.out.resolve()
        return "".join(path.read_text() for path in folder.rglob("part-*"))

    def errors(self) -> str:
        with self.ledger.transaction() as connection:
            found = connection.execute(text("SELECT last_error FROM batches ORDER BY id"))
            return " ".join(error or "" for (error,) in found)


@pytest.fixture
def site(people: Tenants, ledger: Ledger) -> Neighbours:
    return Neighbours(ledger, people)


LOUD = moody()


def test_a_link_in_a_watched_input_brings_nothing_of_another_tenant(site: Neighbours) -> None:
    """Made after the submit, it once brought the rows of beta into the output of acme."""
    site.submit_over_http(watch="1h")
    link = site.folder / "in" / "b.jsonl"
    for target in (site.beta / "in" / f"{SECRET}.jsonl", "../../beta/in", site.beta):
        link.symlink_to(target)
        assert "outside the folders that the job may use" in (site.look() or ""), target
        site.run(LOUD)
        link.unlink()
    assert len(site.written().splitlines()) == 30
    assert site.look() is None


def test_a_refused_look_names_no_folder_of_another_tenant(site: Neighbours) -> None:
    """The allowed roots of a reaper may be the folders of its tenants."""
    site.submit_over_http(watch="1h")
    said = site.look((str(site.beta),)) or ""
    assert "outside the folders that NIGHTSHIFT_ALLOWED_ROOTS names" in said
    assert str(site.beta) not in said, "the explanation of the job repeats what the ledger has"


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_file_that_became_a_link_after_the_submit_is_not_read(
    looked_at: bool, site: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its batch begins, or once the batch has looked where its file lies."""
    site.submit_over_http()
    if not looked_at:
        become_a_link(site)
    check = storage.check_held

    def swapping(*arguments: Any) -> None:
        check(*arguments)
        if looked_at:
            become_a_link(site)

    monkeypatch.setattr(storage, "check_held", swapping)
    seen: list[str] = []

    def watching(rows: Any) -> Any:
        seen.extend(row["id"] for row in rows)
        return LOUD(rows)

    site.run(watching)
    assert seen == []
    assert "outside the folders that the job may use" in site.errors()


def become_a_link(site: Neighbours) -> None:
    """The input is a link to a file of beta with as many rows, the same size and the same time: nothing but
    the wall refuses them.
    """
    own = site.folder / "in" / "a.jsonl"
    if own.is_symlink():
        return
    facts = own.stat()
    secret = site.beta / "in" / f"{SECRET}.jsonl"
    secret.write_bytes(own.read_bytes().replace(b"a-", b"b-"))
    os.utime(secret, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    own.unlink()
    own.symlink_to(secret)


def test_an_output_directory_that_became_a_link_takes_no_part_of_another_tenant(
    site: Neighbours,
) -> None:
    """Whether it was swapped before the first batch, or while one is computed."""
    site.submit_over_http()
    swapped: list[bool] = []
    turn = Lock()

    def swapping(rows: Any) -> Any:
        with turn:
            if not swapped:
                swapped.append(True)
                site.out_becomes_a_link()
        return LOUD(rows)

    site.admit()
    runner = site.runner(swapping)
    runner.work("poll", wait=False)
    assert runner.window.wait_empty(60)
    assert swapped
    assert site.of_beta() == site.before
    assert "outside the folders that the job may use" in site.errors()
    site.run(LOUD)
    site.finish()
    assert site.of_beta() == site.before


def test_whoever_looks_at_a_job_whose_output_became_a_link_sees_and_changes_nothing_of_another(
    site: Neighbours,
) -> None:
    site.submit_over_http()
    assert site.work(LOUD) is JobState.COMPLETED
    site.out_becomes_a_link()
    settings = Settings()
    job = site.job
    calls = {
        "sample": lambda: sample(site.ledger, job, 3, 0),
        "collect": lambda: collect(site.ledger, job, str(site.folder / "all.jsonl")),
        "verify": lambda: verify(site.ledger, job),
        "retry": lambda: retry(site.ledger, job, failed=True, dead=True, kind=None),
        "gc": lambda: garbage.collect(site.ledger, settings, sure=True),
        "delete": lambda: delete(site.ledger, job, settings, output=True),
    }
    for name, call in calls.items():
        said = ""
        try:
            said = str(call())
        except NightshiftError as error:
            said = str(error)
        assert SECRET not in said, name
        assert site.of_beta() == site.before, name


def test_links_that_stay_in_the_folders_of_a_tenant_work_as_ever(site: Neighbours) -> None:
    (site.folder / "large").mkdir(parents=True)
    site.out.symlink_to("large")
    site.submit_over_http(watch="1h")
    write_rows(site.folder / "more", [("b.jsonl", 5)])
    (site.folder / "in" / "link").symlink_to(site.folder / "more")
    assert site.look() is None
    site.run(LOUD)
    assert len(site.written().splitlines()) == 35
    assert (site.folder / "large" / "_attempts").is_dir()


def test_a_job_may_use_what_its_tenant_still_has(site: Neighbours) -> None:
    site.submit_over_http(watch="1h")
    with site.ledger.transaction() as connection:
        change = "UPDATE tenants SET roots = ARRAY[%s] WHERE name = 'acme'"
        connection.exec_driver_sql(change, (str(site.folder / "elsewhere"),))
    assert "outside the folders that the job may use" in (site.look() or "")
    site.run(LOUD)
    assert "outside the folders that the job may use" in site.errors()
    assert not list(site.out.rglob("part-*"))


# ---------------------------------------------------------------- nobody forgets it


_watched: list[tuple[str, list[str]]] = []
EVENTS = {
    "open",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
}


def _note(event: str, given: tuple[Any, ...]) -> None:
    if not _watched or event not in EVENTS:
        return
    root, found = _watched[-1]
    for name in given[:2]:
        if isinstance(name, str | bytes | os.PathLike) and os.fsdecode(name).startswith(root):
            found.append(f"{event} {os.fsdecode(name)}")


@contextmanager
def opened_by_name(root: Path) -> Iterator[list[str]]:
    """What this process opens, lists or changes below a folder by a whole path, as Python reports it."""
    if not any(each is _note for each in _hooks):
        sys.addaudithook(_note)
        _hooks.append(_note)
    found: list[str] = []
    _watched.append((f"{root}/", found))
    yield found
    _watched.pop()


_hooks: list[Any] = []


def test_nothing_of_a_job_that_is_held_to_roots_is_opened_by_its_name(site: Neighbours) -> None:
    """A name that was checked may lead elsewhere when it is used: all goes through open folders."""
    site.submit_over_http(watch="1h")
    with opened_by_name(site.folder) as found:
        (site.folder / "in").joinpath("probe").touch()
        assert found != []  # the hook hears
        (site.folder / "in" / "probe").unlink()
        write_rows(site.folder / "in", [("b.jsonl", 5)])
        found.clear()
        assert site.look() is None
        site.run(LOUD)
        append_command.take(site.ledger, site.job, [], Settings(), last=True)
        assert site.finish() is JobState.COMPLETED
        verify(site.ledger, site.job)
        retry(site.ledger, site.job, failed=True, dead=True, kind=None)
        garbage.collect(site.ledger, Settings(), sure=True)
        delete(site.ledger, site.job, Settings(), output=True)
        assert found == []
    assert not site.out.exists()


def test_a_watched_input_adds_no_more_than_its_tenant_may_have(site: Neighbours) -> None:
    """The rows that are open, the ratio of what is unpacked and the longest line bound a look as they bound a submit;
    what has no room now waits, and comes once there is room.
    """
    site.submit_over_http(watch="1h")
    folder = site.folder / "in"
    with site.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE tenants SET max_rows = 45 WHERE name = 'acme'")
    for name in ("b", "c"):
        write_rows(folder, [(f"{name}.jsonl", 10)])
    (folder / "d.jsonl").write_text('{"id": "d", "text": "' + "x" * (MOST_LINE_BYTES + 1) + '"}\n')
    assert site.look() is None
    assert site.planned() == {"a.jsonl", "b.jsonl"}
    assert site.unplanned() == {"c.jsonl": "waiting", "d.jsonl": "refused"}
    waits = f"{folder}/c.jsonl: more than 5 rows are asked for, 40 are open already, and this tenant may have 45 at once"
    with site.ledger.transaction() as connection:
        seen = watching.watching(connection, site.job.id)
    assert seen is not None
    assert f"waits: {waits}" in watching.lines(seen)
    # Finished rows no longer count, although the job stays open.
    site.run(LOUD)
    assert site.look() is None
    assert site.planned() == {"a.jsonl", "b.jsonl", "c.jsonl"}
    assert site.unplanned() == {"d.jsonl": "refused"}
    (folder / "e.jsonl.gz").write_bytes(
        gzip.compress(b'{"id": "e", "text": "' + b"x" * 70_000_000 + b'"}\n', 1)
    )
    assert site.look() is None
    assert site.unplanned() == {"d.jsonl": "refused", "e.jsonl.gz": "refused"}


def test_a_file_that_a_look_of_a_tenant_cannot_read_in_its_time_is_refused_alone(
    site: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that take too long together are tried in halves; the command line is not bound."""
    site.submit_over_http(watch="1h")
    folder = site.folder / "in"
    for name in ("b", "c", "d"):
        write_rows(folder, [(f"{name}.jsonl", 10)])
    late: list[bool] = []

    def append(
        ledger: Ledger, job: Job, infos: Sequence[FileInfo], *more: Any, **given: Any
    ) -> Any:
        late.append(len(infos) > 1 or infos[0].uri.endswith("c.jsonl"))
        monkeypatch.setattr(look, "LOOK_SECONDS", -1.0 if late[-1] else 600.0)
        with look._bounds(ledger, job, Settings()):
            return real(ledger, job, infos, *more, **given)

    real = look.append
    monkeypatch.setattr(look, "append", append)
    assert site.look() is None
    assert site.planned() == {"a.jsonl", "b.jsonl", "d.jsonl"}
    assert site.unplanned() == {"c.jsonl": "refused"}
    with site.ledger.transaction() as connection:
        [refused] = watches.unplanned(connection, site.job.id)
        connection.execute(text("UPDATE jobs SET roots = NULL"))
    assert (
        refused.why
        == f"{folder}/c.jsonl takes more than 10 minutes to read: give it in smaller files"
    )
    with look._bounds(site.ledger, site.job, Settings()):
        assert reading.current() is reading._UNBOUND


def test_a_look_of_a_tenant_that_is_under_way_holds_up_no_other_tenant(site: Neighbours) -> None:
    site.submit_over_http(watch="1h")
    with site.ledger.transaction() as connection:
        first = connection.scalar(text("SELECT max(id) FROM jobs"))
    spec = site.tenants.spec()
    spec |= {"name": "again", "output": {"uri": str(site.folder / "again"), "format": "jsonl"}}
    spec["input"]["watch"] = "1h"
    assert site.tenants.ask("acme", "POST", "/api/jobs", json=spec).status_code == 201
    with site.ledger.transaction() as connection:
        connection.execute(text("UPDATE job_watches SET next_look_at = now() - interval '1 h'"))
        due = watches.take_due(connection, "slow")
        assert due is not None
        assert watches.take_due(connection, "other") is None, "one look of a tenant at once"
        connection.execute(
            text("UPDATE jobs SET tenant = 'other' WHERE id <> :id"), {"id": due.job_id}
        )
        another = watches.take_due(connection, "other")
        assert another is not None
        assert {due.job_id, another.job_id} >= {first}
