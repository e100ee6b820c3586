-- Batches of a job whose attempts contradict their leases, each with a sentence.

WITH owned AS MATERIALIZED (
    SELECT b.id, b.attempt, b.state, b.part_name,
           coalesce(p.attempt, 0) AS inherited, b.parent_id
    FROM batches b LEFT JOIN batches p ON p.id = b.parent_id
    WHERE b.job_id = :id
), counted AS (
    SELECT a.batch_id, count(*) AS leases, min(a.attempt) AS first,
           max(a.attempt) AS last,
           bool_or(a.outcome = 'done') AS ever_done,
           count(*) FILTER (WHERE a.ended_at IS NULL) AS running,
           max(a.attempt) FILTER (WHERE a.ended_at IS NULL) AS running_last
    FROM attempts a WHERE a.job_id = :id GROUP BY a.batch_id
), judged AS (
    SELECT m.id AS batch, CASE
        WHEN coalesce(c.leases, 0) <> m.attempt - m.inherited
             OR c.first <> m.inherited + 1 OR c.last <> m.attempt
        THEN format('claimed %s times, and attempts has %s rows of it',
                    m.attempt - m.inherited, coalesce(c.leases, 0))
        WHEN m.state = 'leased' AND c.running_last IS DISTINCT FROM m.attempt
        THEN format('leased, and its attempt %s has ended', m.attempt)
        WHEN coalesce(c.running, 0) <> (m.state = 'leased')::int
        THEN format('%s, and %s of its attempts have not ended', m.state, c.running)
        WHEN m.state = 'done' AND m.attempt > m.inherited AND last.outcome <> 'done'
             AND NOT c.ever_done AND parents.outcome IS DISTINCT FROM 'split'
        THEN format('done, and its attempt %s ended as %s', m.attempt, last.outcome)
        WHEN m.state = 'done' AND m.attempt = m.inherited
             AND parents.outcome IS DISTINCT FROM 'split'
        THEN format('done under its parent''s attempt %s, which ended as %s',
                    m.attempt, coalesce(parents.outcome, 'nothing'))
        END AS problem
    FROM owned m
    LEFT JOIN counted c ON c.batch_id = m.id
    LEFT JOIN attempts last ON last.batch_id = m.id AND last.attempt = m.attempt
    LEFT JOIN attempts parents ON parents.batch_id = m.parent_id
                              AND parents.attempt = m.inherited
    UNION ALL
    SELECT c.batch_id, 'has attempts and is no batch of the job'
    FROM counted c WHERE NOT EXISTS (SELECT FROM owned WHERE id = c.batch_id)
)
SELECT batch, problem FROM judged WHERE problem IS NOT NULL ORDER BY batch LIMIT :limit
