"""Where the HTTP API takes part: commands, duties of reapers for API batches, retries of their jobs, and
pages beside a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from nightshift.common.ledger import Connection, Ledger
    from nightshift.common.settings import Settings
    from nightshift.producer.cli.command import Command
    from nightshift.producer.reaper.duty import Duty, Reaper
    from nightshift.producer.retry import Follower


def commands() -> Sequence[Command]:
    """console, serve, and the groups key and tenant."""
    from nightshift.producer.cli.command import Command
    from nightshift.producer.serve import commands

    return [
        Command("Look", commands.console_, before="top"),
        Command("Fleet", commands.serve, before="alive"),
        Command("Fleet", commands.key, name="key"),
        Command("Fleet", commands.tenant, name="tenant"),
    ]


def duties(reaper: Reaper) -> Sequence[Duty]:
    """API batches are validated, expired, finalized and swept, webhooks sent; nothing where the operator
    names no store.
    """
    if reaper.settings.serve_store is None:
        return []
    from nightshift.producer.serve.api_batches import duties

    return duties.duties(reaper)


def run_again(connection: Connection, job_id: int) -> Follower | None:
    """The API batch whose job runs again, see `retry.py`."""
    from nightshift.producer.serve.api_batches import run_again

    return run_again.run_again(connection, job_id)


def pages(settings: Settings, messages: Console, ledger: Ledger) -> AbstractContextManager[None]:
    """The console beside a run."""
    from nightshift.producer.serve import commands

    return commands.pages(settings, messages, ledger)
