"""The vLLM engine: one AsyncLLM on one loop thread, fed by every batch of the child at once.

The thread of a batch tokenises its rows, so that the loop thread only moves token ids.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import structlog
import vllm
from vllm.config import CacheConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

from nightshift.common.errors import (
    EngineDead,
    MachineCannotLoad,
    NeedsOtherEngine,
    Permanent,
    Retryable,
)
from nightshift.common.public_text import marked, private
from nightshift.common.spec import GenerateTask, RequestsTask, Task, VllmEngineSpec
from nightshift.common.spec.engines import SERVER_ARGUMENTS
from nightshift.worker.engines import hub
from nightshift.worker.engines.arrival_order import Line
from nightshift.worker.engines.loop_thread import LoopThread, run_rows
from nightshift.worker.engines.protocol import Outcome, Request, Work, timed_out
from nightshift.worker.engines.vllm import backends, devices, generate, thinking, verify
from nightshift.worker.engines.vllm.generate import Generation
from nightshift.worker.engines.vllm.model import Model, TaskHandler
from nightshift.worker.engines.vllm.pooling import Pooling, PoolingModel, PoolingTask
from nightshift.worker.engines.vllm.requests import Requests, Serving
from nightshift.worker.engines.vllm.thinking import Thinking
from nightshift.worker.engines.vllm.vision import Vision
from nightshift.worker.telemetry.stage import Stage

log = structlog.get_logger(__name__)

PLACES_A_ROW = 2
"""Rows in vLLM for each row that vLLM runs at once, so that its queue is never empty."""

SHUTDOWN_SECONDS = 10.0
"""How long EngineCore may take to end; after that the supervisor ends the process group."""

CPU_KV_CACHE_BYTES = 2**30
"""KV cache on a machine without a GPU, unless engine.args or VLLM_CPU_KVCACHE_SPACE set it: vLLM's
default is 92 % of the memory, which the ledger and other processes need, too."""


class VllmEngine:
    """`concurrency` is the scheduler's max_num_seqs."""

    name = "vllm"
    version = vllm.__version__

    def __init__(
        self, spec: VllmEngineSpec, revision: str | None, runner: str, task: Task | None
    ) -> None:
        self._moved_at = time.monotonic()
        self._in_flight = 0
        self._loop_thread = LoopThread()
        self._pooling_model: PoolingModel | None = None
        self._thinking: Thinking | None = None
        self._tokenizing = threading.Lock()
        with ExitStack() as failed:
            failed.callback(self._loop_thread.close, SHUTDOWN_SECONDS)
            self.llm = self._loop_thread.run(self._start(spec, revision, runner, task))
            config = self.llm.model_config
            tokenizer = self.llm.get_tokenizer()
            self._model = Model(
                self.llm,
                tokenizer,
                int(config.max_model_len),
                spec.args,
                self._thinking,
                self._tokenizing,
            )
            failed.callback(self.close)
            self._serving = Serving(self._model, spec, gated=self._has_own_gate)
            if runner != "generate":
                tasks = self._loop_thread.run(self.llm.get_supported_tasks())
                self._pooling_model = PoolingModel(config, runner, tasks)
            if SERVER_ARGUMENTS & spec.args.keys():
                self._loop_thread.run(self._serving.state())  # refuses wrong arguments now
            failed.pop_all()
        self.concurrency = int(self.llm.vllm_config.scheduler_config.max_num_seqs)
        self.cache_tokens = cache_tokens(self.llm.vllm_config.cache_config)
        self.code: Mapping[str, str] = {}
        self.revision = hub.loaded_commit(config.model, config.hf_config, config.revision)
        log.info("vllm_started", **effective(self.llm.vllm_config))
        # A row's deadline begins here, not in the queue of a large batch.
        self._places = asyncio.Semaphore(PLACES_A_ROW * self.concurrency)
        self._line = Line(self.concurrency)

    @classmethod
    def load(
        cls,
        spec: VllmEngineSpec,
        revision: str | None,
        runner: str = "generate",
        task: Task | None = None,
    ) -> Self:
        """Loads the model for a task's `runner`; EngineLoadFailed says why it cannot be loaded.

        Before its weights are read, the first `task` is checked: JobRefused and NeedsOtherEngine are raised as
        `verify.verified` raises them.
        """
        devices.check(spec.args, current_platform)
        with hub.load_errors("vLLM", spec.model):
            return cls(spec, revision or spec.revision, runner, task)

    def resolve(self, task: Task) -> Mapping[str, Any]:
        """What the model fixes for a job: how answers are parted from thoughts, and how long answers may be."""
        return generate.resolve(task, self._model) if isinstance(task, GenerateTask) else {}

    def start(self, work: Work) -> "Future[None]":
        """Tokenises in the caller's thread and submits every request.

        The future's exception is EngineDead when EngineCore died, StorageUnavailable when a store
        of images was away: the rows without images from that store were answered. vLLM does not
        tell which rows it has begun: the first `concurrency` of those that it has count as begun.
        """
        handler = self._handler(work)
        with work.recorder.span(Stage.TOKENIZE):
            prompts = handler.prepare(work)
        answer = partial(self._outcome, work, handler)
        rows = run_rows(work, prompts, answer, "vLLM refused the row: {}".format)
        batch = self._loop_thread.submit(rows)
        work.on_stop(batch.cancel)
        return batch

    def stalled_seconds(self) -> float:
        """Seconds since the last token, while requests are in flight."""
        return time.monotonic() - self._moved_at if self._in_flight else 0.0

    def close(self) -> None:
        """Ends EngineCore and the loop thread."""
        self.llm.shutdown(timeout=SHUTDOWN_SECONDS)
        self._model.reads.close()
        self._loop_thread.close(SHUTDOWN_SECONDS)

    async def _start(
        self, spec: VllmEngineSpec, revision: str | None, runner: str, task: Task | None
    ) -> AsyncLLM:
        # AsyncLLM starts its output handler on the loop that runs here.
        defaults: dict[str, Any] = {"disable_log_stats": True, "enable_log_requests": False}
        if current_platform.is_cpu():
            defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
        if runner != "generate":
            defaults["runner"] = "pooling"
        own = {name: each for name, each in spec.args.items() if name not in SERVER_ARGUMENTS}
        if runner == "generate":
            own = backends.with_config(backends.with_backend(own))
        arguments = AsyncEngineArgs(model=spec.model, revision=revision, **{**defaults, **own})
        # The defaults of LLM.generate: on a large GPU eight times the requests and tokens a step
        # that vLLM takes without a usage context.
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
        if runner == "generate":
            self._thinking = _thinking(config, spec.args, self._tokenizing)
            thinking.open_gate(config, self._thinking.gate)
        if isinstance(task, GenerateTask) and self._thinking is not None:
            _check(config, spec.args, task, self._thinking)
        _fetch(config)
        is_alone = arguments.disable_log_stats
        progress = _alone(self._moved) if is_alone else lambda *_: _ProgressLogger(self._moved)
        try:
            return AsyncLLM.from_vllm_config(
                config,
                usage_context=UsageContext.LLM_CLASS,
                stat_loggers=[progress],
                enable_log_requests=arguments.enable_log_requests,
                disable_log_stats=arguments.disable_log_stats,
            )
        except RuntimeError as error:
            # EngineCore logs what it met and hands on no type. The model and its arguments were
            # accepted above: what is left is mostly the memory and the GPUs of this machine.
            raise MachineCannotLoad(
                f"vLLM cannot load '{private(spec.model)}': {marked(error)}"
            ) from error

    @property
    def _has_own_gate(self) -> bool:
        """Whether the engine waits for the end of thoughts although its arguments do not say so."""
        found = self._thinking
        return found is not None and found.gate is not None and not found.is_named

    def _moved(self) -> None:
        self._moved_at = time.monotonic()

    def _handler(self, work: Work) -> TaskHandler:
        match work.task:
            case GenerateTask() as task:
                kind = Vision if task.image_columns else Generation
                return kind(self._model, task, work.resolved)
            case RequestsTask() as task:
                return Requests(self._serving, task)
            case task if self._pooling_model is not None and isinstance(task, PoolingTask):
                return Pooling(self._model, self._pooling_model, task)
            case other:
                raise Permanent(f"this engine was loaded for another task.kind than {other.kind}")

    async def _outcome(
        self, work: Work, handler: TaskHandler, request: Request, prompt: Any
    ) -> Outcome:
        """The row's outcome, once the row had a place; EngineDead when vLLM's process died."""
        asked_at = work.recorder.clock()
        async with self._places:
            waited = work.recorder.clock() - asked_at
            work.recorder.rows_entered(work.task.samples)
            if not self._in_flight:
                self._moved()
            self._in_flight += 1
            place = self._line.enter(work, request.row_index)
            try:
                async with asyncio.timeout(work.row_timeout_seconds):
                    outcome, queued = await handler.run(request, prompt)
                self._moved()
                work.recorder.stage_passed(Stage.QUEUE, waited + queued)
                return outcome
            except TimeoutError:
                return timed_out(work)
            except EngineDeadError as error:
                raise EngineDead("vLLM's engine process died") from error
            finally:
                self._line.leave(place)
                self._in_flight -= 1
                work.recorder.rows_left(work.task.samples)


