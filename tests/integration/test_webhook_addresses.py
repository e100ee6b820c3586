"""Where webhooks go: names that move, names and certificates, and characters beyond ASCII."""

import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from nightshift.common.settings import load_settings
from nightshift.producer.serve.api_batches import send_webhooks
from tests.support.receiver import TAKEN, Listen, Receiver
from tests.support.sender import KEY, Sender


def test_a_name_and_a_path_beyond_ascii_are_written_as_http_wants_them(
    sender: Sender, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = listen(TAKEN)
    _leads(monkeypatch, "exämple.example", "127.0.0.1")
    sender.tell(f"http://exämple.example:{receiver.port}/größe?a=%2F b")
    sender.end(sender.batch())
    assert sender.send()
    (heard,) = receiver.heard
    assert heard.headers["host"] == f"xn--exmple-cua.example:{receiver.port}"
    assert heard.target == "/gr%C3%B6%C3%9Fe?a=%2F%20b"


def _certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate that vouches for itself and for this name, and a server that shows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    encoding = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(made.public_bytes(encoding) + key.private_bytes(encoding, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


@pytest.mark.parametrize("name", ["hooks.example", "other.example"])
def test_a_receiver_shows_the_certificate_of_the_name_in_the_url(
    sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, context = _certificate(tmp_path, "hooks.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    _leads(monkeypatch, name, "127.0.0.1")
    with Receiver(TAKEN, context=context).running() as receiver:
        sender.tell(f"https://{name}:{receiver.port}/")
        sender.end(sender.batch())
        assert sender.send()
        host = f"hooks.example:{receiver.port}"
    (row,) = sender.rows()
    if name == "hooks.example":
        assert row.sent
        assert receiver.heard[0].headers["host"] == host
    else:
        assert "certificate" in row.error
        assert receiver.heard == []


def _leads(monkeypatch: pytest.MonkeyPatch, name: str, *addresses: str) -> list[str]:
    """The name has the first of these addresses when it is asked for first, and so on; the last stays.
    Returns what was asked.
    """
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **named: Any) -> Sequence[Any]:
        if host != name:
            return real(host, port, *rest, **named)
        found = addresses[min(len(asked), len(addresses) - 1)]
        asked.append(found)
        return real(found, port, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    sender: Sender, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads elsewhere a moment later. Linux answers on all of 127.0.0.0/8."""
    receiver = listen(TAKEN)
    asked = _leads(monkeypatch, "hooks.example", "127.0.0.1", "127.0.0.2")
    sender.tell(f"http://hooks.example:{receiver.port}/")
    sender.end(sender.batch())
    assert sender.send()
    assert [each.headers["host"] for each in receiver.heard] == [f"hooks.example:{receiver.port}"]
    assert asked == ["127.0.0.1"]


def test_no_proxy_of_the_environment_is_asked(
    sender: Sender, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would look the name up once more, in a network of its own."""
    receiver, proxy = listen(TAKEN), listen(TAKEN)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    sender.tell(receiver.url)
    sender.end(sender.batch())
    assert sender.send()
    assert (len(receiver.heard), len(proxy.heard)) == (1, 0)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254"])
def test_nobody_opens_the_metadata_of_the_cloud(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, private: bool, address: str
) -> None:
    _leads(monkeypatch, "hooks.example", address)
    sender.settings = load_settings(webhook_key=SecretStr(KEY), webhook_private=private)
    sender.tell("https://hooks.example/")
    sender.end(sender.batch())
    assert sender.send()
    assert "no address of the internet" in sender.rows()[0].error


def test_a_name_that_has_moved_into_the_house_is_sent_nothing(
    sender: Sender, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led to the internet when the address was added."""
    receiver = listen(TAKEN)
    _leads(monkeypatch, "hooks.example", "93.184.216.34", "127.0.0.1")
    url = f"https://hooks.example:{receiver.port}/"
    assert send_webhooks.check(url, private=False) == url
    sender.settings = load_settings(webhook_key=SecretStr(KEY))
    sender.tell(url)
    sender.end(sender.batch())
    assert sender.send()
    assert "no address of the internet" in sender.rows()[0].error
    assert receiver.heard == []
