"""What a child in this process works with."""

from typing import Any

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.batches.records import Claimant
from nightshift.common.settings import Settings
from nightshift.worker.child_context import ChildContext
from nightshift.worker.engines.protocol import Engine
from nightshift.worker.outages import PatientLedger
from nightshift.worker.telemetry.recorder import Recorder
from nightshift.worker.window import Window


def child_of(who: Claimant, ledger: Ledger, engine: Engine, **settings: Any) -> ChildContext:
    """A child with this engine, which prints why it would end. Leases live for ten minutes unless `settings`
    say otherwise.
    """
    known = Settings(**{"lease_seconds": 600, **settings})
    recorder = Recorder()
    patient, window = PatientLedger(ledger, recorder), Window.of_engine(engine.concurrency)
    return ChildContext(who, patient, engine, known, window, recorder, print, print)
