"""Models of the transformers engine: ids of tokens in, an array of numbers for each row out.

Embedding models and cross-encoders are loaded and run by sentence-transformers, classifiers by
transformers. None runs code that came with the model.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import batch_to_device
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from nightshift.common.errors import EngineLoadFailed
from nightshift.common.public_text import private
from nightshift.common.spec import EmbedTask, Task, TransformersEngineSpec
from nightshift.worker.engines import hub, pooling
from nightshift.worker.engines.protocol import Outcome
from nightshift.worker.engines.transformers.rows import Row, Texts
from nightshift.worker.engines.transformers.tokens import Ids, Tokens

MOST_PROBED = 2**14
"""A model that takes more tokens than this is not probed with a text that is too long."""


class Launched:
    """What a pass computes. On a GPU the copy to pinned memory is queued behind this pass, so that no later pass
    is waited for.
    """

    def __init__(self, found: torch.Tensor, *, runs_ahead: bool) -> None:
        self._found = found.float().to("cpu", non_blocking=runs_ahead)
        self._copied = (
            torch.cuda.current_stream(found.device).record_event() if runs_ahead else None
        )

    def numbers(self) -> pooling.Numbers:
        """Waits for the pass: (sequences, numbers of each), float32."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers: pooling.Numbers = self._found.numpy()
        return numbers


class TextModel(Protocol):
    """A loaded model. `longest` is how many tokens one sequence may have.

    `runs_ahead` says that a pass goes on while Python does something else, as on a GPU.
    """

    longest: int
    revision: str | None
    runs_ahead: bool
    _tokens: Tokens
    _device: torch.device

    def __init__(
        self, spec: TransformersEngineSpec, config: Any, tokenizer: object, own_longest: int | None
    ) -> None:
        """EngineLoadFailed when the model takes fewer tokens than the spec wants.

        The longest sequence is the spec's, else the model's; at most the model's positions.
        """
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise EngineLoadFailed(f"'{private(spec.model)}' has no tokenizer of transformers")
        positions = getattr(config, "max_position_embeddings", None) or 2**31
        if (spec.max_length or 0) > positions:
            raise EngineLoadFailed(
                f"engine.max_length is {spec.max_length}, '{private(spec.model)}' has {positions} positions"
            )
        self.longest = int(spec.max_length or min(own_longest or positions, positions))
        self._tokens = Tokens(tokenizer, self.longest, cut=spec.truncate)
        self._device = torch.device(_device(spec))
        self.runs_ahead = self._device.type == "cuda"
        self.revision = hub.loaded_commit(spec.model, config)

    def sequences(self, rows: Sequence[Texts]) -> list[tuple[Ids, ...]]:
        """The sequences that each row becomes, special tokens and prompt included; here, the texts of a
        row become one sequence.

        For one thread at a time, which may be another than the one that computes.
        """
        return [(ids,) for ids in self._tokens.ids(*zip(*rows, strict=True))]

    def launch(self, rows: Sequence[Row]) -> Launched:
        """Begins a forward pass. A GPU may still compute when this returns."""
        return Launched(self._computed(rows), runs_ahead=self.runs_ahead)

    def _computed(self, rows: Sequence[Row]) -> torch.Tensor:
        """The forward pass: on the device, (rows or sequences, numbers of each)."""

    def numbers(self, launched: Launched) -> pooling.Numbers:
        """Waits for a pass: (rows, numbers of each), float32."""
        return launched.numbers()

    def check(self, task: Task) -> None:
        """JobRefused when the task asks for what this model does not have; here, never."""
        return

    def outcomes(
        self, task: Task, numbers: pooling.Numbers, tokens: Sequence[int]
    ) -> list[Outcome]:
        """The outcomes of rows of one task, from their lines of `numbers`."""

    def _features(self, sequences: Sequence[Ids]) -> dict[str, torch.Tensor]:
        """Sequences on the device, padded; to a GPU they are copied while it computes the pass before."""
        features = self._tokens.padded(sequences)
        if not self.runs_ahead:
            return {name: each.to(self._device) for name, each in features.items()}
        return {
            name: each.pin_memory().to(self._device, non_blocking=True)
            for name, each in features.items()
        }


