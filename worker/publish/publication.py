"""A batch whose rows are finished, on its way into a part."""

from dataclasses import dataclass

import pyarrow as pa

from nightshift.common.descriptor import RowRanges
from nightshift.common.ledger.batches.records import NO_ROWS, Lease, Part
from nightshift.common.spec import JobSpec
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.rows.results import PartTable

Commit = tuple[Lease, Part]


@dataclass(slots=True)
class Publication:
    """A batch whose rows are finished, and what becomes of it.

    `lease` is that of the batch, narrowed where only some rows of a retry are finished. `bare` says
    that the job's columns are not known yet. With `kept_rows` only those rows are kept and the rest
    is split off; `unsent` of the rest were never sent to the engine. `encoded` are the bytes of the part, which are made once, however often the store
    refuses them. In the end the batch is `committed`, or `error` says why not: LeaseLost when the
    batch belongs to another worker, StorageUnavailable or LedgerUnavailable when it was given up.
    """

    batch: HeldBatch
    lease: Lease
    spec: JobSpec
    table: PartTable
    provenance: dict[str, str]
    kept_rows: RowRanges | None = None
    bare: bool = False
    unsent: RowRanges = NO_ROWS
    encoded: pa.Buffer | None = None
    part: Part | None = None
    committed: bool = False
    error: Exception | None = None

    def commit(self) -> Commit:
        """What the ledger commits: the lease, and the part that was written."""
        assert self.part is not None
        return self.lease, self.part
