"""Embeddings, classifications and scores from the numbers that an engine computed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from nightshift.common.errors import EngineLoadFailed, JobRefused
from nightshift.common.spec import EmbedTask, Task
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Outcome, Refusal

Numbers = npt.NDArray[np.floating]

MIN_LENGTH = 1e-12
"""Smallest divisor of a vector, as in torch.nn.functional.normalize."""


def check_labels(model: str, runner: str, labels: int) -> None:
    """EngineLoadFailed for a classifier with one label, and for a scorer of pairs with several."""
    if runner == "classify" and labels == 1:
        raise EngineLoadFailed(
            f"{model!r} gives one number, not probabilities of labels: a pair of texts is run as "
            "task.kind score"
        )
    if runner == "score" and labels != 1:
        raise EngineLoadFailed(
            f"{model!r} gives {labels} numbers for a pair, and a score is one: run it as task.kind "
            "classify"
        )


def check_dimensions(task: Task, width: int | None) -> None:
    """JobRefused when the task keeps more dimensions than the model has, where that is known."""
    if isinstance(task, EmbedTask) and width is not None and (task.dimensions or 0) > width:
        raise JobRefused(f"task.dimensions is {task.dimensions}, the model has {width}")


def embeddings(
    vectors: Numbers, task: EmbedTask, normalizes: bool, tokens: Sequence[int]
) -> list[Outcome]:
    """The vector of each row: cut to `dimensions`, then scaled to length 1, then brought to its type.

    `vectors` are (rows, numbers): the pooled vectors before the model's own normalisation; `normalizes`
    says whether the model has one. `tokens` are those of each row.
    """
    # Numbers that are not finite are refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        kept = vectors[:, : task.dimensions].astype(np.float32)
        if normalizes if task.normalize is None else task.normalize:
            kept /= np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), MIN_LENGTH)
        kept = kept.astype(task.dtype, copy=False)
    return _finite(({"embedding": vector} for vector in kept), kept, tokens)


def probabilities(logits: Numbers, *, is_multi_label: bool) -> Numbers:
    """(…, labels) logits as float32 probabilities: softmax over the labels, or, for a multi-label
    model, a sigmoid of each label.
    """
    logits = logits.astype(np.float64)
    # Numbers that are not finite are refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        if is_multi_label:
            values = 1 / (1 + np.exp(-logits))
        else:
            exponentials = np.exp(logits - logits.max(-1, keepdims=True))
            values = exponentials / exponentials.sum(-1, keepdims=True)
    return np.asarray(values, np.float32)


class Shares(Mapping[str, np.float32]):
    """The probability of each label, by the label: one line of an array with the labels of all lines."""

    __slots__ = ("_by_label", "labels", "numbers")

    def __init__(self, labels: Sequence[str], numbers: Numbers) -> None:
        self.labels, self.numbers = labels, numbers
        self._by_label: dict[str, np.float32] | None = None

    def __getitem__(self, label: str) -> np.float32:
        if (
            self._by_label is None
        ):  # not earlier: most lines become columns, and no label is asked for
            self._by_label = dict(zip(self.labels, self.numbers, strict=True))
        return self._by_label[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)


def classifications(
    probabilities: Numbers, labels: Sequence[str], tokens: Sequence[int]
) -> list[Outcome]:
    """The most probable label of each row, its probability, and the probability of every label.

    `probabilities` are (rows, labels), float32, and the columns keep that type.
    """
    best = probabilities.argmax(axis=1)
    highest = probabilities[np.arange(len(best)), best]
    columns = (
        {
            "label": labels[number],
            "probability": share,
            "probabilities": Shares(labels, line),
        }
        for number, share, line in zip(best.tolist(), highest, probabilities, strict=True)
    )
    return _finite(columns, probabilities, tokens)


def scores(numbers: Numbers, tokens: Sequence[int]) -> list[Outcome]:
    """The number of each pair, from (pairs, 1)."""
    return _finite(({"score": value} for (value,) in numbers.tolist()), numbers, tokens)


def cosines(some: Numbers, others: Numbers) -> Numbers:
    """The cosine of the angle between the vectors of each pair, (pairs, 1), float32; 0 where a vector has length 0."""
    some, others = some.astype(np.float64), others.astype(np.float64)
    lengths = np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        found = (some * others).sum(axis=1) / np.maximum(lengths, MIN_LENGTH)
    return np.asarray(found[:, None], np.float32)


def label_names(id2label: Mapping[int, str]) -> list[str]:
    """A name for each label, in the model's order: LABEL_n for a label without a name, and a number
    behind names that several labels have.
    """
    names = [str(id2label[number]).strip() or f"LABEL_{number}" for number in sorted(id2label)]
    return [
        f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names)
    ]


def _finite(
    columns: Iterable[Mapping[str, object]], numbers: Numbers, tokens: Sequence[int]
) -> list[Outcome]:
    finite: list[bool] = np.asarray(np.isfinite(numbers).all(axis=1)).tolist()
    return [
        Answer(each, prompt_tokens=count) if is_finite else _infinite(count)
        for each, is_finite, count in zip(columns, finite, tokens, strict=True)
    ]


def _infinite(tokens: int) -> Refusal:
    return Refusal(
        RowErrorKind.INVALID_OUTPUT,
        "the model's numbers for this row are not all finite (NaN or infinity); a dtype with a "
        "wider range may help",
        prompt_tokens=tokens,
    )
