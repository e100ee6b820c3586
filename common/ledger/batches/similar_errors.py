"""Which messages of failed rows are similar: those of one cause, which begin alike but for their numbers.

Whoever groups rows by their message, or chooses those of a group, asks Postgres with these expressions.
"""

COMPARED = 400
"""Characters that count, once numbers are one character each."""

READ = 2 * COMPARED
"""Characters of a message that are read. Each number costs: 50,000 messages of 2,000 characters with a number in every
six took 16 s on a busy core."""

PATTERN = f"left(regexp_replace(left(message, {READ}), '[0-9]+', '#', 'g'), {COMPARED})"
"""SQL: the beginning of the column `message` with # in place of each number."""

GROUP = f"left(encode(sha256(convert_to({PATTERN}, 'UTF8')), 'hex'), 32)"
"""SQL: a name of all messages with one pattern, for addresses and forms: a message may name paths."""
