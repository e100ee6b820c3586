"""The live parts of a job in dataset order: which rows and bytes each has, and what made it."""

from collections.abc import Iterator, Sequence

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.connection import Connection, Row

ENTRIES = text("""
    SELECT json_strip_nulls(row_to_json(entry))::text FROM (
        SELECT b.part_name AS name, b.row_count AS rows, b.rows_failed,
               nullif(b.redo_count, 0) AS rows_open, b.part_bytes AS bytes,
               b.part_checksum AS sha256, b.id AS batch, b.attempt,
               coalesce(a.worker_id, p.worker_id, b.owner) AS worker,
               coalesce(a.engine, p.engine) AS engine,
               coalesce(a.engine_version, p.engine_version) AS engine_version,
               w.code_version, b.prompt_tokens, b.output_tokens, b.seq, lower(b.rows) AS first_row,
               coalesce(a.claimed_at, p.claimed_at) AS claimed_at,
               coalesce(a.ended_at, p.ended_at) AS ended_at,
               CASE WHEN b.attempt > 1 THEN (
                   SELECT json_agg(json_build_object(
                              'attempt', e.attempt, 'worker', e.worker_id, 'engine', e.engine,
                              'engine_version', e.engine_version) ORDER BY e.attempt)
                   FROM attempts e
                   WHERE e.batch_id = b.id AND e.attempt < b.attempt AND e.outcome = 'done') END
                   AS earlier_attempts
        FROM batches b
        LEFT JOIN attempts a ON a.batch_id = b.id AND a.attempt = b.attempt
        LEFT JOIN attempts p ON a.batch_id IS NULL AND p.batch_id = b.parent_id
                            AND p.attempt = b.attempt
        LEFT JOIN workers w ON w.id = coalesce(a.worker_id, p.worker_id)
        WHERE b.job_id = :id AND b.seq >= :first AND b.seq < :stop
          AND b.part_name IS NOT NULL AND b.state <> 'split'
    ) AS entry ORDER BY entry.seq, entry.first_row
""")
"""The live parts of some roots in dataset order, each as JSON, with who made them.

The done child of a drain had no lease of its own: the attempt of its parent stands for it.
`earlier_attempts` made the rows of a part that did not run again.
"""


def roots(connection: Connection, job_id: int) -> int:
    """How many root batches the job has; they are numbered by `seq` from 0."""
    statement = text("SELECT coalesce(max(seq) + 1, 0) FROM batches WHERE job_id = :id")
    return int(connection.execute(statement, {"id": job_id}).scalar_one())


def parts_between(connection: Connection, job_id: int, first: int, stop: int) -> list[Row]:
    """The live parts of the roots `first` <= seq < `stop` in dataset order, with where their rows
    came from (for `batches.descriptor`). Rows in `redo` run again: their lines do not count.

    In pages, because the client takes longer to decode a million of them than a transaction may
    stay idle.
    """
    statement = text("""
        SELECT b.seq, b.id AS batch, b.attempt, b.owner AS worker, b.state, b.rows,
               b.row_count, b.redo, b.redo_count, b.part_name,
               b.part_bytes, b.part_checksum, b.rows_failed, b.prompt_tokens, b.output_tokens,
               b.locator_row, b.byte_offset, b.byte_length, f.uri, f.format, f.size,
               f.fingerprint, f.row_count AS file_rows, f.first_row, f.arranged
        FROM batches b JOIN input_files f USING (job_id, file_index)
        WHERE b.job_id = :id AND b.seq >= :first AND b.seq < :stop
          AND b.part_name IS NOT NULL AND b.state <> 'split'
        ORDER BY b.seq, lower(b.rows)
    """)
    found = connection.execute(statement, {"id": job_id, "first": first, "stop": stop})
    return list(found.mappings())


