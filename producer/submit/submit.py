"""Submit: a spec and its files become a job and its batches, or nothing; and what asks how that would go."""

from contextlib import AbstractContextManager

from nightshift.common import storage
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.intake import (
    PLAIN,
    SURVEY,
    Asked,
    Intake,
    list_files,
    resolve,
    take_in,
)
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.planning.planner import Plan
from nightshift.producer.submit.submitted import Submitted


def submit(ledger: Ledger, spec: JobSpec, settings: Settings, asked: Asked = PLAIN) -> Submitted:
    """Plans and stores a job; for the same spec over unchanged files the existing job comes back.

    Files are opened within the allowed roots of `settings` alone; the job is held to what it is `admitted`
    under for good. With `adopt` the output directory is taken over from the same job of a ledger that is lost.
    `within` runs in the transaction of a new job: what it raises leaves no job.
    Raises BadInput with one sentence for everything that can be refused without a worker.
    """
    intake = Intake(spec, settings, ledger, asked)
    with within_roots(settings):
        take_in(intake)
    assert isinstance(intake.answer, Submitted)
    return intake.answer


def within_roots(settings: Settings, *besides: str) -> AbstractContextManager[None]:
    """Holds what is opened inside to the allowed roots, and to folders `besides`."""
    roots = (*settings.allowed_roots, *besides) if settings.allowed_roots else None
    return storage.within(roots, storage.SETTING)


def survey(
    spec: JobSpec,
    settings: Settings,
    *,
    copies: str | None = None,
    ledger: Ledger | None = None,
    adopt: bool = False,
) -> tuple[JobSpec, Plan]:
    """The resolved spec and its plan, without a job; refuses what `submit` of a new job refuses. The
    owner of the output directory is asked for with a `ledger` alone.

    A folder for `copies` of the input takes the place of the output directory, which is then not
    checked.
    """
    intake = Intake(spec, settings, ledger, Asked(adopt=adopt), copies)
    with within_roots(settings, *([] if copies is None else [copies])):
        for step in (*SURVEY.once, *SURVEY.until_stored):
            step(intake)
    return intake.spec, intake.plan


def spec_and_identity(
    spec: JobSpec, settings: Settings, ledger: Ledger | None = None
) -> tuple[JobSpec, str]:
    """Return the resolved spec, and the identity of the job that its submit to the ledger would create or find."""
    intake = Intake(spec, settings, ledger)
    with within_roots(settings):
        resolve(intake)
        list_files(intake)
    return intake.spec, intake.identity


def is_known(ledger: Ledger, spec: JobSpec) -> bool:
    """Return whether a job of the ledger has the output directory of this spec."""
    with ledger.transaction() as connection:
        return jobs.by_output(connection, resolved(spec).output.uri) is not None
