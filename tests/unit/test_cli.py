"""The `nightshift` command without any server: help, refusals, exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nightshift.producer.cli.app import app, commands

COMMANDS = (
    "init",
    "run",
    "estimate",
    "submit",
    "wait",
    "judge",
    "collect",
    "status",
    "watch",
    "jobs",
    "errors",
    "sample",
    "verify",
    "pause",
    "resume",
    "cancel",
    "retry",
    "release",
    "migrate",
    "reaper",
    "completion",
    "schema",
)
ON_A_JOB = {
    "wait": [],
    "judge": ["--spec", "judge.yaml"],
    "status": [],
    "watch": [],
    "errors": [],
    "sample": [],
    "verify": [],
    "pause": [],
    "resume": [],
    "cancel": [],
    "retry": ["--failed"],
    "release": ["--revision"],
    "collect": ["--to", "x.parquet"],
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a ledger, and no ledger in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("NIGHTSHIFT_DATABASE_URL", "NIGHTSHIFT_BROKER_URL", "NIGHTSHIFT_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def nightshift(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = nightshift(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_help_begins_with_the_first_week_and_has_a_line_for_each_command() -> None:
    said = CliRunner().invoke(app, ["--help"], terminal_width=98).stdout  # of a terminal of 100
    first, *panels = re.findall(
        r"^([A-Z][\w ]+):\n((?:  .+\n)+)", said.partition("Options:")[2], re.M
    )
    names = [line.split()[0] for line in first[1].splitlines()]
    assert (first[0], names) == (
        "First week",
        ["init", "run", "status", "sample", "errors", "verify", "collect", "submit"],
    )
    assert [panel for panel, _ in panels] == ["Run", "Look", "Control", "Fleet", "Shell and editor"]
    lines = [line for _, block in (first, *panels) for line in block.splitlines()]
    assert len(lines) == len(commands())
    assert all(re.match(r"  [a-z]+ +[A-Z].*\.$", line) for line in lines)


def test_help_names_every_command() -> None:
    said = nightshift("--help").stdout
    assert all(command in said for command in COMMANDS)


def test_help_loads_no_heavy_module() -> None:
    """`nightshift --help` answers at once: no SQLAlchemy, Arrow, pydantic or Celery."""
    heavy = "sqlalchemy pyarrow pydantic celery psycopg jinja2 fsspec rich"
    script = (
        "import sys, typer.testing; from nightshift.producer.cli.app import app; "
        "typer.testing.CliRunner().invoke(app, ['--help']); "
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=here, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ON_A_JOB)
def test_without_a_ledger_a_command_says_so_in_one_sentence(command: str) -> None:
    result = nightshift(command, "1", *ON_A_JOB[command])
    assert result.exit_code == 2
    assert result.stderr == (
        "nightshift: NIGHTSHIFT_DATABASE_URL is not set and no `nightshift run` has made a ledger "
        "in ./.nightshift\n"
    )
    assert not Path(".nightshift").exists()


def test_jobs_and_migrate_need_a_ledger_too() -> None:
    for command in ("jobs", "migrate", "reaper"):
        result = nightshift(command)
        assert result.exit_code == 2
        assert result.stderr.startswith("nightshift: NIGHTSHIFT_DATABASE_URL is not set")


def test_a_url_that_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "mysql://somewhere/else")
    result = nightshift("jobs")
    assert (result.exit_code, result.stderr) == (
        2,
        "nightshift: NIGHTSHIFT_DATABASE_URL is no postgresql:// URL\n",
    )


def test_a_bad_setting_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_LEASE_SECONDS", "soon")
    result = nightshift("jobs")
    assert result.exit_code == 2
    assert "NIGHTSHIFT_LEASE_SECONDS" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "rows.parquet"], "nothing says what to run"),
        (["run", "rows.parquet", "--model", "M", "--callable", "a:b"], "--model is for models"),
        (["submit", "rows.parquet", "--model", "M", "--prompt", "x"], "--out is missing"),
        (["run", "no-such.yaml"], "cannot be read"),
        (["sample", "1", "--json", "--html", "x.html"], "give one of them"),
        (["collect", "1", "--to", "x.csv", "--manifest", "--partial"], "--partial is for the rows"),
        (
            ["collect", "1", "--to", "x.csv", "--manifest", "--format", "openai"],
            "--format is for the rows",
        ),
    ],
)
def test_flags_that_do_not_fit_end_with_2(arguments: list[str], sentence: str) -> None:
    result = nightshift(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("nightshift: ")
    assert not Path(".nightshift").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "rows.parquet", "--limit", "many"],
        ["run", "rows.parquet", "--format", "csv"],
        ["sample", "1", "-n", "0"],
        ["collect", "1"],
        ["judge", "1"],
        ["judge", "1", "--spec", "x.yaml", "--sample", "0"],
        ["judge", "1", "--spec", "x.yaml", "--scores", "good"],
        ["dance"],
        ["status", "--yaml"],
    ],
)
def test_what_cannot_be_parsed_ends_with_2(arguments: list[str]) -> None:
    assert nightshift(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments", [["collect", "1", "--to", "x.parquet"], ["sample", "1", "--html", "x.html"]]
)
def test_files_go_only_where_the_operator_lets_them(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_ROOTS", str(tmp_path / "data"))
    result = nightshift(*arguments)
    assert result.exit_code == 2
    assert "NIGHTSHIFT_ALLOWED_ROOTS" in result.stderr


@pytest.mark.parametrize(
    ("to", "said"),
    [([], "b.results.jsonl exists"), (["--to", "out/x.jsonl"], "inside the output directory")],
)
def test_a_spec_of_requests_writes_results_and_their_place_is_looked_at_first(
    to: list[str], said: str
) -> None:
    Path("b.jsonl").write_text(
        '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    )
    Path("b.results.jsonl").write_text("precious")
    Path("b.yaml").write_text(
        "name: b\ninput: {uri: b.jsonl}\ntask: {kind: requests}\n"
        "engine: {backend: vllm, model: M}\noutput: {uri: out}\n"
    )
    result = nightshift("run", "b.yaml", *to)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not Path(".nightshift").exists()


def test_debug_lets_the_traceback_fly() -> None:
    result = nightshift("--debug", "jobs")
    assert result.exit_code != 0
    assert type(result.exception).__name__ == "BadInput"
