"""How a table of a lake is named as an input, and how what is read of one is named among the files of a job.

    delta:ROOT                            a Delta table
    iceberg:CATALOG.NAMESPACE.TABLE       an Iceberg table
    TABLE?version=7                       all rows of version 7, which are read from a copy
    TABLE?appended=8                      the rows that version 8 added, which are read from a copy

Rows that are read from the data files of the table themselves stand under the names of these files.
"""

import re
from dataclasses import dataclass

DELTA = "delta:"

ICEBERG = "iceberg:"

_ICEBERG_NAME = re.compile(r"iceberg:([A-Za-z0-9_-]+)\.([^.\s]+(?:\.[^.\s]+)+)")

_ROWS = re.compile(r"(.*)\?(version|appended)=(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table that are read from a copy: those of a `version`, or those that it added."""

    table: str
    version: int
    is_appended: bool

    @property
    def uri(self) -> str:
        """Their name among the files of a job."""
        return f"{self.table}?{'appended' if self.is_appended else 'version'}={self.version}"


def names_table(uri: str) -> bool:
    """Whether an input names a table, or what is read of one from a copy."""
    return uri.startswith((DELTA, ICEBERG))


def table_rows(uri: str) -> TableRows | None:
    """What the name of a file of a job says of a table; None for the name of a file."""
    found = _ROWS.fullmatch(uri) if names_table(uri) else None
    return found and TableRows(found[1], int(found[3]), found[2] == "appended")


def iceberg_name(uri: str) -> tuple[str, str]:
    """Catalog, and table with its namespace; ValueError for a uri that does not name both."""
    found = _ICEBERG_NAME.fullmatch(uri)
    if found is None:
        raise ValueError(f"{uri}: an Iceberg table is named as iceberg:CATALOG.NAMESPACE.TABLE")
    return found[1], found[2]
