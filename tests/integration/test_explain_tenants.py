"""What `explain` tells a tenant about the work of others."""

import json

from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.connection import Actor
from nightshift.common.ledger.jobs.jobs import Job, get
from nightshift.producer.explain import facts, reasons
from tests.support.batch_site import Site, line


def said(ledger: Ledger, job: Job, tenant: str | None) -> str:
    with ledger.transaction() as connection:
        known = facts.facts(connection, job, tenant=tenant)
        return json.dumps(facts.as_json(job, reasons.explain(known)))


def test_jobs_and_people_of_others_have_no_name(ledger: Ledger, tmp_path: object) -> None:
    site = Site(ledger, tmp_path)  # type: ignore[arg-type]
    site.batch(line())
    site.batch(line(), tenant="bee")
    assert site.validate()
    assert site.validate()
    site.sql("UPDATE jobs SET priority = 5 WHERE tenant = 'bee'")
    site.sql("INSERT INTO reapers (name, host, code_version) VALUES ('r', 'h', 'x')")
    site.sql(
        "INSERT INTO slots (supervisor, slot, host, pool, gpus, state, engine_key, refused) "
        "SELECT 's-1', 0, 'gpu-1', 'default', '0', 'ready', engine_key, '{}' FROM jobs LIMIT 1"
    )
    with ledger.transaction() as connection:
        mine = get(connection, connection.exec_driver_sql(MINE).scalar_one())
    assert mine is not None
    assert "(batch_2) goes first" in said(ledger, mine, None)
    hidden = said(ledger, mine, "acme")
    assert "a job of another tenant goes first" in hidden
    assert "batch_2" not in hidden
    with ledger.acting(Actor("carol (ops)", "host-9")).transaction() as connection:
        audit_log.record(connection, "pause", mine.id)
    site.sql(f"UPDATE jobs SET state = 'paused' WHERE id = {mine.id}")
    with ledger.transaction() as connection:
        mine = get(connection, mine.id)
    assert mine is not None
    assert "carol (ops) on host-9" in said(ledger, mine, None)
    assert "by an operator" in said(ledger, mine, "acme")
    assert "host-9" not in said(ledger, mine, "acme")
    assert "by carol (ops)" in said(ledger, mine, "ops"), "whose people have a name to it"


MINE = "SELECT id FROM jobs WHERE tenant = 'acme'"
