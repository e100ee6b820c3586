"""How the labels of a choice are spelled in the tokens of a model."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xgrammar
from vllm.tokenizers.mistral import MistralTokenizer
from vllm.v1.engine.async_llm import AsyncLLM

Labels = tuple[bytes, ...]
"""What is left of each label that is possible yet; empty for one that is whole."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How labels are spelled: the tokens by their bytes, and those that end an answer."""

    by_bytes: Mapping[bytes, Sequence[int]]
    text_of: Mapping[int, bytes]
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
        text_of = {
            token: bytes(text)
            for token, text in enumerate(info.decoded_vocab)
            if text and token not in special
        }
        by_bytes: dict[bytes, list[int]] = defaultdict(list)
        for token, text in text_of.items():
            by_bytes[text].append(token)
        return cls(by_bytes, text_of, sorted(stops))

    @classmethod
    def of_engine(cls, llm: AsyncLLM, tokenizer: Any) -> "Spelling":
        """The tokens of a loaded model; those that end its answers are also those of its own configuration."""
        config = llm.model_config
        ends = config.try_get_generation_config().get("eos_token_id") or ()
        return cls.of(
            tokenizer, config.get_vocab_size(), (ends,) if isinstance(ends, int) else ends
        )

    def text(self, tokens: Iterable[int]) -> str:
        """What tokens spell, to the byte: tokenizers of SentencePiece drop a space before the first word."""
        return b"".join(self.text_of.get(token, b"") for token in tokens).decode(errors="replace")

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


def labels_of(choices: Iterable[str]) -> Labels:
    """The labels of choices of which nothing is written yet."""
    return tuple(sorted(choice.encode() for choice in choices))
