"""What a child has spent on each job since the child began: engine time, rows and tokens."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.common.ledger.jobs.answer_counts import NOTHING, AnswerCounts
from nightshift.common.ledger.jobs.spending import Spent


@dataclass(slots=True)
class _Job:
    """Running totals of one job, and the engine time that no commit has accounted for."""

    seconds: float = 0.0
    seconds_of_commits: float = 0.0
    rows_run: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    rows_shared: int = 0
    reasoning_tokens: int = 0
    estimated_tokens: int = 0
    answered: AnswerCounts = NOTHING


@dataclass(slots=True)
class JobSpending:
    """The engine time of a job is the time in which the child holds batches of the job. Jobs that
    are held at once share the time by the rows that are held.

    However many batches overlap, a second of the child is counted once. A row counts at its
    outcome, whether the outcome is committed or not. `clock` gives seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _since: float = 0.0
    _jobs: dict[int, _Job] = field(default_factory=lambda: defaultdict(_Job))
    _held: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, job_id: int, rows: int) -> None:
        """A batch of `rows` rows is held from now on."""
        with self._lock:
            self._pass()
            self._held[job_id] += rows

    def release(self, job_id: int, rows: int) -> None:
        """A batch of `rows` rows is held no more."""
        with self._lock:
            self._pass()
            self._held[job_id] -= rows
            if not self._held[job_id]:
                del self._held[job_id]

    def run(
        self,
        job_id: int,
        rows: int = 1,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        reasoning_tokens: int = 0,
        estimated_tokens: int = 0,
    ) -> None:
        """`rows` rows have an outcome, which took these tokens together. `cached_tokens` of the prompt tokens were
        in the engine's cache; `reasoning_tokens` of the output tokens are thoughts; `estimated_tokens` of both
        were not counted by their server.
        """
        with self._lock:
            job = self._jobs[job_id]
            job.rows_run += rows
            job.prompt_tokens += prompt_tokens
            job.output_tokens += output_tokens
            job.cached_tokens += cached_tokens
            job.reasoning_tokens += reasoning_tokens
            job.estimated_tokens += estimated_tokens

    def share(self, job_id: int) -> None:
        """A row has the answer of another one."""
        with self._lock:
            job = self._jobs[job_id]
            job.rows_run += 1
            job.rows_shared += 1

    def answered(self, job_id: int, answers: AnswerCounts) -> None:
        """A batch with these answers is committed."""
        with self._lock:
            self._jobs[job_id].answered += answers

    def totals(self, job_id: int | None = None) -> list[Spent]:
        """The running totals of one job, or of every job."""
        with self._lock:
            self._pass()
            jobs = self._jobs if job_id is None else {job_id: self._jobs[job_id]}
            return [
                Spent(
                    job_id,
                    int(job.seconds * 1e6),
                    job.rows_run,
                    job.prompt_tokens,
                    job.output_tokens,
                    cached_tokens=job.cached_tokens,
                    rows_shared=job.rows_shared,
                    reasoning_tokens=job.reasoning_tokens,
                    estimated_tokens=job.estimated_tokens,
                    answered=job.answered,
                )
                for job_id, job in jobs.items()
            ]

    def take(self, job_id: int) -> int:
        """Microseconds of the job since they were last taken: for one commit."""
        with self._lock:
            self._pass()
            job = self._jobs[job_id]
            taken = int((job.seconds - job.seconds_of_commits) * 1e6)
            job.seconds_of_commits += taken / 1e6
            return taken

    def give_back(self, job_id: int, microseconds: int) -> None:
        """Returns microseconds that were not committed: the job's next commit accounts for them."""
        with self._lock:
            self._jobs[job_id].seconds_of_commits -= microseconds / 1e6

    def _pass(self) -> None:
        now = self.clock()
        rows = sum(self._held.values())
        for job_id, held in self._held.items():
            self._jobs[job_id].seconds += (now - self._since) * held / rows
        self._since = now
