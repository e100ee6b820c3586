"""Any value of a column becomes a short text that cannot steer a terminal."""

from datetime import UTC, datetime

import pytest

from nightshift.producer.results.sample import distinct_names
from nightshift.producer.views.values import error_text, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("word", "word"),
        (3, "3"),
        (True, "True"),
        (0.1 + 0.2, "0.3"),
        (b"\x00\x01", "(2 bytes)"),
        ([0.5] * 384, "[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, … 384 numbers]"),
        ([1, 2], "[1, 2]"),
        ({"score": 1, "why": "ü"}, '{"score": 1, "why": "ü"}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '{"at": "2026-01-02T00:00:00+00:00"}'),
        ({"raw": b"abc"}, '{"raw": "(3 bytes)"}'),
        ("\x1b[31m\u202edrow", "\ufffd[31m\ufffddrow"),
        ("x" * 30, "xxxxxxxxxxxxxxxxxxxx… (30 characters)"),
    ],
)
def test_a_value_is_shown_short_and_harmless(value: object, text: str) -> None:
    assert value_text(value, 20 if value == "x" * 30 else 1000) == text


def test_an_error_is_its_kind_and_message() -> None:
    assert error_text(None) == ""
    assert error_text({"kind": "truncated", "message": "cut\x1b"}) == "truncated: cut\ufffd"


def test_an_input_column_with_the_name_of_an_answer_gets_another() -> None:
    names = distinct_names(["id", "output", "input_output", "text"], {"output", "loud"})
    assert names == {
        "id": "id",
        "output": "input_input_output",
        "input_output": "input_output",
        "text": "text",
    }
