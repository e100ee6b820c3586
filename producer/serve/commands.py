"""Commands about the HTTP API and its pages: serve, console, keys and tenants."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.common.errors import BadInput
from nightshift.common.processes import signals
from nightshift.producer.cli import context

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.common.ledger import Ledger
    from nightshift.common.settings import Settings

CONNECTIONS = 4
"""Connections to Postgres of the console of one person."""

key = typer.Typer(no_args_is_help=True, help="Make, list and revoke keys of the HTTP API.")
tenant = typer.Typer(
    no_args_is_help=True, help="List tenants of the HTTP API, and set their limits."
)


@contextmanager
def pages(
    settings: "Settings",
    messages: "Console",
    ledger: "Ledger",
    *,
    alone: bool = False,
    port: int = 0,
) -> Iterator[None]:
    """Serves the console to this machine until the block ends, and prints the link that opens it."""
    try:
        from nightshift.producer.advice.here import Here, Works, here
        from nightshift.producer.serve.console import app
    except ImportError as error:
        raise _missing(error) from error
    if alone:
        Here(Works.PAGES).say(settings.home.absolute())
    with app.at_this_machine(ledger, settings, lambda: here(settings, alone=False), port) as link:
        messages.print(f"the console, for one browser of this machine: {link}", soft_wrap=True)
        yield


def console_(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 0,
) -> None:
    """Show jobs, rows and machines in a browser of this machine, by a link for one use.

    The pages are those of `nightshift serve`, over the ledger of the environment or of this folder. Who
    follows the link may do everything. Ctrl-C ends the pages and nothing else.
    """
    from nightshift.producer.connect import open_ledger

    settings, messages = context.command_settings(), context.console()
    stop = threading.Event()
    signals.act_on({signal.SIGTERM: stop.set, signal.SIGINT: stop.set})
    with (
        open_ledger(settings, connections=CONNECTIONS) as (ledger, alone),
        pages(settings, messages, ledger, alone=alone, port=port),
    ):
        while not stop.wait(1):
            pass


def _missing(error: ImportError) -> BadInput:
    return BadInput(f"the package {error.name} is missing: pip install 'nightshift-fleet[serve]'")


def serve() -> None:
    """Serve the OpenAI Batch API at /v1 and jobs at /api; run as many as you like.

    Without NIGHTSHIFT_DATABASE_URL a whole fleet of this machine is started behind the API, in the home
    folder, as `nightshift run` does.
    """
    from nightshift.common import logs
    from nightshift.common.settings import load_settings
    from nightshift.producer.connect import open_ledger

    settings = load_settings()
    logs.configure(settings, process="serve")
    try:
        from nightshift.producer.serve import server
        from nightshift.producer.serve.console import app as console
    except ImportError as error:
        raise _missing(error) from error
    run = partial(server.run, add_pages=console.add)
    if settings.database_url is None:
        from nightshift.producer.serve.one_machine import serve_alone

        serve_alone(settings, context.console(), run, server.CONNECTIONS)
        return
    with open_ledger(settings, connections=server.CONNECTIONS) as (ledger, _):
        run(ledger, settings)


@key.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose key; made if there is none of that name.")],
    role: Annotated[str, typer.Option(help="viewer, user or operator.")] = "user",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="A duration such as 90d, or a date.")
    ] = None,
    *,
    as_json: context.AsJson = False,
) -> None:
    """Make a key and print it: it can never be shown again."""
    from nightshift.producer.serve.tenants import tenants

    with context.ledger_of() as ledger:
        answer, text = tenants.create_key(ledger, tenant, role, name, expires)
    if as_json:
        typer.echo(json.dumps({**answer.as_json, "key": text}, default=str))
    else:
        typer.echo(answer.line, err=True)
        typer.echo(text)


@key.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Those of one tenant.")] = None,
    *,
    as_json: context.AsJson = False,
) -> None:
    """List keys by number, without the keys themselves."""
    from nightshift.producer.serve.tenants import lists

    with context.ledger_of() as ledger:
        found = lists.keys(ledger, tenant)
    if as_json:
        context.print_json(found)
    else:
        context.console().print(lists.key_table(found))


@key.command("revoke")
def revoke_key(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `nightshift key list` says.")],
    *,
    as_json: context.AsJson = False,
) -> None:
    """Close a key for good, at once."""
    from nightshift.producer.serve.tenants import tenants

    with context.ledger_of() as ledger:
        answer = tenants.revoke_key(ledger, number)
    context.print_answer(answer, as_json=as_json)


@tenant.command("list")
def list_tenants(*, as_json: context.AsJson = False) -> None:
    """List tenants with their limits, and what they have spent of their budgets."""
    from nightshift.producer.serve.tenants import lists

    with context.ledger_of() as ledger:
        found = lists.tenants(ledger)
    if as_json:
        context.print_json(found)
    else:
        context.console().print(lists.tenant_table(found))


@tenant.command("set")
def set_tenant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Made if there is none.")],
    *,
    weight: Annotated[
        str | None, typer.Option(metavar="X", help="Share beside other tenants; 1 unless set.")
    ] = None,
    max_priority: Annotated[
        str | None, typer.Option(metavar="N", help="Highest priority of its jobs; 0 unless set.")
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="A pool that its jobs may use; none: every pool.")
    ] = None,
    max_rows: Annotated[
        str | None, typer.Option(metavar="N", help="Rows enqueued at once, or none.")
    ] = None,
    max_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens enqueued at once, or none.")
    ] = None,
    max_files: Annotated[
        str | None, typer.Option(metavar="N", help="Files stored at once, or none.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="N", help="Bytes of its stored files, or none.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="MONEY", help="What its jobs may spend from now on, or none."),
    ] = None,
    root: Annotated[
        list[str] | None, typer.Option(help="A folder or URI for its specs; none: no folder.")
    ] = None,
    callables: Annotated[
        bool | None, typer.Option(help="Whether its specs may name functions.")
    ] = None,
    remotes: Annotated[
        bool | None, typer.Option(help="Whether its specs may name a base_url.")
    ] = None,
    as_json: context.AsJson = False,
) -> None:
    """Change what a tenant of the HTTP API may do; what is not given stays."""
    from nightshift.producer.serve.tenants import tenants

    given = {
        "weight": weight,
        "max_priority": max_priority,
        "pools": pool,
        "max_rows": max_rows,
        "max_tokens": max_tokens,
        "max_files": max_files,
        "max_bytes": max_bytes,
        "budget": budget,
        "roots": root,
        "callables": callables,
        "remotes": remotes,
    }
    wanted = {key: value for key, value in given.items() if value is not None}
    if not wanted:
        raise BadInput("say what changes, such as --weight 2: see `nightshift tenant set --help`")
    with context.ledger_of() as ledger:
        answer = tenants.change(ledger, name, wanted)
    context.print_answer(answer, as_json=as_json)
