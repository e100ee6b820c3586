"""The vLLM engine: one AsyncLLM on one loop thread, fed by every batch of the child at once.

The only module that imports vllm. Tokenisation happens in the thread that carries the batch, so the
loop that feeds the engine only moves token ids.
"""

import asyncio
import hashlib
import json
import re
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import jsonschema
import structlog
import vllm
from vllm import SamplingParams, TokensPrompt
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from common.errors import EngineDead, EngineLoadFailed
from common.spec import GenerateTask, Sampling, StructuredOutput
from common.spec import VllmEngine as VllmSpec
from common.states import RowErrorKind
from worker.engines.protocol import Answer, Outcome, Refusal, Request, Work
from worker.profile import Stage

log = structlog.get_logger(__name__)

PLACES_A_ROW = 2
"""Rows in vLLM for each that it runs at once, so that its own queue never runs dry."""

SHUTDOWN_SECONDS = 10.0
"""Time that EngineCore gets to leave by itself; the supervisor ends the group in any case."""

CPU_KV_CACHE_BYTES = 2**30
"""KV cache on a machine without a GPU, unless engine.args or VLLM_CPU_KVCACHE_SPACE say other:
vLLM's own default takes 92 % of the machine, which the ledger and its neighbours need too."""


class VllmEngine:
    """`concurrency` is the scheduler's max_num_seqs."""

    name = "vllm"
    version = vllm.__version__

    def __init__(self, spec: VllmSpec, revision: str | None) -> None:
        self._moved_at = time.monotonic()
        self._in_flight = 0
        self._tokenizing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True).start()
        self._llm = self._on_loop(self._start(spec, revision))
        self._tokenizer: Any = self._llm.get_tokenizer()
        self._longest = int(self._llm.model_config.max_model_len)
        self.concurrency = int(self._llm.vllm_config.scheduler_config.max_num_seqs)
        self.revision = _resolved_revision(self._llm.model_config)
        log.info("vllm_started", **effective(self._llm.vllm_config))
        # A row's deadline begins here, not in the queue of a large batch.
        self._places = asyncio.Semaphore(PLACES_A_ROW * self.concurrency)

    @classmethod
    def load(cls, spec: VllmSpec, revision: str | None) -> Self:
        """Loads the model; EngineLoadFailed says why it cannot be loaded."""
        try:
            return cls(spec, revision or spec.revision)
        except Exception as error:
            raise EngineLoadFailed(
                f"vLLM cannot load {spec.model!r}: {type(error).__name__}: {_first_lines(error)}"
            ) from error

    def start(self, work: Work) -> "Future[None]":
        """Tokenises here and submits every request; EngineDead when EngineCore died."""
        assert isinstance(work.task, GenerateTask)
        with work.profile.span(Stage.TOKENIZE):
            prompts = self._tokenize(work)
        batch = asyncio.run_coroutine_threadsafe(self._all(work, work.task, prompts), self._loop)
        work.on_stop(batch.cancel)
        return batch

    def stalled_seconds(self) -> float:
        """Seconds since a token came, while requests are in flight."""
        return time.monotonic() - self._moved_at if self._in_flight else 0.0

    def close(self) -> None:
        """Ends EngineCore and the loop thread."""
        self._llm.shutdown(timeout=SHUTDOWN_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _on_loop(self, coroutine: Coroutine[Any, Any, AsyncLLM]) -> AsyncLLM:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self, spec: VllmSpec, revision: str | None) -> AsyncLLM:
        # AsyncLLM starts its output handler on the running loop, so it is built there.
        defaults: dict[str, Any] = {"disable_log_stats": True, "enable_log_requests": False}
        if current_platform.is_cpu():
            defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
        arguments = AsyncEngineArgs(
            model=spec.model, revision=revision, **{**defaults, **spec.args}
        )
        # The defaults that vLLM has for LLM.generate: on a large GPU eight times the requests and
        # tokens a step that it gives to whoever says nothing.
        return AsyncLLM.from_engine_args(
            arguments,
            usage_context=UsageContext.LLM_CLASS,
            stat_loggers=[self._progress_logger],
        )

    def _progress_logger(self, _config: object, _index: int = 0) -> StatLoggerBase:
        return _ProgressLogger(self._moved)

    def _moved(self) -> None:
        self._moved_at = time.monotonic()

    def _tokenize(self, work: Work) -> list[tuple[int, list[int]]]:
        """(position, token ids) of every request that can be sent; the others are refused."""
        texts: list[tuple[int, str]] = []
        for position, request in enumerate(work.requests):
            try:
                texts.append((position, self._text(request)))
            except Exception as error:  # a chat template may raise whatever it likes
                work.emit(
                    position,
                    Refusal(
                        RowErrorKind.RENDER_ERROR,
                        f"the model's chat template refused the row: {error}",
                    ),
                )
        if not texts:
            return []
        # HF's fast tokenizers are not safe for two threads at once.
        with self._tokenizing:
            encoded: list[list[int]] = self._tokenizer(
                [text for _, text in texts], add_special_tokens=not self._has_chat_template
            )["input_ids"]
        prompts = []
        for (position, _), tokens in zip(texts, encoded, strict=True):
            if len(tokens) >= self._longest:
                work.emit(
                    position,
                    Refusal(
                        RowErrorKind.TOO_LONG,
                        f"the prompt has {len(tokens)} tokens, the model takes fewer than "
                        f"{self._longest}",
                    ),
                )
            elif not tokens:
                work.emit(position, Refusal(RowErrorKind.RENDER_ERROR, "the prompt is empty"))
            else:
                prompts.append((position, tokens))
        return prompts

    @property
    def _has_chat_template(self) -> bool:
        return getattr(self._tokenizer, "chat_template", None) is not None

    def _text(self, request: Request) -> str:
        messages = [dict(message) for message in request.messages or ()]
        if not self._has_chat_template:
            if not request.is_plain_prompt:
                raise ValueError("the model has no chat template; use task.prompt")
            return messages[0]["content"]
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        )

    async def _all(
        self, work: Work, task: GenerateTask, prompts: Sequence[tuple[int, list[int]]]
    ) -> None:
        check = _Check(task.output)
        began_at = work.profile.clock()
        count = 0
        try:
            # gather, not a TaskGroup: the first EngineDead comes out as itself.
            await asyncio.gather(
                *(self._one(work, task, check, position, tokens) for position, tokens in prompts)
            )
            count = 1
        finally:
            work.profile.add(Stage.INFER, work.profile.clock() - began_at, count=count)

    async def _one(
        self, work: Work, task: GenerateTask, check: "_Check", position: int, tokens: list[int]
    ) -> None:
        request = work.requests[position]
        asked_at = work.profile.clock()
        await self._places.acquire()
        waited = work.profile.clock() - asked_at
        work.profile.engine.enter()
        if not self._in_flight:
            self._moved()
        self._in_flight += 1
        try:
            async with asyncio.timeout(work.row_timeout_seconds):
                output = await self._generate(request, task, tokens)
            work.profile.add(Stage.QUEUE, waited + _queued_seconds(output))
            outcome = check.outcome(output, self._answer_text(task, output))
        except TimeoutError:
            outcome = Refusal(
                RowErrorKind.TIMEOUT,
                f"no answer within row_timeout_seconds {work.row_timeout_seconds:g}",
            )
        except EngineDeadError as error:
            raise EngineDead("vLLM's engine process died") from error
        except EngineDead:
            raise
        except Exception as error:  # whatever one row provokes stays with that row
            outcome = Refusal(
                RowErrorKind.REFUSED, f"vLLM refused the row: {type(error).__name__}: {error}"
            )
        finally:
            self._in_flight -= 1
            work.profile.engine.leave()
            self._places.release()
        work.emit(position, outcome)

    def _answer_text(self, task: GenerateTask, output: RequestOutput) -> str:
        """VLLM's text; decoded anew where a replacement character at the prompt's end leaked in.

        The incremental detokenizer takes it for the first bytes of the answer. Stop strings are
        cut off in vLLM's text only, so there its text stands.
        """
        completion = output.outputs[0]
        if "\ufffd" not in completion.text or task.sampling.stop:
            return str(completion.text)
        with self._tokenizing:
            return str(self._tokenizer.decode(completion.token_ids, skip_special_tokens=True))

    async def _generate(
        self, request: Request, task: GenerateTask, tokens: list[int]
    ) -> RequestOutput:
        params = _params(task.sampling, task.output, request)
        answers = self._llm.generate(
            TokensPrompt(prompt_token_ids=tokens), params, f"{id(request):x}-{time.monotonic_ns()}"
        )
        async for answer in answers:  # FINAL_ONLY: there is one
            if answer.finished:
                return answer
        raise EngineDead("vLLM ended a request without an answer")


