"""Storage that is full, forbidden, slow, failing or changed: no missing or torn part, and the
worker goes on when it ends.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.ledger.jobs import jobs
from nightshift.producer.retry import retry
from tests.support.fleet import wait_until, write_rows
from tests.support.object_store import BUCKET, ObjectStore, close_client
from tests.support.rig import SLOW, Rig

FULL_BYTES = 128 * 1024
"""More than the logs of a test, less than a part with its blobs."""


def log_lines(rig: Rig, *words: str) -> int:
    """Lines of all logs that hold every one of the words."""
    return sum(
        all(word in line for word in words)
        for path in rig.folder.glob("*.log")
        for line in path.read_text(errors="replace").splitlines()
    )


def wait_for_more(rig: Rig, *words: str, lines: int = 3, seconds: float = 200) -> None:
    before = log_lines(rig, *words)
    wait_until(lambda: log_lines(rig, *words) >= before + lines, seconds, f"{words} in the logs")


@contextmanager
def forbidden(folder: Path, mode: int) -> Iterator[None]:
    before = folder.stat().st_mode
    folder.chmod(mode)
    yield
    folder.chmod(before)


def write_blobs(folder: Path, rows: int) -> list[str]:
    """Rows of 32 kB that nothing makes smaller."""
    ids = write_rows(folder, [("a.parquet", rows)])
    table = pq.read_table(folder / "a.parquet")
    blobs = pa.array([os.urandom(32_000) for _ in ids])
    pq.write_table(table.append_column("blob", blobs), folder / "a.parquet", row_group_size=50)
    return ids


# ---------------------------------------------------------------- local disk


def test_a_full_disk_and_lost_permissions_cost_time_only(
    make_rig: Callable[..., Rig], minutes: float
) -> None:
    rig = make_rig(MODES_COUNT="1")
    ids = write_blobs(rig.folder / "in-disk", 200)
    spec = rig.spec_of("disk")
    spec["output"]["columns"] = ["blob"]
    rig.let(5)
    rig.put(spec)
    reaper = rig.reaper()
    worker = rig.worker()
    staging = rig.folder / "disk" / "_attempts"
    rig.wait_rows("disk", 5)
    child = rig.child(worker)

    limits = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, limits[1]))
    rig.let()
    wait_for_more(rig, "waiting", "the file is larger than")
    if minutes:  # for longer than a part is tried again: the batches are given back
        wait_for_more(rig, "outage", "the file is larger than", lines=1)
    wait_until(lambda: not list(staging.iterdir()), what="the end of torn parts")
    with forbidden(staging, 0o555):
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, limits)
        wait_for_more(rig, "waiting", "this user has no permission", lines=1)
    rig.finished("disk", ids)

    place = rig.folder / "hidden"
    (place / "_attempts").mkdir(parents=True)
    frozen = rig.freeze(reaper)
    ids = rig.submit("hidden", 20)
    with forbidden(place, 0o555):
        with forbidden(rig.folder / "in-hidden", 0o000):
            rig.thaw(frozen)
            wait_for_more(rig, "outage", "this user has no permission", lines=1)
        wait_for_more(rig, "settle_failed", "this user has no permission", lines=1)
        wait_for_more(rig, "duty_failed", "this user has no permission", lines=1)
    rig.finished("hidden", ids)
    assert rig.charges() == (0, 0)
    assert rig.child(worker).pid == child.pid


@pytest.mark.slow
def test_nothing_is_computed_while_the_output_cannot_be_written(
    make_rig: Callable[..., Rig],
) -> None:
    """A job of 40 rows once computed 100 of them, and again and again."""
    rig = make_rig(MODES_COUNT="1")
    ids = rig.submit("closed", 40)
    rig.reaper()
    with forbidden(rig.folder / "closed", 0o555):
        rig.worker()
        wait_for_more(rig, "outage", "this user has no permission", lines=8)
        assert not (rig.folder / "computed").exists()
    rig.finished("closed", ids)
    assert set(rig.computed().values()) == {1}
    assert rig.charges() == (0, 0)


# ---------------------------------------------------------------- sources


@pytest.mark.slow
def test_a_source_that_is_gone_or_changed_is_named_and_may_come_back(rig: Rig) -> None:
    ids = {
        name: rig.submit(name, [("a.parquet", 10), ("b.jsonl", 10)], engine=SLOW)
        for name in ("gone", "changed")
    }
    for name in ids:
        (rig.folder / f"in-{name}" / "a.parquet").rename(rig.folder / f"{name}.parquet")
    write_rows(rig.folder / "in-changed", [("a.parquet", 11)])
    rig.reaper()
    rig.worker()
    for name, said in (
        ("gone", "is gone since the job was submitted"),
        ("changed", "changed since the job was submitted"),
    ):
        assert rig.wait_closed(name) == "failed"
        reason = rig.value("SELECT reason FROM jobs WHERE name = %s", name)
        assert reason.startswith("2 batches are dead: "), reason
        assert f"{rig.folder}/in-{name}/a.parquet {said}" in reason
        query = "SELECT rows_done, rows_failed FROM job_progress WHERE name = %s"
        assert rig.ask(query, name) == [(10, 10)]
    told = rig.command("wait", "gone")
    assert told.returncode == 3
    assert "in-gone/a.parquetisgonesincethejobwassubmitted" in "".join(told.stdout.split())

    for name in ids:
        (rig.folder / f"{name}.parquet").rename(rig.folder / f"in-{name}" / "a.parquet")
        with rig.ledger.transaction() as connection:
            job = jobs.find(connection, name)
        retry(rig.ledger, job, failed=False, dead=True, kind=None)
    for name, mine in ids.items():
        rig.finished(name, mine)


# ---------------------------------------------------------------- object stores


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """An object store that this process, too, takes for its own."""
    found = ObjectStore()
    with found.as_own():
        yield found
    found.close()


def troubles() -> Callable[[str], str | None]:
    """Every trouble for every operation, in turns, and often enough none."""
    turns = {
        operation: cycle(
            [
                None,
                None,
                "after",
                None,
                None,
                "503",
                None,
                "slow",
                None,
                None,
                "500",
                None,
                "before",
            ]
        )
        for operation in ("GET", "HEAD", "LIST", "PUT", "COPY", "DELETE")
    }
    return lambda operation: next(turns[operation])


@pytest.mark.slow
def test_a_slow_and_failing_object_store_loses_and_tears_nothing(
    make_rig: Callable[..., Rig], store: ObjectStore
) -> None:
    rig = make_rig(**store.environment)
    client = store.filesystem()
    client.mkdir(BUCKET)
    ids = write_rows(rig.folder / "local", [("a.parquet", 60), ("b.jsonl", 60)])
    for path in (rig.folder / "local").iterdir():
        client.put_file(str(path), f"{BUCKET}/in/{path.name}")
    rig.let(5)
    rig.put(
        rig.spec_of(
            "cloud",
            input={"uri": f"s3://{BUCKET}/in", "id": "id"},
            output={"uri": f"s3://{BUCKET}/out"},
        )
    )
    rig.reaper()
    worker = rig.worker()
    rig.wait_rows("cloud", 5)
    child = rig.child(worker)

    store.rule = troubles()
    rig.let(50)
    wait_until(
        lambda: all(store.did[each] for each in (("PUT", "after"), ("COPY", "after"))),
        what="a cut after the object was stored",
    )
    rig.wait_rows("cloud", 30)
    away = count()
    store.rule = lambda _operation: ("503", "500", "before")[next(away) % 3]
    rig.let()
    wait_until(lambda: next(away) > 40, what="40 requests in vain")
    store.rule = troubles()
    assert rig.wait_closed("cloud") == "completed"
    store.rule = lambda _operation: None
    rig.oracle("cloud", ids, filesystem=client)
    assert rig.charges() == (0, 0)
    assert rig.child(worker).pid == child.pid
    close_client(client)
