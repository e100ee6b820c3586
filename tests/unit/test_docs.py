"""What the pages say is what the code has."""

import json
import re
import runpy
import shlex
from pathlib import Path

import yaml

from nightshift.common import spec
from nightshift.common.settings import Settings
from nightshift.producer.cli.app import commands
from nightshift.producer.cli.flags import Flags
from nightshift.producer.cli.job_spec import job_spec
from tests.support import exported

DOCS = Path(__file__).parents[2] / "docs"

CODE = re.compile(r"`([^`]+)`")


def test_the_tables_of_the_spec_are_written_from_its_models() -> None:
    page = (DOCS / "spec.md").read_text()
    written = runpy.run_path(str(DOCS / "spec_tables.py"))["written"]
    assert page == written(page), "run `make docs`"


def test_the_tables_of_the_settings_are_written_from_their_fields() -> None:
    page = (DOCS / "settings.md").read_text()
    written = runpy.run_path(str(DOCS / "settings_tables.py"))["written"]
    assert page == written(page), "run `make docs`"


def test_the_types_of_tables_are_written_from_the_code() -> None:
    page = (DOCS / "tables.md").read_text()
    written = runpy.run_path(str(DOCS / "types_table.py"))["written"]
    assert page == written(page), "run `make docs`"


def test_the_reference_of_python_is_written_from_the_code() -> None:
    page = (DOCS / "python.md").read_text()
    written = runpy.run_path(str(DOCS / "python_reference.py"))["written"]
    assert page == written(page), "run `make docs`"


def test_every_test_that_a_promise_names_exists() -> None:
    page = (DOCS / "guarantees.md").read_text()
    links = re.findall(r"\[(test_\w+)(?:\.py)?\]\(\.\./(tests/\S+\.py)\)", page)
    assert len(links) > 25
    for name, path in links:
        code = (DOCS.parent / path).read_text()
        assert f"def {name}(" in code or path.endswith(f"/{name}.py"), f"{path} has no {name}"
    promises = [
        line for line in page.splitlines() if line.startswith("| ") and "promise" not in line
    ]
    assert all("](../tests/" in line for line in promises)


def test_every_example_stands_in_the_list_of_all_and_is_run_by_a_test() -> None:
    root = DOCS.parent
    page = (root / "examples" / "README.md").read_text()
    found = [*(root / "tests").rglob("test_*.py"), *(root / "tests").rglob("conftest.py")]
    tests = "".join(path.read_text() for path in sorted(found))
    for example in sorted(path.name for path in (root / "examples").iterdir() if path.is_dir()):
        assert f"]({example})" in page
        assert f'example("{example}")' in tests, f"no test runs {example}"


def test_the_page_of_commands_has_them_in_the_order_of_the_help() -> None:
    page = (DOCS / "commands.md").read_text()
    for panel in dict.fromkeys(command.panel for command in commands()):
        [section] = re.findall(rf"^## {panel}\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
        cells = re.findall(r"^\| (`nightshift [^|]+) \|", section, re.MULTILINE)
        named = [word.removeprefix("nightshift ") for cell in cells for word in CODE.findall(cell)]
        told = dict.fromkeys(word.split()[0] for word in named if word[0].islower())
        shown = [command.called for command in commands() if command.panel == panel]
        assert [word for word in told if word in shown] == shown
        assert set(told) - set(shown) <= {"run"}  # a flag that two commands have


def test_every_link_of_the_pages_leads_somewhere() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md"), *DOCS.parent.glob("examples/**/*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_page_of_metrics_has_every_exported_metric_with_type_labels_and_meaning() -> None:
    page = (DOCS / "metrics.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `nightshift_")]
    described = {row[0].strip("| `"): (row[1], labels(row[2]), row[4].rstrip(" |")) for row in rows}
    assert len(described) == len(rows)
    assert described == {
        name: (metric.kind, metric.labels, metric.meaning)
        for name, metric in exported.metrics().items()
    }
    for row in rows:
        base_unit = re.search(r"_(seconds|bytes|ratio)(_total)?`", row[0])
        assert base_unit is None or row[3] == base_unit[1], row[0]


def labels(cell: str) -> dict[str, set[str]]:
    """Labels and their values, of a cell like "`pool`, `state` (loading, ready)"."""
    found = re.findall(r"`(\w+)`(?: \(([^)]+)\))?", cell)
    return {name: set(filter(None, values.split(", "))) for name, values in found}


def test_no_page_names_a_metric_that_is_not_exported() -> None:
    metrics = exported.metrics()
    known = {*metrics, *(series for metric in metrics.values() for series in metric.series)}
    for page in DOCS.glob("*.md"):
        named = set(re.findall(r"\bnightshift_[a-z_]+\b", page.read_text()))
        named.discard("schema_version")  # Alembic's table
        assert named <= known, page.name


