"""`nightshift run` waits for the embedded Postgres that it started, and for nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.common.errors import LedgerUnavailable, LedgerUnreachable
from nightshift.common.ledger import Ledger
from nightshift.producer.embedded.postgres import EmbeddedPostgres
from nightshift.producer.local import machine

SILENT = LedgerUnreachable("no answer")
DISK_FULL = LedgerUnavailable("Postgres gave up on a statement: No space left on device")


@pytest.mark.parametrize(
    ("has_server", "runs", "errors", "raised"),
    [
        (True, [], [], None),
        (True, [True, True], [SILENT, SILENT], None),
        (True, [True, False], [SILENT, SILENT], SILENT),
        (True, [True], [SILENT, DISK_FULL], DISK_FULL),
        (False, [], [SILENT], SILENT),
    ],
    ids=["answers", "silent twice", "ended", "disk full", "not ours"],
)
def test_only_a_silent_postgres_of_this_process_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    has_server: bool,
    runs: list[bool],
    errors: list[Exception],
    raised: Exception | None,
) -> None:
    server = EmbeddedPostgres()
    states: Iterator[bool] = iter(runs)
    monkeypatch.setattr(server, "runs", lambda: next(states))
    monkeypatch.setattr(machine, "RETRY_SECONDS", 0)
    outcomes = iter([*errors, None])
    calls = []

    def prepare(*given: Any) -> None:
        calls.append(given)
        if (error := next(outcomes)) is not None:
            raise error

    monkeypatch.setattr(machine, "_prepare", prepare)
    ledger = Ledger("postgresql://nobody@127.0.0.1:1/none")
    servers: list[Any] = [server] if has_server else []
    if raised is None:
        machine._prepare_once_reachable(ledger, tmp_path, servers)
    else:
        with pytest.raises(type(raised)) as found:
            machine._prepare_once_reachable(ledger, tmp_path, servers)
        assert found.value is raised
    assert len(calls) == len(errors) + (raised is None)
