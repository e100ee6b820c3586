"""What is wrong with a text that is no JSON: the words of Python's parser in words of ours."""

import json

SENTENCES = (
    ("Expecting property name", "a key in double quotes is missing"),
    ("Illegal trailing comma", "a comma stands behind the last value"),
    ("Expecting ':'", "a colon is missing behind the key"),
    ("Expecting ','", "a comma or a closing bracket is missing"),
    ("Expecting value", "a value is missing, or is no JSON (texts stand in double quotes)"),
    ("Extra data", "something stands behind the end of the value"),
    ("Invalid control character", "a text holds a line end, a tab or another control character"),
    ("Invalid \\uXXXX", "\\u needs four hexadecimal digits"),
    ("Invalid \\", "a backslash begins nothing that JSON has: write two"),
    ("Unterminated string", "a text has no closing quote"),
    ("Unexpected UTF-8 BOM", "a byte order mark stands there"),
)
"""How a message of Python's parser begins, and what we say."""

OTHER = "the text cannot be read from here on"


def said(error: json.JSONDecodeError, *, has_lines: bool = False) -> str:
    """One phrase: what is wrong, the column, counted from 1, and the character there; with `has_lines` the line, too."""
    what = next((ours for theirs, ours in SENTENCES if error.msg.startswith(theirs)), OTHER)
    if not error.doc[error.pos :].strip():
        return f"{what} at the end"
    line = f"line {error.lineno}, " if has_lines else ""
    return f"{what} at {line}column {error.colno}, where {error.doc[error.pos]!r} stands"
