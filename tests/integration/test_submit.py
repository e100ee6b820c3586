"""Submit: the same work once, and bad input in one sentence with nothing half-done."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.ledger.queries import job_pace
from nightshift.common.settings import Settings
from nightshift.common.spec import parse_spec
from nightshift.common.states import JobState
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import submit

Edit = Callable[[dict[str, Any]], object]


def spec_data(folder: Path) -> dict[str, Any]:
    return {
        "name": "t",
        "input": {"uri": str(folder / "in.parquet"), "id": "id"},
        "task": {"kind": "function"},
        "engine": {"backend": "function", "callable": "rules:f"},
        "output": {"uri": str(folder / "out")},
        "batch": {"rows": 4},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = pa.table(
        {
            "id": [f"r{n}" for n in range(10)],
            "text": ["x"] * 10,
            "took": pa.array(range(10), pa.duration("ns")),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken.jsonl").write_text('{"id": 1}\n{"id": \n')
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "in.parquet").read_bytes()[:-9])
    pq.write_table(
        pa.table({"id": pa.array([1, None])}), tmp_path / "nulls.parquet", write_statistics=True
    )
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "part-000000-a1.parquet").write_bytes(b"x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "last-year.parquet").write_bytes(b"x")
    (tmp_path / "below" / "year" / "deep").mkdir(parents=True)
    (tmp_path / "below" / "year" / "deep" / "rows.parquet").write_bytes(b"x")
    (tmp_path / "aside" / "_tmp").mkdir(parents=True)
    (tmp_path / "aside" / "_tmp" / "rows.parquet").write_bytes(b"x")
    (tmp_path / "aside" / "notes").mkdir()
    (tmp_path / "aside" / "notes" / "a.txt").write_bytes(b"x")
    return tmp_path


def put(ledger: Ledger, data: dict[str, Any], *, new: bool = False) -> Any:
    return submit(ledger, parse_spec(data, "test"), Settings(), Asked(new))


REFUSED: list[tuple[str, Edit]] = [
    ("no such file", lambda d: d["input"].update(uri=d["input"]["uri"] + ".parquet")),
    ("broken.jsonl", lambda d: d["input"].update(uri=sibling(d, "broken.jsonl"))),
    ("no rows", lambda d: d["input"].update(uri=sibling(d, "empty.jsonl"))),
    ("torn.parquet", lambda d: d["input"].update(uri=sibling(d, "torn.parquet"))),
    ("null", lambda d: d["input"].update(uri=sibling(d, "nulls.parquet"))),
    ("nothing", lambda d: d["input"].update(id="nothing")),
    ("other", lambda d: d["output"].update(columns=["other"])),
    ("is a file", lambda d: d["output"].update(uri=sibling(d, "file/out"))),
    ("does not know", lambda d: d["output"].update(uri=sibling(d, "held"))),
    ("no job has written", lambda d: d["output"].update(uri=sibling(d, "foreign"))),
    (
        "holds year/deep/rows.parquet, which no job has written",
        lambda d: d["output"].update(uri=sibling(d, "below")),
    ),
    ("took", lambda d: d["output"].update(format="jsonl", columns=["took"])),
    (
        "a Delta table has no type",
        lambda d: d["output"].update(
            columns=["took"], table={"format": "delta", "uri": sibling(d, "")}
        ),
    ),
    ("read as input", lambda d: d["input"].update(uri=sibling(d, "**/in.parquet"))),
    ("schema", lambda d: d["output"].update(schema={"x": "no_such_type"})),
]


def sibling(data: dict[str, Any], name: str) -> str:
    return str(Path(data["output"]["uri"]).parent / name)


@pytest.mark.parametrize(("said", "edit"), REFUSED, ids=[said for said, _ in REFUSED])
def test_bad_input_is_one_sentence_and_leaves_nothing(
    ledger: Ledger, folder: Path, said: str, edit: Edit
) -> None:
    data = spec_data(folder)
    edit(data)
    with pytest.raises(BadInput, match=said) as caught:
        put(ledger, data)
    assert "\n" not in str(caught.value)
    assert not (folder / "out").exists()
    with ledger.transaction() as connection:
        assert job_pace.listed(connection) == []


def test_the_same_work_is_the_same_job_whatever_it_is_called(ledger: Ledger, folder: Path) -> None:
    first = put(ledger, spec_data(folder))
    assert (first.is_new, first.rows, first.batches) == (True, 10, 3)
    again = put(
        ledger,
        {**spec_data(folder), "name": "other", "priority": 7, "batch": {"rows": 1}},
    )
    assert (again.job_id, again.is_new, again.state) == (first.job_id, False, JobState.RUNNING)


def test_another_output_is_another_job_and_new_insists_on_it(ledger: Ledger, folder: Path) -> None:
    first = put(ledger, spec_data(folder))
    with pytest.raises(BadInput, match="--new wants another output"):
        put(ledger, spec_data(folder), new=True)
    other = spec_data(folder)
    other["output"]["uri"] = str(folder / "elsewhere")
    assert put(ledger, other, new=True).job_id != first.job_id


def test_other_work_may_not_use_the_output_of_a_job(ledger: Ledger, folder: Path) -> None:
    put(ledger, spec_data(folder))
    other = spec_data(folder)
    other["engine"]["callable"] = "rules:g"
    with pytest.raises(BadInput, match="whose spec differs"):
        put(ledger, other)


def test_changed_files_under_a_known_job_are_named(ledger: Ledger, folder: Path) -> None:
    put(ledger, spec_data(folder))
    pq.write_table(pa.table({"id": ["new"], "text": ["y"]}), folder / "in.parquet")
    with pytest.raises(BadInput, match=r"in\.parquet"):
        put(ledger, spec_data(folder))


def test_uris_are_held_to_the_roots_that_the_operator_set(ledger: Ledger, folder: Path) -> None:
    settings = Settings(allowed_roots=(str(folder / "data"),))
    with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_ROOTS"):
        submit(ledger, parse_spec(spec_data(folder), "test"), settings)


def test_a_spec_that_could_not_be_read_again_is_not_stored(ledger: Ledger, folder: Path) -> None:
    spec = parse_spec(spec_data(folder), "test")
    torn = spec.model_copy(update={"limits": spec.limits.model_copy(update={"budget": 1.0})})
    with pytest.raises(BadInput, match=r"could not be read again: limits\.budget needs a price"):
        submit(ledger, torn, Settings())
    with ledger.transaction() as connection:
        assert job_pace.listed(connection) == []
    assert not (folder / "out").exists()


def test_a_folder_that_a_pattern_matches_is_read_to_its_bottom(
    ledger: Ledger, folder: Path
) -> None:
    data = spec_data(folder)
    (folder / "some").mkdir()
    (folder / "in.parquet").rename(folder / "some" / "in.parquet")
    data["input"]["uri"] = str(folder / "some" / "*")
    data["output"]["uri"] = str(folder / "some" / "out")
    with pytest.raises(BadInput, match="read as input"):
        put(ledger, data)


def test_a_submit_over_copies_is_about_the_files_that_were_given(
    ledger: Ledger, folder: Path
) -> None:
    """The same files: the same job, whose copies come back when somebody removed them."""
    (folder / "in").mkdir()
    packed = folder / "in" / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"id,text\n1,x\n2,y\n"))
    data = spec_data(folder)
    data["input"]["uri"] = str(folder / "in")
    first = put(ledger, data)
    copies = folder / "out" / "_input"
    (copy,) = copies.iterdir()
    content = copy.read_bytes()
    copy.unlink()
    again = put(ledger, data)
    assert (again.is_new, again.job_id) == (False, first.job_id)
    assert copy.read_bytes() == content
    with ledger.transaction() as connection:
        (known,) = jobs.files(connection, first.job_id)
    assert (known.uri, known.format, known.size) == (str(packed), "csv", packed.stat().st_size)

    packed.write_bytes(gzip.compress(b"id,text\n1,x\n2,z\n"))
    with pytest.raises(BadInput, match=r"changed since job \d+ was submitted: .*a\.csv\.gz"):
        put(ledger, data)
    assert [each.name for each in copies.iterdir()] == [copy.name]


def test_a_submit_over_folders_of_keys_keeps_that_they_are_columns(
    ledger: Ledger, folder: Path
) -> None:
    (folder / "in" / "day=1").mkdir(parents=True)
    (folder / "in" / "day=1" / "a.jsonl").write_text('{"id": 1}\n')
    data = spec_data(folder)
    data["input"]["uri"] = str(folder / "in")
    data["output"]["columns"] = ["day"]
    first = put(ledger, data)
    assert put(ledger, data).job_id == first.job_id
    with ledger.transaction() as connection:
        job = jobs.get(connection, first.job_id)
    assert job is not None
    assert job.spec.input.partitioning == "hive"
    assert pa.ipc.read_schema(pa.py_buffer(job.input_schema)).field("day").type == pa.int64()


def test_addresses_are_held_to_those_that_the_operator_allows(ledger: Ledger, folder: Path) -> None:
    data = spec_data(folder)
    data["task"] = {"kind": "generate", "prompt": "{{ text }}"}
    data["engine"] = {"backend": "openai", "model": "m", "base_url": "https://evil.example/v1"}
    settings = Settings(allowed_remotes=("https://api.openai.com",))
    with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_REMOTES"):
        submit(ledger, parse_spec(data, "test"), settings)


@pytest.mark.parametrize(
    ("engine", "settings", "says"),
    [
        (
            {"args": {"trust_remote_code": True}},
            Settings(allowed_engine_args=("trust_remote_code:org/other",)),
            "NIGHTSHIFT_ALLOWED_ENGINE_ARGS",
        ),
        ({}, Settings(allowed_models=("org/other",)), "NIGHTSHIFT_ALLOWED_MODELS"),
        ({"model": "/etc"}, Settings(allowed_roots=("/tmp",)), "NIGHTSHIFT_ALLOWED_ROOTS"),
        (
            {"backend": "openai", "base_url": "http://169.254.169.254/latest"},
            Settings(),
            "link-local or metadata",
        ),
    ],
)
def test_what_the_operator_does_not_allow_is_refused_at_submit(
    ledger: Ledger, folder: Path, engine: dict[str, Any], settings: Settings, says: str
) -> None:
    data = spec_data(folder)
    data["task"] = {"kind": "generate", "prompt": "{{ text }}"}
    data["engine"] = {"backend": "vllm", "model": "org/model", **engine}
    if settings.allowed_roots:
        settings = settings.model_copy(update={"allowed_roots": (str(folder),)})
    with pytest.raises(BadInput, match=says):
        submit(ledger, parse_spec(data, "test"), settings)
    with ledger.transaction() as connection:
        assert job_pace.listed(connection) == []
