"""Reading ahead: the same items, errors in their place, no further than it may."""

import threading

import pytest

from nightshift.producer.results.part_files import read_ahead


def test_every_item_comes_once_and_in_order():
    assert list(read_ahead(iter(range(100)), 4)) == list(range(100))
    assert list(read_ahead(iter([]), 4)) == []


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise ValueError("torn")

    ahead = read_ahead(items(), 8)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="torn"):
        next(ahead)


def test_no_more_than_so_many_are_taken_ahead():
    taken, third = [], threading.Event()

    def items():
        for number in range(10):
            taken.append(number)
            if number == 3:
                third.set()
            yield number

    ahead = read_ahead(items(), 3)
    assert next(ahead) == 0
    assert third.wait(60)
    assert taken == [0, 1, 2, 3]
    ahead.close()


def test_it_reads_while_the_item_before_is_used():
    entered, used = threading.Event(), threading.Event()

    def items():
        yield "first"
        entered.set()
        assert used.wait(60)
        yield "second"

    ahead = read_ahead(items(), 1)
    assert next(ahead) == "first"
    assert entered.wait(60)
    used.set()
    assert next(ahead) == "second"
