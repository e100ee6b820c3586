"""The sentence about the versions that made the rows of a job."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from nightshift.common.ledger.engines.engine_versions import Version
from nightshift.producer.views.versions import Versions, by_version

BEGAN = datetime(2026, 11, 28, 10, 2).astimezone()


def version(rows: int, *, hours: int = 0, engine: str = "1", **given: Any) -> Version:
    code, revision = given.get("code", {}), given.get("revision")
    return Version("vllm", engine, revision, code, rows, BEGAN + timedelta(hours=hours))


A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], None),
        ([version(7, code={"rules.py": A})], None),
        (
            [
                version(250_000, code={"rules.py": A}),
                version(50_500, hours=1, code={"rules.py": B}),
            ],
            "rules.py: 250,000 of aaaaaaaa (first used 2026-11-28 10:02), 50,500 of bbbbbbbb (first used "
            "2026-11-28 11:02)",
        ),
        # Of several files those that differ, and one that came later.
        (
            [
                version(1, code={"rules.py": A, "words.py": A}),
                version(2, code={"rules.py": A, "words.py": B, "new.py": C}),
            ],
            "new.py, words.py: 1 of none+aaaaaaaa (first used 2026-11-28 10:02), 2 of cccccccc+bbbbbbbb "
            "(first used 2026-11-28 10:02)",
        ),
        (
            [version(1, engine="0.11"), version(2, engine="0.12")],
            "the engine: 1 of vllm 0.11 (first used 2026-11-28 10:02), 2 of vllm 0.12 (first used 2026-11-28 10:02)",
        ),
        (
            [version(1, revision=A), version(2, revision=B)],
            "the model: 1 of aaaaaaaa (first used 2026-11-28 10:02), 2 of bbbbbbbb (first used 2026-11-28 10:02)",
        ),
        (
            [version(1, engine="0.11", revision=A), version(2, engine="0.12", revision=B)],
            "the engine and the model: 1 of vllm 0.11 aaaaaaaa (first used 2026-11-28 10:02), 2 of vllm 0.12 "
            "bbbbbbbb (first used 2026-11-28 10:02)",
        ),
    ],
)
def test_what_differs_between_versions_is_named_with_the_rows_of_each(
    found: list[Version], said: str | None
) -> None:
    assert by_version(found) == said
    assert (Versions(found).text is None) == (said is None)


def test_of_many_versions_the_last_are_named_and_the_rows_of_the_others_added_up() -> None:
    many = [version(10 + at, engine=str(at)) for at in range(8)]
    said = by_version(many)
    assert said is not None
    assert said.startswith("the engine: 33 of 3 earlier versions, 13 of vllm 3 (first used")
