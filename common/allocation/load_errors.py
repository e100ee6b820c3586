"""Why an engine could not be loaded: whom each error concerns, and when failed loads fail the jobs.

An error is classified by the types of the exception and of its causes, never by its text.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nightshift.common.errors import EngineLoadFailed

MOST_TRIES = 3
"""Loads of a machine without siblings that may fail for a reason that may pass."""

UNKNOWN_LOAD_SECONDS = 30.0
"""How long a load counts where no load of the engine has ended well yet."""


class Concern(StrEnum):
    """Whose matter an error is: who would meet the error again."""

    WORKER = "worker"
    MACHINE = "machine"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Case:
    """Whom an error concerns; `passes` where the same load may work later, with nothing changed."""

    concern: Concern
    passes: bool
    meaning: str


_OURS = "nightshift.common.errors."
_HUB = "huggingface_hub.errors."

UNEXPLAINED = Case(Concern.JOB, True, "another error of a library or of user code")

CASES = {
    _OURS + "EngineNotHere": Case(
        Concern.WORKER,
        False,
        "not allowed on this worker, too few GPUs, a missing extra, model folder or module, a key that "
        "is refused",
    ),
    _OURS + "MachineCannotLoad": Case(
        Concern.MACHINE, True, "EngineCore did not start, or the child died while it loaded"
    ),
    _OURS + "RevisionChanged": Case(
        Concern.JOB, True, "the model is at another revision than its first load"
    ),
    _OURS + "LoadUnexplained": UNEXPLAINED,
    _OURS + "EngineLoadFailed": Case(
        Concern.JOB,
        False,
        "user code raises another error at import or set-up, a name is missing, the model does not "
        "fit the task",
    ),
    "torch.OutOfMemoryError": Case(Concern.MACHINE, True, "no GPU memory"),
    "torch.AcceleratorError": Case(Concern.MACHINE, True, "a GPU that fails or is away"),
    "builtins.MemoryError": Case(Concern.MACHINE, True, "no memory"),
    "builtins.ConnectionError": Case(Concern.MACHINE, True, "a server or a port that is away"),
    "builtins.TimeoutError": Case(Concern.MACHINE, True, "a server that does not answer"),
    "httpx.HTTPError": Case(Concern.MACHINE, True, "the hub cannot be reached"),
    "httpx2.HTTPError": Case(Concern.MACHINE, True, "the hub cannot be reached"),
    "requests.exceptions.RequestException": Case(
        Concern.MACHINE, True, "the hub cannot be reached"
    ),
    _HUB + "HfHubHTTPError": Case(Concern.MACHINE, True, "the hub answers with an error"),
    _HUB + "LocalEntryNotFoundError": Case(
        Concern.MACHINE, True, "the hub cannot be reached, and the file is not in the cache"
    ),
    _HUB + "GatedRepoError": Case(
        Concern.WORKER, False, "the worker's token has no right to read the model"
    ),
    _HUB + "RepositoryNotFoundError": Case(Concern.JOB, False, "the model does not exist"),
    _HUB + "RevisionNotFoundError": Case(Concern.JOB, False, "the revision does not exist"),
    _HUB + "EntryNotFoundError": Case(Concern.JOB, False, "the model lacks a file"),
    _HUB + "RemoteEntryNotFoundError": Case(Concern.JOB, False, "the model lacks a file"),
    "builtins.OSError": Case(
        Concern.MACHINE, True, "the operating system refuses: disk full, no rights, port in use"
    ),
    "builtins.ValueError": Case(Concern.JOB, False, "a library refuses the model or an argument"),
    "builtins.TypeError": Case(Concern.JOB, False, "a library refuses an argument"),
}
"""What is known of the types of errors. The nearest base class of an exception counts."""


def case_of(error: BaseException) -> Case:
    """The case of the first exception of a chain of causes whose type is known. What another process
    met counts before the error that brings it.
    """
    for each in _chain(error):
        causes = each.causes if isinstance(each, EngineLoadFailed) else ()
        for names in (*causes, _type_names(each)):
            found = next((CASES[name] for name in names if name in CASES), UNEXPLAINED)
            if found is not UNEXPLAINED:
                return found
    return UNEXPLAINED


def _type_names(error: BaseException) -> list[str]:
    """The qualified names of an error's types, as the process of a function gives them."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    # Libraries wrap what they met: an OSError of the system has a number, others a cause.
    if isinstance(error, OSError) and error.errno is None:
        names.remove("builtins.OSError")
    return names


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """The loads of one engine that failed on one machine since its last load that worked anywhere.

    `failures` counts them; `seconds` is the age of the first. `here` marks the loads of the
    supervisor that asks.
    """

    machine: str
    concern: Concern
    passes: bool
    failures: int
    seconds: float
    here: bool = False


def fails_jobs(
    failed: Sequence[FailedLoad],
    machines: Collection[str],
    *,
    in_use: bool,
    load_seconds: float | None,
    one_machine: bool,
) -> bool:
    """True when an engine's failed loads fail the jobs that need the engine.

    `machines` are the living ones that may have the engine, and `in_use` says that a child has it,
    or that a machine loads it that has not failed yet. In a fleet two machines must have failed for
    the job's own reason, or every machine that can, twice and for longer than a load takes; while
    no machine can, the job waits for one. A fleet of
    `one_machine` fails a job at once for what cannot pass, and else after MOST_TRIES; loads of other
    supervisors count for nothing there.
    """
    if in_use:
        return False
    if one_machine:
        return any(
            each.here and (not each.passes or each.failures >= MOST_TRIES) for each in failed
        )
    return _fails_in_fleet(failed, set(machines), load_seconds)


def _fails_in_fleet(
    failed: Sequence[FailedLoad], machines: set[str], load_seconds: float | None
) -> bool:
    own = [each for each in failed if each.concern is Concern.JOB]
    failing = {each.machine for each in own}
    if len(failing) >= 2:
        return True
    unable = {each.machine for each in failed if each.concern is Concern.WORKER} - failing
    able = machines - unable
    least = UNKNOWN_LOAD_SECONDS if load_seconds is None else load_seconds
    tried_long = any(each.failures >= 2 and each.seconds > least for each in own)
    return bool(able) and able <= failing and tried_long
