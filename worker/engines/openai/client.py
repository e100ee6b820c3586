"""The HTTP client of the remote engine: sends requests and the key to one address."""

from typing import Any

import httpx2
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

CONNECT_SECONDS = 10.0

NO_KEY = "EMPTY"
"""The key that is sent, by custom, to servers that want none."""


class Client(AsyncOpenAI):
    """Sends a key to the address it is bound to, and no header that the environment names.

    The library would take organisation, project and further headers from OPENAI_* variables, and
    send them to whatever address a job names. The client follows no redirect, which would carry
    the key away, and retries nothing: the engine does that.
    """

    def __init__(self, base_url: str, key: str | None, connections: int) -> None:
        super().__init__(
            base_url=base_url,
            api_key=key or NO_KEY,
            admin_api_key="",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(
                follow_redirects=False,
                # The engine limits the time of the whole request.
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                limits=httpx2.Limits(
                    max_connections=connections, max_keepalive_connections=connections
                ),
            ),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        )

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """The headers of a JSON request, with the key."""
        return {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": self.user_agent,
            **self.auth_headers,
        }

    async def send(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """One POST; openai.APIError for another status than 2xx, or no response at all."""
        return await self.post(path, cast_to=httpx2.Response, body=body)

    async def list_models(self) -> httpx2.Response:
        """GET /models: costs nothing, and shows whether the key is good."""
        return await self.get("/models", cast_to=httpx2.Response)