def test_every_setting_that_a_page_names_can_be_set() -> None:
    settings = {f"NIGHTSHIFT_{name.upper()}" for name in Settings.model_fields}
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md"), *DOCS.parent.glob("examples/**/*.md")]
    for page in pages:
        named = set(re.findall(r"NIGHTSHIFT_[A-Z_]*[A-Z]", page.read_text()))
        assert named <= settings, f"{page.name}: {named - settings}"


def test_the_readme_is_short_and_its_job_is_the_same_in_yaml_and_in_flags() -> None:
    page = (DOCS.parent / "README.md").read_text()
    assert len(page.splitlines()) <= 120
    [in_yaml] = re.findall(r'```yaml title="job.yaml"\n(.*?)```', page, re.DOTALL)
    [in_flags] = re.findall(r"^nightshift run (\S+ --id .*?)\n```", page, re.DOTALL | re.MULTILINE)
    source, *flags = shlex.split(in_flags.replace("\\\n", " "))
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    choice = given.pop("--choice")
    said = Flags(choice=[choice], **{name.strip("-"): value for name, value in given.items()})  # type: ignore[arg-type]
    assert job_spec(source, said) == spec.JobSpec.model_validate(yaml.safe_load(in_yaml))


def test_the_door_for_programs_opens_with_files_that_are_there() -> None:
    from nightshift.producer.serve import model_table

    root = DOCS.parent
    page = (DOCS / "batch-api.md").read_text()
    [table] = re.findall(r"NIGHTSHIFT_SERVE_MODELS=(examples\S+)", page)
    [code] = re.findall(r"```python\n(from openai.*?)```", page, re.DOTALL)
    [requests] = re.findall(r'open\("(examples.*?)"', page)
    served = model_table.load(root / table)
    bodies = [json.loads(row)["body"] for row in (root / requests).read_text().splitlines()]
    assert {body["model"] for body in bodies} <= set(served.models)
    [engine] = [served.models[name].engine for name in {body["model"] for body in bodies}]
    assert (Path(engine.model_dump()["model"]) / "config.json").is_file()
    compile(code, "batch-api.md", "exec")


PATH = re.compile(
    r"(?<![\w./<{-])(?:common|producer|worker|nightshift|tests|benchmarks|docs|k8s|observe|examples)"
    r"/[\w./-]*\w"
)


MADE = re.compile(
    r"nightshift/(control|pool|worker-[cg]pu)$"  # images, a label and a module's name
    r"|k8s/overlays/(mine|cpu-demo/secrets\.env)|examples/reviews/(data|out)|NAME|/\.|__pycache__"
)
"""What users and builds make, and what a text writes like a path."""


def test_every_path_of_the_repository_that_a_text_names_exists() -> None:
    root = DOCS.parent
    named = {
        (str(file.relative_to(root)), path)
        for top in sorted(root.iterdir())
        if top.name != ".venv"
        for file in (top, *top.rglob("*"))
        if file.suffix in {".md", ".py", ".yaml", ".yml", ".toml"} and file.is_file()
        for path in PATH.findall(file.read_text())
        if not MADE.search(path)
    }
    assert len(named) > 100
    assert [
        (file, path)
        for file, path in sorted(named)
        if not (root / path).exists() and not (root / f"{path}.py").exists()
    ] == []


def test_every_word_of_the_glossary_is_explained_in_two_sentences_at_most() -> None:
    page = (DOCS / "glossary.md").read_text()
    rows = re.findall(r"^\| ([\w -]+) \| (.+) \|$", page, re.MULTILINE)[1:]
    assert len(rows) >= 25
    assert [word for word, _ in rows] == sorted(word for word, _ in rows)
    for word, meaning in rows:
        assert len(re.findall(r"[.?!](?= [A-Z`]|$)", meaning)) <= 2, word


def test_every_picture_of_the_pages_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").iterdir()}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > 150_000} == {}


def test_every_target_of_the_makefile_says_who_runs_it() -> None:
    root = DOCS.parent
    targets = set(re.findall(r"^([a-z-]+):.*##", (root / "Makefile").read_text(), re.MULTILINE))
    section = (DOCS / "map.md").read_text().partition("\n## Checks\n")[2]
    named = set(re.findall(r"`make ([a-z-]+)`", section))
    benchmarks = {each for each in targets if each.startswith("bench")}
    assert named - benchmarks == targets - benchmarks
    (listed,) = re.findall("for target in (.*); do", (root / ".ci" / "run").read_text())
    row = next(line for line in section.splitlines() if "`.ci/run`" in line)
    assert set(re.findall(r"`make ([a-z-]+)`", row)) == set(listed.split())
