"""What all that works in a child shares: its name, its ledger, its engine and the way out."""

from collections.abc import Callable
from dataclasses import dataclass

from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.settings import Settings
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.outages import PatientLedger
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class ChildContext:
    """A child with a loaded engine.

    `engine_died` is called when the engine can serve no batch any more: the child ends at once. `leave`
    ends the child in order, where no batch is to blame: the engine cannot be started again, or threads
    hang.
    """

    who: Claimant
    ledger: PatientLedger
    engine: Engine
    settings: Settings
    window: Window
    recorder: Recorder
    engine_died: Callable[[str], None]
    leave: Callable[[ExitCode, str], None]