class _ProgressLogger(StatLoggerBase):
    """Reports each step to the engine: the only progress that is seen before a row is finished."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Called by vLLM after each step."""
        if iteration_stats is not None and (
            iteration_stats.num_generation_tokens or iteration_stats.num_prompt_tokens
        ):
            self._moved()

    def log_engine_initialized(self) -> None:
        """Nothing to log."""


def _alone(moved: Callable[[], None]) -> type[PrometheusStatLogger]:
    """The logger in place of vLLM's own figures: vLLM keeps those beside every other logger, at 10 µs a row on CPU,
    unless a logger is a class of this kind.
    """

    class Alone(_ProgressLogger, PrometheusStatLogger):
        """Keeps no figures."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(moved)

        def record_sleep_state(self, *_: Any, **__: Any) -> None:
            """Nothing to keep."""

        def record_admission_rejection(self, *_: Any, **__: Any) -> None:
            """Nothing to keep."""

    return Alone


def effective(config: VllmConfig) -> dict[str, Any]:
    """The settings of a loaded vLLM that matter for speed, after vLLM's own defaults."""
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


def cache_tokens(cache: CacheConfig) -> int | None:
    """The tokens that the prefix cache keeps, as vLLM counts them; 0 without one, None where vLLM does
    not say.
    """
    return cache.kv_cache_size_tokens if cache.enable_prefix_caching else 0


