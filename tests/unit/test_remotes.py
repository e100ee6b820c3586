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
        "https://api.example.com/v1\r\nx: y",
        "https://api.exam\tple.com/v1",
        "https://api.example.com/v1\n",
        " https://api.example.com/v1",
        "https://api.example.com/v1\x7f",
    ],
)
def test_what_only_looks_like_it_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        remotes.check(url, ["https://api.example.com/v1"])


@pytest.mark.parametrize(
    "ip",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        # The same IPv4 address in IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo.
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "::ffff:0:a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::1",
    ],
)
def test_link_local_and_metadata_addresses_are_blocked_in_each_of_their_forms(ip: str) -> None:
    assert remotes.is_blocked(ip)
    literal = f"[{ip.replace('%', '%25')}]" if ":" in ip else ip
    with pytest.raises(BadInput, match="link-local or metadata"):
        remotes.refuse_blocked(f"http://{literal}/v1", resolve=lambda host: [])
    with pytest.raises(BadInput, match="link-local or metadata"):
        remotes.refuse_blocked("https://evil.example/v1", resolve=lambda host: ["8.8.8.8", ip])


@pytest.mark.parametrize(
    "ip", ["127.0.0.1", "::1", "10.0.0.7", "192.168.1.1", "8.8.8.8", "fd00::1"]
)
def test_other_addresses_are_for_the_operators_list_alone(ip: str) -> None:
    assert not remotes.is_blocked(ip)
    remotes.refuse_blocked("https://api.example.com/v1", resolve=lambda host: [ip])


def test_a_name_that_is_not_known_here_passes() -> None:
    remotes.refuse_blocked("https://a.name.of.the.fleet/v1", resolve=lambda host: [])


@pytest.mark.parametrize(
    "host", ["2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518"]
)
def test_numbers_in_the_forms_of_old_libraries_are_addresses(host: str) -> None:
    with pytest.raises(BadInput, match="link-local or metadata"):
        remotes.refuse_blocked(f"http://{host}/latest")
