"""Long statements lie in files beside their module: `claim.sql` beside `claims.py`."""

from pathlib import Path

from sqlalchemy import TextClause, text


def statement(module: str, name: str) -> TextClause:
    """The statement in `name`.sql beside `module`, which is a module's `__file__`. What it is for stands at
    the top of the file.
    """
    return text(Path(module).with_name(f"{name}.sql").read_text(encoding="utf-8"))
