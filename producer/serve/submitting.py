"""A spec of a caller becomes a job, within what its tenant may do: for the HTTP API and for the pages.

What loads Arrow is imported where it is used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING

import structlog

from nightshift.common import storage
from nightshift.common.errors import BadInput, Retryable
from nightshift.common.formats import reading
from nightshift.common.formats.jsonl.lines import MOST_LINE_BYTES
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.connection import Connection
from nightshift.common.ledger.jobs import job_submit, jobs
from nightshift.common.ledger.jobs.job_roots import UNBOUND, Admitted
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.public_text import marked
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, digest
from nightshift.common.text import first_few
from nightshift.producer.serve import access, output_folders, store_layout
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import quotas, tenant_jobs, tenants
from nightshift.producer.serve.ledger.keys import Caller
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.serve.tenants import limits

if TYPE_CHECKING:
    from nightshift.producer.submit.submitted import Submitted


log = structlog.get_logger(__name__)


def submit_for(
    ledger: Ledger,
    settings: Settings,
    caller: Caller,
    spec: JobSpec,
    scope: str | None,
    pilot_rows: int | None = None,
    *,
    ending: Event,
) -> "Submitted":
    """Submits a spec, or a pilot of so many of its rows; the same spec over unchanged files gives the same
    job. ApiError or BadInput for what the caller may not, and then there is no job; `scope` is the tenant
    whose jobs the caller sees, None for all. Once the server is `ending`, a plan is cut off.
    """
    from nightshift.producer.estimate import pilot
    from nightshift.producer.submit.intake import Asked
    from nightshift.producer.submit.submit import submit

    own_roots = settings.allowed_roots or None
    settings, spec = bounded(ledger, settings, caller, spec)
    if spec.batch.arrange == "auto":
        # Sorting takes memory and disk, which many callers share here.
        batch = spec.batch.model_copy(update={"arrange": "none"})
        spec = spec.model_copy(update={"batch": batch})
    tenant = caller.tenant

    def within(connection: Connection, job_id: int) -> None:
        access.refuse_spent(connection, tenant)
        if caller.role != "operator":
            access.refuse_more_rows(connection, tenant, job_id)
        if (store := settings.serve_store) is not None:
            access.count_results(connection, caller, job_id, store_layout.outputs(store, tenant))

    admitted = UNBOUND if caller.role == "operator" else _admitted(settings, tenant)
    asked = Asked(tenant=tenant, admitted=admitted, within=within)
    with (
        storage.within(own_roots, storage.SETTING),
        planning(ledger, settings, caller, ending, of_job=pilot_rows is None),
    ):
        if pilot_rows is None:
            done = submit(ledger, spec, settings, asked)
        else:
            done, _ = pilot.submit_pilot(ledger, spec, settings, pilot_rows, asked=asked)
    with ledger.transaction() as connection:
        if tenant_jobs.get(connection, scope, done.job_id) is None:
            said = f"{spec.output.uri} is the output of a job of another tenant"
            raise ApiError(409, said, param="output.uri", code="output_taken", retried=False)
    return done


def _admitted(settings: Settings, tenant: str) -> Admitted:
    """What a job is held to for good whose spec was held to the roots of its tenant, which `settings` have."""
    if settings.serve_store is None:
        return Admitted(settings.allowed_roots)
    own = _own_folders(settings.serve_store, tenant)
    return Admitted([root for root in settings.allowed_roots if root not in own], *own)


def _own_folders(store: str, tenant: str) -> tuple[str, str]:
    """The folders of a store with the uploads of a tenant and with results of its jobs."""
    return store_layout.inputs(store, tenant), store_layout.outputs(store, tenant)


@contextmanager
def planning(
    ledger: Ledger, settings: Settings, caller: Caller, ending: Event, *, of_job: bool
) -> Iterator[None]:
    """Holds the plan that is made inside to what its tenant may read, before and while anything is read;
    `of_job` is one whose rows are to be open. What the plan leaves when it comes to nothing is removed.

    Raises SpentOut where the tenant may have no more, ApiError 503 once the server is `ending`.
    """
    tenant = None if caller.role == "operator" else caller.tenant
    with _held(ledger, settings, tenant, ending.is_set, of_job=of_job):
        yield


@contextmanager
def growing(
    ledger: Ledger, job: Job, settings: Settings, is_over: Callable[[], bool]
) -> Iterator[None]:
    """Holds what a look reads of a job's input, and adds, to what the tenant of the job may have now, as `planning`
    held its submit. A job that an operator or the command line submitted is not bound, and may be read for as long
    as it is large. Raises NoRoom if the tenant may have no more now, and CutOff once the look `is_over`.
    """
    with ledger.transaction() as connection:
        tenant = None if job.roots is None else tenant_jobs.owner(connection, job.id)
    if tenant is None:
        yield
        return
    try:
        with _held(ledger, settings, tenant, is_over, of_job=True, keeps_copies=True):
            yield
    except access.SpentOut as error:
        raise reading.NoRoom(marked(error)) from error


@contextmanager
def _held(
    ledger: Ledger,
    settings: Settings,
    tenant: str | None,
    is_over: Callable[[], bool],
    *,
    of_job: bool,
    keeps_copies: bool = False,
) -> Iterator[None]:
    """`planning` for a tenant, None for an operator. Copies that a job may read are kept whatever comes of a plan."""
    why = ""

    def room() -> int | None:
        nonlocal why
        if tenant is None:
            return None
        with ledger.transaction() as connection:
            access.refuse_spent(connection, tenant)
            found = access.room_for_rows(connection, tenant, of_job=of_job)
        if found is None:
            return None
        most, why = found
        return most

    plan = reading.Reading(
        begin=room,
        most_bytes=None if tenant is None else _room_for_bytes(ledger, tenant),
        most_ratio=None if tenant is None else settings.serve_max_unpack_ratio,
        most_line_bytes=None if tenant is None else MOST_LINE_BYTES,
        is_over=is_over,
    )
    stored = keeps_copies
    try:
        with reading.held_to(plan):
            yield
        stored = True
    except reading.TooManyRows as error:
        raise access.SpentOut(why, code="rows_limit_exceeded") from error
    except reading.CutOff as error:
        if keeps_copies:
            raise
        raise ApiError(
            503, error.public_message(), type="server_error", code="unavailable"
        ) from error
    finally:
        for output_uri, uris in reading.copies.release(plan, stored=stored).items():
            _remove(ledger, output_uri, uris)


def _room_for_bytes(ledger: Ledger, tenant: str) -> int | None:
    """How many bytes a plan of a tenant may unpack: what the tenant may still store, None for any number."""
    with ledger.transaction() as connection:
        found = tenants.get(connection, tenant)
        if found is None or found.max_bytes is None:
            return None
        return max(0, found.max_bytes - quotas.stored(connection, tenant)[1])


def _remove(ledger: Ledger, output_uri: str, uris: list[str]) -> None:
    """Removes what a plan without a job has made beside an output; not where a job has the output by now."""
    from nightshift.common.formats import input_copies

    with suppress(Retryable), ledger.transaction() as connection:
        job_submit.lock_output(connection, output_uri)
        if jobs.by_output(connection, output_uri) is None:
            left = storage.delete_all(uris)
            folders = {output_uri, input_copies.folder(output_uri)}
            folders.update(uri.rpartition("/")[0] for uri in uris)
            for folder in sorted(folders, key=len, reverse=True):
                storage.remove_directory(folder)
            if left:
                log.warning("copies_left", why=first_few(left, 3))


def bounded(
    ledger: Ledger, settings: Settings, caller: Caller, spec: JobSpec, *, input_only: bool = False
) -> tuple[Settings, JobSpec]:
    """The settings that a caller's spec is held to, and the spec as it is held to them. ApiError 400 for
    one beyond what the tenant may do; of one that is `input_only` nothing else is judged.
    """
    tenant = bounds(ledger, caller)
    if tenant is None:
        return settings, spec
    store, places = settings.serve_store, spec.input.places
    if input_only:
        why = limits.input_refusal(tenant, places, store)
    else:
        why = limits.refusal(tenant, spec, store)
        places = [*places, spec.output.uri]
    if why:
        raise ApiError(400, why, code="not_allowed")
    # Both must allow a place: what the server may reach, and what the tenant may.
    storage.check_roots(places, settings.allowed_roots)
    # Files are held to these roots once more when they are listed: links may lead elsewhere.
    roots = [*tenant.roots, *(() if store is None else _own_folders(store, tenant.name))]
    held = settings.model_copy(update={"allowed_roots": roots})
    return held, limits.bound(tenant, spec)


def output_folder(
    ledger: Ledger, settings: Settings, caller: Caller, places: Sequence[str]
) -> str | None:
    """The folder in which the server chooses an output directory for a job that reads these places; None where
    there is none that the caller may use.
    """
    tenant = bounds(ledger, caller)
    folders = output_folders.candidates(
        places,
        roots=None if tenant is None else tenant.roots,
        store=settings.serve_store,
        tenant=caller.tenant,
    )
    for folder in folders:
        with suppress(BadInput):
            storage.check_roots([folder], settings.allowed_roots)
            return folder
    return None


def with_output(
    ledger: Ledger, settings: Settings, caller: Caller, spec: JobSpec, drawn: str
) -> JobSpec:
    """The spec with an output directory that the server chooses. The same spec and the same `drawn` text give
    the same directory. BadInput where there is no place that the caller may use.
    """
    folder = output_folder(ledger, settings, caller, spec.input.places)
    if folder is None:
        raise BadInput("the server has no folder for the results of this input: name one")
    name = f"{spec.name}-{digest([spec.identity, drawn])[:8]}"
    output = spec.output.model_copy(update={"uri": f"{folder}/{name}"})
    return spec.model_copy(update={"output": output})


def bounds(ledger: Ledger, caller: Caller) -> Tenant | None:
    """The tenant whose limits hold; None for an operator, who has none."""
    if caller.role == "operator":
        return None
    with ledger.transaction() as connection:
        tenant = tenants.get(connection, caller.tenant)
    if tenant is None:
        raise BadInput(f"there is no tenant {caller.tenant}")
    return tenant
