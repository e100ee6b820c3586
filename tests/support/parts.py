"""Parts of a job, read whole."""

import pyarrow as pa

from nightshift.common.formats.part_rows import OutputFormat, iter_part_batches


def read_part(uri: str, kind: OutputFormat, schema: pa.Schema) -> pa.Table:
    """A whole part under the schema of its job."""
    return pa.Table.from_batches(iter_part_batches(uri, kind, schema), schema)
