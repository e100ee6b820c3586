"""Texts to token ids, in the thread of their batch, and ids to the padded tensors of a pass."""

import copy
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

Ids = tuple[npt.NDArray[np.int32], ...]
"""One sequence: its token ids, and behind them what else its tokenizer gives a token, such as the token type."""


class Tokens:
    """A tokenizer of its own for the threads of batches, for one at a time: the model's is not shared.

    Sequences have at most `longest` tokens where they are `cut`, and else all tokens of their texts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, longest: int, *, cut: bool) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.model_max_length = 2**62  # no warning about long texts
        self._limit = {"truncation": True, "max_length": longest} if cut else {}
        given = [*self._tokenizer("a")]
        self._is_masked = "attention_mask" in given
        self._names = ["input_ids", *(name for name in given if name not in FOUND)]
        pads = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        self._pads = [pads.get(name) or 0 for name in self._names]
        self._is_left = tokenizer.padding_side == "left"

    def ids(self, *texts: Sequence[str]) -> list[Ids]:
        """The sequence of each text, or of each pair, with special tokens."""
        if not texts or not texts[0]:
            return []
        encoded = self._tokenizer(
            *map(list, texts), padding=False, return_attention_mask=False, **self._limit
        )
        return list(zip(*(_arrays(encoded[name]) for name in self._names), strict=True))

    def padded(self, sequences: Sequence[Ids]) -> dict[str, torch.Tensor]:
        """Sequences as the features of one pass, each (sequences, tokens of the longest)."""
        lengths = np.array([len(ids) for ids, *_ in sequences])[:, None]
        places = np.arange(lengths.max())
        is_token = places >= places.size - lengths if self._is_left else places < lengths
        features: dict[str, torch.Tensor] = {}
        columns = zip(*sequences, strict=True)
        for name, pad, column in zip(self._names, self._pads, columns, strict=True):
            padded = np.full(is_token.shape, pad, np.int64)
            padded[is_token] = np.concatenate(column)
            features[name] = torch.from_numpy(padded)
        if self._is_masked:
            features["attention_mask"] = torch.from_numpy(is_token.astype(np.int64))
        return features


FOUND = ("input_ids", "attention_mask")


def _arrays(lists: Sequence[list[int]]) -> list[npt.NDArray[np.int32]]:
    """Each list as an array of its own, since rows of a batch end at different times."""
    ends = np.cumsum([len(each) for each in lists])
    flat = np.fromiter(chain.from_iterable(lists), np.int32, int(ends[-1]))
    return [each.copy() for each in np.split(flat, ends[:-1])]
