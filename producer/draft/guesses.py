"""Guesses from a look at an input: the column that names a row, and the column that a prompt is about. Pure."""

import re
from collections.abc import Sequence

from nightshift.common.spec import REQUEST_COLUMNS, RESERVED_COLUMNS
from nightshift.common.templates.sandbox import compiled, template_columns
from nightshift.producer.draft.look import Column

NAME_CHARACTERS = 200
"""Longest name of a column that a draft uses."""

ID_CHARACTERS = 40
"""Texts that name a row are not longer, in the mean."""

LIKE_ID = re.compile(r"(?:^|[\W_])(?:id|key|uuid|guid|pk|sku)$", re.IGNORECASE)
CAMEL_ID = re.compile(r"[a-z](?:Id|ID|Key)$")

LIKE_TEXT = (
    "text",
    "body",
    "content",
    "review",
    "description",
    "message",
    "question",
    "comment",
    "document",
    "abstract",
    "summary",
    "title",
)
"""Names of columns that hold what a prompt is about, the likeliest first."""


def id_columns(columns: Sequence[Column]) -> list[str]:
    """Columns that may name a row, the likeliest first: no null, no repeat in the sample, and named like an id."""
    fitting = [
        column.name
        for column in columns
        if column.differs and not column.nulls and _like_id(column.name) and _usable(column.name)
    ]
    return sorted(fitting, key=lambda name: name.lower() != "id")


def leading(columns: Sequence[Column]) -> str | None:
    """The first column of all, where its values are short texts or whole numbers that could name a row."""
    first = next(iter(columns), None)
    if first is None or first.nulls or not (first.differs and first.is_key and _usable(first.name)):
        return None
    is_other = first.is_text and first.mean_length > ID_CHARACTERS
    return None if is_other or first.name.lower() in LIKE_TEXT else first.name


def differing(columns: Sequence[Column]) -> str | None:
    """The first column that could name a row by its values, however it is called."""
    fitting = (each.name for each in columns if each.differs and not each.nulls)
    return next(filter(_usable, fitting), None)


def text_column(columns: Sequence[Column], id_column: str | None) -> Column | None:
    """The column that a prompt is about, if a template can name one: a text with a telling name, else the longest
    text, else any column. The id is the last choice.
    """
    likeliest = sorted(columns, key=lambda column: _distance(column, id_column))
    return next((column for column in likeliest if in_template(column.name)), None)


def _distance(column: Column, id_column: str | None) -> tuple[bool, bool, int, float]:
    name = column.name.lower()
    known = LIKE_TEXT.index(name) if name in LIKE_TEXT else len(LIKE_TEXT)
    return column.name == id_column, not column.is_text, known, -column.mean_length


def in_template(name: str) -> bool:
    """Whether `{{ name }}` in a template means the column of this name."""
    template = f"{{{{ {name} }}}}"
    if len(name) > NAME_CHARACTERS or not name.isidentifier():
        return False
    try:
        compiled(template)
        return template_columns(template) == {name}
    except ValueError:
        return False


def is_batch_file(columns: Sequence[Column]) -> bool:
    """Whether the rows are requests of the OpenAI batch format."""
    return set(REQUEST_COLUMNS) <= {column.name for column in columns}


def _like_id(name: str) -> bool:
    return LIKE_ID.search(name) is not None or CAMEL_ID.search(name) is not None


def _usable(name: str) -> bool:
    """Whether a spec can name the column as its id."""
    return len(name) <= NAME_CHARACTERS and name not in RESERVED_COLUMNS
