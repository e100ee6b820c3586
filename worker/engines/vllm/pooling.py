"""Pooling models on vLLM: embeddings, classifications and scores of texts.

vLLM returns the pooled vector or the logits. `nightshift.worker.engines.pooling` makes the row's
columns of them, as for every engine.
"""

from collections.abc import Sequence
from typing import Any

from vllm import PoolingParams
from vllm.entrypoints.pooling.scoring.utils import compress_token_type_ids
from vllm.inputs import TokensInput, tokens_input
from vllm.model_executor.model_loader import get_model_cls
from vllm.model_executor.models.interfaces import supports_score_template
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from nightshift.common.errors import EngineLoadFailed
from nightshift.common.public_text import private
from nightshift.common.spec import ClassifyTask, EmbedTask, ScoreTask
from nightshift.common.states import RowErrorKind
from nightshift.common.text import counted
from nightshift.worker.engines import pooling
from nightshift.worker.engines.protocol import Outcome, Refusal, Request, Work
from nightshift.worker.engines.vllm.model import Model, TaskHandler, finished, request_id

PoolingTask = EmbedTask | ClassifyTask | ScoreTask

Prompts = list[tuple[TokensInput, dict[str, int] | None]]
"""A prompt for each sequence of a row, with its token types where the model needs them."""


class PoolingModel:
    """How a loaded pooling model works, as its own files say.

    `pooling_task` is vLLM's: `embed` returns a vector for a sequence, `classify` logits.
    """

    def __init__(self, config: Any, runner: str, tasks: Sequence[str]) -> None:
        """For a task's runner; EngineLoadFailed where the model cannot serve it."""
        self.pooling_task = "classify" if runner == "classify" else "embed"
        if runner == "score" and config.score_type == "cross-encoder":
            self.pooling_task = "classify"
        self.labels = pooling.label_names(config.hf_config.id2label)
        _check(config, runner, self.pooling_task, tasks, len(self.labels))
        settings = get_hf_file_to_dict(
            "config_sentence_transformers.json", config.model, config.revision
        )
        known: dict[str, Any] = (settings or {}) if self.pooling_task == "embed" else {}
        prompts = known.get("prompts") or {}
        self.prompt = str(prompts.get(known.get("default_prompt_name")) or "")
        self.normalizes = config.pooler_config.use_activation is True
        self.lowercases = bool((config.encoder_config or {}).get("do_lower_case"))
        self.has_separator = bool(config.use_sep_token)
        self.uses_activation = self.pooling_task == "classify" and runner == "score"
        self.is_multi_label = config.hf_config.problem_type == "multi_label_classification"
        self.width = int(config.embedding_size)


def _check(config: Any, runner: str, pooling_task: str, tasks: Sequence[str], labels: int) -> None:
    if runner == "score" and config.score_type == "late-interaction":
        raise EngineLoadFailed(
            f"'{private(config.model)}' compares texts token by token (late interaction), which task.kind "
            "score has no form for"
        )
    if pooling_task not in tasks:
        raise EngineLoadFailed(
            f"vLLM runs '{private(config.model)}' for {' or '.join(sorted(tasks))}, not for {pooling_task}"
        )
    if pooling_task == "classify":
        pooling.check_labels(config.model, runner, labels)
        if supports_score_template(get_model_cls(config)):
            raise EngineLoadFailed(f"'{private(config.model)}' has a template of its own for pairs")


class Pooling(TaskHandler):
    """The numbers of one batch's rows."""

    def __init__(self, model: Model, pooling_model: PoolingModel, task: PoolingTask) -> None:
        self._model = model
        self._pooling_model = pooling_model
        self._task = task
        pooling.check_dimensions(task, pooling_model.width)

    def prepare(self, work: Work) -> list[tuple[int, Prompts]]:
        """(position, prompts) of every request that can be sent. The others are refused."""
        rows = [self._sequences(request) for request in work.requests]
        if not rows:
            return []
        # HF's fast tokenizers are not safe for two threads at once.
        with self._model.tokenizing:
            encoded = iter(self._encoded([sequence for row in rows for sequence in row]))
        prompts: list[tuple[int, Prompts]] = []
        for position, row in enumerate(rows):
            found = [next(encoded) for _ in row]
            longest = max(len(prompt["prompt_token_ids"]) for prompt, _ in found)
            if not min(len(prompt["prompt_token_ids"]) for prompt, _ in found):
                work.emit(position, Refusal(RowErrorKind.REFUSED, "the text has no token"))
            elif longest > self._model.longest:
                work.emit(
                    position,
                    Refusal(
                        RowErrorKind.TOO_LONG,
                        f"the text has {counted(longest, 'token')}, the model takes {self._model.longest}",
                    ),
                )
            else:
                prompts.append((position, found))
        return prompts

    async def run(self, request: Request, prompt: Prompts) -> tuple[Outcome, float]:
        """The row's outcome; vLLM does not tell how long the request waited."""
        lines = [await self._pool(request, *each) for each in prompt]
        tokens = sum(len(each["prompt_token_ids"]) for each, _ in prompt)
        return self._outcome(lines, tokens), 0.0

    def _outcome(self, lines: Sequence[pooling.Numbers], tokens: int) -> Outcome:
        model = self._pooling_model
        one = lines[0][None]
        match self._task:
            case EmbedTask():
                (found,) = pooling.embeddings(one, self._task, model.normalizes, [tokens])
            case ClassifyTask():
                shares = pooling.probabilities(one, is_multi_label=model.is_multi_label)
                (found,) = pooling.classifications(shares, model.labels, [tokens])
            case ScoreTask():
                values = pooling.cosines(one, lines[1][None]) if len(lines) == 2 else one
                (found,) = pooling.scores(values, [tokens])
        return found

    def _sequences(self, request: Request) -> list[tuple[str, ...]]:
        """The texts of each sequence; a cross-encoder takes a pair as one sequence."""
        texts = [request.text, *([] if request.text_pair is None else [request.text_pair])]
        if self._pooling_model.lowercases:
            texts = [text.lower() for text in texts]
        if self._pooling_model.pooling_task == "embed":
            return [(self._pooling_model.prompt + text,) for text in texts]
        return [tuple(texts) if self._pooling_model.has_separator else ("".join(texts),)]

    def _encoded(self, sequences: Sequence[tuple[str, ...]]) -> Prompts:
        """The prompt of each sequence, with special tokens. All sequences have as many texts."""
        columns = map(list, zip(*sequences, strict=True))
        found = self._model.tokenizer(*columns, padding=False, truncation=False)
        types = found.get("token_type_ids") or [None] * len(sequences)
        return [
            (tokens_input(ids), _token_types(kinds))
            for ids, kinds in zip(found["input_ids"], types, strict=True)
        ]

    async def _pool(
        self, request: Request, prompt: TokensInput, extra: dict[str, int] | None
    ) -> pooling.Numbers:
        params = PoolingParams(
            task=self._pooling_model.pooling_task,
            use_activation=self._pooling_model.uses_activation,
            extra_kwargs=extra,
        )
        output = await finished(self._model.llm.encode(prompt, params, request_id(request)))
        return output.outputs.data.float().cpu().numpy()


def _token_types(kinds: list[int] | None) -> dict[str, int] | None:
    """Where the second text begins, for models that were trained with token types."""
    if kinds is None or not any(kinds):
        return None
    return {"compressed_token_type_ids": compress_token_type_ids(kinds)}
