"""What can be refused of a spec and its files without a ledger, before `run` starts a server."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import owner_marker, part_names
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.common.states import JobState
from nightshift.common.storage import FileInfo
from nightshift.producer import wings
from nightshift.producer.external_sort.spill import copies_folder
from nightshift.producer.submit import checks, intake, table_input
from nightshift.producer.submit.intake import Intake
from nightshift.producer.submit.output_owner import refuse_owned
from nightshift.producer.submit.paths import resolved
from nightshift.producer.submit.submit import spec_and_identity, within_roots

MANIFEST_BYTES = 64 * 2**20
"""A larger manifest is not read."""


class Depth(Enum):
    """How closely an input is looked at: the names of its columns, as far as its files can be read; its columns; or
    the values of the id column, too.
    """

    NAMES = auto()
    COLUMNS = auto()
    IDS = auto()


def _check_names(looked_at: Intake) -> None:
    """The columns that the spec names are there. Files that cannot be read are no mistake here: the job may never
    take them, and further files only add names.
    """
    try:
        intake.plan_files(looked_at)
    except BadInput:
        return
    checks.check_columns(looked_at.spec, looked_at.plan.schema)


LOOKS: Mapping[Depth, Sequence[Callable[[Intake], None]]] = {
    Depth.NAMES: (intake.resolve, intake.list_files, _check_names),
    Depth.COLUMNS: (
        intake.resolve,
        intake.list_files,
        intake.plan_files,
        intake.check_columns,
    ),
    Depth.IDS: (
        intake.resolve,
        intake.list_files,
        intake.check_batch_file,
        intake.plan_files,
        intake.check_columns,
        intake.check_ids,
    ),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The files of an input that are local and no table; whether the output directory has the marker of a job; and
    whether its manifest says that `run` has nothing left to do for this very job.
    """

    files: list[FileInfo]
    has_owner: bool
    is_over: bool


def check_before(spec: JobSpec, settings: Settings, *, has_ledger: bool, adopt: bool) -> Found:
    """BadInput for what a look at this machine shows before any server is started: local input that
    is not there, an output directory that cannot be made, that cannot lie beside the input or, without a ledger
    here, that has an owner.
    """
    given, spec = spec, resolved(spec)
    output = spec.output.uri
    storage.check_roots([*spec.input.places, output], settings.allowed_roots)
    for check in wings.offered("check_spec"):
        check(spec, settings)
    checks.check_declared_types(spec)
    files: list[FileInfo] = []
    with within_roots(settings):
        if spec.input.table is None:
            files = storage.expand(uri for uri in spec.input.uris if storage.is_local(uri))
            checks.refuse_inside_output(spec, files)
        else:
            table = table_input.opened(spec.input.table, settings)
            table.check(table.newest() if spec.input.version is None else spec.input.version)
        storage.check_directory(output)
        owner = owner_marker.read(output) if storage.is_local(output) else None
    if owner is not None and not has_ledger and not adopt:
        refuse_owned(output)
    if owner is None and storage.is_local(output) and spec.limits.finish_by is not None:
        # A known job keeps its deadline, which may have passed.
        checks.moment_of(spec.limits.finish_by)
    is_over = False
    if owner is not None and _is_over(output):
        with suppress(BadInput):
            is_over = spec_and_identity(given, settings)[1] == owner.identity
    return Found(files, owner is not None, is_over)


def look_at_input(spec: JobSpec, settings: Settings, depth: Depth) -> None:
    """BadInput for what a submit of a new job would refuse of the files, which are read as a submit reads them.
    Copies that files need are removed again.
    """
    with copies_folder() as copies, within_roots(settings, copies):
        looked_at = Intake(spec, settings, copies=copies)
        for step in LOOKS[depth]:
            step(looked_at)


def _is_over(output_uri: str) -> bool:
    """Whether the manifest of a local output directory says that its job was cancelled, or completed with an answer.
    Without any answer, `run` runs the rows again.
    """
    uri = part_names.final(output_uri, part_names.MANIFEST)
    if not storage.exists(uri, links=False):
        return False
    try:
        with storage.open_input(uri, links=False) as file:
            found = json.loads(file.read(MANIFEST_BYTES))
        if found["status"] == JobState.COMPLETED:
            return bool(found["rows"] > found["rows_failed"])
        return bool(found["status"] == JobState.CANCELLED)
    except (BadInput, OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
