"""Exit codes of a worker child: what its supervisor does about them."""

DRAINED = 0
"""The child was asked to stop and released everything."""

ENGINE_DEAD = 70
"""The engine died or stalled: each batch that the child held is a suspect."""

LOAD_FAILED = 71
"""The engine could not be loaded; the child wrote why to the ledger."""

LEDGER_AWAY = 75
"""Postgres could not be reached at the start of the child; another child is started."""
