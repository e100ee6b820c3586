"""What headers of a server ask for, in seconds."""

import time
from email.utils import formatdate

import pytest

from nightshift.worker.engines.openai.errors import hinted_pause, redactor, spent_limit


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2.5"}, 2.5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "later"}, None),
        ({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "9s"}, None),
        ({"x-ratelimit-reset-requests": "9s"}, None),
    ],
)
def test_a_server_is_understood_in_each_way_it_may_speak(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert hinted_pause(headers) == (None if seconds is None else pytest.approx(seconds))


def test_a_date_is_waited_for() -> None:
    pause = hinted_pause({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert pause is not None
    assert 50 < pause <= 60


def test_the_later_of_two_limits_counts() -> None:
    headers = {
        f"x-ratelimit-{what}": value
        for what, value in {
            "remaining-requests": "0",
            "reset-requests": "1s",
            "remaining-tokens": "0",
            "reset-tokens": "1m",
        }.items()
    }
    assert spent_limit(headers) == 60


def test_the_key_is_taken_out_of_what_a_server_says() -> None:
    assert redactor("sk-1")("no such key sk-1, sk-1!") == "no such key ***, ***!"
    assert redactor("")("as it is") == "as it is"
