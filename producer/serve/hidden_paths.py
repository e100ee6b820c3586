"""Paths of the server in texts for tenants: what a caller did not name itself stands there by its last name.

Messages are written for operators, who need the whole path; this is the border to everybody else.
"""

import re
import sys
import tempfile
from collections.abc import Collection
from html import escape
from pathlib import Path

from nightshift.common import storage
from nightshift.common.settings import Settings

CODE = Path(__file__).parents[3]

NAMED = ("inputs", "outputs")
"""Folders of a tenant in the store whose files its specs name."""


class Hidden:
    """Hides the places of a server with these settings. `of_operator` is for those who know its folders:
    the store, copies in temporary folders and the code are hidden from them, too.
    """

    def __init__(self, settings: Settings, *, of_operator: bool = False) -> None:
        self._stores = _forms(settings.serve_store)
        others = {f"{tempfile.gettempdir()}/nightshift-", str(CODE), sys.prefix, sys.base_prefix}
        if not of_operator:
            others |= _forms(settings.home) | _forms(
                None if settings.serve_models is None else settings.serve_models.parent
            )
        known = {*self._stores, *others}
        known |= {grouped(place) for place in known}
        places = sorted(known, key=len, reverse=True)
        forms = [form for each in places for form in dict.fromkeys((each, escape(each)))]
        said = "|".join(re.escape(form) for form in forms)
        self._pattern = re.compile(rf"(?:file://)?(?<![\w/.-])(?:{said})[^\s\"'<>\\,;:()&]*")

    def places(self, text: str) -> set[str]:
        """The paths of the server in a text."""
        return {found[0] for found in self._pattern.finditer(text)}

    def text(
        self, text: str, tenant: str | None = None, named: str = "", roots: Collection[str] = ()
    ) -> str:
        """The text with the last name of each path in the place of the path. Those stay that the request has
        `named`, that lie below `roots`, and the inputs and outputs of the `tenant`.
        """

        def shown(found: re.Match[str]) -> str:
            path = found[0]
            own = any(path == root or path.startswith(f"{root}/") for root in roots)
            if own or path in named or (tenant is not None and self._is_own(path, tenant)):
                return path
            return path.rstrip("/").rpartition("/")[2]

        return self._pattern.sub(shown, text)

    def _is_own(self, path: str, tenant: str) -> bool:
        own = (f"{store}/{tenant}/{folder}/" for store in self._stores for folder in NAMED)
        return path.startswith(tuple(own))


def grouped(text: str) -> str:
    """A text as the page of failed rows groups it: each number is written as #."""
    return re.sub("[0-9]+", "#", text)


def _forms(place: str | Path | None) -> set[str]:
    """A place as messages may write it; nothing for none, and for the root of all."""
    if place is None:
        return set()
    found = {str(place).rstrip("/"), storage.resolve(str(place)).rstrip("/")}
    return {each for each in found if each.count("/") > 1 or "://" in each}
