"""One database with what a test needs to play submitter, dispatcher, worker and reaper."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.ledger import Ledger, holds
from nightshift.common.ledger.batches import (
    claims,
    dispatch,
    failures,
    leasing,
    records,
    retries,
)
from nightshift.common.ledger.batches.records import Claimant, Lease, Part
from nightshift.common.ledger.batches.retries import Retried
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.fleet import workers
from nightshift.common.ledger.jobs import job_end, job_submit, jobs
from nightshift.common.row_errors import RowError
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.states import JobState, RowErrorKind
from tests.support.fleet import commit_one

WHO = "worker-1"

Errors = Iterable[int] | Mapping[int, RowErrorKind]


def live(connection: Connection, job_id: int) -> list[Any]:
    """Every batch that is not split, in dataset order: id, state, rows."""
    found = connection.execute(
        text("""
            SELECT id, seq, state, rows, row_count, owner, part_name FROM batches
            WHERE job_id = :id AND state <> 'split' ORDER BY seq, lower(rows)
        """),
        {"id": job_id},
    )
    return list(found.mappings())


def spec_of(
    name: str = "shout", *, priority: int = 0, callable: str = "rules:shout", **sections: Any
) -> JobSpec:
    return parse_spec(
        {
            "name": name,
            "priority": priority,
            "input": {"uri": "rows.parquet", "id": "id"},
            "task": {"kind": "function"},
            "engine": {"backend": "function", "callable": callable},
            "output": {"uri": f"out/{name}"},
            **sections,
        },
        "here",
    )


@dataclass
class World:
    """The jobs of a test in one database, and what is done with their batches."""

    ledger: Ledger
    specs: dict[int, JobSpec] = field(default_factory=dict)

    def job(
        self,
        *sizes: int,
        name: str = "shout",
        priority: int = 0,
        tenant: str = "",
        **sections: Any,
    ) -> int:
        """A job whose batches have these numbers of rows."""
        spec = spec_of(name, priority=priority, **sections)
        file = SourceFile("rows.parquet", "parquet", 1, "1", sum(sizes), 0)
        edges = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        descriptors = [Descriptor(file, RowRanges.of(edge)) for edge in itertools.pairwise(edges)]
        with self.ledger.transaction() as connection:
            new = job_submit.NewJob(spec, name, "same", f"out/{name}", b"", None, tenant=tenant)
            job_id = job_submit.insert(connection, new, [file])
            assert job_submit.insert_batches(connection, job_id, [file], descriptors) == len(sizes)
        self.specs[job_id] = spec
        return job_id

    def admit(self, job_id: int, limit: int = 1000) -> int:
        with self.ledger.transaction() as connection:
            return dispatch.admit(connection, job_id, limit, dispatch.next_rank(connection))

    def claim(
        self,
        job_id: int,
        *,
        owner: str = WHO,
        room: int = 10**6,
        most: int = 1000,
        idle: bool = True,
        seconds: float = 30,
    ) -> list[Lease]:
        """Claims on the queue of this job."""
        who = Claimant(owner, "default", self.specs[job_id].engine_key, "function", "1")
        with self.ledger.transaction() as connection:
            return claims.claim(
                connection,
                who,
                room_rows=room,
                max_batches=most,
                idle=idle,
                woken="message",
                lease_seconds=seconds,
            )

    def lease(self, job_id: int, **how: Any) -> Lease:
        """Admits and claims one batch."""
        self.admit(job_id)
        return self.claim(job_id, most=1, **how)[0]

    def commit(self, lease: Lease, errors: Errors = (), name: str = "") -> None:
        with self.ledger.transaction() as connection:
            commit_one(connection, lease, part_of(lease, errors, name))

    def fail(self, lease: Lease, *, permanent: bool = False, most: int = 3) -> None:
        with self.ledger.transaction() as connection:
            failures.fail(
                connection, lease, "no", permanent=permanent, max_attempts=most, backoff_seconds=0
            )

    def reap(self) -> int:
        with self.ledger.transaction() as connection:
            return leasing.reap(connection)

    def retry(
        self,
        job_id: int,
        *,
        failed: bool = True,
        dead: bool = False,
        kind: RowErrorKind | None = None,
    ) -> Retried:
        with self.ledger.transaction() as connection:
            return retries.retry(connection, job_id, failed=failed, dead=dead, kind=kind)

    def finish(self, job_id: int) -> JobState | None:
        """What a reaper does once a job is finishable."""
        with self.ledger.transaction() as connection:
            job_end.take_owners(connection, job_id, 1000)
            for row in failures.missing_error_parts(connection, job_id, 100):
                rows = records.descriptor(row).rows
                assert failures.name_error_part(
                    connection,
                    row,
                    Part(
                        f"dead-{row['id']}-a{row['attempt']}",
                        1,
                        "sum",
                        0,
                        0,
                        [RowError(index, None, RowErrorKind.BATCH_DEAD, "dead") for index in rows],
                    ),
                )
            return close(connection, job_id)

    def run(self, act: Callable[..., Any], *values: Any) -> Any:
        """One ledger function in its own transaction."""
        with self.ledger.transaction() as connection:
            return act(connection, *values)

    def ask(self, question: str, *values: object) -> list[Any]:
        with self.ledger.transaction() as connection:
            return list(connection.exec_driver_sql(question, values))

    def do(self, statement: str, *values: object) -> None:
        """A statement of its own, with these values."""
        with self.ledger.transaction() as connection:
            connection.exec_driver_sql(statement, values)

    def batch(self, batch_id: int) -> Any:
        return self.ask("SELECT * FROM batches WHERE id = %s", batch_id)[0]

    def states(self, job_id: int) -> list[str]:
        found = self.ask("SELECT state FROM batches WHERE job_id = %s ORDER BY id", job_id)
        return [row.state for row in found]

    def rows(self, job_id: int) -> tuple[int, int]:
        """Rows done and rows failed, from the counters."""
        progress = self.run(jobs.progress, job_id)
        return progress["rows_done"], progress["rows_failed"]

    def failed_rows(self, job_id: int) -> list[int]:
        found = self.ask("SELECT row_index FROM failed_rows WHERE job = %s ORDER BY 1", job_id)
        return [row.row_index for row in found]


def part_of(lease: Lease, errors: Errors = (), name: str = "") -> Part:
    """A part whose rows in `errors` failed, as `truncated` where no kind is named."""
    kinds = errors if isinstance(errors, Mapping) else dict.fromkeys(errors, RowErrorKind.TRUNCATED)
    return Part(
        name or f"part-{lease.batch_id}-a{lease.attempt}",
        10,
        "sum",
        7,
        5,
        [RowError(row, f"id-{row}", kind, "cut off") for row, kind in kinds.items()],
    )


def child_of(spec: JobSpec, number: int = 1) -> workers.Child:
    return workers.Child(f"child-{number}", "super", "default", number, "host", 1, spec.engine_key)


def make_ready(world: World, child: workers.Child, revision: str | None = None) -> str | None:
    world.run(workers.register, child)
    return become_ready(world, child, revision)


def become_ready(world: World, child: workers.Child, revision: str | None = None) -> str | None:
    with world.ledger.transaction() as connection:
        return workers.ready(connection, child, workers.LoadedEngine("function", "1", 64, revision))


def close(connection: Connection, job_id: int) -> JobState | None:
    """Closes a job that is over, whoever finishes it; where it cannot close, anybody may finish it."""
    hold = job_end.take(connection, job_id, "test")
    state = job_end.close(connection, hold)
    holds.postpone(connection, hold, -1)
    return state


def finishable(connection: Connection) -> list[int]:
    """Jobs that wait to be finished, first what nobody has tried; they wait on."""
    taken = []
    while (hold := job_end.take_finishable(connection, "test")) is not None:
        taken.append(hold)
    for hold in taken:
        holds.postpone(connection, hold, -1)
    return [int(hold.subject) for hold in taken]
