"""What a batch costs in requests to an object store, writes and reads apart, and who may still write
there when the job is over.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, cast
from uuid import uuid4

import pyarrow as pa
import pytest

from nightshift.common import failpoints, storage
from nightshift.common.failpoints import Moment
from nightshift.common.formats import part_names, part_rows
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches import claims, dispatch, leasing
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.ledger.jobs import jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.producer.reaper import finish
from nightshift.producer.submit.submit import submit
from nightshift.worker.batch.run import BatchRunner
from nightshift.worker.child_context import ChildContext
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.outages import PatientLedger
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window
from tests.support.object_store import ObjectStore, close_client
from tests.support.scripted import Scripted

Kind = Literal["parquet", "jsonl"]

READS = {"GET", "HEAD", "LIST"}

BATCH_ROWS = 2


class CloudJob:
    """A job that reads from a bucket of its own and writes to it, all its batches admitted."""

    def __init__(self, ledger: Ledger, store: ObjectStore, kind: Kind, batches: int) -> None:
        self.ledger, self.store = ledger, store
        bucket = f"bucket-{uuid4().hex}"
        client = store.filesystem()
        client.mkdir(bucket)
        close_client(client)
        self.output, self.source = f"s3://{bucket}/out", f"s3://{bucket}/in/a.{kind}"
        rows = [{"id": f"{at}", "text": f"say {at}"} for at in range(batches * BATCH_ROWS)]
        part_rows.write_part(self.source, pa.Table.from_pylist(rows), kind, {})
        spec = parse_spec(
            {
                "name": "cloud",
                "input": {"uri": f"s3://{bucket}/in", "id": "id"},
                "task": {"kind": "function"},
                "engine": {"backend": "function", "callable": "rules:shout"},
                "output": {"uri": self.output},
                "batch": {"rows": BATCH_ROWS},
            },
            "test",
        )
        self.job_id = submit(ledger, spec, Settings()).job_id
        self.spec = spec
        self.patient = PatientLedger(ledger, Recorder())
        with ledger.transaction() as connection:
            dispatch.admit(connection, self.job_id, batches, 1)

    def claim(self, owner: str) -> list[HeldBatch]:
        """All batches of the job, in the hands of that owner."""
        who = Claimant(owner, "default", self.spec.engine_key, "function", "1")
        with self.ledger.transaction() as connection:
            leases = claims.claim(
                connection,
                who,
                room_rows=1000,
                max_batches=1000,
                idle=True,
                woken="poll",
                lease_seconds=600,
            )
        return [HeldBatch(lease, len(lease.todo)) for lease in leases]

    def worker(self, batches: Sequence[HeldBatch]) -> BatchRunner:
        """What runs those batches."""
        window = Window(1000)
        for batch in batches:
            window.add(batch)
        recorder = Recorder()
        engine = Scripted(at_once=True)
        return BatchRunner(
            ChildContext(
                cast(Any, None), self.patient, engine, Settings(), window, recorder, print, print
            )
        )

    def finish(self) -> str:
        """The state of the job after the reaper's finish."""
        finish.finish(self.ledger, self.job_id)
        with self.ledger.transaction() as connection:
            job = jobs.get(connection, self.job_id)
        assert job is not None
        assert job.closed_at is not None
        return str(job.state)

    def files(self) -> list[str]:
        """Parts in the output directory, and whatever lies in its staging folder."""
        staged = storage.list_names(part_names.staged(self.output, ""))
        found = [name for name in storage.list_names(self.output) if name.startswith("part-")]
        return [*found, *(f"{part_names.STAGING}/{name}" for name in staged)]

    def requests(self) -> tuple[dict[str, int], dict[str, int]]:
        """How many requests the store served since the last call: those that write, and those that
        read.
        """
        did = Counter({operation: count for (operation, _), count in self.store.did.items()})
        self.store.did.clear()
        return (
            {operation: did[operation] for operation in sorted(did.keys() - READS)},
            {operation: did[operation] for operation in sorted(did.keys() & READS)},
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "source"), [("parquet", {"HEAD": 1}), ("jsonl", {"GET": 1, "HEAD": 1})]
)
def test_a_batch_costs_three_writes_one_look_and_the_reading_of_its_source(
    ledger: Ledger, store: ObjectStore, kind: Kind, source: dict[str, int]
) -> None:
    """Put, copy and delete, and a look whether the final name is free. The source is looked at once;
    lines are fetched, and the row group of a Parquet file is in the cache.
    """
    job = CloudJob(ledger, store, kind, batches=20)
    first, *others = job.claim("worker")
    worker = job.worker([first, *others])
    worker.run([first])
    job.requests()
    worker.run(others)
    writes, reads = job.requests()
    count = len(others)
    assert writes == {"COPY": count, "DELETE": count, "PUT": count}
    assert reads == {
        name: count * each for name, each in (Counter(source) + Counter(HEAD=1)).items()
    }

    assert job.finish() == "completed"
    writes, reads = job.requests()
    assert writes == {"PUT": 1}, "the manifest"
    assert sum(reads.values()) < count, "finish asks for no part by itself"
    with ledger.transaction() as connection:
        counted = connection.exec_driver_sql("SELECT id_counts FROM jobs").scalar_one()
    assert counted["different"] is None, "ids are counted by verify, which somebody asks for"


def test_lines_of_a_source_that_changed_are_no_rows_whatever_the_store_says_of_them(
    ledger: Ledger, store: ObjectStore
) -> None:
    """The second half of the lines is not there any more, which the store answers with an error; and
    the first half are other lines.
    """
    job = CloudJob(ledger, store, "jsonl", batches=2)
    held = job.claim("worker")
    storage.write_bytes(job.source, b"no lines")
    job.worker(held).run(held)
    with ledger.transaction() as connection:
        found = connection.exec_driver_sql("SELECT state, last_error FROM batches").all()
    assert [state for state, _ in found] == ["dead", "dead"]
    assert all("changed since the job was submitted" in error for _, error in found)


@pytest.mark.parametrize("moment", [Moment.WRITING, Moment.WRITTEN, Moment.COMMITTED])
def test_a_worker_that_goes_on_after_the_end_of_its_job_changes_no_file(
    ledger: Ledger, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    """It freezes before the put, before the commit or before the copy; meanwhile others do all that
    is left, and the job is closed.
    """
    job = CloudJob(ledger, store, "parquet", batches=3)
    files: list[str] = []

    def others_go_on() -> None:
        with ledger.transaction() as connection:
            leasing.release_owner(connection, "frozen")
            dispatch.admit(connection, job.job_id, 3, 1)
        taken = job.claim("other")
        assert len(taken) == (0 if moment is Moment.COMMITTED else 3)
        job.worker(taken).run(taken)
        assert job.finish() == "completed"
        files.extend(job.files())

    passed: list[Moment] = []

    def freeze(reached: Moment) -> None:
        passed.append(reached)
        # What is written before the first answer is the proof that the output takes files.
        if reached is moment and Moment.ANSWERED in passed:
            monkeypatch.setattr(failpoints, "observer", None)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(others_go_on).result(100)

    frozen = job.claim("frozen")
    # The three are committed together, however slow the machine is.
    monkeypatch.setattr("nightshift.worker.batch.run.GATHER_SECONDS", 60)
    monkeypatch.setattr(failpoints, "observer", freeze)
    job.worker(frozen).run(frozen)
    assert len(files) == 3
    assert job.files() == files
