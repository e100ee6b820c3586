"""Which messages of failed rows are similar: those of one cause, which differ in their numbers alone.

Whoever groups rows by their message, or chooses those of a group, asks Postgres with these expressions.
"""

PATTERN = "regexp_replace(message, '[0-9]+', '#', 'g')"
"""SQL: the column `message` with # in place of each number."""

GROUP = f"left(encode(sha256(convert_to({PATTERN}, 'UTF8')), 'hex'), 32)"
"""SQL: a name of all messages with one pattern, for addresses and forms: a message may name paths."""
