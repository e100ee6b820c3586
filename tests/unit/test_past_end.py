"""What a submit finds of a job that is over: which files of its function changed."""

import hashlib
from pathlib import Path

import pytest

from nightshift.producer.results.past_end import changed_files


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KNOWN = {"rules.py": digest("one"), "pkg/words.py": digest("two")}


@pytest.mark.parametrize(
    ("known", "files", "changed"),
    [
        ([KNOWN], {"rules.py": "one", "pkg/words.py": "two"}, []),
        ([KNOWN], {"rules.py": "one", "pkg/words.py": "2"}, ["pkg/words.py"]),
        ([KNOWN], {"rules.py": "one"}, ["pkg/words.py"]),
        # Some rows ran with the code of before.
        (
            [KNOWN, {"rules.py": digest("1")}],
            {"rules.py": "one", "pkg/words.py": "two"},
            ["rules.py"],
        ),
        # The code of a fleet lies on its workers.
        ([KNOWN], {}, []),
        ([], {"rules.py": "one"}, []),
    ],
)
def test_a_file_changed_that_is_not_as_some_rows_ran_with_it(
    tmp_path: Path, known: list[dict[str, str]], files: dict[str, str], changed: list[str]
) -> None:
    for name, text in files.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert changed_files(known, [str(tmp_path / "none"), str(tmp_path / "code")]) == changed
