"""Models of the transformers engine: texts in, an array of numbers for each row out.

Embedding models and cross-encoders are loaded and run by sentence-transformers, classifiers by
transformers. None runs code that came with the model.
"""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from nightshift.common.errors import EngineLoadFailed
from nightshift.common.spec import EmbedTask, Task, TransformersEngineSpec
from nightshift.worker.engines import hub, pooling
from nightshift.worker.engines.protocol import Outcome

Texts = tuple[str, ...]
"""The text of a row, or its pair of texts."""


class TextModel(Protocol):
    """A loaded model. `longest` is how many tokens one sequence may have."""

    longest: int
    revision: str | None
    _counter: PreTrainedTokenizerBase

    def __init__(
        self, spec: TransformersEngineSpec, config: Any, tokenizer: object, own_longest: int | None
    ) -> None:
        """EngineLoadFailed when the model takes fewer tokens than the spec wants.

        The longest sequence is the spec's, else the model's; at most the model's positions.
        """
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise EngineLoadFailed(f"{spec.model!r} has no tokenizer of transformers")
        # A copy for threads that count: a pass must not share its tokenizer.
        self._counter = copy.deepcopy(tokenizer)
        self._counter.model_max_length = 2**62  # no warning about long texts
        positions = getattr(config, "max_position_embeddings", None) or 2**31
        if (spec.max_length or 0) > positions:
            raise EngineLoadFailed(
                f"engine.max_length is {spec.max_length}, {spec.model!r} has {positions} positions"
            )
        self.longest = int(spec.max_length or min(own_longest or positions, positions))
        self.revision = hub.loaded_commit(spec.model, config)

    def lengths(self, rows: Sequence[Texts]) -> list[list[int]]:
        """Tokens of each sequence that a row becomes, special tokens and prompt included; here, the
        texts of a row become one sequence.

        For one thread at a time, which may be another than the one that computes.
        """
        return [[count] for count in self._counts(*map(list, zip(*rows, strict=True)))]

    def _counts(self, *texts: list[str]) -> list[int]:
        encoded = self._counter(
            *texts, padding=False, truncation=False, return_attention_mask=False
        )
        return [len(ids) for ids in encoded["input_ids"]]

    def compute(self, rows: Sequence[Texts]) -> pooling.Numbers:
        """One forward pass: (rows, numbers of each), float32; longer sequences are cut."""

    def check(self, task: Task) -> None:
        """JobRefused when the task asks for what this model does not have; here, never."""
        return

    def outcome(self, task: Task, line: pooling.Numbers, tokens: int) -> Outcome:
        """The row's outcome from its line of `compute`."""


def load(spec: TransformersEngineSpec, revision: str | None, runner: str) -> TextModel:
    """The model for a task's runner. Raises what the libraries raise."""
    disable_progress_bar()
    revision = hub.fetch_snapshot(spec.model, revision)
    if runner == "classify":
        return Classifier(spec, revision)
    if runner == "score" and _is_classifier(spec.model, revision):
        return PairScorer(spec, revision)
    return CosineScorer(spec, revision) if runner == "score" else Embedder(spec, revision)


class Embedder(TextModel):
    """A sentence-transformers model with its prompt, pooling and dense layers.

    A model without modules.json is pooled by the mean over its tokens and not normalised.
    """

    def __init__(self, spec: TransformersEngineSpec, revision: str | None) -> None:
        model = SentenceTransformer(spec.model, **_arguments(spec, revision))
        super().__init__(spec, model.config, model.tokenizer, model.max_seq_length)
        model.max_seq_length = self.longest
        self._prompt = model.prompts.get(model.default_prompt_name or "") or ""
        # `embedding` normalises instead: jobs of one engine may want it or not.
        self.normalizes = isinstance(model[-1], Normalize)
        if self.normalizes:
            del model[-1]
        self._model = model

    def lengths(self, rows: Sequence[Texts]) -> list[list[int]]:
        """One sequence for each text."""
        texts = [self._prompt + text for row in rows for text in row]
        counts = iter(self._counts(texts))
        return [[next(counts) for _ in row] for row in rows]

    def compute(self, rows: Sequence[Texts]) -> pooling.Numbers:
        """The pooled vectors."""
        texts = [text for (text,) in rows]
        vectors = self._model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        return np.asarray(vectors, np.float32)

    def check(self, task: Task) -> None:
        """The model has at least as many dimensions as are kept."""
        pooling.check_dimensions(task, self._model.get_embedding_dimension())

    def outcome(self, task: Task, line: pooling.Numbers, tokens: int) -> Outcome:
        """The row's vector."""
        assert isinstance(task, EmbedTask)
        return pooling.embedding(line, task, self.normalizes, tokens)


