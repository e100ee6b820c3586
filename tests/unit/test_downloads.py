"""Names of files that browsers save, and sizes as pages say them."""

import re
from urllib.parse import unquote

import pytest

from nightshift.producer.serve.console.results import size_text
from nightshift.producer.serve.downloads import MOST_NAME, attachment


@pytest.mark.parametrize(
    ("name", "plain", "wide"),
    [
        ("tickets-3.csv", "tickets-3.csv", None),
        ("my job-3.jsonl", "my job-3.jsonl", None),
        ('a"b\\c;d-3.csv', "a_b_c_d-3.csv", 'a"b_c;d-3.csv'),
        ("a\r\nset-cookie: b-3.csv", "a__set-cookie_ b-3.csv", "a__set-cookie: b-3.csv"),
        ("../../etc/passwd-3.csv", "_.._etc_passwd-3.csv", None),
        ("über-3.csv", "_ber-3.csv", "über-3.csv"),
        ("\ud83d-3.csv", "_-3.csv", None),
        ("a\u202efdp-3.csv", "a_fdp-3.csv", None),
        ("%0d%0a-3.csv", "_0d_0a-3.csv", "%0d%0a-3.csv"),
    ],
)
def test_no_name_leaves_its_header_or_its_folder(name: str, plain: str, wide: str | None) -> None:
    found = re.fullmatch(
        r"attachment; filename=\"([^\"\\]*)\"(?:; filename\*=UTF-8''([!-~]+))?", attachment(name)
    )
    assert found is not None
    assert (found[1], found[2] and unquote(found[2])) == (plain, wide)
    attachment(name).encode("ascii")


def test_a_long_name_keeps_its_suffix() -> None:
    assert attachment(f"{'x' * 1000}.csv") == f'attachment; filename="{"x" * MOST_NAME}.csv"'


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (18_310, "18.3 kB"),
        (999_999, "1 MB"),
        (5_000_000, "5 MB"),
        (7 * 10**15, "7,000 TB"),
    ],
)
def test_a_size_has_three_digits_and_a_unit(size: int, says: str) -> None:
    assert size_text(size) == says
