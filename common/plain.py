"""Text of users on its way to a terminal or a log: what could steer either is made visible."""

import re

MARK = "\N{REPLACEMENT CHARACTER}"

# Control characters but tab and newline, what turns the direction of writing, half characters.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with a mark in the place of each character that a terminal would obey."""
    return text if text.isprintable() else _STEERING.sub(MARK, text)


def one_line(text: str) -> str:
    """The same on one line."""
    return plain(" ".join(text.split("\n")))
