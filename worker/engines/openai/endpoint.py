"""What the endpoints of a remote server have in common."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from nightshift.worker.engines.openai.errors import RequestError, error_text
from nightshift.worker.engines.protocol import Outcome, Refusal, Request
from nightshift.worker.engines.resampling import RowSampling

Body = dict[str, Any]

MOST_MESSAGE = 1000
"""Characters of a server's text that a message quotes."""


@dataclass(frozen=True, slots=True)
class Response:
    """A 2xx response. `data` is its JSON, None if it is not JSON; `text` is its body."""

    status: int
    text: str
    data: Any
    header_id: str | None = None

    @classmethod
    def of(cls, response: httpx2.Response) -> "Response":
        """Reads the body."""
        text = response.text
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        return cls(response.status_code, text, data, response.headers.get("x-request-id"))

    @property
    def request_id(self) -> str | None:
        """The server's number of the request."""
        own = self.data.get("id") if isinstance(self.data, Mapping) else None
        return self.header_id or (own if isinstance(own, str) else None)

    @property
    def json_text(self) -> str | None:
        """The body, if it is JSON."""
        return None if self.data is None else self.text


class Endpoint(Protocol):
    """The endpoint that one task uses; `path` is below the base URL."""

    path: str

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """The JSON body of a row's request; ValueError for a row that cannot be sent."""

    def probe(self) -> Body:
        """The body of the smallest request of this kind."""

    def outcomes(self, data: Any) -> Sequence[Outcome]:
        """The outcome of each sample, without its tokens, of a response's JSON; ValueError, KeyError, TypeError,
        IndexError, ArithmeticError or AttributeError for a response that has no answer.
        """

    def parsed(self, response: Response, request: Request) -> Sequence[Outcome] | RequestError:
        """The outcomes in a 2xx response; RequestError for one that has no answer, which another try may have."""
        try:
            if response.data is None:
                raise ValueError("it is not JSON")
            if not isinstance(response.data, Mapping):
                raise ValueError("its JSON is not an object")
            if error := response.data.get("error"):
                raise ValueError(f"it is an error: {error_text(error)}")
            return self.outcomes(response.data)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            return RequestError(
                f"the response has no answer ({_reason(error)})"[:MOST_MESSAGE],
                is_answered=True,
                status=response.status,
                request_id=response.request_id,
                body=response.json_text,
            )

    def refusal(self, error: RequestError) -> Refusal:
        """The outcome of a row that is itself to blame for the error."""
        return Refusal(error.kind, str(error))


def _reason(error: Exception) -> str:
    if type(error) is ValueError:
        return str(error)
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return "a field has an unexpected type or value"


def with_args(body: Body, args: Mapping[str, Any]) -> Body:
    """The body with `engine.args`, of which a null removes a field."""
    return {name: value for name, value in {**body, **args}.items() if value is not None}


def by_index(given: Any) -> list[Mapping[str, Any]]:
    """Sort the choices or embeddings of a response by `index`; without one, or if all are equal, keep the server's order.

    Raises ValueError if `given` is not a list.
    """
    if not isinstance(given, list):
        raise ValueError("its list of answers is missing")
    return sorted(given, key=lambda each: int(each.get("index") or 0))
