"""The first step: tables, triggers and views of the ledger. A ledger of before is refused, see `schema.py`."""

from importlib.resources import files

from alembic import op

revision = "0022"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates everything."""
    statements = files("nightshift.common") / "migrations" / "sql"
    for part in ("tables", "triggers", "views"):
        op.execute((statements / f"0022_{part}.sql").read_text(encoding="utf-8"))
