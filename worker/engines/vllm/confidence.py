"""The probability of a chosen label: how often sampling among the choices at temperature 1 gives that label.

At each step only tokens that begin a remaining label may follow, and their probabilities sum to 1. This module
scales vLLM's log probabilities to that sum. They come from the answer itself, where the grammar limits the
tokens, and from short extra requests without a grammar. A label can be spelled in tokens in several ways: the
probabilities of the ways are added.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from nightshift.worker.engines.protocol import Answer
from nightshift.worker.engines.vllm.model import finished, request_id
from nightshift.worker.engines.vllm.spelling import Labels, Spelling, labels_of

MOST_TOKENS = 128
"""Tokens whose log probabilities vLLM tells for one place, of those that a request names."""

SMALL = 1e-3
"""Ways that have less probability than this in all are not followed, and count as none."""


def shares(told: Mapping[int, float], tokens: Mapping[int, Labels]) -> dict[int, float]:
    """The probability of each token that may come, out of the log probabilities of these and of others."""
    highest = max(told[token] for token in tokens)
    if highest == -math.inf:
        return dict.fromkeys(tokens, 1 / len(tokens))
    weights = {token: math.exp(told[token] - highest) for token in tokens}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


@dataclass(slots=True)
class Asked:
    """The log probabilities behind some beginnings of one answer, and the tokens that were spent on those that
    the answer itself does not tell. `prompt` makes the row's prompt anew, `before` are the tokens before the
    answer.
    """

    prompt: Callable[[], Awaitable[Any]]
    before: Sequence[int]
    known: dict[tuple[int, ...], Mapping[int, float]] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Confidence:
    """The probabilities of the answers of one job."""

    def __init__(self, llm: AsyncLLM, spelling: Spelling, choices: Sequence[str]) -> None:
        self._llm = llm
        self._spelling = spelling
        self._labels = labels_of(choices)
        self._tokens: dict[Labels, dict[int, Labels]] = {}
        self.token_ids = self._first_asked()

    def _behind(self, left: Labels) -> dict[int, Labels]:
        if left not in self._tokens:
            self._tokens[left] = self._spelling.tokens(left)
        return self._tokens[left]

    def _first_asked(self) -> list[int] | None:
        """The tokens that the request of an answer itself asks for: those of every place where more than one
        label is possible, or of the first place alone; None where these are too many for one request.
        """
        every: set[int] = set()
        waiting, seen = [self._labels], {self._labels}
        while waiting and len(every) <= MOST_TOKENS:
            behind = self._behind(waiting.pop())
            every.update(behind)
            further = {left for left in behind.values() if len(left) > 1} - seen
            seen |= further
            waiting += further
        for asked in (every, set(self._behind(self._labels))):
            if len(asked) <= MOST_TOKENS:
                return sorted(asked)
        return None

    async def told(
        self,
        answer: Answer,
        asked: Asked,
        ids: Sequence[int],
        start: int,
        numbers: Sequence[Any] | None,
    ) -> Answer:
        """The answer with its `confidence`. `ids` are the tokens of the whole sample, of which the answer begins
        at `start`, and `numbers` vLLM's log probabilities of these places.
        """
        asked.known = {
            tuple(ids[start:at]): {token: float(each.logprob) for token, each in told.items()}
            for at, told in enumerate(numbers or ())
            if at >= start
        }
        wanted = str(answer.columns["output"]).encode()
        confidence = await self._way(asked, (), self._labels, wanted, 1.0)
        return replace(
            answer,
            columns={**answer.columns, "confidence": min(1.0, confidence)},
            prompt_tokens=answer.prompt_tokens + asked.prompt_tokens,
            output_tokens=answer.output_tokens + asked.output_tokens,
            cached_tokens=answer.cached_tokens + asked.cached_tokens,
        )

    async def _way(
        self, asked: Asked, prefix: tuple[int, ...], left: Labels, wanted: bytes, weight: float
    ) -> float:
        """The probability of what is left of the label, `wanted`, behind a beginning that has the probability
        `weight`.
        """
        if left == (wanted,):
            return 1.0
        behind = self._behind(left)
        told = asked.known.get(prefix)
        if told is None or not behind.keys() <= told.keys():
            told = await self._ask(asked, prefix, sorted(behind))
        total = 0.0
        for token, share in sorted(shares(told, behind).items(), key=lambda each: -each[1]):
            text = self._spelling.text_of.get(token, b"")
            if (text and not wanted.startswith(text)) or (not text and wanted):
                continue
            if len(behind[token]) == 1:
                total += share
            elif weight * share >= SMALL:
                further = (*prefix, token)
                rest = wanted[len(text) :]
                total += share * await self._way(
                    asked, further, behind[token], rest, weight * share
                )
        return total

    async def _ask(
        self, asked: Asked, prefix: tuple[int, ...], tokens: Sequence[int]
    ) -> Mapping[int, float]:
        told: dict[int, float] = {}
        for at in range(0, len(tokens), MOST_TOKENS):
            prompt = {**await asked.prompt(), "prompt_token_ids": [*asked.before, *prefix]}
            params = SamplingParams(
                temperature=0,
                max_tokens=1,
                logprob_token_ids=list(tokens[at : at + MOST_TOKENS]),
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            output = await finished(self._llm.generate(prompt, params, request_id(asked)))
            asked.prompt_tokens += len(prompt["prompt_token_ids"])
            asked.output_tokens += 1
            asked.cached_tokens += output.num_cached_tokens or 0
            told |= {
                token: float(each.logprob) for token, each in output.outputs[0].logprobs[0].items()
            }
        return told