def load(spec: TransformersEngineSpec, revision: str | None, runner: str) -> TextModel:
    """The model for a task's runner. Raises what the libraries raise."""
    disable_progress_bar()
    revision = hub.fetch_snapshot(spec.model, revision)
    if runner == "classify":
        return Classifier(spec, revision)
    if runner == "score" and _is_classifier(spec.model, revision):
        return PairScorer(spec, revision)
    return CosineScorer(spec, revision) if runner == "score" else Embedder(spec, revision)


class SentenceModel(TextModel):
    """A model of sentence-transformers, with its prompt.

    Its modules get the ids of the rows where these are what the library itself would give them: compared
    with texts that need padding, a prompt and a cut. Elsewhere, as with a chat template, the library gets
    the texts.
    """

    def __init__(
        self, spec: TransformersEngineSpec, model: "SentenceTransformer | CrossEncoder"
    ) -> None:
        super().__init__(spec, model.config, model.tokenizer, model.max_seq_length)
        model.max_seq_length = self.longest
        self._model = model.eval()
        self._prompt = model.prompts.get(model.default_prompt_name or "") or None
        self._constants = self._probed(Tokens(model.tokenizer, self.longest, cut=True))

    def _probed(self, tokens: Tokens) -> dict[str, Any] | None:
        """What the library gives its modules beside tensors, where the tensors are those of `tokens`; else None."""
        probes = self._probes()
        try:
            theirs = self._preprocessed(probes)
        except Exception:  # as with a model that takes no empty text: a pass tells of its rows
            return None
        ours = tokens.padded([ids for row in self._ids(tokens, probes) for ids in row])
        tensors = {name: each for name, each in theirs.items() if isinstance(each, torch.Tensor)}
        if ours.keys() != tensors.keys():
            return None
        if not all(torch.equal(each, tensors[name].cpu()) for name, each in ours.items()):
            return None
        return {name: theirs[name] for name in theirs.keys() - tensors.keys()}

    def _probes(self) -> list[Texts]:
        """Texts as the library gets them: a short one, an empty one, and one that is too long."""
        return [("A cat.",), ("",), ("an owl " * min(self.longest, MOST_PROBED),)]

    def sequences(self, rows: Sequence[Texts]) -> list[tuple[Ids, ...]]:
        """The sequences that each row becomes."""
        return self._ids(self._tokens, rows)

    def _parts(self, texts: Texts) -> list[Texts]:
        """The texts of each sequence of a row; here, there is one sequence."""
        return [texts]

    def _ids(self, tokens: Tokens, rows: Sequence[Texts]) -> list[tuple[Ids, ...]]:
        """The sequences of each row behind the prompt."""
        parts = [self._parts(texts) for texts in rows]
        prompt = self._prompt or ""
        prompted = [(prompt + one, *other) for each in parts for one, *other in each]
        ids = iter(tokens.ids(*zip(*prompted, strict=True)))
        return [tuple(next(ids) for _ in each) for each in parts]

    def _preprocessed(self, rows: Sequence[Texts]) -> dict[str, Any]:
        """The library's own features of the sequences of rows."""
        parts = [part for texts in rows for part in self._parts(texts)]
        texts = [each[0] if len(each) == 1 else list(each) for each in parts]
        return dict(self._model.preprocess(texts, prompt=self._prompt))

    def _run(self, rows: Sequence[Row]) -> dict[str, Any]:
        """What the modules make of the sequences of rows, of which the library may want the texts."""
        if self._constants is None:
            texts = [row.texts for row in rows]
            features = batch_to_device(self._preprocessed(texts), self._device)
        else:
            sequences = [ids for row in rows for ids in row.sequences]
            features = self._constants | self._features(sequences)
        with torch.inference_mode():
            return dict(self._model(features))


