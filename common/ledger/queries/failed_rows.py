"""Rows that failed: listed, counted by kind, looked up among other rows."""

from collections.abc import Sequence

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.connection import Connection, Row


def in_parts(connection: Connection, batches: Sequence[int]) -> list[Row]:
    """The errors that stand in the parts of these batches, ascending."""
    statement = text("""
        SELECT row_index, row_id, kind, message FROM row_errors
        WHERE batch_id = ANY (CAST(:batches AS bigint[])) ORDER BY row_index
    """)
    return list(connection.execute(statement, {"batches": list(batches)}).mappings())


def count_in_parts(connection: Connection, job_id: int) -> int:
    """How many errors the ledger has of rows of a job, those of rows that run again among them."""
    statement = text("SELECT count(*) FROM row_errors WHERE job_id = :id")
    return int(connection.scalar(statement, {"id": job_id}) or 0)


def count_by_kind(connection: Connection, job_id: int) -> dict[str, int]:
    """How many row errors of each kind the job has, the most frequent first."""
    statement = text("""
        SELECT kind, count(*) AS rows FROM failed_rows WHERE job = :id
        GROUP BY kind ORDER BY rows DESC, kind
    """)
    return {row.kind: int(row.rows) for row in connection.execute(statement, {"id": job_id})}


def count_by_message(
    connection: Connection, job_id: int, *, kind: str | None, most: int
) -> list[Row]:
    """The most frequent messages of failed rows, with their `kind` and how many `rows` have them. Numbers
    in a message are written as #, so that those of one cause are one.
    """
    statement = text("""
        SELECT kind, regexp_replace(message, '[0-9]+', '#', 'g') AS message, count(*) AS rows
        FROM failed_rows WHERE job = :id AND (CAST(:kind AS text) IS NULL OR kind = :kind)
        GROUP BY 1, 2 ORDER BY rows DESC, 1, 2 LIMIT :most
    """)
    found = connection.execute(statement, {"id": job_id, "kind": kind, "most": most})
    return list(found.mappings())


def first(
    connection: Connection,
    job_id: int,
    *,
    kind: str | None,
    limit: int,
    after: int = -1,
    text_in: str | None = None,
) -> list[Row]:
    """The first failed rows of a job in dataset order behind the row `after`: of one kind if named, with
    `text_in` in their message, whatever the case.
    """
    statement = text("""
        SELECT row_index, row_id, kind, message FROM failed_rows
        WHERE job = :id AND row_index > :after AND (CAST(:kind AS text) IS NULL OR kind = :kind)
          AND (CAST(:part AS text) IS NULL OR strpos(lower(message), lower(:part)) > 0)
        ORDER BY row_index LIMIT :limit
    """)
    given = {"id": job_id, "kind": kind, "limit": limit, "after": after, "part": text_in}
    return list(connection.execute(statement, given).mappings())


def with_lines(connection: Connection, job_id: int) -> RowRanges:
    """The failed rows that have a line in a part which counts."""
    statement = text("""
        SELECT coalesce(range_agg(int8range(e.row_index, e.row_index, '[]')), '{}') FROM row_errors e
        WHERE e.job_id = :id
          AND NOT EXISTS (SELECT FROM batches b WHERE b.id = e.batch_id AND b.redo @> e.row_index)
    """)
    found: RowRanges = connection.execute(statement, {"id": job_id}).scalar_one()
    return found
