"""Embeddings, classifications and scores from the numbers that an engine computed."""

from collections.abc import Mapping, Sequence

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


def embedding(vector: Numbers, task: EmbedTask, normalizes: bool, tokens: int) -> Outcome:
    """The row's vector: cut to `dimensions`, then scaled to length 1, then brought to its type.

    `vector` is the pooled vector before the model's own normalisation; `normalizes` says whether
    the model has one.
    """
    # Numbers that are not finite are refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        kept = vector[: task.dimensions].astype(np.float32)
        if normalizes if task.normalize is None else task.normalize:
            kept = kept / max(float(np.linalg.norm(kept)), MIN_LENGTH)
        kept = kept.astype(task.dtype)
    return _finite({"embedding": kept}, kept, tokens)


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


def classification(probabilities: Numbers, labels: Sequence[str], tokens: int) -> Outcome:
    """The row's most probable label, its probability, and the probability of every label.

    `probabilities` are float32, and the columns keep that type.
    """
    best = int(probabilities.argmax())
    columns = {
        "label": labels[best],
        "probability": probabilities[best],
        "probabilities": dict(zip(labels, probabilities, strict=True)),
    }
    return _finite(columns, probabilities, tokens)


def score(value: float, tokens: int) -> Outcome:
    """The pair's number."""
    return _finite({"score": float(value)}, np.asarray(value), tokens)


def cosine(one: Numbers, other: Numbers) -> float:
    """The cosine of the angle between two vectors; 0 where a vector has length 0."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = max(float(np.linalg.norm(one) * np.linalg.norm(other)), MIN_LENGTH)
    return float(one @ other / lengths)


def label_names(id2label: Mapping[int, str]) -> list[str]:
    """A name for each label, in the model's order: LABEL_n for a label without a name, and a number
    behind names that several labels have.
    """
    names = [str(id2label[number]).strip() or f"LABEL_{number}" for number in sorted(id2label)]
    return [
        f"{name} ({number})" if names.count(name) > 1 else name for number, name in enumerate(names)
    ]


def _finite(columns: Mapping[str, object], numbers: Numbers, tokens: int) -> Outcome:
    if np.isfinite(numbers).all():
        return Answer(columns, prompt_tokens=tokens)
    return Refusal(
        RowErrorKind.INVALID_OUTPUT,
        "the model's numbers for this row are not all finite (NaN or infinity); a dtype with a "
        "wider range may help",
        prompt_tokens=tokens,
    )
