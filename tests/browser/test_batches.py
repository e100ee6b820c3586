"""API batches whose rows failed, and jobs that are picked, as a person meets them."""

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Person, key, submit
from tests.browser.test_console import HOSTILE, KINDS, no_violations
from tests.support.remote import Remote, answered, refused
from tests.support.serve import Door

pytestmark = pytest.mark.slow

LONG = "This model's maximum context length is 4096 tokens, and the messages have 5113. " * 4


def failing_batch(door: Door, remote: Remote, secret: str) -> str:
    """A batch that is over, most of whose requests were refused."""
    remote.behave = lambda call: (
        refused(400, LONG)
        if call.text == "long"
        else refused(422, HOSTILE)
        if call.text == "bad"
        else answered(call)
    )
    client = door.client(secret)
    texts = ["long"] * 12 + ["bad"] * 5 + ["good"] * 30
    line = {"method": "POST", "url": "/v1/chat/completions"}
    rows = [
        {
            **line,
            "custom_id": f"request-{n}",
            "body": {"model": "m", "messages": [{"role": "user", "content": text}]},
        }
        for n, text in enumerate(texts)
    ]
    data = "".join(f"{json.dumps(row)}\n" for row in rows)
    file = client.files.create(file=("a.jsonl", data.encode()), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    door.ended(client, made.id)
    return str(made.id)


def test_a_batch_says_why_its_rows_failed(
    site: Door, person: Callable[..., Person], remote: Remote
) -> None:
    site.worker("--pool", "default")
    secret = key(site, "ops", "operator")
    batch = failing_batch(site, remote, secret)
    for kind, options in KINDS.items():
        somebody = person(**options)
        somebody.login(secret)
        page = somebody.page
        page.get_by_role("link", name="API batches").click()
        page.get_by_role("link", name=batch).click()
        expect(page.get_by_role("group", name="Causes").first.locator("tbody tr")).to_have_count(2)
        expect(page.get_by_role("group", name="First lines").locator("tbody tr")).to_have_count(5)
        somebody.picture(f"batch-failed-{kind}")
        no_violations(page, kind)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), kind


def test_buttons_that_act_on_picked_jobs_wait_for_a_pick(
    site: Door, person: Callable[..., Person]
) -> None:
    first, second = (submit(site, name) for name in ("one", "two"))
    somebody = person()
    somebody.login(key(site, "ops", "operator"))
    page = somebody.page
    buttons = page.get_by_role("group", name="Do with the jobs that are picked").get_by_role(
        "button"
    )
    for button in buttons.all():
        expect(button).to_be_disabled()
    page.get_by_label(f"Pick job {first}").check()
    submit(site, "three")  # the live part is drawn anew
    expect(page.get_by_role("link", name="three")).to_be_visible()
    for button in buttons.all():
        expect(button).to_be_enabled()
    expect(page.get_by_label(f"Pick job {first}")).to_be_checked()
    page.get_by_label(f"Pick job {first}").uncheck()
    for button in buttons.all():
        expect(button).to_be_disabled()
    page.get_by_label(f"Pick job {second}").check()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".state.paused")).to_have_count(1)
