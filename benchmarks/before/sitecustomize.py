"""Makes a Python process one of before handovers: Python imports this at its start, from PYTHONPATH."""

from nightshift.worker.handover import decision


def nothing(*_: object) -> decision.Gift:
    """What a child gave before there were handovers."""
    return decision.NOTHING


decision.gift = nothing  # type: ignore[assignment]
