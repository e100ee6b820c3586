"""An estimate as a JSON object, for `estimate --json`."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from nightshift.producer.estimate import forecast
from nightshift.producer.estimate.estimate import Estimate
from nightshift.producer.estimate.forecast import Range


def as_json(made: Estimate) -> dict[str, Any]:
    """The same figures as the table; null where one is not known."""
    found = made.prompts
    lengths = found.lengths
    measured = made.measured
    return {
        "name": made.name,
        "rows": made.rows,
        "batches": made.batches,
        "batch_rows": made.batch_rows,
        "files": made.files,
        "prompts": {
            "sampled": found.sampled,
            "refused": found.refused,
            "why": found.why or None,
            "unit": None if not len(lengths) else "characters/4" if found.is_guess else "tokens",
            **found.percentiles,
            "longest_allowed": found.longest,
            "too_long": found.too_long,
            "histogram": [list(each) for each in forecast.bins(lengths)] if len(lengths) else [],
        },
        "prompt_tokens_a_row": _range(made.prompt_tokens),
        "output_tokens_a_row": _range(made.output_tokens),
        "output_tokens_from": made.output_source,
        "rows_per_engine_second": _range(measured.pace if measured else None),
        "measured_from": measured.source if measured else None,
        "rows_measured": measured.rows if measured else 0,
        "workers": made.workers,
        "workers_from": made.workers_source,
        "engine_seconds": _range(made.engine_seconds),
        "cost": _range(made.cost),
        "budget": made.budget,
        "seconds": _range(made.seconds),
        "finished_at": _finished_at(made),
        "notes": made.notes,
    }


def _finished_at(made: Estimate) -> dict[str, str] | None:
    """When the job would be over if it began when the estimate was made."""
    if made.seconds is None:
        return None
    return {
        bound: (made.made_at + timedelta(seconds=seconds)).isoformat(timespec="seconds")
        for bound, seconds in asdict(made.seconds).items()
        if seconds is not None
    }


def _range(value: Range | None) -> dict[str, float | None] | None:
    return None if value is None else asdict(value)