class _ProgressLogger(StatLoggerBase):
    """Tells the engine that a step was made: the only sign of life before a row is finished."""

    def __init__(self, moved: Any) -> None:
        self._said = moved

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Called by vLLM after each step."""
        if iteration_stats is not None and (
            iteration_stats.num_generation_tokens or iteration_stats.num_prompt_tokens
        ):
            self._said()

    def log_engine_initialized(self) -> None:
        """Nothing to log."""


class _Check:
    """Holds an answer against what the task says it must look like."""

    def __init__(self, output: StructuredOutput | None) -> None:
        self._output = output
        schema = output.json_schema if output else None
        self._schema = None if schema is None else jsonschema.Draft202012Validator(schema)
        self._regex = re.compile(output.regex) if output and output.regex else None

    def outcome(self, answer: RequestOutput, text: str) -> Outcome:
        """The row's answer, or why it is none: cut off or not of the asked form."""
        completion = answer.outputs[0]
        prompt_tokens = len(answer.prompt_token_ids or ())
        output_tokens = len(completion.token_ids)
        wrong = self._wrong(text, completion.finish_reason)
        if wrong is not None:
            return Refusal(*wrong, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return Answer(
            columns={"output": text},
            finish_reason=completion.finish_reason,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )

    def _wrong(self, text: str, finish_reason: str | None) -> tuple[RowErrorKind, str] | None:
        if self._output is None:
            return None
        misfit = self._misfit(text)
        if finish_reason == "length" and (misfit or self._output.grammar is not None):
            return RowErrorKind.TRUNCATED, f"the answer was cut off by max_tokens: {text[:100]!r}"
        return (
            None if misfit is None else (RowErrorKind.INVALID_OUTPUT, f"{misfit}: {text[:100]!r}")
        )

    def _misfit(self, text: str) -> str | None:
        output = self._output
        if output is None or output.grammar is not None:
            return None
        if output.choice is not None:
            return None if text in output.choice else "the answer is none of the choices"
        if self._regex is not None:
            return None if self._regex.fullmatch(text) else "the answer does not match the regex"
        assert self._schema is not None
        try:
            self._schema.validate(json.loads(text))
        except json.JSONDecodeError:
            return "the answer is no JSON"
        except jsonschema.ValidationError as error:
            return f"the answer does not fit the schema ({error.message[:200]})"
        return None


def _params(
    sampling: Sampling, output: StructuredOutput | None, request: Request
) -> SamplingParams:
    structured = None
    if output is not None:
        structured = StructuredOutputsParams(
            choice=output.choice,
            json=output.json_schema,
            regex=output.regex,
            grammar=output.grammar,
        )
    return SamplingParams(
        **sampling.model_dump(exclude={"seed", "stop", "max_tokens", "max_tokens_column"}),
        max_tokens=min(sampling.max_tokens, request.max_tokens or sampling.max_tokens),
        stop=sampling.stop or None,
        seed=row_seed(sampling.seed, request.row_index) if sampling.temperature > 0 else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=structured,
    )


def row_seed(seed: int, row_index: int) -> int:
    """The seed of a sampled row: a hash of the job's seed and its place in the dataset."""
    digest = hashlib.blake2b(f"{seed}:{row_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _queued_seconds(output: RequestOutput) -> float:
    """How long the row waited in vLLM's own queue; 0 where vLLM keeps no times."""
    times = output.metrics
    return 0.0 if times is None else max(0.0, float(times.scheduled_ts - times.queued_ts))


def effective(config: VllmConfig) -> dict[str, Any]:
    """What a loaded vLLM was really configured as, after its own defaults, where it counts."""
    scheduler, cache, model = config.scheduler_config, config.cache_config, config.model_config
    return {
        "dtype": str(model.dtype),
        "max_model_len": model.max_model_len,
        "enforce_eager": model.enforce_eager,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": scheduler.async_scheduling,
        "scheduling_policy": scheduler.policy,
        "prefix_caching": cache.enable_prefix_caching,
        "kv_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
    }


def _resolved_revision(config: Any) -> str | None:
    """The commit of a hub model; a local folder has none."""
    if Path(config.model).exists():
        return None
    found = getattr(config.hf_config, "_commit_hash", None) or config.revision
    return None if found is None else str(found)


def _first_lines(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said[:600] or "no further message"
