"""The rows of a plan that is not stored yet are read: for ids, for samples, for a sorted copy."""

from collections.abc import Sequence

from nightshift.common.descriptor import Descriptor
from nightshift.common.formats import input_rows, reading
from nightshift.common.formats.input_rows import Rows
from nightshift.common.formats.parquet.read_cache import ReadCache
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.planning.planner import Plan


class PlanReader:
    """Reads batches of a plan, or pieces of them. Row groups of Parquet files are kept up to
    `cache_bytes`; they are decoded within the bounds of the plan that is made here (`reading.held_to`).
    """

    def __init__(self, spec: JobSpec, plan: Plan, cache_bytes: int) -> None:
        self._spec, self._schema = spec, plan.schema
        self._cache = ReadCache(cache_bytes, reading.current().decoding())

    def read(self, batch: Descriptor, columns: Sequence[str] | None) -> Rows:
        """The rows of a batch with `columns` (None: all) and the id; raises what `input_rows.read_rows` raises."""
        return input_rows.read_rows(self._spec, batch, columns, self._cache, self._schema)
