"""Commands about the HTTP API: serve, and its keys."""

import json
from typing import Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.producer.cli import context

key = typer.Typer(no_args_is_help=True, help="Make, list and revoke keys of the HTTP API.")


def serve() -> None:
    """Serve the OpenAI Batch API at /v1 and jobs at /api; run as many as you like."""
    from nightshift.common import logs
    from nightshift.common.settings import load_settings
    from nightshift.producer.connect import open_ledger

    settings = load_settings()
    logs.configure(settings, process="serve")
    if settings.database_url is None:
        raise BadInput("NIGHTSHIFT_DATABASE_URL is not set: the HTTP API is a door to a fleet")
    try:
        from nightshift.producer.gateway import server
    except ImportError as error:
        raise BadInput(
            f"the package {error.name} is missing: pip install 'nightshift-fleet[serve]'"
        ) from error
    with open_ledger(settings, connections=server.CONNECTIONS) as (ledger, _):
        server.run(ledger, settings)


@key.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose key; made if there is none of that name.")],
    role: Annotated[str, typer.Option(help="viewer, user or operator.")] = "user",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    *,
    as_json: context.AsJson = False,
) -> None:
    """Make a key and print it: it can never be shown again."""
    from nightshift.common.ledger.control import audit_log
    from nightshift.common.ledger.gateway import keys, tenants

    if role not in ("viewer", "user", "operator"):
        raise BadInput(f"--role {role!r} is none of viewer, user, operator")
    with context.ledger_of() as ledger, ledger.transaction() as connection:
        tenants.ensure(connection, tenant)
        number, text = keys.create(connection, tenant, name or role, role, None)  # type: ignore[arg-type]
        audit_log.record(connection, "key create", subject=f"key {number}")
    if as_json:
        typer.echo(json.dumps({"id": number, "tenant": tenant, "role": role, "key": text}))
    else:
        typer.echo(text)
