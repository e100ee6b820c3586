"""Webhooks: the signature that receivers verify, and the addresses to which nothing is sent."""

import time

import openai
import pytest

from nightshift.common.errors import BadInput
from nightshift.producer.serve.api_batches.send_webhooks import (
    NotSent,
    check,
    checked_address,
    secret,
    signed,
)

BODY = b'{"id":"evt_1","object":"event","type":"batch.completed","created_at":1,"data":{"id":"batch_1"}}'
SECRET = secret("an operator's long key", "we_1")


def test_the_official_client_verifies_what_is_signed() -> None:
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    headers = signed(SECRET, "evt_1", int(time.time()), BODY)
    event = client.webhooks.unwrap(BODY, headers)
    assert (event.type, event.data.id) == ("batch.completed", "batch_1")
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(BODY + b" ", headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(BODY, headers, secret=secret("an operator's long key", "we_2"))


def test_a_secret_is_that_of_the_standard_and_of_one_address() -> None:
    """The example of the specification, of which the text of the signed content is fixed."""
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert secret("an operator's long key", "we_2") != SECRET


@pytest.mark.parametrize(
    ("url", "resolved", "private", "expected"),
    [
        ("https://a.example/x", ["93.184.216.34"], False, "93.184.216.34"),
        ("https://a.example:8443/x?y=1", ["2606:4700::1111"], False, "2606:4700::1111"),
        ("http://a.example/", ["93.184.216.34"], False, "not https"),
        ("https://a.example/", [], False, "not known"),
        ("https://a.example/", ["127.0.0.1"], False, "no address of the internet"),
        ("https://a.example/", ["10.1.2.3"], False, "no address of the internet"),
        ("https://a.example/", ["93.184.216.34", "192.168.0.1"], False, "no address of the"),
        ("https://a.example/", ["::1"], False, "no address of the internet"),
        ("https://a.example/", ["::ffff:10.0.0.1"], False, "no address of the internet"),
        ("https://a.example/", ["fe80::1%eth0"], False, "no address of the internet"),
        ("https://a.example/", ["0.0.0.0"], False, "no address of the internet"),
        ("https://a.example/", ["64:ff9b::10.0.0.1"], False, "no address of the internet"),
        ("https://a.example/", ["64:ff9b::93.184.216.34"], False, "64:ff9b::93.184.216.34"),
        ("https://a.example/", ["2002:a00:1::"], False, "no address of the internet"),
        ("https://a.example/", ["224.0.0.1"], False, "no address of the internet"),
        ("https://a.example/", ["ff0e::1"], False, "no address of the internet"),
        ("https://a.example/", ["100.64.0.1"], False, "no address of the internet"),
        ("http://a.example/", ["10.1.2.3"], True, "10.1.2.3"),
        ("http://a.example/", ["127.0.0.1"], True, "127.0.0.1"),
        ("http://a.example/", ["169.254.169.254"], True, "no address of the internet"),
        ("http://a.example/", ["::ffff:169.254.169.254"], True, "no address of the internet"),
    ],
)
def test_an_address_is_used_only_where_all_of_its_name_may_be(
    url: str, resolved: list[str], private: bool, expected: str
) -> None:
    try:
        found = checked_address(url, private=private, resolve=lambda _: resolved)
    except NotSent as error:
        found = str(error)
    assert expected in found


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "①②⑦.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "10.0.0.1",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "2852039166",
    ],
)
def test_this_machine_and_its_neighbours_are_no_address_however_they_are_written(host: str) -> None:
    with pytest.raises(BadInput, match="leads to no address of the internet"):
        check(f"https://{host}/", private=False)


@pytest.mark.parametrize(
    "url", ["ftp://a/x", "https://u:p@a.example/", "https://", "/x", "https://127.1/"]
)
def test_what_is_no_address_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(BadInput):
        check(url, private=False)
