"""Addresses of remote engines: when they are the same, and which are allowed."""

import pytest

from nightshift.common import remotes
from nightshift.common.errors import BadInput


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/v1",
        "https://API.example.com/v1/",
        "https://api.example.com:443/v1",
    ],
)
def test_an_address_lies_under_its_prefix_however_both_are_written(url: str) -> None:
    remotes.check(url, ["https://other.example", "https://api.example.com:443/"])
    remotes.check(url, [])


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "https://api.example.com.evil.net/v1",
        "https://evil.net/https://api.example.com/v1",
        "https://api.example.com:8443/v1",
        "https://api.example.com/v10",
        "https://api.example.com/v1/../v2",
        "https://api.example.com/v1/%2e%2e/v2",
        "https://api.example.com@evil.net/v1",
        "https://:443/v1",
        "ftp://api.example.com/v1",
        "https://api.example.com:no/v1",
    ],
)
def test_what_only_looks_like_it_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        remotes.check(url, ["https://api.example.com/v1"])
