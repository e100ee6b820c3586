"""Webhooks sent: signed by the Standard Webhooks scheme, to addresses that are checked first.

https://www.standardwebhooks.com: the signature is HMAC-SHA256 over `id.timestamp.body`.
"""

import base64
import hashlib
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import quote, urlsplit

import structlog

from nightshift.common import remotes
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.public_text import marked
from nightshift.common.settings import Settings
from nightshift.common.system_errors import told
from nightshift.common.text import one_line
from nightshift.producer.serve.ledger import outbox
from nightshift.producer.serve.ledger.outbox import Delivery

log = structlog.get_logger(__name__)

TRY_SECONDS = 10.0
"""Longest time of one try, from the connection to the answer."""

MOST_ERROR = 300
"""Characters of an error that the ledger keeps."""

PLAIN = "/?:@!$&'()*+,;=%-._~"
"""Characters that stand in the path or the query of a URL as they are (RFC 3986), escapes included."""

Post = Callable[[str, str, Mapping[str, str], bytes], int]
"""Sends a body to a URL at an IP address with headers; returns the status of the answer."""


class NotSent(Exception):
    """Why an event was not sent, in one sentence."""


def secret(key: str, endpoint_id: str) -> str:
    """The secret of an address, as its owner keeps it: derived from the operator's key, stored nowhere."""
    derived = hmac.digest(key.encode(), endpoint_id.encode(), "sha256")
    return "whsec_" + base64.b64encode(derived).decode()


def signed(secret_text: str, id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers that prove who sent a body, and when."""
    key = base64.b64decode(secret_text.removeprefix("whsec_"))
    digest = hmac.new(key, f"{id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def checked_address(
    url: str, *, private: bool, resolve: Callable[[str], Iterable[str]] = remotes.resolved
) -> str:
    """The IP address to connect to; NotSent where the name has none that may be used.

    Every address of the name must be one of the internet, unless `private` allows the others, too.
    Who connects uses this very address: the name may lead elsewhere a moment later.
    """
    parts = urlsplit(remotes.address(url))
    host = parts.hostname or ""
    if parts.scheme != "https" and not private:
        raise NotSent("the address is not https")
    found = list(resolve(host))
    if not found:
        raise NotSent(f"the name {host} is not known")
    for ip in found:
        plain = ip.partition("%")[0]
        if remotes.is_blocked(plain) or not (private or remotes.is_of_the_internet(plain)):
            # Not which address: tenants must not learn how the network of the operator looks.
            raise NotSent(f"{host} leads to no address of the internet")
    return found[0]


def check(url: str, *, private: bool) -> str:
    """The address of a webhook in its one form; BadInput where nothing would ever be sent to it."""
    place = remotes.address(url)
    try:
        checked_address(place, private=private)
    except NotSent as error:
        raise BadInput(f"no webhook can go to {url[:200]}: {marked(error)}") from error
    return url


def send_once(ledger: Ledger, settings: Settings, post: Post | None = None) -> bool:
    """Sends the event that is due for longest; False where none is due, or there is no key to sign."""
    if settings.webhook_key is None:
        return False
    with ledger.transaction() as connection:
        due = outbox.take(connection)
    if due is None:
        return False
    try:
        _send(due, settings, post or _post)
    except NotSent as error:
        why = one_line(str(error))[:MOST_ERROR]
        with ledger.transaction() as connection:
            outbox.failed(connection, due.id, why)
        log.warning("webhook_failed", event_id=due.id, tries=due.tries, why=why)
        return True
    with ledger.transaction() as connection:
        outbox.delivered(connection, due.id)
    return True


def _send(due: Delivery, settings: Settings, post: Post) -> None:
    assert settings.webhook_key is not None
    ip = checked_address(due.url, private=settings.webhook_private)
    body = due.body.encode()
    key = secret(settings.webhook_key.get_secret_value(), due.endpoint_id)
    headers = {
        "content-type": "application/json",
        "user-agent": "nightshift-webhooks",
        **signed(key, due.id, int(time.time()), body),
    }
    status = post(due.url, ip, headers, body)
    if not 200 <= status < 300:
        raise NotSent(f"the receiver answered {status}")


def _post(url: str, ip: str, headers: Mapping[str, str], body: bytes) -> int:
    """Sends one request to this IP address under the name of the URL; follows no redirect and reads no
    more than the head of the answer. NotSent where no answer has come after TRY_SECONDS.
    """
    parts = urlsplit(url)
    port = parts.port or remotes.PORTS[parts.scheme]
    target = quote(parts.path or "/", PLAIN) + (f"?{quote(parts.query, PLAIN)}" * bool(parts.query))
    until = time.monotonic() + TRY_SECONDS
    try:
        with (
            socket.create_connection((ip, port), TRY_SECONDS) as wire,
            _cut_at(until, wire),
            closing(_connection(parts.scheme, parts.hostname or "", port, wire)) as connection,
        ):
            connection.request("POST", target, body, dict(headers))
            return connection.getresponse().status
    except (OSError, HTTPException) as error:
        if time.monotonic() >= until:
            raise NotSent(f"the receiver did not answer within {TRY_SECONDS:g} s") from error
        raise NotSent(f"the receiver cannot be reached: {told(error)}") from error


def _connection(scheme: str, host: str, port: int, wire: socket.socket) -> HTTPConnection:
    """HTTP over a socket that is connected already; by https, with the certificate of the host."""
    if scheme == "http":
        plain = HTTPConnection(host, port)
        plain.sock = wire
        return plain
    context = ssl.create_default_context()
    secured = HTTPSConnection(host, port, context=context)
    secured.sock = context.wrap_socket(wire, server_hostname=host)
    return secured


@contextmanager
def _cut_at(until: float, wire: socket.socket) -> Iterator[None]:
    """Cuts the connection at a moment of the monotonic clock. The timeout of a socket is that of one
    read: a receiver that sends a byte now and then would keep its sender for ever.
    """
    same = wire.dup()  # TLS takes the socket itself

    def cut() -> None:
        with suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(until - time.monotonic(), cut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        same.close()
