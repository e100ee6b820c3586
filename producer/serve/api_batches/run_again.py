"""A batch of the OpenAI API runs again when failed rows of its job do."""

from dataclasses import dataclass

from nightshift.common.ledger import Connection, holds
from nightshift.producer.serve.ledger import api_batch_retry
from nightshift.producer.serve.ledger.api_batch_retry import Reopened
from nightshift.producer.serve.ledger.api_batches import ApiBatchStatus


@dataclass(frozen=True, slots=True)
class RetriedBatch:
    """The batch of a job whose rows are being put back, as `retry.Follower` describes it. At its end the
    batch gets new files.
    """

    batch: Reopened

    @property
    def ends_anew(self) -> bool:
        """One that failed because its results could not be written gets them now."""
        return self.batch.before is ApiBatchStatus.FAILED

    def keep(self, connection: Connection) -> None:
        """No reaper finalizes the batch while rows are put back."""
        holds.renew(connection, self.batch.hold)

    def release(self, connection: Connection) -> None:
        """From now on a reaper may finalize the batch."""
        api_batch_retry.release(connection, self.batch.hold)


def run_again(connection: Connection, job_id: int) -> RetriedBatch | None:
    """The batch of a job, reopened; None where the job has none. Raises what the reopening raises."""
    found = api_batch_retry.reopen(connection, job_id)
    return None if found is None else RetriedBatch(found)
