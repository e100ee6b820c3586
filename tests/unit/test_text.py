"""What text may hold, decided in one place: NULs, half characters, control characters, money, rates, durations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.common import text

any_text = st.text(st.characters(codec=None, categories=["L", "Cs", "Cc", "Z"]))


@given(any_text)
def test_an_escaped_text_can_be_stored_and_one_that_could_be_is_not_changed(
    given_text: str,
) -> None:
    stored = text.escaped(given_text)
    assert text.unstorable(stored) is None
    assert (stored == given_text) == (text.unstorable(given_text) is None)


@given(any_text)
def test_a_text_of_whole_characters_is_utf8_and_as_long(given_text: str) -> None:
    whole = text.whole_characters(given_text)
    assert len(whole) == len(given_text)
    assert not text.has_half_characters(whole)
    assert whole == given_text or text.has_half_characters(given_text)


@given(
    st.text(
        st.one_of(
            st.characters(codec="utf-8"),
            st.sampled_from("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
        )
    )
)
def test_json_in_one_line_is_one_line_for_every_reader_and_says_the_same(given_text: str) -> None:
    said = text.json_line(json.dumps({given_text: given_text}, ensure_ascii=False))
    assert said.splitlines() == [said]
    assert json.loads(said) == {given_text: given_text}


def test_a_message_is_escaped_first_and_then_cut() -> None:
    kept = text.kept_message("\x00" * text.MESSAGE_CHARACTERS)
    assert len(kept) == text.MESSAGE_CHARACTERS
    assert kept.startswith("\\x00\\x00")
    assert kept.endswith("…")


def test_keys_and_texts_of_any_depth_become_json_that_postgres_holds() -> None:
    held = text.storable({"a\x00": ["b\ud800", ("c", 1)], "whole": None})
    assert held == {"a\\x00": ["b\\ud800", ["c", 1]], "whole": None}


def test_keys_and_values_of_any_depth_are_changed() -> None:
    changed = text.map_leaves({"a": ["b", ("c", 1)]}, lambda leaf: leaf * 2)
    assert changed == {"aa": ["bb", ["cc", 2]]}


def test_what_steers_a_terminal_or_makes_a_line_is_marked() -> None:
    assert text.one_line("a\x1b[31m\nb\u202e") == f"a{text.MARK}[31m b{text.MARK}"
    assert text.printable("tab\tand\nnewline") == "tab\tand\nnewline"


@pytest.mark.parametrize(
    ("amount", "written"),
    [(0, "0.00"), (1234.5, "1,234.50"), (0.0123, "0.012"), (0.00000012, "0.000000")],
)
def test_an_amount_has_two_digits_that_say_something(amount: float, written: str) -> None:
    assert text.money(amount) == written


@pytest.mark.parametrize("nested", ["[" * 500 + "]" * 500, '{"a": ' * 500 + "1" + "}" * 500])
def test_the_depth_of_nested_values_is_known_however_deep_they_are(nested: str) -> None:
    assert text.is_deeper(json.loads(nested), 499)
    assert not text.is_deeper(json.loads(nested), 500)
    assert text.is_deeper([], 0)
    assert not text.is_deeper("[[", 0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [(None, "—"), (0.04, "0.0"), (2.14, "2.1"), (99.94, "99.9"), (99.96, "100"), (1234.6, "1,235")],
)
def test_a_rate_has_a_digit_behind_the_point_below_100(rows: float | None, said: str) -> None:
    assert text.rate(rows) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "—"),
        (0.2, "0 s"),
        (59.6, "1 min 00 s"),
        (320, "5 min 20 s"),
        (3 * 3600 + 245, "3 h 04 min"),
        (90 * 3600, "3 d 18 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float | None, said: str) -> None:
    assert text.duration(seconds) == said
