"""Two texts in one message: the whole one for operators, and the one that tenants of `nightshift serve` read.

Code that puts a path into the message of an error writes `{private(path)}`: a tenant reads the last name of the path
only, unless the path lies below a folder of its own. A message that has a path without such a mark is withheld from
tenants as a whole, so that a forgotten mark withholds a text and never shows a path.

A mark is a pair of characters that Unicode reserves for use inside a program (U+FDD0 to U+FDD3). Messages have marks
until `NightshiftError` has taken them; `str(error)`, logs and the ledger have none.
"""

import re
from collections.abc import Sequence
from hashlib import sha256

_BEGIN, _INSTEAD, _JUDGED, _END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"

_MARKS = str.maketrans("", "", f"{_BEGIN}{_INSTEAD}{_JUDGED}{_END}")

_MARKED = re.compile(
    f"{_BEGIN}([^{_BEGIN}{_END}]*?)(?:(?P<has_other>{_INSTEAD})([^{_BEGIN}{_END}]*?)|(?P<is_judged>{_JUDGED}))?{_END}"
)

# An absolute path, one of a home or of Windows, the URI of a store, and the key of an object. Addresses of web servers
# and paths of the OpenAI API are none.
_PATH = re.compile(
    r"(?<![\w./<~#])~?/(?!v1/)[\w.]|\b(?!https?:)[A-Za-z][\w+.-]*:(?://\w|\\|///)|%2[Ff]"
    r"|(?<![\w./-])[\w.-]+/[\w.-]+/[\w.]"
)

_LOCAL = re.compile(r"(?<![\w./<~#:])/(?:[\w.@+~-]+/)+[\w.@+~-]+")


def private(path: object) -> str:
    """The path for a message: tenants read its last name, unless it lies below a folder of their own."""
    return f"{_BEGIN}{whole(str(path))}{_END}"


def public(text: object) -> str:
    """A text for a message that everybody may read although it may hold a path: what the reader wrote itself."""
    return instead(text, str(text))


def instead(text: object, public: str) -> str:
    """A text for a message in whose place tenants read `public`."""
    return f"{_BEGIN}{whole(str(text))}{_INSTEAD}{whole(public)}{_END}"


def marked(error: object) -> str:
    """An error, or the text of one, for the message of another one: with its marks. A text without marks is judged by
    itself: if it has a path, it is withheld from tenants, and the message around it is not.
    """
    text = str(getattr(error, "marked", error))
    return text if _BEGIN in text else f"{_BEGIN}{whole(text)}{_JUDGED}{_END}"


def whole(message: str) -> str:
    """A message without marks, for operators."""
    return _MARKED.sub(lambda found: found[1], message).translate(_MARKS)


def shown(message: str, own: Sequence[str] | None = ()) -> str:
    """A message as a tenant reads it that owns these folders; None sees every path."""
    if own is None:
        return whole(message)
    if _has_path(message, own):
        return withheld(whole(message))

    def text(found: re.Match[str]) -> str:
        if found["has_other"]:
            return found[3]
        if found["is_judged"]:
            return withheld(found[1]) if _has_path(found[1], own) else found[1]
        return shown_path(found[1], own)

    return _MARKED.sub(text, message).translate(_MARKS)


def shown_error(error: BaseException, own: Sequence[str] | None = ()) -> str:
    """An error as a tenant reads it that owns these folders. One that Nightshift did not raise is withheld."""
    text = getattr(error, "marked", None)
    if own is None:
        return str(error) or type(error).__name__
    if not isinstance(text, str):
        return withheld(f"{type(error).__name__}: {error}")
    return shown(text, own)


def shown_path(path: str, own: Sequence[str] | None) -> str:
    """A path, or what else names a model or a file, as a tenant reads it: the last name of a path outside of its `own`
    folders.
    """
    is_path = path.startswith(("/", "~")) or _PATH.search(path)
    if own is None or not is_path or (_below(path, own) and "/../" not in path):
        return path
    return path.rstrip("/").rpartition("/")[2]


def left_out(message: str, own: Sequence[str] | None) -> str:
    """The message of a library about one row as a tenant reads it, who cannot ask for a text that no log has: its first
    word alone if it has a path that is not the tenant's.
    """
    if own is None or not _has_path(message, own):
        return message
    return f"{message.split(':')[0]}: the message is left out, since it names a file of the worker"


def with_last_names(message: str, own: Sequence[str] | None) -> str:
    """The message of a function about one row as a tenant reads it: with the last names of absolute local paths that are
    not the tenant's. Everything else is the function's own words.
    """
    if own is None:
        return message
    return _LOCAL.sub(lambda found: shown_path(found[0], own), message)


def withheld(text: str) -> str:
    """The sentence in the place of a text that tenants do not read; its number finds the text in the server's log."""
    return f"the operator of the server can see why (error {number(text)})"


def number(text: str) -> str:
    """The number of a withheld text, the same for the same text."""
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]


def _has_path(message: str, own: Sequence[str]) -> bool:
    """Whether a message has a path outside of the marks that does not begin as one of the `own` folders."""
    text = _MARKED.sub("", message)
    return any(not _begins(text[found.start() :], own) for found in _PATH.finditer(text))


def _begins(text: str, own: Sequence[str]) -> bool:
    return "/../" not in text and any(text.startswith(f"{each.rstrip('/')}/") for each in own)


def _below(path: str, folders: Sequence[str]) -> bool:
    bare = [folder.rstrip("/") for folder in folders]
    place = path.removeprefix("file://")
    return any(place == folder or place.startswith(f"{folder}/") for folder in bare)
