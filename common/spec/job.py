"""JobSpec: the sections of one job, how they fit together, and what identifies the work."""

import hashlib
import json
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, model_validator

from nightshift.common import remotes
from nightshift.common.allocation.demand import MOST_PRIORITY
from nightshift.common.spec.engines import (
    PRICES,
    SERVER_ARGUMENTS,
    TEMPLATE_ARGUMENTS,
    EngineSpec,
    OpenaiEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.spec.section import STORED, Section
from nightshift.common.spec.sections import BatchSpec, InputSpec, LimitsSpec, OutputSpec, RetrySpec
from nightshift.common.spec.tasks import Task
from nightshift.common.spec.tasks.generate import GenerateTask
from nightshift.common.spec.tasks.requests import REQUEST_ID
from nightshift.common.spec.tasks.sampling import USUAL_LOGPROBS

ANSWERED_BY = "answered_by"
"""Column with the row_index of the row whose answer a row has; null for a row that ran itself."""

RESERVED_COLUMNS = frozenset(
    {"row_index", "output", "finish_reason", "prompt_tokens", "output_tokens", ANSWERED_BY, "error"}
)
"""Names of the output's own columns; input columns that are passed through cannot use them."""

RESERVED_ANSWERS = RESERVED_COLUMNS - {"output", ANSWERED_BY}
"""Those that a function's answer cannot use either: `output` is the answer itself."""

IDENTITY = ("input", "task", "engine", "output")
"""Sections that make two specs the same work; the prices of the engine do not count."""

AUTO = frozenset({"args", "args_from"})
"""Fields of an engine that `args: auto` fills in at submit; they are not identity there."""

RAW = "raw_logprobs"
"""vLLM's word for log probabilities before temperature and penalties, as it tells them where nobody says
otherwise."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

Name = Annotated[str, Field(pattern=NAME)]


class JobSpec(Section):
    """One run of a model over one dataset into one output directory."""

    name: Name = Field(description="Label of the job; letters, digits, dot, dash, underscore.")
    pool: Name = Field("default", description="Group of workers that may run the job.")
    priority: int = Field(
        0,
        ge=-MOST_PRIORITY,
        le=MOST_PRIORITY,
        description="Higher goes first; jobs of equal priority share the pool's slots.",
    )
    weight: float = Field(
        1,
        gt=0,
        le=1000,
        description="Share beside jobs of equal priority: a job of weight 2 gets twice the slots of "
        "one of weight 1.",
        # Workers of a release before this field read the specs of most jobs.
        exclude_if=lambda value: value == 1,
    )
    input: InputSpec = Field(description="Which rows go in.")
    task: Task = Field(description="What is done with a row.")
    engine: EngineSpec = Field(description="What does it.")
    output: OutputSpec = Field(description="Where the parts go.")
    batch: BatchSpec = Field(BatchSpec.model_validate({}), description="Unit of leasing.")
    retry: RetrySpec = Field(RetrySpec.model_validate({}), description="How often, how long.")
    limits: LimitsSpec = Field(LimitsSpec.model_validate({}), description="When it stops itself.")

    @model_validator(mode="before")
    @classmethod
    def _with_batch_file(cls, data: Any) -> Any:
        """A spec with what an OpenAI batch file implies filled in: its task, its format, its id."""
        if not isinstance(data, dict) or not isinstance(data.get("input"), dict):
            return data
        task = data.get("task", {})
        if data["input"].get("format") == "openai":
            task = data.get("task", {"kind": "requests"})
        if not isinstance(task, dict) or task.get("kind") != "requests":
            return data
        given, implied = data["input"], {"format": "openai", "id": REQUEST_ID}
        missing = {name: each for name, each in implied.items() if given.get(name) is None}
        return {**data, "task": task, "input": {**given, **missing}}

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        if self.task.kind not in self.engine.tasks:
            raise ValueError(
                f"engine.backend {self.engine.backend} runs task.kind "
                f"{' or '.join(sorted(self.engine.tasks))}, not {self.task.kind}"
            )
        if self.name.isdigit():
            raise ValueError("name is only digits, which would look like a job number")
        self._refuse_reserved_columns()
        if self.limits.budget is not None and not self.engine.has_price:
            raise ValueError(
                "limits.budget needs a price: give engine.price_per_hour, or "
                "engine.price_per_million_prompt_tokens and engine.price_per_million_output_tokens"
            )
        self._refuse_output_schema()
        return self

    def _refuse_reserved_columns(self) -> None:
        passed = self.passed_columns
        for column in passed:
            if column in RESERVED_COLUMNS or column in self.task.answers:
                raise ValueError(f"the column name {column!r} is reserved for the output")
        if len(set(passed)) < len(passed):
            raise ValueError("output.columns names a column twice (the id is always there)")

    def _refuse_output_schema(self) -> None:
        declared = self.output.output_schema or {}
        if declared and self.task.kind != "function":
            raise ValueError("output.schema is for functions; other tasks have a fixed schema")
        for column in declared:
            own = column == ANSWERED_BY and self.task.shares
            if own or column in RESERVED_ANSWERS or column in self.passed_columns:
                raise ValueError(f"output.schema names {column!r}, which the output already has")

    @model_validator(mode="after")
    def _arguments_fit(self) -> Self:
        if not isinstance(self.engine, VllmEngineSpec) or self.task.kind == "requests":
            return self
        for key in sorted(SERVER_ARGUMENTS & self.engine.args.keys()):
            is_templates = key == TEMPLATE_ARGUMENTS and self.task.kind == "generate"
            hint = ": say task.chat_template_kwargs" if is_templates else ""
            raise ValueError(
                f"engine.args.{key} is for vLLM's OpenAI server, which task.kind requests asks "
                f"and {self.task.kind} does not{hint}"
            )
        return self

    @model_validator(mode="after")
    def _numbers_fit(self, info: ValidationInfo) -> Self:
        """More log probabilities than an engine tells by itself are an argument of the engine."""
        task, engine = self.task, self.engine
        if not isinstance(task, GenerateTask) or info.context == STORED:
            return self
        if isinstance(engine, OpenaiEngineSpec):
            self._refuse_of_vllm(task)
            self._refuse_of_remote(task, engine)
        if isinstance(engine, VllmEngineSpec):
            self._refuse_together(task, engine)
            if task.sampling.most_logprobs > USUAL_LOGPROBS:
                self._have_told(task.sampling.most_logprobs, engine)
        return self

    @staticmethod
    def _refuse_together(task: GenerateTask, engine: VllmEngineSpec) -> None:
        mistakes = (
            (
                task.keep_reasoning and task.thinking is None and not task.may_think,
                "with task.output the answer begins at once: say task.thinking: on or auto beside "
                "keep_reasoning",
            ),
            (
                task.has_confidence and task.sampling.logprobs is not None,
                "task.output.confidence and task.sampling.logprobs ask vLLM for different numbers of a token: "
                "leave one of them out",
            ),
            (
                task.has_confidence and engine.args.get("logprobs_mode", RAW) != RAW,
                f"task.output.confidence needs vLLM's {RAW}: leave engine.args.logprobs_mode out",
            ),
        )
        for is_made, sentence in mistakes:
            if is_made:
                raise ValueError(sentence)

    @staticmethod
    def _have_told(logprobs: int, engine: VllmEngineSpec) -> None:
        """Makes the engine tell so many log probabilities."""
        if engine.args_auto:
            raise ValueError(
                f"more than {USUAL_LOGPROBS} logprobs are an argument of the engine, which args: auto does "
                f"not have: say engine.args with max_logprobs {logprobs}"
            )
        given = engine.args.setdefault("max_logprobs", logprobs)
        if isinstance(given, int) and -1 != given < logprobs:
            raise ValueError(
                f"engine.args.max_logprobs is {given}, and the task asks for {logprobs} logprobs"
            )

    @staticmethod
    def _refuse_of_vllm(task: GenerateTask) -> None:
        asked = {
            "output.confidence": task.has_confidence,
            "sampling.prompt_logprobs": task.sampling.prompt_logprobs is not None,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise ValueError(
                    f"task.{name} is told by engine.backend vllm, not by a remote server"
                )
        if (task.sampling.logprobs or 0) > USUAL_LOGPROBS:
            raise ValueError(
                f"task.sampling.logprobs of a remote server are {USUAL_LOGPROBS} at most"
            )

    @staticmethod
    def _refuse_of_remote(task: GenerateTask, engine: OpenaiEngineSpec) -> None:
        if task.output is not None and task.output.grammar and task.output.hold == "on_retry":
            raise ValueError(
                "task.output.hold: nobody here can tell whether the free text of a remote server follows a grammar: "
                "leave hold out"
            )
        if "n" in engine.args:
            raise ValueError(
                "engine.args.n: say task.sampling.n, so that each sample has its place"
            )
        by_word = task.thinking in ("on", "off") or bool(task.chat_template_kwargs)
        if by_word and "chat_template_kwargs" in engine.args:
            raise ValueError(
                "engine.args.chat_template_kwargs would take the place of the task's: say all of them in "
                "task.chat_template_kwargs"
            )
        by_template = {
            "thinking": task.thinking in ("on", "off"),
            "thinking_budget": task.thinking_budget is not None,
            "chat_template_kwargs": bool(task.chat_template_kwargs),
        }
        if urlsplit(engine.base_url).hostname == urlsplit(remotes.OPENAI).hostname:
            for name, is_given in by_template.items():
                if is_given:
                    raise ValueError(
                        f"task.{name} is for servers with a chat template, and OpenAI's own API refuses it: "
                        "say engine.args.reasoning_effort"
                    )

    @model_validator(mode="after")
    def _batch_file_fits(self) -> Self:
        if (self.task.kind == "requests") != (self.input.format == "openai"):
            raise ValueError(
                "task.kind requests and input.format openai, an OpenAI batch file, go together"
            )
        if self.input.format == "openai" and self.input.id != REQUEST_ID:
            raise ValueError(f"input.id of an OpenAI batch file is {REQUEST_ID}")
        return self

    @model_validator(mode="after")
    def _merge_fits(self) -> Self:
        table = self.output.table
        if table is not None and table.mode == "merge" and not self.input.unique_id:
            raise ValueError(
                "output.table.mode merge needs ids that differ: say input.id and input.unique_id: true"
            )
        return self

    @property
    def identity(self) -> str:
        """Hash of what makes two specs the same work; name, priority, limits, prices, batch size, the
        pace of looks for new files, whether ids are checked and how long replaced parts stay do not.
        """
        hashed = self.model_dump(mode="json", by_alias=True, include=set(IDENTITY))
        for outside in ("watch", "unique_id"):
            hashed["input"].pop(outside, None)
        if hashed["output"].get("table"):
            del hashed["output"]["table"]["keep_days"]
        if not hashed["task"].get("image_roots"):
            hashed["task"].pop("image_roots", None)  # as before there were any
        # A job with `args: auto` stays the same work when the model is tuned again.
        apart = {*PRICES, *AUTO} if hashed["engine"].get("args_auto") else PRICES
        hashed["engine"] = {key: each for key, each in hashed["engine"].items() if key not in apart}
        return digest(hashed)

    @property
    def passed_columns(self) -> list[str]:
        """Input columns that stand in the output, the id first."""
        return [*([self.input.id] if self.input.id else []), *self.output.columns]

    @property
    def read_columns(self) -> list[str] | None:
        """Input columns that a worker reads; None is all of them."""
        if self.task.kind != "function":
            columns = [*self.passed_columns, *sorted(self.task.columns)]
        elif self.input.columns is not None:
            columns = [*self.passed_columns, *self.input.columns]
        else:
            return None
        return list(dict.fromkeys(columns))

    @property
    def sequences(self) -> int:
        """How many of the engine's places a row takes: one for each sample, where the engine draws these itself
        and does not send a request for all of them.
        """
        return 1 if isinstance(self.engine, OpenaiEngineSpec) else self.task.samples

    @property
    def engine_key(self) -> str:
        """Hash of what changes the loaded engine: 16 hexadecimal digits. One client of a remote server sends the
        requests of every task.
        """
        engine = self.engine.model_dump(mode="json", exclude={*PRICES, "args_auto", "args_from"})
        is_remote = isinstance(self.engine, OpenaiEngineSpec)
        runner = "generate" if is_remote else self.task.runner
        return digest({"engine": engine, "runner": runner})[:16]


def digest(value: object) -> str:
    """SHA-256 of canonical JSON, hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
