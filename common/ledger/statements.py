"""Long statements lie in files beside their module: `claim.sql` beside `claims.py`."""

from pathlib import Path

from sqlalchemy import TextClause, text


def statement(module: str, name: str, **pieces: str) -> TextClause:
    """The statement in `name`.sql beside `module`, which is a module's `__file__`. What it is for stands at
    the top of the file. An expression that several statements have is one of the `pieces`: it stands
    where the file has its name in angle brackets.
    """
    sql = Path(module).with_name(f"{name}.sql").read_text(encoding="utf-8")
    for each, piece in pieces.items():
        sql = sql.replace(f"<{each}>", piece)
    return text(sql)