def entries_between(connection: Connection, job_id: int, first: int, stop: int) -> list[str]:
    """The same parts, each as its JSON object of a manifest, without what is null.

    Postgres makes the JSON, which takes a minute less than Python for a million parts.
    """
    return list(connection.scalars(ENTRIES, {"id": job_id, "first": first, "stop": stop}))


def part_names_between(
    connection: Connection, job_id: int, first: int, stop: int
) -> list[tuple[str, int]]:
    """Name and batch alone of the same parts, in no order: a tenth of the work."""
    statement = text("""
        SELECT part_name, id FROM batches
        WHERE job_id = :id AND seq >= :first AND seq < :stop
          AND part_name IS NOT NULL AND state <> 'split'
    """)
    found = connection.execute(statement, {"id": job_id, "first": first, "stop": stop})
    return [(name, batch) for name, batch in found]


def kept_parts(connection: Connection, job_id: int, most: int | None = None) -> Iterator[Row]:
    """The live parts of a job that have rows which count, in dataset order: all of them as they are at one
    moment, or the first `most`. They come as they are taken, many at once, and their transaction stays open
    meanwhile.
    """
    statement = text("""
        SELECT seq, part_name, row_count, redo_count, redo, part_checksum
        FROM batches
        WHERE job_id = :id AND part_name IS NOT NULL AND state <> 'split' AND row_count > redo_count
        ORDER BY seq, lower(rows) LIMIT :most
    """)
    given = {"id": job_id, "most": most}
    yield from connection.execute(
        statement, given, execution_options={"yield_per": PARTS_AT_ONCE}
    ).mappings()


PARTS_AT_ONCE = 10_000
"""Parts that come from Postgres at once: a client has them long before its transaction counts as idle."""


def part_size(connection: Connection, job_id: int) -> tuple[int, int]:
    """Rows and bytes of the parts among the first batches of a job, from which the size of all is estimated; zeros
    where there is none.
    """
    statement = text("""
        SELECT coalesce(sum(row_count), 0)::bigint AS rows, coalesce(sum(part_bytes), 0)::bigint AS bytes
        FROM (SELECT row_count, part_bytes, state FROM batches
              WHERE job_id = :id ORDER BY seq LIMIT 1000) AS earliest
        WHERE part_bytes IS NOT NULL AND state <> 'split'
    """)
    found = connection.execute(statement, {"id": job_id}).one()
    return found.rows, found.bytes


def parts_holding(connection: Connection, job_id: int, indices: Sequence[int]) -> list[Row]:
    """The live parts that hold these rows, each row with its part and what
    `batches.descriptor` wants, by row index.
    """
    statement = text("""
        SELECT row_index, b.id, b.part_name, b.rows, b.locator_row, b.byte_offset,
               b.byte_length, f.uri, f.format, f.size, f.fingerprint,
               f.row_count AS file_rows, f.first_row, f.arranged
        FROM batches b
        JOIN input_files f USING (job_id, file_index)
        -- All rows at once: those of a batch may lie all over the dataset, and take long to read.
        CROSS JOIN LATERAL unnest(b.rows * CAST(:wanted AS int8multirange)) AS piece
        CROSS JOIN LATERAL generate_series(lower(piece), upper(piece) - 1) AS row_index
        WHERE b.job_id = :id AND b.part_name IS NOT NULL AND b.state <> 'split'
          AND b.rows && CAST(:wanted AS int8multirange)
        ORDER BY b.seq, b.id, row_index
    """)
    wanted = RowRanges.from_indices(indices)
    return list(connection.execute(statement, {"id": job_id, "wanted": wanted}).mappings())


def part_is_live(connection: Connection, job_id: int, part_name: str) -> bool:
    """Whether the ledger names this part now; a retry or a split may have replaced it."""
    statement = text("""
        SELECT EXISTS (SELECT FROM batches WHERE job_id = :id AND part_name = :name
                       AND state <> 'split')
    """)
    return bool(connection.scalar(statement, {"id": job_id, "name": part_name}))


