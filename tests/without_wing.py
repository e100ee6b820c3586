"""Shows that the core lives without a wing: in a copy of the tree without the wing's folder and its name in
`wings.INSTALLED`, every test of `make test` passes that is not about the wing. Run by `make without-wings`.

    python -m tests.without_wing judge tune archive serve
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).parents[1]

ALL_WINGS = (
    "unit/test_advice.py::test_every_command_that_a_sentence_names",
    "matrix/test_matrix.py::test_every_command_and_route",
    "unit/test_docs.py::test_every_path_of_the_repository",
    "unit/test_docs.py::test_the_page_of_commands_has_them",
    "unit/test_docs.py::test_the_page_of_metrics_has_every_exported",
    "unit/test_mutants.py",
)
"""Tests of lists that have an entry of each wing: sentences that name a command of it, paths in docs, the
duties that are counted, the protections."""

ABOUT = {
    "draft": (
        "unit/test_cli.py::test_every_command_explains_itself[init]",
        "unit/test_cli.py::test_help_begins_with_the_first_week",
        "unit/test_cli.py::test_help_names_every_command",
        "unit/test_draft.py",
    ),
    "judge": (
        "integration/test_judge",
        "unit/test_cli.py::test_every_command_explains_itself[judge]",
        "unit/test_cli.py::test_help_names_every_command",
        "unit/test_cli.py::test_without_a_ledger_a_command_says_so_in_one_sentence[judge]",
        "unit/test_scores.py",
    ),
    "tables": ("integration/test_table_", "matrix/test_matrix.py::test_each_command"),
    "tune": (
        "integration/test_trials.py",
        "integration/test_tune_pool.py",
        "integration/test_tunings.py",
        "unit/test_halving.py",
        "unit/test_tune.py",
        "unit/test_tune_arguments.py",
    ),
    "archive": (
        "integration/test_client_expectations.py::"
        "test_results_that_are_deleted_or_archived_are_not_streamed",
        "integration/test_delete_archived.py",
        "integration/test_retention",
        "integration/test_serve_plans.py::test_what_reads_an_archive_runs_in_threads",
    ),
    "serve": (
        "deploy/test_k8s.py",
        "faults/test_door.py",
        "integration/test_access.py",
        "integration/test_api_",
        "integration/test_batch_api.py",
        "integration/test_batch_creates.py",
        "integration/test_batch_duties.py",
        "integration/test_batch_ends.py",
        "integration/test_client_expectations.py",
        "integration/test_console",
        "integration/test_explain_tenants.py",
        "integration/test_inspect.py::test_every_command_that_prints_a_table_has_json",
        "integration/test_serve_",
        "integration/test_tenant_",
        "integration/test_webhook",
        "matrix/",
        "unit/test_advice.py::test_a_command_that_its_program_refuses_is_found[nightshift key",
        "unit/test_advice.py::test_a_command_that_its_program_refuses_is_found[nightshift tenant",
        "unit/test_advice.py::test_the_search_for_commands_finds_those_of_every_kind",
        "unit/test_batch_file.py",
        "unit/test_docs.py::test_the_door_of_the_readme",
        "unit/test_limits.py",
        "unit/test_restarts.py",
        "unit/test_serve_start.py",
        "unit/test_webhooks.py",
    ),
}
"""Tests that are about a wing, by how their names below tests/ begin: they cannot pass without its folder."""


def copied(home: Path) -> None:
    """A copy of what Git keeps or would keep."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HOME,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = HOME / name, home / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def without(wing: str, home: Path) -> None:
    """Takes a wing out of a copy."""
    shutil.rmtree(home / "producer" / wing)
    table = home / "producer" / "wings.py"
    before = table.read_text()
    after, removed = re.subn(rf'^ *"{wing}",\n', "", before, flags=re.MULTILINE)
    assert removed == 1, f"wings.INSTALLED has {removed} lines for {wing}"
    table.write_text(after)


def red(said: str) -> list[str]:
    """The tests, and the files whose import failed, that pytest's summary names."""
    return re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", said, re.MULTILINE)


def unexpected(wing: str, tests: Sequence[str] = ("tests",)) -> list[str]:
    """Runs those of the `tests` that `make test` runs, without a wing; returns the names of tests that failed and are
    not about the wing.
    """
    with tempfile.TemporaryDirectory(prefix=f"without-{wing}-") as folder:
        home = Path(folder)
        copied(home)
        without(wing, home)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-n", "4"]
        options = ["--dist", "loadscope", "--continue-on-collection-errors", "-m", "not slow"]
        done = subprocess.run(
            [*command, *options, *tests],
            cwd=home,
            env={**os.environ, "PYTHONPATH": folder, "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=False,
        )
    names = red(done.stdout)
    about = (*ABOUT[wing], *ALL_WINGS)
    left = [name for name in names if not name.removeprefix("tests/").startswith(about)]
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    print(f"without {wing}: {last}; {len(names)} red, {len(left)} of them not about it", flush=True)
    if left or " passed" not in last:
        print(done.stdout[-20_000:])
        return left or [last]
    return []


def main() -> int:
    """1 where the core does not live without one of the wings."""
    failed = {wing: unexpected(wing) for wing in sys.argv[1:] or ABOUT}
    for wing, names in failed.items():
        print("".join(f"not about {wing}: {name}\n" for name in names), end="")
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
