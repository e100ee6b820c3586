"""Addresses of remote servers: their one form, which of them an operator allows, and which nobody
may reach: link-local ones, where clouds hand out the credentials of a machine.
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from nightshift.common.errors import BadInput
from nightshift.common.public_text import marked

OPENAI = "https://api.openai.com/v1"
"""The address for OPENAI_API_KEY where OPENAI_BASE_URL names no other."""

PORTS = {"http": 80, "https": 443}

BLOCKED = [
    ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local; the metadata of most clouds is at 169.254.169.254
        "fe80::/10",  # link-local
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # GCP
        "fd00:42::42/128",  # Scaleway
        "100.100.100.200/32",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure, the agent of the host
        "192.0.0.192/32",  # Oracle Cloud
    )
]
"""Networks that no list of an operator opens: link-local ones, and the metadata of the clouds."""

HOLDS_IPV4 = [
    ip_network(network)
    for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
]
"""IPv6 networks whose addresses end with an IPv4 address (RFC 4291, 7915, 6052 and 8215)."""

Resolve = Callable[[str], Iterable[str]]
"""The IP addresses of a name; none where the name is not known."""


def address(url: str) -> str:
    """The address in its one form: the same text whatever its case, default port and last slash.

    BadInput for text that is no http or https address, for a path that servers may read in two ways,
    and for control characters and spaces around it: readers of addresses leave them out without a word.
    """
    if not url.isprintable() or url != url.strip():
        raise BadInput(f"the address {url[:200]!r} holds a control character, or a space around it")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadInput(f"{url} is not an address: {marked(error)}") from error
    if parts.scheme not in PORTS or not host or parts.username is not None:
        raise BadInput(f"{url} must be an http:// or https:// address, without a user name")
    if "%" in parts.path or any(step in (".", "..") for step in parts.path.split("/")):
        raise BadInput(f"{url} has a path that can be read in two ways")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or PORTS[parts.scheme]}{parts.path.rstrip('/')}"


def check(base_url: str, allowed: Sequence[str]) -> None:
    """BadInput for an address under none of `allowed`; an empty list allows all addresses."""
    wanted = address(base_url)
    if not allowed or any(f"{wanted}/".startswith(f"{address(root)}/") for root in allowed):
        return
    raise BadInput(
        f"engine.base_url {base_url} is not one of those that NIGHTSHIFT_ALLOWED_REMOTES names: "
        f"{', '.join(allowed)}"
    )


def is_blocked(ip: str) -> bool:
    """Whether an IP address is in a blocked network, in whatever form it is written; False for text
    that is no IP address.
    """
    try:
        found = ip_address(ip.partition("%")[0])
    except ValueError:
        return False
    return any(each in network for each in _forms(found) for network in BLOCKED)


def is_of_the_internet(ip: str) -> bool:
    """Whether an IP address is one of the internet's hosts, and so is each IPv4 address that stands in
    it; False for text that is no IP address.
    """
    try:
        found = ip_address(ip)
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast for each in _forms(found))


def _forms(ip: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """The address, and each IPv4 address that stands in it."""
    yield ip
    if isinstance(ip, IPv4Address):
        return
    if any(ip in network for network in HOLDS_IPV4):
        yield IPv4Address(int(ip) % 2**32)
    for inner in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())):
        if inner is not None:
            yield inner


def is_loopback(host: str) -> bool:
    """Return True for a loopback IP address and for `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolved(host: str) -> list[str]:
    """The IP addresses of a name, as connections of this machine would use them."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(address[0]) for *_, address in found]


def refuse_blocked(base_url: str, resolve: Resolve = resolved) -> None:
    """BadInput for an address whose name leads to a blocked one.

    A name that is not known here passes: whoever connects looks at the peer once more.
    """
    host = urlsplit(address(base_url)).hostname or ""
    for ip in (host, *resolve(host)):
        if is_blocked(ip):
            raise BadInput(
                f"engine.base_url {base_url} leads to {ip}, a link-local or metadata address, which "
                "no engine may ask"
            )
