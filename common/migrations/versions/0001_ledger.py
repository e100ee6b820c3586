"""The ledger: jobs, input files, batches, attempts, row errors, workers, engines, counters."""

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates everything."""
    statements = files("nightshift.common") / "migrations" / "sql"
    for part in ("tables", "triggers", "views"):
        op.execute((statements / f"0001_{part}.sql").read_text(encoding="utf-8"))