def finished_rows(
    connection: Connection, job_id: int, most_batches: int | None = None
) -> RowRanges:
    """The rows that have a line that counts; one range when the job is finished. Of a job that is not, those
    of `most_batches` of its batches, chosen by a hash: the rows of ten million arranged ones are as many
    ranges.
    """
    whole = connection.execute(WHOLE, {"id": job_id}).one()
    if whole.is_whole:
        return RowRanges.of((0, int(whole.rows)))
    statement = text("""
        SELECT coalesce(range_agg(piece), '{}') AS rows FROM (
            SELECT unnest(rows - coalesce(redo, '{}')) AS piece FROM (
                SELECT rows, redo FROM batches
                WHERE job_id = :id AND part_name IS NOT NULL AND state <> 'split'
                ORDER BY CASE WHEN CAST(:most AS bigint) IS NOT NULL THEN hashint8(id) END
                LIMIT :most) AS chosen
        ) AS live
    """)
    chosen = {"id": job_id, "most": most_batches}
    found: RowRanges = connection.execute(statement, chosen).scalar_one()
    return found


WHOLE = text("""
    SELECT coalesce(bool_and(part_name IS NOT NULL AND redo IS NULL), false)
               AND sum(row_count) = max(upper(rows)) AS is_whole,
           coalesce(sum(row_count), 0) AS rows
    FROM batches WHERE job_id = :id AND state <> 'split'
""")
"""Whether every row of a job has a line that counts and no number between them is left out, and how many rows the job
has.
"""


def count_finished(connection: Connection, job_id: int) -> int:
    """How many rows have a line that counts."""
    statement = text("""
        SELECT coalesce(sum(row_count - redo_count), 0) FROM batches
        WHERE job_id = :id AND part_name IS NOT NULL AND state <> 'split'
    """)
    return int(connection.execute(statement, {"id": job_id}).scalar_one())


def latest_rows(connection: Connection, job_id: int, most: int) -> list[int]:
    """Numbers of at most `most` rows that came last: the first rows of the batches that ended last."""
    statement = text("""
        SELECT r.row_index FROM (
            SELECT batch_id, ended_at FROM attempts
            WHERE job_id = :id AND outcome IN ('done', 'split') ORDER BY ended_at DESC LIMIT :most
        ) AS last JOIN batches b ON b.id = last.batch_id
        CROSS JOIN LATERAL (
            SELECT i AS row_index
            FROM unnest(b.rows - coalesce(b.redo, '{}')) WITH ORDINALITY AS piece (rows, place)
            CROSS JOIN LATERAL generate_series(
                lower(rows), least(upper(rows), lower(rows) + :most) - 1) AS i
            WHERE piece.place <= :most ORDER BY i LIMIT :most) AS r
        WHERE b.part_name IS NOT NULL AND b.state <> 'split'
        ORDER BY last.ended_at DESC, r.row_index LIMIT :most
    """)
    return list(connection.scalars(statement, {"id": job_id, "most": most}))


def revision(connection: Connection, job_id: int) -> str | None:
    """The revision that the job's model resolved to; None before its first load, and where there
    is none.
    """
    statement = text("""
        SELECT e.revision FROM jobs j JOIN engines e USING (pool, engine_key) WHERE j.id = :id
    """)
    found: str | None = connection.scalar(statement, {"id": job_id})
    return found


def makers(connection: Connection, job_id: int) -> list[Row]:
    """The engines and versions that finished batches of the job, and the code around them."""
    statement = text("""
        SELECT DISTINCT had.engine, had.engine_version, w.code_version FROM (
            SELECT DISTINCT worker_id, engine, engine_version FROM attempts
            WHERE job_id = :id AND outcome IN ('done', 'split')
        ) AS had LEFT JOIN workers w ON w.id = had.worker_id
        ORDER BY 1, 2, 3
    """)
    return list(connection.execute(statement, {"id": job_id}).mappings())