class Embedder(SentenceModel):
    """An embedding model with its pooling and dense layers.

    A model without modules.json is pooled by the mean over its tokens and not normalised.
    """

    def __init__(self, spec: TransformersEngineSpec, revision: str | None) -> None:
        model = SentenceTransformer(spec.model, **_arguments(spec, revision))
        super().__init__(spec, model)
        # `embeddings` normalises instead: jobs of one engine may want it or not.
        self.normalizes = isinstance(model[-1], Normalize)
        if self.normalizes:
            del model[-1]
        self._width = model.get_embedding_dimension()

    def _parts(self, texts: Texts) -> list[Texts]:
        """One sequence for each text."""
        return [(text,) for text in texts]

    def _computed(self, rows: Sequence[Row]) -> torch.Tensor:
        """The pooled vectors, one for each sequence."""
        found: torch.Tensor = self._run(rows)["sentence_embedding"]
        return found

    def check(self, task: Task) -> None:
        """The model has at least as many dimensions as are kept."""
        pooling.check_dimensions(task, self._width)

    def outcomes(
        self, task: Task, numbers: pooling.Numbers, tokens: Sequence[int]
    ) -> list[Outcome]:
        """The rows' vectors."""
        assert isinstance(task, EmbedTask)
        return pooling.embeddings(numbers, task, self.normalizes, tokens)


class CosineScorer(Embedder):
    """Pairs by the cosine of their embeddings."""

    def numbers(self, launched: Launched) -> pooling.Numbers:
        """The cosine of each pair."""
        vectors = super().numbers(launched)
        return pooling.cosines(vectors[::2], vectors[1::2])

    def outcomes(
        self, task: Task, numbers: pooling.Numbers, tokens: Sequence[int]
    ) -> list[Outcome]:
        """The pairs' numbers."""
        return pooling.scores(numbers, tokens)


class PairScorer(SentenceModel):
    """A cross-encoder: both texts in one sequence, one number out, with the model's activation."""

    def __init__(self, spec: TransformersEngineSpec, revision: str | None) -> None:
        model = CrossEncoder(spec.model, **_arguments(spec, revision))
        pooling.check_labels(spec.model, "score", model.num_labels)
        super().__init__(spec, model)
        self._activation = model.activation_fn

    def _probes(self) -> list[Texts]:
        texts = super()._probes()
        return [(*one, *other) for one, other in zip(texts, reversed(texts), strict=True)]

    def _computed(self, rows: Sequence[Row]) -> torch.Tensor:
        """The score of each pair."""
        found = self._run(rows)
        with torch.inference_mode():
            scores: torch.Tensor = self._activation(found["scores"].float())
        return scores.reshape(len(rows), 1)

    def outcomes(
        self, task: Task, numbers: pooling.Numbers, tokens: Sequence[int]
    ) -> list[Outcome]:
        """The pairs' numbers."""
        return pooling.scores(numbers, tokens)


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
                f"'{private(spec.model)}' is not a trained classifier: it has no weights for "
                f"{min(loaded['missing_keys'])}"
            )
        config = self._model.config
        pooling.check_labels(spec.model, "classify", config.num_labels)
        self._model.to(_device(spec)).eval()
        tokenizer = AutoTokenizer.from_pretrained(spec.model, revision=revision)
        if tokenizer.pad_token_id is None:
            raise EngineLoadFailed(
                f"'{private(spec.model)}' has no padding token, so texts cannot share a pass"
            )
        super().__init__(spec, config, tokenizer, tokenizer.model_max_length)
        self._is_multi_label = config.problem_type == "multi_label_classification"
        self.labels = pooling.label_names(config.id2label)

    def _computed(self, rows: Sequence[Row]) -> torch.Tensor:
        """The logit of each label."""
        features = self._features([row.sequences[0] for row in rows])
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**features).logits
        return logits

    def numbers(self, launched: Launched) -> pooling.Numbers:
        """The probability of each label."""
        return pooling.probabilities(super().numbers(launched), is_multi_label=self._is_multi_label)

    def outcomes(
        self, task: Task, numbers: pooling.Numbers, tokens: Sequence[int]
    ) -> list[Outcome]:
        """The rows' labels."""
        return pooling.classifications(numbers, self.labels, tokens)


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
