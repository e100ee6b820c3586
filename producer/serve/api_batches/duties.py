"""What a reaper does for API batches: they are validated, expired, finalized, webhooks sent, and what nobody
wants is swept.
"""

from collections.abc import Sequence
from functools import partial

from nightshift.producer.reaper.duty import Duty, Reaper
from nightshift.producer.serve.api_batches.expire import expire_once
from nightshift.producer.serve.api_batches.finalize import finalize_once
from nightshift.producer.serve.api_batches.send_webhooks import send_once
from nightshift.producer.serve.api_batches.sweep import sweep_jobs, sweep_once
from nightshift.producer.serve.api_batches.validate import validate_once

PAUSE_SECONDS = 0.5
"""Pause between two looks for batches."""

SWEEP_SECONDS = 60.0
"""Pause between two sweeps."""


def duties(reaper: Reaper) -> Sequence[Duty]:
    """Each with a thread of its own: files of a large job may take long, and the time of batches is over
    meanwhile. None where the operator names no store.
    """
    if reaper.settings.serve_store is None:
        return []
    ledger, settings = reaper.ledger, reaper.settings
    given = (ledger, settings, reaper.name)
    return [
        Duty("validate", PAUSE_SECONDS, partial(validate_once, *given), threads=1),
        Duty("finalize", PAUSE_SECONDS, partial(finalize_once, *given), threads=1),
        Duty("send_webhooks", PAUSE_SECONDS, partial(send_once, ledger, settings), threads=1),
        Duty("expire", PAUSE_SECONDS, partial(expire_once, ledger), threads=1),
        Duty("sweep_files", SWEEP_SECONDS, partial(sweep_once, ledger), threads=1),
        Duty("sweep_jobs", SWEEP_SECONDS, partial(sweep_jobs, ledger, reaper.delete), threads=1),
    ]
