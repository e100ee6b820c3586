"""Generations: the files, rows and batches that one submit or append gave a job.

A job that never grew and is not watched has no generation.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import text

from nightshift.common.descriptor import SourceFile
from nightshift.common.ledger.connection import Connection

Source = Literal["submit", "input", "files"]
"""Where files came from: the first snapshot, a later look at the spec's input, or names in a command."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Half-open ranges of files (`file_index`), of dataset-wide rows and of batches (`seq`). `input.where` leaves
    `left_out` of the rows out.
    """

    number: int
    source: Source
    first_file: int
    stop_file: int
    first_row: int
    stop_row: int
    first_seq: int
    stop_seq: int
    planned_at: datetime
    finished_at: datetime | None
    left_out: int = 0

    @property
    def rows(self) -> int:
        """How many rows the generation has."""
        return self.stop_row - self.first_row - self.left_out


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job so far: what the next file, row and batch will be numbered."""

    file: int
    row: int
    seq: int


END = text("""
    SELECT coalesce(max(file_index) + 1, 0) AS file, coalesce(max(stop_row), 0) AS row,
           coalesce((SELECT max(seq) + 1 FROM batches WHERE job_id = :id), 0) AS seq
    FROM (SELECT file_index, first_row + row_count AS stop_row FROM input_files
          WHERE job_id = :id ORDER BY file_index DESC LIMIT 1) AS last
""")
"""Numbers of the next file, row and batch of a job."""

INSERT = text("""
    INSERT INTO generations (job_id, number, source, first_file, stop_file, first_row, stop_row,
                             first_seq, stop_seq)
    SELECT :id, coalesce(max(number), 0) + 1, :source, :first_file, :stop_file, :first_row,
           :stop_row, :first_seq, :stop_seq
    FROM generations WHERE job_id = :id
    RETURNING number
""")
"""The next generation of a job, whose appends wait for each other."""

LISTED = text("""
    SELECT number, source, first_file, stop_file, first_row, stop_row, first_seq, stop_seq,
           planned_at, finished_at,
           (SELECT coalesce(sum(rows_left_out), 0)::bigint FROM input_files f
            WHERE f.job_id = :id AND f.file_index >= first_file AND f.file_index < stop_file)
    FROM job_generations
    WHERE job = :id AND number = coalesce(CAST(:number AS integer), number) ORDER BY number
""")
"""One generation of a job, or all of them."""


def first_uri(connection: Connection, job_id: int) -> str:
    """The first input file of a job."""
    statement = text("SELECT uri FROM input_files WHERE job_id = :id AND file_index = 0")
    return str(connection.scalar(statement, {"id": job_id}))


def end(connection: Connection, job_id: int) -> End:
    """Where a job ends. Its appends wait for each other (`job_submit.lock`)."""
    return End(**connection.execute(END, {"id": job_id}).mappings().one())


def add(connection: Connection, job_id: int, source: Source, first: End, stop: End) -> int:
    """Adds the next generation between two ends of the job; returns its number."""
    numbers = {f"first_{name}": number for name, number in asdict(first).items()}
    numbers |= {f"stop_{name}": number for name, number in asdict(stop).items()}
    return int(connection.execute(INSERT, {"id": job_id, "source": source, **numbers}).scalar_one())


def begin(connection: Connection, job_id: int) -> None:
    """Makes what the submit planned the first generation, where the job has none. The
    caller holds the lock of the job's submit.
    """
    statement = text("SELECT EXISTS (SELECT FROM generations WHERE job_id = :id)")
    if not connection.scalar(statement, {"id": job_id}):
        add(connection, job_id, "submit", End(0, 0, 0), end(connection, job_id))


def listed(connection: Connection, job_id: int) -> list[Generation]:
    """The generations of a job in order."""
    found = connection.execute(LISTED, {"id": job_id, "number": None})
    return [Generation(*row) for row in found]


def get(connection: Connection, job_id: int, number: int) -> Generation | None:
    """One generation."""
    found = connection.execute(LISTED, {"id": job_id, "number": number}).one_or_none()
    return None if found is None else Generation(*found)


