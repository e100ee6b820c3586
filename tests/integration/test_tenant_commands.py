"""`nightshift key` and `nightshift tenant`: who may come in, and what a tenant may do."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner, Result

from nightshift.common.ledger import Ledger
from nightshift.producer.cli.app import app
from nightshift.producer.serve.ledger import keys, tenants
from tests.support.world import World

Command = Callable[..., Result]


@pytest.fixture
def nightshift(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def who(ledger: Ledger, key: str) -> keys.Caller | None:
    with ledger.transaction() as connection:
        return keys.find(connection, key)


def test_a_key_is_shown_once_and_opens_until_it_is_revoked(
    nightshift: Command, ledger: Ledger
) -> None:
    made = nightshift("key", "create", "--tenant", "acme", "--role", "viewer", "--name", "graphs")
    key = made.stdout.strip()
    assert made.stderr == "key 1: viewer of the new tenant acme; kept as a hash only\n"
    found = who(ledger, key)
    assert found is not None
    assert (found.tenant, found.role, found.name) == ("acme", "viewer", "key 1 graphs")
    assert key not in nightshift("key", "list").stdout + nightshift("key", "list", "--json").stdout
    assert nightshift("key", "revoke", "1").stdout == "key 1: revoked, it opens nothing any more\n"
    assert who(ledger, key) is None
    assert nightshift("key", "revoke", "1").stdout == "key 1: it was revoked before\n"
    (listed,) = json.loads(nightshift("key", "list", "--tenant", "acme", "--json").stdout)
    assert listed["state"] == "revoked"
    assert nightshift("key", "revoke", "7").exit_code == 2


def test_a_key_ends_by_itself(nightshift: Command, world: World) -> None:
    given = nightshift("key", "create", "--tenant", "acme", "--expires", "90d", "--json")
    made = json.loads(given.stdout)
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    assert who(world.ledger, made["key"]) is not None
    world.ask("UPDATE api_keys SET expires_at = now() RETURNING 1")
    assert who(world.ledger, made["key"]) is None
    (listed,) = json.loads(nightshift("key", "list", "--json").stdout)
    assert listed["state"] == "expired"


def test_limits_of_a_tenant_change_and_the_audit_log_says_so(
    nightshift: Command, world: World
) -> None:
    said = nightshift(
        *("tenant", "set", "acme", "--weight", "2", "--max-priority", "5", "--pool", "a"),
        *("--pool", "b", "--max-rows", "1000", "--budget", "12.5", "--root", "s3://acme/x/"),
        *("--callables", "--no-remotes", "--max-files", "9", "--max-bytes", "5000"),
    )
    assert said.stdout == (
        "tenant acme: weight 1 -> 2, max_priority 0 -> 5, pools none -> a, b, max_rows none -> "
        "1000, max_files none -> 9, max_bytes none -> 5000, budget none -> 12.5, roots none -> s3://acme/x, callables False -> True; a new "
        "tenant; what its jobs spend counts from now on\n"
    )
    taken = (
        "--pool",
        "none",
        "--max-rows",
        "none",
        "--budget",
        "none",
        "--root",
        "none",
        "--max-files",
        "none",
        "--max-bytes",
        "none",
    )
    assert nightshift("tenant", "set", "acme", *taken).exit_code == 0
    assert nightshift("tenant", "set", "acme", "--weight", "2").stdout == (
        "tenant acme: nothing changed\n"
    )
    with world.ledger.transaction() as connection:
        found = tenants.get(connection, "acme")
    assert found is not None
    assert (found.pools, found.max_rows, found.budget, found.roots) == (None, None, None, ())
    assert (found.max_files, found.max_bytes) == (None, None)
    assert (found.weight, found.max_priority, found.callables) == (2.0, 5, True)
    (listed,) = json.loads(nightshift("tenant", "list", "--json").stdout)
    assert (listed["name"], listed["max_priority"]) == ("acme", 5)
    assert "acme" in nightshift("tenant", "list").stdout
    rows = world.ask(
        "SELECT subject, detail FROM audit_log WHERE action = 'tenant set' ORDER BY id"
    )
    assert [row.subject for row in rows] == ["tenant acme"] * 2
    assert rows[1].detail["max_rows"] == [1000, None]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("tenant", "set", "../acme", "--weight", "2"), id="a path as a name"),
        pytest.param(("key", "create", "--tenant", "a b"), id="a blank in a name"),
        pytest.param(("key", "create", "--tenant", "a" * 64), id="a long name"),
        pytest.param(("key", "create", "--tenant", "a", "--role", "root"), id="no role"),
        pytest.param(("key", "create", "--tenant", "a", "--expires", "soon"), id="no moment"),
        pytest.param(("tenant", "set", "a"), id="no change"),
        pytest.param(("tenant", "set", "a", "--weight", "0"), id="no weight"),
        pytest.param(("tenant", "set", "a", "--weight", "nan"), id="no number"),
        pytest.param(("tenant", "set", "a", "--max-priority", "1.5"), id="half a priority"),
        pytest.param(("tenant", "set", "a", "--max-rows", "1e99"), id="more rows than fit"),
        pytest.param(("tenant", "set", "a", "--budget", "-1"), id="a debt"),
        pytest.param(("tenant", "set", "a", "--pool", "a/b"), id="no pool"),
        pytest.param(("tenant", "set", "a", "--root", "ftp://x"), id="no folder"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    nightshift: Command, world: World, arguments: tuple[str, ...]
) -> None:
    refused = nightshift(*arguments)
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1
    assert world.ask("SELECT count(*) AS tenants FROM tenants")[0].tenants == 0