class CosineScorer(Embedder):
    """Pairs by the cosine of their embeddings."""

    def compute(self, rows: Sequence[Texts]) -> pooling.Numbers:
        """The cosine of each pair; one pass over all texts."""
        vectors = super().compute([(text,) for row in rows for text in row])
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        return np.array([[pooling.cosine(one, other)] for one, other in pairs], np.float32)

    def outcome(self, task: Task, line: pooling.Numbers, tokens: int) -> Outcome:
        """The pair's number."""
        return pooling.score(line[0], tokens)


class PairScorer(TextModel):
    """A cross-encoder: both texts in one sequence, one number out, with the model's activation."""

    def __init__(self, spec: TransformersEngineSpec, revision: str | None) -> None:
        model = CrossEncoder(spec.model, **_arguments(spec, revision))
        pooling.check_labels(spec.model, "score", model.num_labels)
        super().__init__(spec, model.config, model.tokenizer, model.max_seq_length)
        model.max_seq_length = self.longest
        self._model = model

    def compute(self, rows: Sequence[Texts]) -> pooling.Numbers:
        """The score of each pair."""
        pairs = [list(row) for row in rows]
        scores = self._model.predict(pairs, batch_size=len(pairs), show_progress_bar=False)
        return np.asarray(scores, np.float32).reshape(len(rows), 1)

    def outcome(self, task: Task, line: pooling.Numbers, tokens: int) -> Outcome:
        """The pair's number."""
        return pooling.score(line[0], tokens)


class Classifier(TextModel):
    """A sequence classifier: softmax over its labels, or a sigmoid of each label for a multi-label
    model (`problem_type: multi_label_classification`).
    """

    def __init__(self, spec: TransformersEngineSpec, revision: str | None) -> None:
        found: Any = AutoModelForSequenceClassification.from_pretrained(
            spec.model,
            revision=revision,
            dtype=getattr(torch, spec.dtype),
            output_loading_info=True,
        )
        self._model, loaded = found
        if loaded["missing_keys"]:
            raise EngineLoadFailed(
                f"{spec.model!r} is not a trained classifier: it has no weights for "
                f"{min(loaded['missing_keys'])}"
            )
        config = self._model.config
        pooling.check_labels(spec.model, "classify", config.num_labels)
        self._device = _device(spec)
        self._model.to(self._device).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(spec.model, revision=revision)
        if self._tokenizer.pad_token_id is None:
            raise EngineLoadFailed(
                f"{spec.model!r} has no padding token, so texts cannot share a pass"
            )
        super().__init__(spec, config, self._tokenizer, self._tokenizer.model_max_length)
        self._is_multi_label = config.problem_type == "multi_label_classification"
        self.labels = pooling.label_names(config.id2label)

    @torch.inference_mode()
    def compute(self, rows: Sequence[Texts]) -> pooling.Numbers:
        """The probability of each label."""
        encoded = self._tokenizer(
            *map(list, zip(*rows, strict=True)),
            padding=True,
            truncation=True,
            max_length=self.longest,
            return_tensors="pt",
        )
        logits = self._model(**encoded.to(self._device)).logits.float().cpu().numpy()
        return pooling.probabilities(logits, is_multi_label=self._is_multi_label)

    def outcome(self, task: Task, line: pooling.Numbers, tokens: int) -> Outcome:
        """The row's labels."""
        return pooling.classification(line, self.labels, tokens)


def _arguments(spec: TransformersEngineSpec, revision: str | None) -> dict[str, Any]:
    return {
        "device": _device(spec),
        "revision": revision,
        "trust_remote_code": False,
        "model_kwargs": {"dtype": getattr(torch, spec.dtype)},
    }


def _device(spec: TransformersEngineSpec) -> str:
    return spec.device or ("cuda" if torch.cuda.is_available() else "cpu")


def _is_classifier(model: str, revision: str | None) -> bool:
    """Whether the model has a classification head, which a cross-encoder needs."""
    architectures = AutoConfig.from_pretrained(model, revision=revision).architectures or [""]
    return str(architectures[0]).endswith("ForSequenceClassification")
