"""What is wrong with YAML, and what to do: PyYAML's words in words of ours."""

import re

import yaml

QUOTE = "put the value in quotes"

TEMPLATE = 'put a template in quotes, as in prompt: "{{ text }}"'

SHOWN_CHARACTERS = 40
"""Of a key that stands twice."""

ADVICE = (
    (r"the key (.*?) stands twice", "the key {0} stands twice: remove one of the two"),
    (
        r"mapping values are not allowed",
        f"a colon with a space behind it stands inside a value, or the line "
        f"begins at another column than those before it: {QUOTE}, or move the line",
    ),
    (r"character '\\t'", "a tab stands at the beginning of a line: use spaces"),
    (r"character '(.)' that cannot start", f"a value cannot begin with {{0}}: {QUOTE}"),
    (
        r"could not find expected ':'",
        "the line has a key without a colon, or is the rest of a text above and "
        "begins too far left",
    ),
    (r"unexpected end of stream", "a quote is open until the end of the file: close it"),
    (r"expected ',' or '(.)'", "a bracket is open, or a comma is missing: {0} closes it"),
    (r"unhashable key|found unacceptable key", f"a key is no text: {QUOTE}"),
    (
        r"unknown escape character '(.)'",
        "\\{0} means nothing in double quotes: use single quotes, or \\\\{0}",
    ),
    (
        r"could not determine a constructor for the tag '(.*?)'",
        f"nothing here knows {{0}}: {QUOTE} if it is text",
    ),
    (r"expected a single document", "a line --- begins a second document: a spec is one"),
    (r"special characters are not allowed", "a control character stands there: remove it"),
    (
        r"expected <block end>|expected the node content|did not find expected",
        f"the line does not fit to those "
        f"before it: its keys begin at one column, and {QUOTE} where it has signs such as {{{{ or a comma",
    ),
    (r"found undefined alias", "an alias stands for nothing before it"),
    (r"found duplicate anchor", "an anchor comes twice"),
)
"""Words of PyYAML as a pattern, and what we say; {0} is what the pattern holds in brackets."""


BEGINS = r"could not find expected ':'|unexpected end of stream|expected ',' or"
"""Errors that are met behind the line to mend, which is where the value begins."""


def repeated(key: yaml.ScalarNode) -> yaml.YAMLError:
    """The error for a key that its mapping has already; `said` gives its line."""
    shown = repr(key.value[:SHOWN_CHARACTERS])
    return yaml.MarkedYAMLError(
        problem=f"the key {shown} stands twice", problem_mark=key.start_mark
    )


def said(error: Exception, text: str) -> str:
    """One phrase with the line, for an error of reading this text."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, yaml.YAMLError):  # of a scalar that looks like a date or a number
        return f"a value looks like a date or a number and is none: {QUOTE}"
    words = " ".join(str(error).split())
    begins = re.search(BEGINS, words) and getattr(error, "context_mark", None)
    mark = begins or getattr(error, "problem_mark", None)
    number = None if mark is None else mark.line + 1
    if number is None and (position := getattr(error, "position", None)) is not None:
        number = text.count("\n", 0, position) + 1
    lines = text.splitlines()
    line = lines[number - 1] if number is not None and number <= len(lines) else ""
    where = "" if number is None else f"line {number}: "
    if re.search(r":\s+\{[{%]", line) or re.search(r"^\s*-\s+\{[{%]", line):
        return where + TEMPLATE
    return where + _advised(words)


def _advised(words: str) -> str:
    for pattern, advice in ADVICE:
        if found := re.search(pattern, words):
            return advice.format(*found.groups())
    return f"the text cannot be read from here on: {QUOTE} where it has signs such as : # {{ or ["
