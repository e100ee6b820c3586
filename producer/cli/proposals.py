"""What a shell proposes for an argument: names from the ledger, and words from our lists.

A proposal must not cost anything: a ledger that is away, slow or of another release gives none. No server is
started, and nothing is printed.
"""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.common.ledger import Connection
    from nightshift.common.settings import Settings

Proposal = tuple[str, str]
"""A word for the command line, and what is said beside it."""

MOST = 50
"""Most proposals for one argument."""

SECONDS = 1.0
"""Longest wait for the ledger."""


class Asked:
    """How long this process may wait for a ledger, and whether an argument has proposals of its own."""

    seconds = SECONDS
    has_own = False


def jobs(incomplete: str) -> list[Proposal]:
    """Jobs by name and by number, the newest first."""
    from nightshift.common.ledger.queries import names

    return _of_ledger(names.jobs, incomplete)


def pools(incomplete: str) -> list[Proposal]:
    """Pools that have jobs or workers."""
    from nightshift.common.ledger.queries import names

    return _of_ledger(names.pools, incomplete)


def machines(incomplete: str) -> list[Proposal]:
    """Hosts and workers."""
    from nightshift.common.ledger.queries import names

    return _of_ledger(names.machines, incomplete)


def error_kinds(incomplete: str) -> list[Proposal]:
    """Kinds of row errors."""
    from nightshift.common.states import RowErrorKind

    return _words(tuple(RowErrorKind), incomplete)


def outcomes(incomplete: str) -> list[Proposal]:
    """How a lease ends."""
    from nightshift.common.states import Outcome

    return _words((*Outcome, "running"), incomplete)


def standings(incomplete: str) -> list[Proposal]:
    """Where a job stands."""
    from nightshift.common.states import ShownState

    return _words(tuple(ShownState), incomplete)


def _words(known: tuple[str, ...], incomplete: str) -> list[Proposal]:
    Asked.has_own = True
    return [(str(word), "") for word in known if word.startswith(incomplete)]


def _of_ledger(
    query: "Callable[[Connection, str, int], list[Proposal]]", start: str
) -> list[Proposal]:
    """The answer of the ledger if one comes in time. The thread that waits ends with its process."""
    from nightshift.common import settings

    Asked.has_own = True
    found: list[Proposal] = []

    def ask() -> None:
        try:
            found.extend(_asked(query, start, settings.load_settings()))
        except Exception:
            found.clear()

    waiting = threading.Thread(target=ask, daemon=True)
    waiting.start()
    waiting.join(Asked.seconds)
    return [] if waiting.is_alive() else found


def _asked(
    query: "Callable[[Connection, str, int], list[Proposal]]", start: str, settings: "Settings"
) -> list[Proposal]:
    from nightshift.common.ledger import Ledger
    from nightshift.producer.connect import known_url

    url = known_url(settings)
    if url is None:
        return []
    ledger = Ledger(url, connections=1, answer_seconds=Asked.seconds)
    with closing(ledger), ledger.transaction() as connection:
        return query(connection, start, MOST)
