"""Which version of the engine and of a function's code made the rows of each live part."""

from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

# Children of an older release name no version: the rows that they commit are counted for none, as rows from before
# this migration are. So compatible_from stays as it is. jobs.code is no longer written: the counters stay when the
# batches of a job are archived.
TABLES = """
CREATE TABLE engine_versions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest text NOT NULL UNIQUE,
    engine text NOT NULL,
    engine_version text NOT NULL,
    revision text,
    code jsonb
);
COMMENT ON TABLE engine_versions IS
    'What children have loaded: an engine, its version, the revision of its model, the files of its function.';
COMMENT ON COLUMN engine_versions.digest IS 'SHA-256 of the other columns.';
COMMENT ON COLUMN engine_versions.code IS 'SHA-256 of each file of a function, by path; null for other engines.';

ALTER TABLE workers ADD COLUMN version_id bigint;
COMMENT ON COLUMN workers.version_id IS 'Which of engine_versions the child has loaded.';

ALTER TABLE batches ADD COLUMN version_id bigint, ADD COLUMN kept_versions jsonb;
COMMENT ON COLUMN batches.version_id IS
    'Which of engine_versions made the rows of the part that are not in kept_versions; null if that is not known.';
COMMENT ON COLUMN batches.kept_versions IS
    'After a retry: rows of the part that other versions made, as objects of version, rows and count.';

CREATE TABLE version_counters (
    job_id bigint NOT NULL,
    version_id bigint NOT NULL,
    rows bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
COMMENT ON TABLE version_counters IS
    'Rows of live parts by version, without those that run again, as signed deltas; the reaper folds them.';
COMMENT ON COLUMN version_counters.at IS 'When the first of the rows was committed.';
CREATE INDEX version_counters_job ON version_counters (job_id);
"""

KEPT_VERSIONS = """
CREATE FUNCTION kept_versions(b batches, ran int8multirange, made_by bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    -- kept_versions of a batch in whose part the rows `ran` get lines of the version `made_by`.
    WITH kept AS (
        SELECT (e ->> 'version')::bigint AS version, (e ->> 'rows')::int8multirange AS rows
        FROM jsonb_array_elements(b.kept_versions) AS e
    ), before AS (
        SELECT version, rows FROM kept
        UNION ALL
        SELECT b.version_id, b.rows - coalesce(
            (SELECT range_agg(piece) FROM kept CROSS JOIN LATERAL unnest(kept.rows) AS piece), '{}')
    ), left_over AS (
        SELECT version, rows - ran AS rows FROM before WHERE version IS DISTINCT FROM made_by
    )
    SELECT jsonb_agg(jsonb_build_object(
        'version', version, 'rows', rows::text,
        'count', (SELECT sum(upper(piece) - lower(piece)) FROM unnest(rows) AS piece)))
    FROM left_over WHERE NOT isempty(rows)
$$;
"""

ROWS_KEPT = """
CREATE FUNCTION rows_kept(e jsonb, redo int8multirange) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    -- How many rows of an object in kept_versions do not run again.
    SELECT CASE WHEN redo IS NULL THEN (e ->> 'count')::bigint ELSE (
        SELECT coalesce(sum(upper(piece) - lower(piece)), 0)::bigint
        FROM unnest((e ->> 'rows')::int8multirange - redo) AS piece) END
$$;
"""

# The same for both triggers: `{changed}` are rows of batches with a sign. Rows that run again count for no version.
COUNT = """
    INSERT INTO version_counters (job_id, version_id, rows)
    SELECT c.job_id, made.version, sum(c.sign * made.rows)
    FROM ({changed}) AS c
    CROSS JOIN LATERAL (
        SELECT c.version_id AS version, c.row_count - c.redo_count - coalesce((
            SELECT sum(rows_kept(e, c.redo)) FROM jsonb_array_elements(c.kept_versions) AS e), 0) AS rows
        UNION ALL
        SELECT (e ->> 'version')::bigint, rows_kept(e, c.redo)
        FROM jsonb_array_elements(c.kept_versions) AS e
    ) AS made
    WHERE made.version IS NOT NULL
    GROUP BY c.job_id, made.version HAVING sum(c.sign * made.rows) <> 0;
"""

CHANGED = """SELECT {sign} AS sign, job_id, row_count, redo, redo_count, version_id, kept_versions
          FROM {rows}
          WHERE part_name IS NOT NULL AND state <> 'split'
            AND (version_id IS NOT NULL OR kept_versions IS NOT NULL)"""

NEW, OLD = CHANGED.format(sign=1, rows="new_rows"), CHANGED.format(sign=-1, rows="old_rows")

TRIGGERS = f"""
CREATE FUNCTION count_inserted_versions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {COUNT.format(changed=NEW)} RETURN NULL; END $$;
CREATE FUNCTION count_updated_versions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {COUNT.format(changed=f"{NEW} UNION ALL {OLD}")} RETURN NULL; END $$;
-- Rows that come back from an archive were never taken from the counters.
CREATE TRIGGER versions_inserted AFTER INSERT ON batches REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (current_setting('nightshift.bringing_back', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION count_inserted_versions();
CREATE TRIGGER versions_updated AFTER UPDATE ON batches
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_updated_versions();
"""


def upgrade() -> None:
    """Adds two tables, columns, and triggers that count."""
    for statements in (TABLES, KEPT_VERSIONS, ROWS_KEPT, TRIGGERS):
        op.execute(statements)
