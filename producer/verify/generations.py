"""Whether the generations of a job cover it, and whether their files say what the ledger says."""

import json
from typing import Any

from nightshift.common import storage
from nightshift.common.errors import NightshiftError
from nightshift.common.formats import part_names
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import generations
from nightshift.common.ledger.jobs.generations import Generation
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.system_errors import told
from nightshift.common.text import counted
from nightshift.producer.results import part_files
from nightshift.producer.verify.check_result import CheckResult


def check(ledger: Ledger, job: Job) -> CheckResult | None:
    """The check of a job that grew or is watched; None for another."""
    with ledger.transaction() as connection:
        listed = generations.listed(connection, job.id)
    if not listed:
        return None
    finished = [each for each in listed if each.finished_at is not None]
    result = CheckResult(
        "generations", f"{len(listed):,}, of which readers can follow {len(finished):,}"
    )
    end = (0, 0, 0)
    for each in listed:
        if (each.first_file, each.first_row, each.first_seq) != end:
            result.add(f"generation {each.number} does not begin where the one before ends")
        end = (each.stop_file, each.stop_row, each.stop_seq)
    for each in finished:
        why = _differs(ledger, job, each)
        with ledger.transaction() as connection:
            now = generations.get(connection, job.id, each.number)
        # The rows of an open job may run again while its files are read.
        if why is not None and now is not None and now.finished_at == each.finished_at:
            result.add(why)
    return result


def _differs(ledger: Ledger, job: Job, generation: Generation) -> str | None:
    uri = part_names.generation(job.output_uri, generation.number)
    try:
        with storage.open_input(uri, links=False) as file:
            said: dict[str, Any] = json.load(file)
    except (NightshiftError, OSError, ValueError, RecursionError) as error:
        return f"{uri} cannot be read: {told(error)}"
    live = {name for name, _ in part_files.names(ledger, job, generation)}
    named = {part["name"] for part in said["parts"]}
    if live != named:
        return f"{uri} names {counted(len(named - live), 'part')} too many and {len(live - named):,} too few"
    rows = sum(part["rows"] for part in said["parts"])
    if rows != generation.rows:
        return f"{uri} names parts of {counted(rows, 'row')}, and the generation has {generation.rows:,}"
    return None
