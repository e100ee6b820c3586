"""Opens the table that an input names."""

from nightshift.common.settings import Settings
from nightshift.common.spec.table_uris import DELTA
from nightshift.producer.submit.table_input import InputTable


def open_table(uri: str, settings: Settings) -> InputTable:
    """The table, see `producer/submit/table_input.py`. Raises BadInput for a table that is not there, cannot be
    read or lies outside the roots around the caller, and for a package that is missing.
    """
    if uri.startswith(DELTA):
        from nightshift.producer.tables.input.delta import DeltaInput

        return DeltaInput(uri)
    from nightshift.producer.tables.input.iceberg import IcebergInput

    return IcebergInput(uri, settings)