def counts(connection: Connection, job_id: int) -> tuple[int, int]:
    """How many generations a job has, and how many of them are finished."""
    statement = text("""
        SELECT count(*) AS planned, count(finished_at) AS finished
        FROM generations WHERE job_id = :id
    """)
    found = connection.execute(statement, {"id": job_id}).one()
    return found.planned, found.finished


def over(connection: Connection, job_id: int | None, limit: int | None) -> list[tuple[int, int]]:
    """Job and number of generations whose batches are all over and whose file is to be written: of
    one job, or of every job that is not over. At most `limit` of them.
    """
    statement = text("""
        SELECT g.job, g.number FROM job_generations g
        WHERE g.finished_at IS NULL AND NOT g.is_open
          AND (g.job = :id
               OR CAST(:id AS bigint) IS NULL
                  AND (SELECT state FROM jobs WHERE id = g.job) IN ('running', 'paused'))
        -- In turns, so that a job whose files cannot be written takes not all of the round.
        ORDER BY row_number() OVER (PARTITION BY g.job ORDER BY g.number), g.job LIMIT :limit
    """)
    found = connection.execute(statement, {"id": job_id, "limit": limit})
    return [(each.job, each.number) for each in found]


def is_over(connection: Connection, job_id: int, number: int) -> bool:
    """Whether no batch of a generation is open."""
    statement = text("""
        SELECT NOT is_open FROM job_generations WHERE job = :id AND number = :number
    """)
    return bool(connection.scalar(statement, {"id": job_id, "number": number}))


def finish(connection: Connection, job_id: int, number: int) -> None:
    """Says that the file of a generation is written."""
    statement = text("""
        UPDATE generations SET finished_at = now() WHERE job_id = :id AND number = :number
    """)
    connection.execute(statement, {"id": job_id, "number": number})


def times_reopened(connection: Connection, job_id: int, number: int) -> int:
    """How often rows or parts of a generation changed after they were done: a file that was begun
    before such a change is stale.
    """
    statement = text("SELECT reopened FROM generations WHERE job_id = :id AND number = :number")
    return int(connection.scalar(statement, {"id": job_id, "number": number}) or 0)


def reopen(connection: Connection, job_id: int) -> list[int]:
    """Generations that have open batches again are not finished any more; returns the numbers of those
    that were, whose files are stale. The caller holds the job's row.
    """
    statement = text("""
        WITH opened AS MATERIALIZED (
            SELECT number, finished_at FROM job_generations WHERE job = :id AND is_open
        ), changed AS (
            UPDATE generations g SET finished_at = NULL, reopened = g.reopened + 1
            FROM opened o WHERE g.job_id = :id AND g.number = o.number
        )
        SELECT number FROM opened WHERE finished_at IS NOT NULL ORDER BY number
    """)
    return list(connection.scalars(statement, {"id": job_id}))


def make_stale(connection: Connection, job_id: int, batch_id: int) -> None:
    """The part of a batch has another name: the file about its generation is to be written anew."""
    statement = text("""
        UPDATE generations g SET finished_at = NULL, reopened = g.reopened + 1 FROM batches b
        WHERE g.job_id = :id AND b.id = :batch AND b.seq >= g.first_seq AND b.seq < g.stop_seq
    """)
    connection.execute(statement, {"id": job_id, "batch": batch_id})


def files(connection: Connection, job_id: int, generation: Generation) -> list[SourceFile]:
    """The input files of a generation, in dataset order."""
    statement = text("""
        SELECT uri, format, size, fingerprint, row_count AS rows, first_row, arranged,
               rows_left_out AS left_out
        FROM input_files
        WHERE job_id = :id AND file_index >= :first AND file_index < :stop ORDER BY file_index
    """)
    numbers = {"first": generation.first_file, "stop": generation.stop_file}
    found = connection.execute(statement, {"id": job_id, **numbers})
    return [SourceFile(**row) for row in found.mappings()]
