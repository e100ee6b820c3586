"""How long the prompts of sampled rows are, by the model's own tokenizer where that can be loaded."""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.common.formats import reading
from nightshift.common.formats.input_rows import Rows
from nightshift.common.formats.jsonl.lines import parse_line
from nightshift.common.formats.values import to_rows
from nightshift.common.spec import (
    GenerateTask,
    JobSpec,
    OpenaiEngineSpec,
    RequestsTask,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.spec.tasks.template_arguments import of_row
from nightshift.common.templates.chats import chat
from nightshift.common.templates.sandbox import compiled, rendered_all
from nightshift.common.text import CHARACTERS_A_TOKEN, counted
from nightshift.producer.estimate import forecast

MOST_SECONDS = 20.0
"""Longest CPU time for the prompts of a sample; usual ones take less than a millisecond each."""

Messages = list[dict[str, Any]]
Prompt = Messages | str | tuple[str, str]
"""Chat messages, one text, or the two texts of a pair."""


@dataclass(slots=True)
class PromptLengths:
    """The prompts of a sample.

    `lengths` are tokens, or characters / 4 where `is_guess`; empty for tasks without prompts.
    Prompts above `most` are row errors. `longest` is what the model takes; None where that is not
    known. `refused` counts rows that cannot be read or rendered; `why` is the first error of one.
    """

    sampled: int
    lengths: np.ndarray
    most: float = math.inf
    is_guess: bool = False
    longest: int | None = None
    too_long: int = 0
    refused: int = 0
    why: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def computed(self) -> np.ndarray:
        """Tokens that the model computes for each prompt: 0 for one that is too long."""
        return np.where(self.lengths > self.most, 0, self.lengths)

    @property
    def percentiles(self) -> dict[str, int | None]:
        """p50, p90, p99 and the longest of the sample; None without prompts."""
        names = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
        if not len(self.lengths):
            return dict.fromkeys(names)
        return {name: round(forecast.quantile(self.lengths, at)) for name, at in names.items()}


def measure_prompts(spec: JobSpec, rows: Rows, *, tokenizes: bool = True) -> PromptLengths:
    """Renders the prompts of these rows and counts their tokens; without `tokenizes` by their characters."""
    found = PromptLengths(len(rows.row_index) + len(rows.bad), np.array([], dtype=int))
    for bad in rows.bad.values():
        _refuse(found, bad.message)
    if spec.task.kind == "function":
        return found
    if isinstance(spec.task, GenerateTask) and spec.task.image_columns:
        found.notes.append("images are not counted among the tokens of a prompt")
    prompts = list(_rendered(spec, rows, found))
    if not tokenizes:
        found.notes.append("prompts are counted as characters / 4: no tokenizer is loaded here")
    loads = tokenizes and not isinstance(spec.engine, OpenaiEngineSpec)
    tokenizer = _tokenizer(spec, found) if loads else None
    if tokenizer is None:
        found.is_guess = True
        lengths = [-(-_characters(prompt) // CHARACTERS_A_TOKEN) for prompt, _ in prompts]
    else:
        lengths = [_tokens(tokenizer, prompt, arguments) for prompt, arguments in prompts]
    found.lengths = np.array(lengths, dtype=int)
    if found.longest is None:
        return found
    if isinstance(spec.engine, TransformersEngineSpec) and spec.engine.truncate:
        found.lengths = np.minimum(found.lengths, found.longest)
    # A model that generates needs room for one token at least.
    found.most = found.longest - (spec.task.runner == "generate")
    found.too_long = int((found.lengths > found.most).sum())
    return found


def _refuse(found: PromptLengths, why: str) -> None:
    found.refused += 1
    found.why = found.why or why


def _rendered(
    spec: JobSpec, rows: Rows, found: PromptLengths
) -> Iterator[tuple[Prompt, dict[str, Any]]]:
    """The prompt of each row, with the arguments of the model's chat template."""
    given = spec.task.chat_template_kwargs if isinstance(spec.task, GenerateTask) else {}
    templates = [compiled(template) for template in spec.task.templates]
    bounds, until = reading.current(), time.thread_time() + MOST_SECONDS
    for place, row in enumerate(to_rows(rows.table)):
        bounds.check()
        if time.thread_time() > until:
            found.sampled = place + len(rows.bad)
            found.notes.append(
                f"the first {counted(place, 'row')} of the sample took {MOST_SECONDS:g} s to render"
            )
            return
        try:
            texts = list(rendered_all(templates, row))
            prompt = _prompt(spec.task, texts, row), of_row(given, row)
        except Exception as error:  # a template over a row's values may raise anything
            _refuse(found, f"the row cannot be rendered: {type(error).__name__}: {error}")
        else:
            yield prompt


def _prompt(task: Any, texts: list[str], row: dict[str, Any]) -> Prompt:
    match task:
        case GenerateTask(messages_column=str() as column):
            return chat(column, row[column])
        case GenerateTask(messages=messages):
            if messages is None:
                return [{"role": "user", "content": texts[0]}]
            remaining = iter(texts)
            return [
                {
                    "role": message.role,
                    "content": " ".join(islice(remaining, len(message.templates))),
                }
                for message in messages
            ]
        case RequestsTask():
            return _request_prompt(parse_line(row["body"].encode()))
    return (texts[0], texts[1]) if len(texts) > 1 else texts[0]


def _request_prompt(body: dict[str, Any]) -> Prompt:
    """The prompt of a request of an OpenAI batch file; images are left out."""
    if "messages" not in body:
        text = body.get("prompt", body.get("input", ""))
        return " ".join(map(str, text)) if isinstance(text, list) else str(text)
    return [
        {"role": str(each.get("role", "user")), "content": _content_text(each.get("content"))}
        for each in body["messages"]
    ]


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _characters(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(each["content"] if isinstance(each, dict) else each) for each in prompt)


def _tokens(tokenizer: Any, prompt: Prompt, arguments: Mapping[str, Any]) -> int:
    """Tokens of a prompt, counted as the engines do: a chat prompt in the model's own template."""
    if isinstance(prompt, tuple):
        return len(tokenizer(*prompt)["input_ids"])
    if isinstance(prompt, str) or getattr(tokenizer, "chat_template", None) is None:
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]
        return len(tokenizer(text)["input_ids"])
    text = tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **arguments
    )
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _tokenizer(spec: JobSpec, found: PromptLengths) -> Any:
    """The model's tokenizer; notes the longest prompt that the model takes. None, and a note with
    the reason, where the tokenizer cannot be loaded.
    """
    engine = spec.engine
    assert isinstance(engine, VllmEngineSpec | TransformersEngineSpec)
    try:
        from transformers import AutoConfig, AutoTokenizer
    except ImportError:
        found.notes.append(
            "prompts are counted as characters / 4: transformers, which reads the model's "
            "tokenizer, is not installed here"
        )
        return None
    args = engine.args if isinstance(engine, VllmEngineSpec) else {}
    trusted = {"trust_remote_code": bool(args.get("trust_remote_code", False))}
    # The estimate counts the texts that are too long: no warnings for each.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            args.get("tokenizer", engine.model), revision=engine.revision, **trusted
        )
        config = AutoConfig.from_pretrained(engine.model, revision=engine.revision, **trusted)
        trained = None if spec.task.runner == "generate" else _trained_length(engine)
    except Exception as error:  # reading a model's files may raise anything
        found.notes.append(
            f"prompts are counted as characters / 4: the tokenizer of {engine.model} cannot be "
            f"loaded here ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        )
        return None
    chats = isinstance(spec.task, GenerateTask) and spec.task.prompt is None
    if chats and getattr(tokenizer, "chat_template", None) is None:
        found.notes.append(
            f"{engine.model} has no chat template, so every row would fail: use task.prompt"
        )
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    own = min((each for each in (positions, trained) if each is not None), default=None)
    given = args.get("max_model_len") if isinstance(engine, VllmEngineSpec) else engine.max_length
    found.longest = given if isinstance(given, int) else own
    return tokenizer


def _trained_length(engine: VllmEngineSpec | TransformersEngineSpec) -> int | None:
    """The longest text, in tokens, of a sentence-transformers model, by its own configuration."""
    from transformers.utils import cached_file

    path = cached_file(
        engine.model,
        "sentence_bert_config.json",
        revision=engine.revision,
        _raise_exceptions_for_missing_entries=False,
    )
    if path is None:
        return None
    length = json.loads(Path(path).read_text(encoding="utf-8")).get("max_seq_length")
    return length if isinstance(length, int) else None
