"""`nightshift init`: a spec from a look at an input, whatever its columns are called and hold."""

import gzip
import json
import resource
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from nightshift.common.errors import BadInput
from nightshift.common.settings import load_settings
from nightshift.common.spec import load_spec
from nightshift.producer.cli.app import app
from nightshift.producer.cli.flags import Flags
from nightshift.producer.cli.job_spec import job_spec
from nightshift.producer.draft import to_fill_in
from nightshift.producer.draft.guesses import id_columns, in_template, leading, text_column
from nightshift.producer.draft.look import Column, look
from nightshift.producer.draft.to_fill_in import MARK
from nightshift.producer.draft.written import GUESS, Asked, draft
from nightshift.producer.submit.before import check_before
from nightshift.producer.submit.submit import survey

REVIEWS = {
    "stars": [5, 1, 5],
    "review_id": ["r-1", "r-2", "r-3"],
    "text": ["A fine pan.", None, "It leaks: \"badly\"\nand often"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a ledger, and no ledger in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("NIGHTSHIFT_DATABASE_URL", "NIGHTSHIFT_BROKER_URL", "NIGHTSHIFT_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def nightshift(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def parquet(path: Path, columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return str(path)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]  # fmt: skip


def made(name: str) -> str:
    """The same rows in each format."""
    path = Path(name)
    if name == "folder":
        parquet(path / "day=1" / "a.parquet", REVIEWS)
        parquet(path / "day=2" / "b.parquet", {**REVIEWS, "review_id": ["r-4", "r-5", "r-6"]})
        return name
    if ".jsonl" in name:
        return jsonl(path, rows_of(REVIEWS))
    if ".csv" in name:
        pyarrow.csv.write_csv(pa.table(REVIEWS), path)
        return name
    return parquet(path, REVIEWS)


@pytest.mark.parametrize(
    "name", ["reviews.parquet", "reviews.jsonl", "reviews.jsonl.gz", "reviews.csv", "folder"]
)
def test_a_draft_has_the_columns_and_its_guesses_and_runs_once_it_is_filled_in(name: str) -> None:
    source = made(name)
    before = sorted(Path().rglob("*"))
    result = nightshift("init", source)
    assert result.exit_code == 0, result.output
    assert sorted(Path().rglob("*")) == sorted([*before, Path("job.yaml")])
    text = Path("job.yaml").read_text()
    for column in REVIEWS:
        assert f"#   {column} " in text
    assert "\\n" in text or "It leaks" not in text
    spec = load_spec(Path("job.yaml"))
    assert (spec.input.uri, spec.input.id) == (source, "review_id")
    assert spec.task.columns == {"text"}
    assert text.count(GUESS) == 3
    filled = job_spec("job.yaml", Flags(model="m", prompt="Sentiment of: {{ text }}"))
    check_before(filled, load_settings(), has_ledger=False, adopt=False)
    _, plan = survey(filled, load_settings(), copies=str(Path("copies").absolute()))
    assert plan.rows_total in (3, 6)


def test_what_is_printed_works_where_it_is_printed() -> None:
    source = made("reviews.parquet")
    Path("rules.py").write_text("def f(rows):\n    return rows\n")
    result = nightshift("init", source, "--callable", "rules:f", "--to", "my job.yaml")
    assert result.stdout == (
        "wrote my job.yaml: 3 columns; guesses from 3 rows are marked\n"
        "  nightshift run 'my job.yaml' --limit 50 --out try/\n"
        "  nightshift run 'my job.yaml'\n"
    )
    result = nightshift("init", source, "--model", "m", "--prompt", "{{ text }}", "--to", "m.yaml")
    assert result.stdout.endswith("  nightshift estimate m.yaml\n  nightshift run m.yaml\n")
    assert nightshift("estimate", "my job.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ([], "engine.model and task.prompt"),
        (["--model", "m"], "task.prompt"),
        (["--prompt", "Sum up: {{ text }}"], "engine.model"),
    ],
)
def test_what_is_not_filled_in_is_refused_by_its_place(flags: list[str], missing: str) -> None:
    result = nightshift("init", made("reviews.parquet"), *flags)
    assert f"fill in {missing}, " in result.stdout
    for command in ("run", "estimate"):
        refused = nightshift(command, "job.yaml")
        assert refused.exit_code == 2
        assert refused.stderr.startswith(f"nightshift: {missing} still say")
        assert refused.stderr.count("\n") == 1
    assert not Path(".nightshift").exists()


def test_a_file_that_is_there_stays_as_it_is() -> None:
    source = made("reviews.parquet")
    Path("job.yaml").write_text("mine")
    Path("link.yaml").symlink_to("nowhere")
    for target in ("job.yaml", "link.yaml"):
        result = nightshift("init", source, "--to", target)
        assert result.exit_code == 2
        assert (
            result.stderr == f"nightshift: {target} is there already: name another file with --to\n"
        )
    assert Path("job.yaml").read_text() == "mine"
    assert not Path("nowhere").exists()


def test_a_draft_that_a_full_disk_cuts_off_is_not_left_there() -> None:
    source = made("reviews.parquet")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        result = nightshift("init", source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "nightshift: job.yaml cannot be written: the file is larger than"
    )
    assert not Path("job.yaml").exists()
    assert nightshift("init", source).exit_code == 0


def test_the_output_is_a_directory_that_is_not_there_and_not_in_the_input() -> None:
    made("reviews.parquet")
    Path("reviews-out").mkdir()
    nightshift("init", "reviews.parquet")
    assert load_spec(Path("job.yaml")).output.uri == "reviews-out-2"
    made("folder")
    nightshift("init", "folder", "--to", "folder.yaml")
    assert load_spec(Path("folder.yaml")).output.uri == "folder-out"


BAD = [
    (["nothing.parquet"], "there is no such file"),
    (["empty.jsonl"], "has no rows"),
    (["broken.parquet"], "is not a Parquet file"),
    (["rows.json"], "one value and not rows"),
    (["reviews.parquet", "--to", "job.txt"], "ends in .yaml or .yml"),
    (["reviews.parquet", "--to", "no/such/job.yaml"], "cannot be written"),
    (["folder", "--to", "folder/job.yaml"], "would lie in the input"),
    (["reviews.parquet", "--callable", "f", "--to", "x.yaml"], "must be module:name"),
    (["reviews.parquet", "--callable", "a:b", "--model", "m"], "give one"),
    (["reviews.parquet", "--model", "m", "--prompt", "{{", "--to", "x.yaml"], "template"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_sentence_and_nothing_is_written(arguments: list[str], said: str) -> None:
    made("reviews.parquet")
    made("folder")
    Path("empty.jsonl").touch()
    Path("broken.parquet").write_text("no")
    Path("rows.json").write_text("[]")
    before = sorted(Path().rglob("*"))
    result = nightshift("init", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_an_openai_batch_file_says_itself_what_is_asked() -> None:
    source = jsonl(
        Path("requests.jsonl"),
        [
            {
                "custom_id": "a",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m"},
            }
        ],
    )
    assert nightshift("init", source, "--model", "m").exit_code == 0
    assert load_spec(Path("job.yaml")).task.kind == "requests"


def test_the_schema_is_named_where_it_lies_beside_the_spec() -> None:
    source = made("reviews.parquet")
    Path("job.schema.json").touch()
    nightshift("init", source)
    first = Path("job.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=job.schema.json"


def key(name: str, **facts: Any) -> Column:
    return Column(name, "string", **{"differs": True, "is_key": True, **facts})


def text(name: str, mean_length: float = 10, **facts: Any) -> Column:
    return Column(name, "string", is_text=True, mean_length=mean_length, **facts)


@pytest.mark.parametrize(
    ("columns", "guessed"),
    [
        ([key("userId"), key("id")], ["id", "userId"]),
        ([key("product_id"), key("orderKey"), key("UUID")], ["product_id", "orderKey", "UUID"]),
        ([key("id", nulls=1), key("id_2"), key("paid"), key("Kid")], []),
        ([key("id", differs=False)], []),
        ([key("my id"), key("x" * 300 + "_id")], ["my id"]),
        ([key("error"), key("row_index")], []),
    ],
)
def test_an_id_is_named_like_one_and_differs(columns: list[Column], guessed: list[str]) -> None:
    assert id_columns(columns) == guessed


@pytest.mark.parametrize(
    ("columns", "guessed"),
    [
        ([text("a", 5), text("b", 50)], "b"),
        ([text("a", 500), text("Text", 5)], "Text"),
        ([text("my text", 500), text("a", 5)], "a"),
        ([Column("n", "int64"), text("id")], "n"),
        ([text("id")], "id"),
        ([text("two words"), text("range"), text("true")], None),
    ],
)
def test_a_prompt_is_about_a_column_that_a_template_can_name(
    columns: list[Column], guessed: str | None
) -> None:
    found = text_column(columns, "id")
    assert (found and found.name) == guessed


@pytest.mark.parametrize("name", ["text", "naïve", "class", "文"])
def test_a_template_names_a_column(name: str) -> None:
    assert in_template(name)


@pytest.mark.parametrize(
    "name", ["", "my column", "a.b", "none", "True", "not", "{{", "dict", "a-b"]
)
def test_a_template_cannot_name_a_column(name: str) -> None:
    assert not in_template(name)


def test_many_columns_and_large_values_give_a_small_draft() -> None:
    wide = parquet(Path("wide.parquet"), {f"c{number}": [number] for number in range(3_000)})
    large = parquet(Path("large.parquet"), {"id": [1, 2], "text": ["x" * 2**20, "y" * 2**20]})
    for number, source in enumerate((wide, large)):
        target = Path(f"{number}.yaml")
        assert nightshift("init", source, "--to", str(target)).exit_code == 0
        assert target.stat().st_size < 20_000
        load_spec(target)


def test_columns_of_every_type_are_shown() -> None:
    columns = {
        "bytes": [b"\xff" * 70_000],
        "list": [[1, 2]],
        "struct": [{"a: b": {"c": 1}}],
        "when": [datetime(2026, 1, 2, tzinfo=UTC)],
        "nothing": [None],
        "kind": pa.array(["a"]).dictionary_encode(),
        "view": pa.array(["a"], pa.large_string()),
    }
    result = nightshift("init", parquet(Path("all.parquet"), columns))
    assert result.exit_code == 0, result.output
    shown = Path("job.yaml").read_text()
    assert "70,000 bytes" in shown
    assert "2026-01-02 00:00:00" in shown
    load_spec(Path("job.yaml"))


NAMES = st.one_of(
    st.sampled_from(
        ["id", "text", "my id", "a: b", "{{ text }}", "# guess:", "'", '"', "- a", "null", "a\nb: c", "%", "&x",
         "*x", "!t", "|", ">", "\u2028", "\x85", "\ufeff", "\U0001f600 id", "\\", "{% raw %}", "...", "---", "=", "yes"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20),
)  # fmt: skip

VALUES = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=50))


def file_of(path: Path, names: list[str], values: list[str | None]) -> str:
    """The values in each column, with their row behind them, in the format that the suffix says."""
    column = [f"{value}{row}" if value else value for row, value in enumerate(values)]
    if path.suffix == ".jsonl":
        return jsonl(path, [dict.fromkeys(names, value) for value in column])
    table = pa.table(dict.fromkeys(names, pa.array(column, pa.string())))
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return str(path)


STEMS = st.sampled_from(["rows", "it's two words", "{{ x }} #", "a: b", "-"])
SUFFIXES = st.sampled_from([".parquet", ".jsonl", ".csv"])


@settings(max_examples=30)
@given(
    st.builds(str.__add__, STEMS, SUFFIXES),
    st.lists(NAMES, min_size=1, max_size=5, unique=True),
    st.lists(VALUES, min_size=1, max_size=5),
)
@example("rows.jsonl", ["a\nname: x", "id"], ["\n}}: #", "b"])
def test_any_names_and_values_give_a_valid_spec(
    file: str, names: list[str], values: list[str | None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = file_of(Path(folder) / file, names, values)
        try:
            seen = look(source, load_settings())
        except BadInput:  # CSV has no word for every text
            assert file.endswith(".csv")
            return
        if not file.endswith(".csv"):
            assert [column.name for column in seen.columns] == names
        written = draft(Asked(source, "rows", "out", model="m"), seen)
        target = Path(folder) / "job.yaml"
        target.write_text(written)
        spec = load_spec(target)
        assert spec.input.uri == source
        assert set(yaml.safe_load(written)) == {"name", "input", "task", "engine", "output"}
        [prompt] = spec.task.templates
        task = spec.task.model_copy(update={"prompt": prompt.replace(MARK, "Do")})
        filled = spec.model_copy(update={"task": task})
        survey(filled, load_settings(), copies=str(Path(folder) / "copies"))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_csv_of_another_delimiter_gets_it_in_the_draft(delimiter: str) -> None:
    lines = [["id", "text"], ["1", "a, b"], ["2", "c"]]
    Path("in.csv").write_text("".join(f"{delimiter.join(line)}\n" for line in lines))
    assert nightshift("init", "in.csv").exit_code == 0
    spec = load_spec(Path("job.yaml"))
    assert (spec.input.delimiter, spec.input.id) == (delimiter, "id")
    assert "{{ text }}" in Path("job.yaml").read_text()


def test_the_mark_is_seen_behind_the_beginning_of_a_prompt_too() -> None:
    spec = job_spec("in.csv", Flags(model="m", prompt=f"Please {MARK} the task", out="o"))
    assert to_fill_in.places(spec) == ["task.prompt"]


@pytest.mark.parametrize(
    ("first", "leads"),
    [
        ({"name": "ticket no", "type": "string", "is_text": True, "mean_length": 7}, True),
        ({"name": "asin", "type": "int64"}, True),
        ({"name": "asin", "type": "int64", "differs": False}, False),
        ({"name": "asin", "type": "int64", "nulls": 1}, False),
        ({"name": "price", "type": "double", "is_key": False}, False),
        ({"name": "note", "type": "string", "is_text": True, "mean_length": 80}, False),
        ({"name": "text", "type": "string", "is_text": True, "mean_length": 9}, False),
    ],
)
def test_a_first_column_that_could_name_a_row_is_a_guess(
    first: dict[str, Any], leads: bool
) -> None:
    given = {"differs": True, "is_key": True, **first}
    assert leading([Column(**given)]) == (given["name"] if leads else None)
