"""What the endpoints of a remote server have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx2

from nightshift.worker.engines.openai.errors import RequestError
from nightshift.worker.engines.protocol import Outcome, Refusal, Request
from nightshift.worker.engines.resampling import RowSampling

Body = dict[str, Any]


class Endpoint(Protocol):
    """The endpoint that one task uses; `path` is below the base URL."""

    path: str

    def body(self, request: Request, sampling: RowSampling) -> Body:
        """The JSON body of a row's request; ValueError for a row that cannot be sent."""

    def probe(self) -> Body:
        """The body of the smallest request of this kind."""

    def outcomes(self, response: httpx2.Response) -> Sequence[Outcome]:
        """The outcome of each sample; ValueError, KeyError, TypeError, IndexError or AttributeError for a
        response that the API does not know.
        """

    def parsed(self, response: httpx2.Response) -> Sequence[Outcome] | RequestError:
        """The outcomes in a 2xx response; RequestError for one that the API does not know."""
        try:
            return self.outcomes(response)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return RequestError(
                f"the server's answer is not one of the OpenAI API ({type(error).__name__}: {error})"
            )

    def refusal(self, error: RequestError) -> Refusal:
        """The outcome of a row that is itself to blame for the error."""
        return Refusal(error.kind, str(error))


def with_args(body: Body, args: Mapping[str, Any]) -> Body:
    """The body with `engine.args`, of which a null removes a field."""
    return {name: value for name, value in {**body, **args}.items() if value is not None}


def usage(data: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and output tokens as the server counts them, cached and reasoning tokens included.

    A count that is missing or impossible is 0.
    """
    counts = data.get("usage")
    if not isinstance(counts, Mapping):
        return 0, 0
    prompt = counts.get("prompt_tokens", counts.get("input_tokens"))
    output = counts.get("completion_tokens", counts.get("output_tokens"))
    return _count(prompt), _count(output)


def reasoning_tokens(data: Mapping[str, Any]) -> int:
    """How many of the output tokens are thoughts, as the server counts them; 0 where it counts none."""
    counts = data.get("usage")
    if not isinstance(counts, Mapping):
        return 0
    found = counts.get("completion_tokens_details") or counts.get("output_tokens_details")
    return _count(found.get("reasoning_tokens")) if isinstance(found, Mapping) else 0


def _count(value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole and 0 <= value < 2**31 else 0
