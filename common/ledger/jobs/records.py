"""What a job is: as the ledger keeps it, and as submit hands it over."""

import json
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import RowMapping

from nightshift.common.spec import STORED, JobSpec
from nightshift.common.states import JobState


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the ledger knows it; `output_schema` is a serialized Arrow schema or None."""

    id: int
    state: JobState
    reason: str | None
    spec: JobSpec
    identity: str
    spec_identity: str
    output_uri: str
    input_schema: bytes
    output_schema: bytes | None
    created_at: datetime
    finished_at: datetime | None
    closed_at: datetime | None
    retries: int


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to insert; `identity` hashes everything that makes it the same work."""

    spec: JobSpec
    identity: str
    spec_identity: str
    output_uri: str
    input_schema: bytes
    output_schema: bytes | None


def job_of(row: RowMapping) -> Job:
    """The job of a row of the table `jobs`."""
    spec = row["spec"]
    stored = json.loads(spec) if isinstance(spec, str) else spec
    return Job(
        **{
            **row,
            "state": JobState(row["state"]),
            "spec": JobSpec.model_validate(stored, context=STORED),
        }
    )
