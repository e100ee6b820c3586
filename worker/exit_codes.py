"""Exit codes of a worker child: what its supervisor does about them."""

DRAINED = 0
"""It was asked to stop and gave everything back."""

ENGINE_DEAD = 70
"""Its engine died or stalled: what it held is a suspect."""

LOAD_FAILED = 71
"""Its engine could not be loaded; the child wrote why to the ledger."""

LEDGER_AWAY = 75
"""Postgres could not be reached at its start; it is started again."""
