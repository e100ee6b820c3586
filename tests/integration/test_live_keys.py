"""A page that changes while somebody looks is held to the key on each frame: server-sent events last for minutes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from nightshift.common.ledger import Ledger
from nightshift.common.settings import load_settings
from nightshift.producer.serve import app as serve_app
from nightshift.producer.serve.console import app as console_app
from nightshift.producer.serve.console import live, page_calls
from nightshift.producer.serve.console.live import Live
from nightshift.producer.serve.console.session import COOKIE, looker
from nightshift.producer.serve.ledger import keys, tenants


@pytest.mark.parametrize("change", ["the key is revoked", "its role becomes another", "nothing"])
def test_a_stream_ends_before_the_next_frame_once_its_key_opens_something_else(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    with ledger.transaction() as connection:
        tenants.ensure(connection, "acme")
        number, key = keys.create(connection, "acme", "any", "user", None)
    app = serve_app.build(ledger, load_settings(serve_store=str(tmp_path / "store")))
    console_app.add(app)
    request = Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/live/jobs",
            "query_string": b"",
            "headers": [(b"cookie", f"{COOKIE}={key}".encode())],
            "client": ("203.0.113.1", 1),
            "app": app,
        }
    )
    shown = 0

    def look() -> str:
        nonlocal shown
        shown += 1
        return str(shown)

    def end() -> None:
        with ledger.transaction() as connection:
            if change == "the key is revoked":
                assert keys.revoke(connection, number)
            elif change == "its role becomes another":
                connection.exec_driver_sql("UPDATE api_keys SET role = 'viewer'")

    async def frames() -> list[bytes]:
        stream: AsyncIterator[Any] = page_calls._events(
            request, looker(request), Live(), "key", look
        )
        found = [await anext(stream), await anext(stream)]
        end()
        async with asyncio.timeout(30):
            async for frame in stream:
                found.append(frame)
                if len(found) == 4:
                    break
        return found

    assert len(asyncio.run(frames())) == (4 if change == "nothing" else 2)
