"""The command that says why a job moves or stands: explain."""

import typer

from nightshift.producer.cli import context


def explain(job: context.JobName, *, as_json: context.AsJson = False) -> None:
    """Say why a job moves or stands, in one sentence, and the commands that help."""
    from nightshift.producer.advice.advice import spec_note
    from nightshift.producer.explain import facts, reasons

    with context.opened() as (ledger, here):
        found = context.find_job(ledger, job)
        with ledger.transaction() as connection:
            known = facts.facts(connection, found, here=here)
    given = reasons.explain(known)
    if as_json:
        context.print_json(facts.as_json(found, given))
        return
    for each in given:
        typer.echo(f"job {found.id} ({found.spec.name}): {each.sentence}")
        for command in each.commands:
            note = spec_note(command)
            typer.echo(f"  {command}{note and f'    {note}'}")
