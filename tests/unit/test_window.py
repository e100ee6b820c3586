"""The window: how much a child holds in flight."""

import threading
from dataclasses import replace

from nightshift.common.descriptor import Descriptor, RowRanges, SourceFile
from nightshift.common.ledger.batches.records import Lease
from nightshift.worker.held_batch import HeldBatch
from nightshift.worker.runner import _groups
from nightshift.worker.window import Window

SOURCE = SourceFile("/rows.parquet", "parquet", 1, "1", 1000, 0)
LEASE = Lease(
    batch_id=1,
    attempt=1,
    owner="w",
    job_id=1,
    seq=0,
    descriptor=Descriptor(SOURCE, RowRanges.of((0, 10))),
    alone=False,
    isolated=False,
    redo=None,
    kept_part=None,
)


def held(rows: int, *, alone: bool = False) -> HeldBatch:
    return HeldBatch(replace(LEASE, alone=alone), rows)


def test_two_batches_always_fit_so_that_the_next_is_read_while_one_runs() -> None:
    window = Window(rows=4)
    window.add(held(100))
    assert window.room()[0] == 1
    window.add(held(100))
    assert window.room() == (0, 0)


def test_small_batches_fill_the_window_up_to_its_rows() -> None:
    window = Window(rows=4)
    for expected in (4, 3, 2, 1):
        assert window.room()[0] == expected
        window.add(held(1))
    assert window.room() == (0, 0)


def test_finished_rows_make_room_before_their_batch_is_committed() -> None:
    window = Window(rows=4)
    first, second = held(3), held(3)
    window.add(first)
    window.add(second)
    assert window.room() == (0, 0)
    window.row_finished(first, 3)
    assert window.room()[0] == 1


def test_a_row_counts_once_for_each_of_its_samples() -> None:
    window = Window(rows=100)
    first = held(5)
    window.add(first)
    window.weigh(first, 10)
    assert window.room()[0] == 5, "50 more sequences, which are 5 rows like these"
    second = held(5)
    window.add(second)
    window.weigh(second, 10)
    assert window.room() == (0, 0)
    window.row_finished(first, 3)
    assert window.room()[0] == 3
    window.remove(first)
    window.remove(second)
    assert window.work()[0] == 0
    assert window.room()[0] == 10


def test_rows_with_samples_are_handed_out_by_rows_while_little_is_left() -> None:
    window = Window(rows=100)
    window.bound(8)
    batch = held(5)
    window.add(batch)
    window.weigh(batch, 10)
    assert window.room()[0] == 3


def test_little_that_is_left_is_shared_and_nothing_is_read_ahead() -> None:
    window = Window(rows=100)
    window.bound(20)
    assert window.room()[0] == 20
    batch = held(20)
    window.add(batch)
    assert window.room() == (0, 0)
    assert window.holds_its_share
    window.row_finished(batch, 5)
    assert window.room()[0] == 5
    window.bound(None)
    assert window.room()[0] == 85
    assert not window.holds_its_share


def test_a_share_beyond_the_window_bounds_nothing() -> None:
    window = Window(rows=4)
    window.bound(4)
    window.add(held(4))
    assert window.room()[0] == 1
    assert not window.holds_its_share


def test_who_waits_with_its_share_asks_again_after_a_while() -> None:
    window = Window(rows=100)
    window.bound(5)
    window.add(held(5))
    assert window.wait_for_room()
    assert window.room() == (0, 0)


def test_a_lone_batch_takes_all_the_room() -> None:
    window = Window(rows=100)
    batch = held(1, alone=True)
    window.add(batch)
    assert window.room() == (0, 0)
    window.remove(batch)
    assert window.room()[0] == 100


def test_a_waiting_thread_wakes_when_rows_finish() -> None:
    window = Window(rows=1)
    first = held(1)
    window.add(first)
    window.add(held(1))
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(window.wait_for_room()))
    thread.start()
    window.row_finished(first)
    thread.join(100)
    assert woken == [True]


def test_a_closed_window_wakes_who_waits_and_gives_no_room() -> None:
    window = Window(rows=1)
    window.add(held(5))
    window.add(held(5))
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(window.wait_for_room()))
    thread.start()
    window.close()
    thread.join(100)
    assert woken == [False]
    assert window.room() == (0, 0)


def test_small_batches_of_one_job_are_carried_together() -> None:
    remote = replace(LEASE.descriptor, source=replace(SOURCE, uri="s3://bucket/rows.parquet"))
    batches = [
        held(4),
        held(4),
        held(4),
        HeldBatch(replace(LEASE, job_id=2), 1),
        held(50),
        held(1),
        HeldBatch(replace(LEASE, descriptor=remote), 1),
        HeldBatch(replace(LEASE, descriptor=remote), 1),
    ]
    found = [[batch.unfinished for batch in group] for group in _groups(batches, 10)]
    assert found == [[4, 4], [4], [1], [50], [1], [1], [1]]
    assert [len(group) for group in _groups(batches[:3], 0)] == [1, 1, 1]
    assert list(_groups([], 10)) == []


def test_rows_that_come_after_their_batch_is_over_count_nowhere() -> None:
    window = Window(rows=4)
    batch, other = held(3), held(1)
    window.add(batch)
    window.add(other)
    window.remove(batch)
    window.row_finished(batch)
    window.remove(batch)
    assert batch.unfinished == 0
    assert window.room()[0] == 3
