"""The one exception tree; each class says what becomes of the batch.

The message of every error is one sentence for a person: what is wrong, where, what to do. It has a second text for
tenants of `nightshift serve`, see `common/public_text.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nightshift.common import public_text


class NightshiftError(Exception):
    """Root of every error that Nightshift raises on purpose.

    `str` gives the whole message, for operators and for who runs a job on this machine. `marked` is the same with the
    marks of `private` and `public` texts in it; if `public` is given, tenants read that alone.
    """

    def __init__(self, message: str = "", *, public: str | None = None) -> None:
        super().__init__(public_text.whole(message))
        self.marked = message if public is None else public_text.instead(str(self), public)

    def public_message(self, own: Sequence[str] | None = ()) -> str:
        """The message for a tenant, who sees paths below its `own` folders whole; None sees every path."""
        return public_text.shown(self.marked, own)


class Retryable(NightshiftError):
    """An outage or a race: the batch goes back to pending with backoff and `failures + 1`."""


class LedgerUnavailable(Retryable):
    """Postgres cannot be reached or gave up on the statement; the same call may work later."""


class LedgerUnreachable(LedgerUnavailable):
    """Postgres did not accept a connection or did not answer in time."""


class StorageUnavailable(Retryable):
    """A file could not be read or written for a reason that may pass (network, disk full)."""


class LedgerAbandoned(Retryable):
    """The command that kept the embedded Postgres up has ended: whoever still needs it opens it anew."""


class UnfinishedGone(StorageUnavailable):
    """A file that was being written was removed: the code that made it makes it again."""


class OutputRefused(StorageUnavailable):
    """The output needs a person: the job pauses, too, with the message as reason."""


class DeleteRefused(StorageUnavailable):
    """The store refuses to delete a file, or a folder has its name: the code that tidies up leaves it."""


class EngineUnavailable(Retryable):
    """The server behind a remote engine is away: the batch is released, nothing is charged."""


class EngineRefused(EngineUnavailable):
    """The server needs a person (key, account): the job pauses, too, with the message as reason."""


class EngineGone(EngineUnavailable):
    """The engine ended and cannot be started again here: the child leaves in order, too."""


class EngineEnded(EngineGone):
    """The engine that is gone had ended over the rows of this batch: the batch is a suspect."""


class StageHung(Retryable):
    """Reading, rendering or writing stands still: the batch is released, nothing is charged."""


class Permanent(NightshiftError):
    """The same call can never work: the batch goes to dead."""


class BadInput(Permanent):
    """What the user gave cannot be used (spec, file, flag); at submit it ends with exit code 2."""


class LedgerRefused(BadInput):
    """Postgres does not take the connection: its address, user or password is wrong."""


class StatementRefused(Permanent):
    """Postgres does not take a statement of ours."""


class JobRefused(Permanent):
    """No worker can run any row of the job: the job ends as failed, at once."""


class NeedsOtherEngine(Retryable):
    """The engine runs no row of the job, but an engine with other `args` would. The job gets these arguments, and
    so another engine key; the batch is released, nothing is charged.
    """

    def __init__(self, message: str, args: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.engine_args = args


class SourceChanged(Permanent):
    """An input file is gone or is no longer the file that was planned."""


class SchemaMismatch(Permanent):
    """The ledger's tables and this code do not fit together (migrate, or upgrade the code)."""


class EngineDead(NightshiftError):
    """The engine cannot continue: every batch in flight is a suspect (`losses + 1`), the child ends."""


class EngineLoadFailed(NightshiftError):
    """The engine of a job can never be loaded as its spec wants; never charged to a batch.

    `common/allocation/load_errors.py` says whom each type below concerns. `causes` are the errors of
    another process that led to this one, the nearest first, each as the qualified names of its types.
    """

    def __init__(self, message: str, causes: Sequence[Sequence[str]] = ()) -> None:
        super().__init__(message)
        self.causes = causes


class EngineNotHere(EngineLoadFailed):
    """The worker cannot run the engine (not allowed, not installed, file missing)."""


class MachineCannotLoad(EngineLoadFailed):
    """The machine could not load the engine now (memory, a device, a process that died)."""


class RevisionChanged(EngineLoadFailed):
    """The model resolved to another revision than at its first load."""


class LoadUnexplained(EngineLoadFailed):
    """A library or user code failed during the load; the cause may say more."""


class LeaseLost(NightshiftError):
    """The batch belongs to another owner now: drop the work and delete no part but one's own."""


class TableTaken(Retryable):
    """The rows of a job are on their way into a table now; the same call may work later."""


class ArchiveTaken(Retryable):
    """Another process moves the rows of an archived job now; the same call may work later."""
