"""Wings: features that hang beside the core, each in a folder of its own. The core imports none of them.

A wing takes part where the core asks who does. Its module `wing` is a table: for each of these points a function,
or where a function stands (`module:name`), so that nothing of a wing is imported before it is asked for.

- `commands`: commands of `nightshift`, a list as `cli/command.py` describes them.
- `check_spec(spec, settings)`: refuses what needs no server and no file to be seen, with BadInput.
- `check_job(spec, schema, settings)`: the same once the columns of the input are known; returns what belongs into the
  transaction that stores the job, a function of the connection and the number of the job, or None.
- `resume(ledger, job, settings)`: goes on with what another reaper began for a job, before its files are looked at.
- `before_close(ledger, job, settings)`: the last step of a job before a reaper closes it. The step may be taken twice.
- `before_retry(ledger, job, settings, lost=, overtake=)`: refuses a retry, or a redo of parts that are `lost`, before
  anything is changed; with `overtake` a person has said that what others did meanwhile is passed over.
- `files_in_use(ledger, job, settings)`: files of a job that somebody else reads, as URIs: they stay when the job is
  deleted.
- `duties(reaper)`: what a reaper does for the wing, as `reaper/duty.py` describes duties.
- `job_facts(connection, job_id, whole)`: what the wing knows of a job, by the name of its object in `status --json`,
  see `views/facts.py`.
- `standings(connection, job_ids, here, tenant)`: the standing of each job by its id, see `views/standings.py`.
- `read_archived(ledger, job)`: a context with a ledger that has every row of a closed job, see `closed_jobs.py`.
- `run_again(connection, job_id)`: what stands on a job and runs again with it, see `retry.py`.
- `growing(ledger, job, settings, is_over)`: a context that bounds what is read and added while a look lets a job grow,
  and ends it once it `is_over`; raises NoRoom for rows that the owner may not have now, CutOff for a look that is over.
- `pilot(here, spec, settings, ...)`: a sample that runs before a job, see `local/run.py`.
- `pages(settings, console, ledger)`: pages beside a run, see `cli/run.py`.
- `input_table(uri, settings)`: a table that is the input of a job, open, see `submit/table_input.py`.
"""

from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

INSTALLED = (
    "archive",
    "doctor",
    "draft",
    "estimate",
    "explain",
    "judge",
    "serve",
    "tables",
    "tune",
    "watch",
)
"""The wings, by their folders. Without a folder and its name here the rest works."""


def offered(point: str) -> list[Any]:
    """What wings have at this point, in the order of INSTALLED; the caller knows the type."""
    found = [vars(wing)[point] for wing in modules() if point in vars(wing)]
    return [resolve_name(each) if isinstance(each, str) else each for each in found]


@cache
def modules() -> tuple[ModuleType, ...]:
    """The module `wing` of each wing."""
    return tuple(import_module(f"nightshift.producer.{name}.wing") for name in INSTALLED)
