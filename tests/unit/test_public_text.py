"""What tenants read of a message with paths, and what operators read of the same message."""

import pickle

import pytest

from nightshift.common.errors import BadInput, NeedsOtherEngine, NightshiftError
from nightshift.common.public_text import (
    marked,
    private,
    public,
    shown_error,
    shown_path,
    with_last_names,
    withheld,
)

OWN = ("/data/acme", "s3://acme/in/")

SERVERS = "/srv/store/acme/files/file-1.jsonl"


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (SERVERS, "file-1.jsonl"),
        ("/data/acme/in/a b.csv", "/data/acme/in/a b.csv"),
        ("file:///data/acme/x", "file:///data/acme/x"),
        ("/data/acme", "/data/acme"),
        ("/data/acme-2/x", "x"),
        ("/data/acme/../other/x", "x"),
        ("s3://acme/in/x.parquet", "s3://acme/in/x.parquet"),
        ("s3://acme/inner/x.parquet", "x.parquet"),
        ("/srv/store/", "store"),
        ("/v1/store/file-1.jsonl", "file-1.jsonl"),
        ("~/models/small", "small"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ],
)
def test_a_tenant_reads_its_own_paths_whole_and_the_last_name_of_others(
    path: str, read: str
) -> None:
    error = BadInput(f"{private(path)} line 3: no JSON")
    assert str(error) == f"{path} line 3: no JSON"
    assert error.public_message(OWN) == f"{read} line 3: no JSON"
    assert error.public_message(None) == str(error)
    assert shown_path(path, OWN) == read


@pytest.mark.parametrize(
    "text",
    [
        f"{SERVERS} is gone",
        f"open({SERVERS!r}) failed",
        f"the file:{SERVERS}",
        "s3://store/x: AccessDenied",
        r"{\"file\": \"\/srv\/store\"}",
        "GET https://storage/o/%2Fsrv%2Fstore: 404",
        r"C:\store\x",
        "~/.cache/hub has no room",
        "the bucket has no object bucket/store/acme/files/file-1.jsonl",
    ],
)
def test_a_message_with_a_path_without_a_mark_is_withheld_as_a_whole(text: str) -> None:
    assert BadInput(text).public_message(OWN) == withheld(text)
    assert str(BadInput(text)) == text
    around = BadInput(f"{private(SERVERS)} cannot be read: {marked(OSError(text))}")
    assert around.public_message(OWN) == f"file-1.jsonl cannot be read: {withheld(text)}"


@pytest.mark.parametrize(
    "text",
    [
        "3 rows/s and/or 4 / 5",
        "the url must be /v1/chat/completions",
        "https://api.example.com/v1 answers 401",
        "use s3:// or gs://",
        "#/properties/a has no type",
        "it ends with </think>",
    ],
)
def test_a_message_without_a_path_is_for_everybody(text: str) -> None:
    assert BadInput(text).public_message(OWN) == text


def test_an_error_that_nightshift_did_not_raise_is_withheld() -> None:
    assert shown_error(ValueError("no path"), OWN) == withheld("ValueError: no path")
    assert shown_error(ValueError("no path"), None) == "no path"


def test_marks_pass_from_one_message_into_the_next_and_nowhere_else() -> None:
    inner = BadInput(f"{private(SERVERS)}: {public('/etc/x')}, as you wrote", public=None)
    outer = NightshiftError(f"{private('/data/acme/out')}: {marked(inner)}")
    assert str(outer) == f"/data/acme/out: {SERVERS}: /etc/x, as you wrote"
    assert outer.public_message(OWN) == "/data/acme/out: file-1.jsonl: /etc/x, as you wrote"
    instead = NightshiftError(f"it failed: {marked(BadInput(SERVERS, public='ask an operator'))}")
    assert (str(instead), instead.public_message()) == (
        f"it failed: {SERVERS}",
        "it failed: ask an operator",
    )


def test_an_error_that_went_through_another_process_has_both_texts() -> None:
    error = NeedsOtherEngine(f"{private(SERVERS)} needs it", {"a": 1})
    for each in (error, BadInput(str(error), public="no")):
        again = pickle.loads(pickle.dumps(each)) if type(each) is BadInput else each
        assert (str(again), again.public_message()) == (str(each), each.public_message())


def test_marks_in_the_text_of_a_user_show_nothing() -> None:
    """The characters of marks may stand in a row or a name."""
    user = "\ufdd0x\ufdd1y\ufdd2 \ufdd0"
    error = BadInput(f"{user} {private(SERVERS)} {user}")
    assert "/srv" not in error.public_message(OWN)
    assert "\ufdd0" not in str(error)
    assert "\ufdd0" not in error.public_message(OWN)
    forged = BadInput(f"\ufdd0 {SERVERS}\ufdd2")
    assert "/srv" not in forged.public_message(OWN)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no such file: '/srv/hub/a.bin'", "no such file: 'a.bin'"),
        ("/srv/hub/a and /srv/mine/b", "a and /srv/mine/b"),
        (
            "use / or x/y, 3/4, https://example.com/a/b",
            "use / or x/y, 3/4, https://example.com/a/b",
        ),
        ("/single stays", "/single stays"),
    ],
)
def test_messages_of_functions_have_last_names_of_foreign_absolute_paths(
    message: str, shown: str
) -> None:
    assert with_last_names(message, ("/srv/mine",)) == shown
    assert with_last_names(message, None) == message
