"""Which code made a part, and whose lines it took over."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.common import provenance
from nightshift.common.descriptor import RowRanges
from nightshift.common.spec import parse_spec


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    provenance.code_version.cache_clear()
    yield
    provenance.code_version.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    class Found:
        version = "1.2"

        def read_text(self, name: str) -> str | None:
            return None if origin is None or name != "direct_url.json" else json.dumps(origin)

    monkeypatch.setattr(provenance, "distribution", lambda _name: Found())


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_code_from_an_index_has_its_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert provenance.code_version() == "1.2"


def test_code_installed_from_git_names_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {"url": "https://x/y", "vcs_info": {"commit_id": "0123456789abcdef"}})
    assert provenance.code_version() == "1.2+0123456789ab"


def test_code_of_a_working_tree_names_its_commit_and_whether_it_was_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "a tree"
    folder.mkdir()
    installed(monkeypatch, {"url": folder.as_uri(), "dir_info": {"editable": True}})
    assert provenance.code_version() == "1.2"
    git(folder, "init", "-q")
    (folder / "code").write_text("1")
    git(folder, "add", "code")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "a-tag-that-does-not-count")
    commit = git(folder, "rev-parse", "HEAD")[:12]
    provenance.code_version.cache_clear()
    assert provenance.code_version() == f"1.2+{commit}"
    (folder / "code").write_text("2")
    assert provenance.code_version() == f"1.2+{commit}"
    provenance.code_version.cache_clear()
    assert provenance.code_version() == f"1.2+{commit}.dirty"


def test_a_part_over_parts_says_of_each_line_who_made_it() -> None:
    spec = parse_spec(
        {
            "name": "j",
            "input": {"uri": "x"},
            "task": {"kind": "generate", "prompt": "{{ a }}", "sampling": {"temperature": 0.5}},
            "engine": {"backend": "vllm", "model": "M"},
            "output": {"uri": "y"},
        },
        "test",
    )
    job = provenance.of_job(7, spec)
    assert (job["model"], json.loads(job["spec_task"])["sampling"]["temperature"]) == ("M", 0.5)
    first = {**job, "attempt": "1", "engine_version": "0.31"}
    second = provenance.with_kept({**job, "attempt": "2"}, RowRanges.of((3, 5), (9, 10)), first)
    third = provenance.with_kept({**job, "attempt": "3"}, RowRanges.of((4, 5)), second)
    assert json.loads(third["rows_redone"]) == [[4, 5]]
    kept = json.loads(third["kept"])
    assert (kept["attempt"], json.loads(kept["rows_redone"])) == ("2", [[3, 5], [9, 10]])
    oldest = json.loads(kept["kept"])
    assert (oldest["attempt"], oldest["engine_version"]) == ("1", "0.31")
    assert "spec_task" not in oldest
