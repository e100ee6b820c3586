"""What workers and reapers tell of the outages that they wait for, many at a time."""

from collections.abc import Callable

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.fleet import outages
from nightshift.common.ledger.fleet.outages import Kind, Teller, Wait


def test_who_tells_waits_for_nobody_that_takes_back_what_lapsed_long_ago(
    second_ledger: Callable[[], Ledger],
) -> None:
    """Two that deleted the same rows waited for each other."""
    ledgers = [second_ledger() for _ in range(2)]
    wait = [Wait(Kind.STORAGE, None, 5, "no room")]
    with ledgers[0].transaction() as connection:
        for who in ("gone", "a", "b"):
            outages.tell(connection, Teller(who, "host"), wait)
        connection.exec_driver_sql(
            "UPDATE outages SET until = now() - interval '2 hours' WHERE who = 'gone'"
        )
    with ledgers[0].transaction() as first, ledgers[1].transaction() as second:
        second.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        outages.tell(first, Teller("a", "host"), wait)
        outages.tell(second, Teller("b", "host"), [])
    with ledgers[0].transaction() as connection:
        left = connection.exec_driver_sql("SELECT who FROM outages").scalars().all()
    assert left == ["a"]
