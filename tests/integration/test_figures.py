"""What monitoring asks of the ledger."""

from sqlalchemy import text

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.queries import figures

INSERT = """
    INSERT INTO jobs (name, pool, priority, engine_key, state, spec, identity, spec_identity,
                      output_uri, max_failed_fraction, input_schema, finished_at, closed_at)
    SELECT CAST(:state AS text) || number::text, 'p', 0, 'k', CAST(:state AS text), '{}', CAST(:state AS text) || number::text, '', CAST(:state AS text) || number::text, 0,
           '', finished_at, finished_at
    FROM generate_series(1, :jobs) AS number
    LEFT JOIN LATERAL (SELECT now() - make_interval(secs => 100 - number)) AS ended (finished_at)
        ON CAST(:state AS text) = 'completed'
"""


def test_running_jobs_are_shown_first_and_those_left_out_are_counted(ledger: Ledger) -> None:
    with ledger.transaction() as connection:

        def jobs(state: str, jobs: int) -> None:
            connection.execute(text(INSERT), {"state": state, "jobs": jobs})

        def shown(most: int) -> tuple[list[str], int]:
            found, left_out = figures.jobs(connection, 3600, most)
            return [job["name"] for job in found], left_out

        assert shown(200) == ([], 0)
        jobs("paused", 260)
        jobs("completed", 3)
        jobs("running", 120)
        running = [f"running{number}" for number in range(1, 121)]
        paused = [f"paused{number}" for number in range(1, 261)]
        assert shown(200) == (running + paused[:80], 183)
        every = [*running, *paused, "completed3", "completed2", "completed1"]
        assert shown(382) == (every[:382], 1)
        assert shown(383) == (every, 0)
        assert shown(400) == (every, 0)
        assert len(figures.jobs(connection, 0, 400)[0]) == 380
