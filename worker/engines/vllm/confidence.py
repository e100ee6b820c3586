"""The probability of a chosen label: how often sampling among the choices at temperature 1 gives that label.

At each step only tokens that begin a remaining label may follow, and their probabilities sum to 1. This module
scales vLLM's log probabilities to that sum. They come from the answer itself, where the grammar limits the
tokens, and from short extra requests without a grammar. A label can be spelled in tokens in several ways: the
probabilities of the ways are added.
"""

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xgrammar
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.tokenizers.mistral import MistralTokenizer
from vllm.v1.engine.async_llm import AsyncLLM

from nightshift.worker.engines.protocol import Answer
from nightshift.worker.engines.vllm.model import finished, request_id

MOST_TOKENS = 128
"""Tokens whose log probabilities vLLM tells for one place, of those that a request names."""

SMALL = 1e-3
"""Ways that have less probability than this in all are not followed, and count as none."""

Labels = tuple[bytes, ...]
"""What is left of each label that is possible yet; empty for one that is whole."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How labels are spelled: the tokens by their bytes, and those that end an answer."""

    by_bytes: Mapping[bytes, Sequence[int]]
    stops: Sequence[int]

    @classmethod
    def of(cls, tokenizer: Any, vocabulary: int, ends: Iterable[int] = ()) -> "Spelling":
        """The tokens of a vocabulary as xgrammar reads them; special tokens spell nothing. `ends` end an answer
        beside those that the tokenizer knows.
        """
        if isinstance(tokenizer, MistralTokenizer):
            info = _of_mistral(tokenizer)
        else:
            info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
        stops = {*info.stop_token_ids, *ends}
        special = {*info.special_token_ids, *stops}
        by_bytes: dict[bytes, list[int]] = defaultdict(list)
        for token, text in enumerate(info.decoded_vocab):
            if text and token not in special:
                by_bytes[bytes(text)].append(token)
        return cls(by_bytes, sorted(stops))

    def tokens(self, left: Labels) -> dict[int, Labels]:
        """The tokens that may come, and what is left of the labels behind each."""
        behind: dict[int, set[bytes]] = defaultdict(set)
        for label in left:
            if not label:
                for stop in self.stops:
                    behind[stop].add(b"")
            for end in range(1, len(label) + 1):
                for token in self.by_bytes.get(label[:end], ()):
                    behind[token].add(label[end:])
        return {token: tuple(sorted(labels)) for token, labels in behind.items()}


def _of_mistral(tokenizer: MistralTokenizer) -> xgrammar.TokenizerInfo:
    """The tokens of a tokenizer of Mistral. xgrammar cannot read such a tokenizer, so the table is built as
    vLLM's xgrammar backend builds its own.
    """
    kind = xgrammar.VocabType.RAW if tokenizer.is_tekken else xgrammar.VocabType.BYTE_FALLBACK
    return xgrammar.TokenizerInfo(
        tokenizer.vocab,
        vocab_type=kind,
        vocab_size=len(tokenizer.vocab),
        stop_token_ids=[tokenizer.eos_token_id],
        add_prefix_space=True,
    )


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

    def __init__(self, llm: AsyncLLM, tokenizer: Any, choices: Sequence[str]) -> None:
        self._llm = llm
        config = llm.model_config
        ends = config.try_get_generation_config().get("eos_token_id") or ()
        ends = (ends,) if isinstance(ends, int) else ends
        self._spelling = Spelling.of(tokenizer, config.get_vocab_size(), ends)
        self._text_of = {
            token: text for text, tokens in self._spelling.by_bytes.items() for token in tokens
        }
        self._labels: Labels = tuple(sorted(choice.encode() for choice in choices))
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
            text = self._text_of.get(token, b"")
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
