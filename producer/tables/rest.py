"""Iceberg's REST catalog with bounds on time, which pyiceberg sets none for. Imported where such a catalog is
opened, since pyiceberg is an extra.
"""

from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

CONNECT_SECONDS = 3.0
"""For a connection to the catalog."""

FIRST_SECONDS = 5.0
"""Silence after which a catalog that has not answered yet counts as out of reach."""

ANSWER_SECONDS = 60.0
"""Silence of a catalog that has answered before: a commit of thousands of files takes its time."""


class BoundedRestCatalog(RestCatalog):  # type: ignore[misc]  # pyiceberg is not looked into
    """A REST catalog each of whose requests ends in time, as an error of `requests` where nobody answers."""

    _answer_seconds = FIRST_SECONDS

    def _create_session(self) -> Any:
        session = super()._create_session()
        session.request = partial(session.request, timeout=(CONNECT_SECONDS, self._answer_seconds))
        return session

    def _fetch_config(self) -> None:
        super()._fetch_config()
        self._answer_seconds = ANSWER_SECONDS
