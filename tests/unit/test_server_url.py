"""The server that a URL of the ledger or the broker names, as messages say it: the one that is asked, and
no password.
"""

import pytest

from nightshift.common.broker import Announcer, ping
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:secret@db.example/ns", "db.example:5432/ns"),
        ("postgresql://u:secret@db.example:6432/ns", "db.example:6432/ns"),
        ("postgresql://u:secret@[::1]:5433/ns", "[::1]:5433/ns"),
        ("postgresql://u:sec%40ret@h/n%20s", "h:5432/n s"),
        ("postgresql://u@h/ns?password=secret", "h:5432/ns"),
        ("postgresql://u@h?hostaddr=10.0.0.1", "10.0.0.1:5432/u"),
        ("postgresql://postgres@/ns?host=/dir&port=54399", "/dir/.s.PGSQL.54399 (ns)"),
        ("postgresql://postgres@/ns?host=%2Fdir%20x&port=1", "/dir x/.s.PGSQL.1 (ns)"),
        ("postgresql://u:secret@%2Frun%2Fpg/ns", "/run/pg/.s.PGSQL.5432 (ns)"),
        ("postgresql://u@/?dbname=ns&host=/x", "/x/.s.PGSQL.5432 (ns)"),
        ("postgresql://u@/ns?host=@abstract", "@abstract/.s.PGSQL.5432 (ns)"),
        ("postgresql://u:secret@/ns?host=a:1&host=b:2", "a:1,b:2/ns"),
        ("postgresql://u:secret@/ns?host=a,b&port=1,2", "a:1,b:2/ns"),
        ("postgresql://u:secret@/ns?host=/x&host=b", "/x/.s.PGSQL.5432,b:5432 (ns)"),
        ("postgresql://u@/ns?service=prod", "the service prod (ns)"),
        ("postgresql:///ns", "the local socket of port 5432 (ns)"),
    ],
)
def test_a_message_names_the_server_that_libpq_asks(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert Ledger(url).place == place


def test_what_the_url_leaves_open_is_where_libpq_takes_it_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "/run/pg")
    monkeypatch.setenv("PGPORT", "6000")
    assert Ledger("postgresql:///ns").place == "/run/pg/.s.PGSQL.6000 (ns)"
    assert Ledger("postgresql://h:1/ns").place == "h:1/ns"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sec@ret@host/ns",
        "postgresql://u:pass@host:secret/ns",
        "postgresql://u:pass@a:1,b:2/secret",
        "postgresql://u:secret@/ns?host=a,b,c&port=1,2",
        "mysql://u:secret@host/ns",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_a_piece_of_it(url: str) -> None:
    with pytest.raises(BadInput, match="NIGHTSHIFT_DATABASE_URL") as error:
        Ledger(url)
    assert not any(piece in str(error.value) for piece in ("secret", "ret@", "pass@"))


@pytest.mark.parametrize(
    "url",
    ["foo://:secret@host", "redis://:pa/secret@host", "sentinel://:secret@127.0.0.1:26379"],
)
def test_a_broker_url_of_something_else_is_one_sentence_for_commands_and_reapers(url: str) -> None:
    with pytest.raises(BadInput, match="NIGHTSHIFT_BROKER_URL is no redis:// URL") as error:
        ping(url)
    assert "secret" not in str(error.value)
    with pytest.raises(BadInput, match="NIGHTSHIFT_BROKER_URL is no redis:// URL"):
        Announcer(url).top_up("default", "key", 1, 1, float("inf"))
