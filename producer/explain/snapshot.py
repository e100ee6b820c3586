"""What is known of a job and of its pool, for those who say why the job stands where it stands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from nightshift.common.allocation.deadlines import Outlook
from nightshift.common.ledger.fleet.outages import Outage
from nightshift.common.ledger.queries.standings import REAPER_SILENT_SECONDS
from nightshift.common.states import JobState
from nightshift.producer.advice.here import FLEET, Here


@dataclass(frozen=True, slots=True)
class SlotFact:
    """A slot of the job's pool. `engine_key` is what the slot has or loads, `job` one that needs that
    engine, and `due_seconds` the time to that job's deadline, None without one; `serves` is the only
    engine that the slot may have. `cordon` names the host, worker or slot that is cordoned since `cordoned_since`.
    """

    host: str
    state: str
    engine_key: str | None = None
    planned_key: str | None = None
    serves: str | None = None
    job: str | None = None
    job_id: int | None = None
    priority: int | None = None
    due_seconds: float | None = None
    child_seconds: float | None = None
    cordon: str | None = None
    cordoned_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A machine that could not load the job's engine and waits until it tries again; guests read the `public_error`."""

    host: str
    error: str
    public_error: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ledger knows of a job and its pool. Times are seconds; None is unknown or never.

    `here` says who works on the ledger, and `tenant` whose the job is for guests. `reason` is what the ledger itself says of a job that is paused or
    has failed, and `paused_by` which person paused it; `age_seconds` is the time since its submit, and
    `finished_seconds` that since the end of a job that is over. `reaper_seconds` is the age of the last sign of any reaper; `part_seconds` that of the job's
    last part; `lease_seconds` the age of its oldest lease; `children_at_work` are living workers that have
    leases; `resting` and `rest_seconds` tell of batches that wait after an error. `ahead` is a job that has
    the same engine and goes first. `watch_seconds` is the pause between two looks for new files, where the
    input is watched, and `watch_error` says why the last look came to nothing; `files_left` is the number of new
    files that could not be added, and `file_left_why` the reason for the first of them. `pools` are those whose living
    workers may have the engine, and `outages` what workers or reapers wait for; the job is `stalled` if all of
    its workers do. The facts were `read_at` a moment of the ledger's clock, `state_since` is when the job got its state,
    `moved_at` when its last lease ended or rows were added last, and `worker_seen_at` the last sign of a worker of the pool, if it has none
    now. `outlook` is what is expected of its deadline, None without one.

    A reader who `is_guest` keeps no machines, and sees no names of machines, of jobs that are `foreign`, or of
    people of other tenants: `paused_by_for_guest` names none.
    """

    job_id: int
    state: JobState
    pool: str
    engine_key: str
    tenant: str = ""
    priority: int = 0
    reason: str | None = None
    paused_by: str | None = None
    paused_by_for_guest: str | None = None
    closed: bool = False
    is_archived: bool = False
    age_seconds: float = 0.0
    finished_seconds: float | None = None
    read_at: datetime | None = None
    state_since: datetime | None = None
    moved_at: datetime | None = None
    worker_seen_at: datetime | None = None
    here: Here = FLEET
    rows_total: int = 0
    rows_over: int = 0
    rows_failed: int = 0
    pending: int = 0
    queued: int = 0
    leased: int = 0
    max_parallel: int | None = None
    rows_per_second: float | None = None
    stalled: bool = False
    reaper_seconds: float | None = None
    part_seconds: float | None = None
    lease_seconds: float | None = None
    children_at_work: int = 0
    load_seconds: float | None = None
    resting: int = 0
    rest_seconds: float = 0.0
    rest_error: str = ""
    slots: Sequence[SlotFact] = ()
    set_aside: Sequence[SetAside] = ()
    ahead: str | None = None
    ahead_id: int | None = None
    ahead_priority: int = 0
    foreign: frozenset[int] = frozenset()
    watch_seconds: int | None = None
    watch_error: str | None = None
    files_left: int = 0
    file_left_why: str | None = None
    pools: Sequence[str] = ()
    outages: Sequence[Outage] = ()
    has_deadline: bool = False
    outlook: Outlook | None = None
    is_guest: bool = False

    def for_guest(self) -> "Facts":
        """The same for a reader of the job's tenant."""
        return replace(self, is_guest=True, paused_by=self.paused_by_for_guest)

    @property
    def hidden(self) -> frozenset[int]:
        """Jobs that are not named to this reader."""
        return self.foreign if self.is_guest else frozenset()

    @property
    def alone(self) -> bool:
        """Whether nobody works on the ledger."""
        return self.here.nobody

    @property
    def waiting(self) -> int:
        """Batches that somebody is to take, leases of dead workers included; none of a job that is over."""
        left = 0 if self.children_at_work else self.leased
        return 0 if self.state.over else self.pending + self.queued + left

    @property
    def has_reaper(self) -> bool:
        """Whether a reaper was seen lately."""
        return self.reaper_seconds is not None and self.reaper_seconds < REAPER_SILENT_SECONDS
