"""Rows that failed: listed, counted by kind, looked up among other rows."""

from collections.abc import Sequence

from sqlalchemy import text

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches import similar_errors
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


COUNT_BY_MESSAGE = text(
    """
    WITH examined AS (
        SELECT kind, """
    + similar_errors.PATTERN
    + """ AS message, row_index FROM failed_rows
        WHERE job = :id AND (CAST(:kind AS text) IS NULL OR kind = :kind)
          -- One row of so many, by lot: every tenth row may fail for a reason of its own.
          AND (:every = 1 OR (hashint8(row_index)::bigint & 2147483647) % :every = 0)
    ), counted AS (
        SELECT kind, message, count(*) AS rows, array_agg(row_index) AS indices FROM examined
        GROUP BY kind, message ORDER BY rows DESC, kind, message LIMIT :most
    )
    SELECT kind, message, rows * :every AS rows, """
    + similar_errors.GROUP
    + """ AS group,
           (SELECT array_agg(row_index) FROM (
               SELECT row_index FROM unnest(indices) AS row_index ORDER BY row_index LIMIT :examples
           ) AS first) AS examples
    FROM counted ORDER BY rows DESC, kind, message
"""
)
"""The most frequent messages among all failed rows, or among one of `every` so many."""


def count_by_message(
    connection: Connection,
    job_id: int,
    *,
    kind: str | None = None,
    most: int,
    every: int = 1,
    examples: int = 0,
) -> list[Row]:
    """The most frequent messages of failed rows, with their `kind`, how many `rows` have them, the name of
    their `group`, and the numbers of at most so many `examples`. Numbers in a message are written as #, so
    that those of one cause are one. Of very many rows only one of `every` so many is looked at.
    """
    given = {"id": job_id, "kind": kind, "most": most, "every": every, "examples": examples}
    return list(connection.execute(COUNT_BY_MESSAGE, given).mappings())


def group_of(connection: Connection, message: str) -> str:
    """The name of the group of messages to which this one belongs."""
    statement = text(
        "SELECT " + similar_errors.GROUP + " FROM (SELECT :message) AS given (message)"
    )
    found: str = connection.execute(statement, {"message": message}).scalar_one()
    return found


def first(
    connection: Connection,
    job_id: int,
    *,
    kind: str | None,
    limit: int,
    after: int = -1,
    text_in: str | None = None,
    group: str | None = None,
) -> list[Row]:
    """The first failed rows of a job in dataset order behind the row `after`: of one kind if named, with
    `text_in` in their message, whatever the case, and of one `group` of messages.
    """
    given = {"id": job_id, "kind": kind, "limit": limit, "after": after, "part": text_in}
    return list(connection.execute(FIRST, {**given, "group": group}).mappings())


FIRST = text(
    """
    SELECT row_index, row_id, kind, message FROM failed_rows
    WHERE job = :id AND row_index > :after AND (CAST(:kind AS text) IS NULL OR kind = :kind)
      AND (CAST(:part AS text) IS NULL OR strpos(lower(message), lower(:part)) > 0)
      AND (CAST(:group AS text) IS NULL OR """
    + similar_errors.GROUP
    + """ = :group)
    ORDER BY row_index LIMIT :limit
"""
)
"""Failed rows behind a row, in dataset order."""


def with_lines(connection: Connection, job_id: int) -> RowRanges:
    """The failed rows that have a line in a part which counts."""
    statement = text("""
        SELECT coalesce(range_agg(int8range(e.row_index, e.row_index, '[]')), '{}') FROM row_errors e
        WHERE e.job_id = :id
          AND NOT EXISTS (SELECT FROM batches b WHERE b.id = e.batch_id AND b.redo @> e.row_index)
    """)
    found: RowRanges = connection.execute(statement, {"id": job_id}).scalar_one()
    return found
