"""The ledger of a command: the one that the environment names, else that of the home folder."""

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nightshift.common.errors import BadInput, Retryable
from nightshift.common.failpoints import Moment, reached
from nightshift.common.ledger import Ledger, schema
from nightshift.common.settings import Settings


@contextmanager
def open_ledger(
    settings: Settings, *, checked: bool = True, connections: int = 2
) -> Iterator[tuple[Ledger, bool]]:
    """The ledger for the time of one command, its schema checked; and whether only this command
    keeps its server up: then no job advances.

    `here.here` makes of the second who works on the ledger. Where NIGHTSHIFT_DATABASE_URL is not set, this is the embedded ledger of the home folder. If no
    other command keeps its server up, this one is the owner of the folder until the server runs, and again
    when it stops the server at the end (`HomeLock`). Raises BadInput when there is no ledger, LedgerUnavailable when the one that a
    `nightshift run` keeps up does not answer, SchemaMismatch when it does not fit this code.
    """
    with ExitStack() as stack:
        # A generator that a program leaves suspended is closed with the interpreter's last objects, when nothing can be
        # imported any more: what is open is closed before.
        atexit.register(stack.close)
        stack.callback(atexit.unregister, stack.close)
        if settings.database_url is not None:
            ledger, alone = _connect(stack, settings.database_url, settings, connections), False
        else:
            ledger, alone = _embedded(stack, settings, connections)
        if checked:
            schema.check(ledger)
        reached(Moment.ENTERED)
        yield ledger, alone


def has_ledger(settings: Settings) -> bool:
    """Whether the environment names a ledger, or a `nightshift run` made one in the home folder."""
    return settings.database_url is not None or (settings.home / "postgres").is_dir()


def known_url(settings: Settings) -> str | None:
    """The address of the ledger, as far as it is known without a look at any server: that of the environment, or
    the one that a `nightshift run` has left in the home folder.
    """
    if settings.database_url is not None:
        return settings.database_url
    try:
        return (settings.home.absolute() / "database_url").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def refuse_no_ledger(home: Path) -> None:
    """Raises BadInput for a home folder without an embedded ledger."""
    if not (home / "postgres").is_dir():
        here = Path.cwd()
        short = f"./{home.relative_to(here)}" if home.is_relative_to(here) else home
        raise BadInput(
            f"NIGHTSHIFT_DATABASE_URL is not set and no `nightshift run` has made a ledger in {short}"
        )


def _embedded(stack: ExitStack, settings: Settings, connections: int) -> tuple[Ledger, bool]:
    home = settings.home.absolute()
    refuse_no_ledger(home)
    from nightshift.producer.embedded.home import READ_SECONDS, HomeLock, use_or_own, write_whole

    lock = HomeLock(home)
    stack.callback(lock.close)
    used = use_or_own(
        lock, lambda: _running(stack, settings, connections), lambda: refuse_no_ledger(home)
    )
    if used is not None:
        used.is_abandoned = lock.is_abandoned
        return used, False
    lock.clean()
    # Only here are the programs of the wheels needed.
    from nightshift.producer.embedded.postgres import EmbeddedPostgres
    from nightshift.producer.embedded.servers import stop_all

    postgres = EmbeddedPostgres()
    url = postgres.start(home)
    stack.callback(stop_all, lock, [postgres], READ_SECONDS)
    write_whole(home / "database_url", url)
    lock.share()
    return _connect(stack, url, settings, connections), True


def _running(stack: ExitStack, settings: Settings, connections: int) -> Ledger | Retryable | None:
    """The ledger that a `nightshift run` keeps up now, at the address in its file; why it does not answer
    there; None where there is no file, or something else has the port.
    """
    url = known_url(settings)
    if url is None:
        return None
    ledger = _connect(stack, url, settings, connections)
    try:
        with ledger.transaction():
            return ledger
    except Retryable as error:
        found: Retryable | None = error
    except BadInput:
        found = None
    ledger.close()
    return found


def _connect(stack: ExitStack, url: str, settings: Settings, connections: int = 2) -> Ledger:
    ledger = Ledger(url, connections=connections, answer_seconds=settings.answer_seconds)
    stack.callback(ledger.close)
    return ledger
