"""The first step: the tables, triggers and views of the core, then those of each wing."""

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FOLDER = files("nightshift.common") / "migrations" / "first"

CORE = "core.sql"


def upgrade() -> None:
    """Runs the file of the core, then the files of the wings, each of which builds on the core alone."""
    wings = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".sql"))
    wings.remove(CORE)
    for name in (CORE, *wings):
        op.execute((FOLDER / name).read_text(encoding="utf-8"))
