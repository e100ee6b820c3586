"""The HTTP client of the remote engine: one address, its own key, and nothing else of ours."""

from typing import Any

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

CONNECT_SECONDS = 10.0

NO_KEY = "EMPTY"
"""What servers that want no key are sent, by custom."""


class Client(AsyncOpenAI):
    """Sends a key to the address it is bound to, and no header that the environment names.

    The library would take organisation, project and further headers from OPENAI_* variables, and
    send them to whatever address a job names. It follows no redirect, which would carry the key
    away, and retries nothing: that is the engine's.
    """

    def __init__(self, base_url: str, key: str | None, connections: int) -> None:
        super().__init__(
            base_url=base_url,
            api_key=key or NO_KEY,
            admin_api_key="",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(
                follow_redirects=False,
                # The whole request has its time from the engine.
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                limits=httpx2.Limits(
                    max_connections=connections, max_keepalive_connections=connections
                ),
            ),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """Those of a JSON request, with the key."""
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": self.user_agent,
            **self.auth_headers,
        }

    async def ask(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """One POST; openai.APIError for what is no 2xx or never came."""
        return await self.post(path, cast_to=httpx2.Response, body=body)

    async def look(self) -> httpx2.Response:
        """GET /models: costs nothing, and tells a wrong key from a good one."""
        return await self.get("/models", cast_to=httpx2.Response)
