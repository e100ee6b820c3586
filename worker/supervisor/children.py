"""Children of a supervisor: what each is told and which secrets it gets, what its exit code means,
and the slot it has.
"""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from nightshift.common.errors import BadInput
from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger.engines.loads import LoadPolicy
from nightshift.common.ledger.fleet.slots import SlotOrder, SlotReport
from nightshift.common.ledger.fleet.workers import Child
from nightshift.common.processes.process_group import EMPTY_SECONDS, ProcessGroup
from nightshift.common.settings import Settings
from nightshift.common.spec import FunctionEngineSpec, OpenaiEngineSpec
from nightshift.common.spec.engines import EngineSpec
from nightshift.worker.supervisor.channel import ToChild, Word

ORDERLY = (ExitCode.DONE, ExitCode.THREADS_HANG, ExitCode.ENGINE_GONE)
"""Exit codes of children that released everything, asked or not: such an end charges nothing."""

NOT_WHILE_LOADING = (ExitCode.LOAD_FAILED, ExitCode.LEDGER_AWAY)
"""Exit codes of children that did not die of their engine's load, or reported it themselves."""


@dataclass(frozen=True, slots=True)
class ChildConfig(Child):
    """What a child is told on its command line, as JSON.

    That is who it is, a job whose engine it loads, the descriptor of its `channel` to the
    supervisor, the file for its `profile`, and the folder for its `metrics`. The child itself fills
    in its `pid`.
    """

    job_id: int
    channel: int
    profile: str | None = None
    metrics: str | None = None


OPENAI_SECRETS = frozenset({"OPENAI_API_KEY", "OPENAI_ADMIN_KEY"})
"""Variables with keys of remote engines."""

HUB_SECRETS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""Variables with keys of the hub, from which models come."""


def secrets_for(engine: EngineSpec, settings: Settings) -> tuple[Settings, frozenset[str]]:
    """The settings that a child with this engine gets, and the variables that it does not inherit.

    The API key of an address goes to children whose engine asks that address. A function's child
    keeps the variables that NIGHTSHIFT_FUNCTION_ENV names. No child gets the key of the metrics: the
    supervisor alone serves them.
    """
    own = settings.model_copy(
        update={
            "metrics_port": None,
            "metrics_key": None,
            "api_keys": {},
            "openai_api_key": None,
            "catalogs": {},
        }
    )
    if isinstance(engine, FunctionEngineSpec):
        return own, (OPENAI_SECRETS | HUB_SECRETS).difference(settings.function_env)
    if not isinstance(engine, OpenaiEngineSpec):
        return own, OPENAI_SECRETS
    with suppress(BadInput):  # no address: the child says so when it loads the engine
        key = settings.api_key(engine.base_url)
        if key is not None:
            own = own.model_copy(update={"api_keys": {engine.base_url: key}})
    return own, OPENAI_SECRETS | HUB_SECRETS


@dataclass(frozen=True, slots=True)
class EndedChild:
    """A child that is gone and must be reported; `died` is None when the end charges nothing.

    `engine` is the name of the engine that was ready in the child, if the child counted one.
    """

    config: ChildConfig
    engine: str | None
    died: str | None
    while_loading: bool


@dataclass(slots=True)
class Slot:
    """A place for one engine: its GPUs, and the child that has it now.

    `next_engine_key` is the engine for which a leaving child makes room, by the plan of the pool;
    `fault` is why the child had to be killed; `state` is the child's as last read from the ledger.
    A slot is `lost` while the kernel does not let the killed child go: its GPUs may be in use.
    Over its `channel` the child has said that it is `idle`, since the ledger was last told so.
    """

    number: int
    gpus: Sequence[str]
    hardware: str | None = None
    config: ChildConfig | None = None
    group: ProcessGroup | None = None
    channel: ToChild | None = None
    idle: bool = False
    leaving_since: float | None = None
    next_engine_key: str | None = None
    fault: str | None = None
    state: str = "loading"
    killed_at: float | None = None
    lost: bool = False

    @property
    def shown_state(self) -> str:
        """What metrics show of the slot: loading, ready, draining or lost; free without a child."""
        if self.config is None:
            return "free"
        if self.lost:
            return "lost"
        return self.state if self.leaving_since is None else "draining"

    def report(self, gpu_figures: str | None = None) -> SlotReport:
        """What the ledger is told of the slot."""
        if self.channel is not None and self.channel.said_idle():
            self.idle = True
        return SlotReport(
            self.number,
            ",".join(self.gpus),
            None if self.config is None else self.config.id,
            None if self.config is None else self.config.engine_key,
            leaves=self.leaving_since is not None,
            lost=self.lost,
            idle=self.idle and self.leaving_since is None and self.killed_at is None,
            gpu_figures=gpu_figures,
            hardware=self.hardware,
        )

    def reported(self, order: SlotOrder) -> None:
        """The ledger has been told, and has answered: the child learns whether to claim."""
        self.idle = False
        if self.channel is not None:
            idle = Word.SIBLINGS_IDLE if order.siblings_idle else Word.NOTHING
            work = Word.WORK if order.has_work else idle
            self.channel.tell(Word.HOLD if order.cordoned else work)

    def leave(self) -> None:
        """Asks the child to drain; a slot without a child, or one that leaves already, stays."""
        if self.group is not None and self.leaving_since is None and self.killed_at is None:
            self.leaving_since = time.monotonic()
            self.group.terminate()

    def exit_reason(self, code: int | None) -> str:
        """Why the child ended, as nightshift_child_exits_total has it."""
        if self.leaving_since is not None or code == ExitCode.DONE:
            return "asked"
        if self.fault is not None or code == ExitCode.THREADS_HANG:
            return "hung"
        return "load_failed" if code == ExitCode.LOAD_FAILED else "died"

    def kill(self) -> bool:
        """Kills the child and waits for nothing; True once none of its processes is left."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
        return self.group is None or self.group.killed()

    def is_to_give_up(self, now: float) -> bool:
        """True when the kernel has kept the killed child for so long that the slot counts as lost."""
        return not self.lost and self.killed_at is not None and now - self.killed_at > EMPTY_SECONDS

    def ended(self, config: ChildConfig, engine: str | None, code: int | None) -> EndedChild:
        """What to report of the child, which is gone, or which the kernel keeps."""
        # An orderly end charges nothing. Of any other, a row may be the cause.
        orderly = self.leaving_since is not None or code in ORDERLY
        return EndedChild(
            config,
            engine,
            died=None if orderly else self.fault or _cause(code),
            while_loading=not orderly and code not in NOT_WHILE_LOADING,
        )

    def free(self) -> None:
        """The child is gone, and another may have the slot."""
        if self.channel is not None:
            self.channel.close()
        self.group = self.config = self.channel = self.leaving_since = None
        self.next_engine_key = self.fault = self.killed_at = None
        self.lost, self.idle, self.state = False, False, "loading"


def load_policy(settings: Settings) -> LoadPolicy:
    """How the operator wants failed loads to be treated."""
    return LoadPolicy(
        settings.load_backoff_seconds, settings.lease_seconds, one_machine=settings.one_machine
    )


def _cause(code: int | None) -> str:
    if code is None:
        return f"the kernel did not let the killed worker child go for {EMPTY_SECONDS:.0f} s"
    if code == ExitCode.ENGINE_DEAD:
        return "the engine died"
    if code == ExitCode.LOAD_FAILED:
        return "the engine could not be loaded"
    if code < 0:
        return f"the worker child was ended by {signal.Signals(-code).name}"
    return f"the worker child ended with exit code {code}"