def _thinking(config: VllmConfig, args: Mapping[str, Any], tokenizing: threading.Lock) -> Thinking:
    """How the model thinks, before its weights are read."""
    structured = args.get(backends.CONFIG)
    also = structured.get("reasoning_parser") if isinstance(structured, Mapping) else None
    named = args.get("reasoning_parser") or also
    tokenizer = cached_tokenizer_from_config(config.model_config)
    model_type = str(config.model_config.hf_text_config.model_type)
    found = Thinking(tokenizer, model_type, named, tokenizing)
    family = found.family
    log.info(
        "thinking_known",
        model_type=model_type,
        family=None if family is None else family.name,
        parser=found.gate,
        switch=found.switch,
    )
    return found


def _check(
    config: VllmConfig, args: Mapping[str, Any], task: GenerateTask, model: Thinking
) -> None:
    """Refuses a task of which the engine would run no row."""
    tokenizer = cached_tokenizer_from_config(config.model_config)
    generate.resolve_for(config, task, model)
    try:
        verify.verified(config, tokenizer, args, task)
    except NeedsOtherEngine:
        raise
    except Retryable as error:  # the first batch checks again
        log.warning("task_not_checked", error=str(error))


def _fetch(config: VllmConfig) -> None:
    """Fetches the weight files that vLLM chooses, before EngineCore loads them."""
    model, load = config.model_config, config.load_config
    commit = getattr(model.revision, "resolved", model.revision)
    hub.fetch(
        model.model,
        commit,
        lambda: get_model_loader(load).download_model(model),
        load.download_dir,
    )
