"""What a judge works on: the judge's spec, and a file with the rows that it judges."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.formats import part_names, part_rows
from nightshift.common.ledger import Ledger, jobs
from nightshift.common.ledger.jobs import Job
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, parse_spec
from nightshift.common.spec.parse import read_yaml
from nightshift.producer.judge import judged_rows
from nightshift.producer.judge.scores import Scale, check
from nightshift.producer.submit.checks import check_columns, check_output
from nightshift.producer.submit.submit import resolved

JUDGED_FILE = "rows.parquet"

METADATA_KEY = "judged"
"""Key in the metadata of that file; the value is a JudgedSample."""


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """Which rows of which job are judged: `rows` of its `population` answered ones.

    Another number of `retries` means that some of its answers may be new. Stands as JSON in the
    metadata of the file with the rows.
    """

    job: int
    retries: int
    population: int
    rows: int
    seed: int


def prepare(
    ledger: Ledger,
    judged: Job,
    path: Path,
    scale: Scale,
    settings: Settings,
    *,
    count: int | None,
    seed: int,
) -> tuple[JobSpec, JudgedSample]:
    """The judge's spec, whose input is a file with the rows to judge; writes that file unless it is
    there. Raises BadInput for what cannot be judged.
    """
    with ledger.transaction() as connection:
        done = jobs.progress(connection, judged.id)["rows_done"]
    if judged.closed_at is None:
        raise BadInput(f"job {judged.id} is {judged.state}: a judge wants a job that is finished")
    if not done:
        raise BadInput(f"job {judged.id} has no answered rows to judge")
    every = judged_rows.columns(judged)
    spec = _judge_spec(path, judged, judged_rows.row_index_column(every))
    check(scale, spec)
    known = {each.field.name: each for each in every}
    check_columns(spec, pa.schema([each.field for each in every]))
    rows = min(done, count or done)
    sample = JudgedSample(judged.id, judged.retries, done, rows, seed if rows < done else 0)
    storage.check_roots([spec.output.uri], settings.allowed_roots)
    if not _is_written(ledger, spec, sample):
        check_output(spec, [])
        wanted = spec.read_columns or [each.field.name for each in every if not each.is_copy]
        names = dict.fromkeys([judged_rows.row_index_column(every), *wanted, *spec.passed_columns])
        judged_rows.write(
            ledger,
            judged,
            spec.input.uris[0],
            [known[name] for name in names],
            judged_rows.sampled_positions(done, count, seed),
            {METADATA_KEY: json.dumps(asdict(sample))},
        )
    return spec, sample


def _judge_spec(path: Path, judged: Job, row_index: str) -> JobSpec:
    """The spec at `path` with the rows to judge as its input."""
    data = read_yaml(path)
    if isinstance(data, dict) and "input" in data:
        raise BadInput(
            f"{path}: a judge has no input of its own: leave it out, it reads the rows of job "
            f"{judged.id}"
        )
    filled = {"uri": JUDGED_FILE, "id": judged.spec.input.id or row_index}
    spec = parse_spec({**data, "input": filled} if isinstance(data, dict) else data, str(path))
    spec = resolved(spec)
    uri = f"{spec.output.uri}/{part_names.JUDGED}/{JUDGED_FILE}"
    return spec.model_copy(update={"input": spec.input.model_copy(update={"uri": [uri]})})


def _is_written(ledger: Ledger, spec: JobSpec, sample: JudgedSample) -> bool:
    """Whether a job of this spec reads this sample already; BadInput when it reads another one."""
    uri = spec.input.uris[0]
    with ledger.transaction() as connection:
        job = jobs.by_output(connection, spec.output.uri)
    if job is None:
        return False  # a file without a job may lack columns that the spec names now
    which = f"{spec.output.uri} is the output of job {job.id} ({job.spec.name})"
    if job.spec_identity != spec.identity:
        raise BadInput(f"{which}, whose spec differs: name another output directory")
    if not storage.exists(uri):
        raise BadInput(f"{uri}, which job {job.id} judges, is gone: name another output directory")
    if (written := _written_sample(uri)) == sample:
        return True
    raise BadInput(
        f"{which}, which judged {_sample_text(written, sample)}: name another output directory"
    )


def _written_sample(uri: str) -> JudgedSample | None:
    text = part_rows.part_metadata(uri).get(METADATA_KEY)
    return None if text is None else JudgedSample(**json.loads(text))


def _sample_text(written: JudgedSample | None, wanted: JudgedSample) -> str:
    if written is None:
        return "rows of no job"
    if written.job == wanted.job and written.retries != wanted.retries:
        return f"older answers of job {written.job}, of which rows ran again since"
    seed = "" if written.rows == written.population else f", seed {written.seed}"
    return f"{written.rows:,} of {written.population:,} rows of job {written.job}{seed}"
