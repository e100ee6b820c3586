"""What a job asks of a model that may think, and an answer without its thoughts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm.parser.harmony import HarmonyParser
from vllm.reasoning.gptoss_reasoning_parser import GptOssReasoningParser
from vllm.tokenizers.mistral import MistralTokenizer

from nightshift.common.errors import JobRefused
from nightshift.common.spec import GenerateTask
from nightshift.common.spec.tasks.sampling import THINKING_TOKENS
from nightshift.common.spec.tasks.template_arguments import THINKING_SWITCHES, column_of
from nightshift.worker.engines.thinking import Parted, part
from nightshift.worker.engines.vllm.families import BY_NAME, HARMONY, Family
from nightshift.worker.engines.vllm.thinking import Thinking


def arguments_of(task: GenerateTask, switch: str | None) -> dict[str, Any]:
    """The constants among a job's arguments for the template, with the switch that task.thinking turns."""
    own = {
        name: value for name, value in task.chat_template_kwargs.items() if column_of(value) is None
    }
    if task.thinking in ("on", "off") and switch is not None:
        own[switch] = task.thinking == "on"
    return own


def possible_arguments(task: GenerateTask, switch: str | None) -> list[dict[str, Any]]:
    """The arguments of rows as far as they say whether the model thinks: a switch may be a row's own."""
    own = arguments_of(task, switch)
    for name in THINKING_SWITCHES:
        if column_of(task.chat_template_kwargs.get(name)) is not None:
            return [{**own, name: value} for value in (True, False)]
    return [own]


def resolve(
    task: GenerateTask, thinking: Thinking, longest: int, *, can_force: bool
) -> dict[str, Any]:
    """What is fixed for a job at the first load of its model: the family by which its answers are split, and
    the longest answer where the spec names none. JobRefused for what the model cannot do.

    `longest` is the model's context, in tokens; `can_force` says that the engine can end a thought.
    """
    _check_arguments(task, thinking)
    switch = thinking.switch if task.thinking in ("on", "off") else None
    possible = possible_arguments(task, switch)
    thinks = any(map(thinking.thinks, possible))
    _check_word(task, switch, thinks=thinks)
    if task.most_thinking_tokens is not None:
        _check_budget(thinking, possible, can_force=can_force)
    is_free = task.output is not None and task.output.hold == "on_retry"
    if is_free and thinks and task.thinking is None:
        raise JobRefused(
            "task.output.hold is on_retry, whose first try is free text, and the model thinks in such a text: say "
            "task.thinking (on, off or auto)"
        )
    family = _family(task, thinking, thinks=thinks)
    is_long = family is not None and thinks and not task.sampling.has_max_tokens
    return {
        "thinking": None if family is None else family.name,
        "max_tokens": max(task.sampling.max_tokens, min(THINKING_TOKENS, longest))
        if is_long
        else None,
    }


def _check_arguments(task: GenerateTask, thinking: Thinking) -> None:
    if isinstance(thinking.tokenizer, MistralTokenizer) and task.chat_template_kwargs:
        known = ["reasoning_effort"] if thinking.tokenizer.version >= 15 else []
        for name in task.chat_template_kwargs:
            if name not in known:
                raise JobRefused(
                    f"task.chat_template_kwargs.{name}: the model's own tokenizer, which has no chat template, does "
                    "not take it"
                )
    if not thinking.template or task.image_columns:
        return
    for name in task.chat_template_kwargs:
        if not re.search(rf"\b{re.escape(name)}\b", thinking.template):
            raise JobRefused(
                f"task.chat_template_kwargs.{name}: the model's chat template has no variable of that name"
            )


def _check_word(task: GenerateTask, switch: str | None, *, thinks: bool) -> None:
    if task.thinking == "off" and switch is None:
        raise JobRefused(
            "task.thinking is off, and the model's chat template has no switch for that (none of "
            f"{', '.join(THINKING_SWITCHES)}): leave task.thinking out"
        )
    if task.thinking == "on" and not thinks:
        raise JobRefused(
            "task.thinking is on, and the model's chat template lets it write no thoughts: leave task.thinking "
            "out"
        )


def _check_budget(
    thinking: Thinking, possible: Sequence[Mapping[str, Any]], *, can_force: bool
) -> None:
    family = thinking.family
    if family is None or True not in [thinking.inside(family, each) for each in possible]:
        raise JobRefused(
            "task.thinking_budget counts the tokens of a thought that the prompt opens, and the model's chat "
            "template opens none: leave thinking_budget out, and bound the answer by sampling.max_tokens"
        )
    if not can_force:
        raise JobRefused(
            "task.thinking_budget: vLLM cannot end a thought of this model, whose markers are no tokens of "
            "its own: bound the answer by sampling.max_tokens"
        )


def _family(task: GenerateTask, thinking: Thinking, *, thinks: bool) -> Family | None:
    """The family by which the answers are split; None where they are not."""
    if task.output is not None and task.thinking is None:
        return None
    if thinking.is_named and thinking.family is None:
        raise JobRefused(
            "engine.args.reasoning_parser names a parser without markers of its own, and the model is of no family "
            "that Nightshift knows. So no answer can be parted from its thought: name the parser that knows "
            "the model's markers (docs/models.md), or leave reasoning_parser out"
        )
    splits = thinking.family is not None
    if splits and thinks and task.output is not None and thinking.gate is None:
        way = "leave thinking or output out"
        raise JobRefused(
            "vLLM cannot tell where a thought of this model ends, and so not where task.output begins to hold: "
            f"{way if thinking.switch is None else f'say thinking: off, or {way}'}"
        )
    return thinking.family


@dataclass(frozen=True, slots=True)
class Opening:
    """Where an answer begins: `inside` says whether its prompt ends inside a thought, None where the model may
    open one. `budget` is the most tokens of that thought as vLLM counts them; None without a bound.
    """

    inside: bool | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """How the answers of one job are parted from their thoughts; `family` is None where they are not parted."""

    model: Thinking
    task: GenerateTask
    family: Family | None

    @classmethod
    def of(cls, resolved: Mapping[str, Any], model: Thinking, task: GenerateTask) -> "Split":
        """Return the split that is fixed for the job; without one, reasoning stays in the answers."""
        name = resolved.get("thinking")
        known = {**BY_NAME, **({model.family.name: model.family} if model.family else {})}
        return cls(model, task, known.get(name) if name else None)

    def arguments(self, of_row: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a row's template."""
        switch = self.model.switch if self.task.thinking in ("on", "off") else None
        return {**of_row, **({switch: self.task.thinking == "on"} if switch else {})}

    def opening(
        self, arguments: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], text: str
    ) -> "Opening":
        """What the end of a row's prompt says, of which `text` is the whole or as much of its end as the template
        makes.
        """
        if self.family is None:
            return Opening()
        tail = self.model.tail_of(arguments, messages, text)
        inside = self.model.inside(self.family, arguments, tail)
        most = self.task.most_thinking_tokens
        if most is None or inside is not True:
            return Opening(inside)
        return Opening(inside, most + self.model.opened(self.family, tail))

    def is_gated(self, inside: bool | None) -> bool:
        """Whether structured output waits for the end of a thought that the model need not open."""
        return self.task.output is not None and self.family is not None and inside is None

    def ended(self, inside: bool | None) -> bool | None:
        """What a request tells the engine of its prompt: whether structured output holds from the first token.
        None where the engine knows no thoughts.
        """
        if self.model.gate is None:
            return None
        return self.family is None or inside is False

    def part(
        self, text: str, ids: Sequence[int], inside: bool | None, *, is_held: bool = False
    ) -> tuple[Parted, int]:
        """The answer and its thoughts, with the number of tokens of the first thought. `is_held` says that the
        engine held the answer to its form.
        """
        if self.family is None:
            return Parted(text), 0
        if self.family.name == HARMONY:
            parted = harmony(self.model.tokenizer, ids)
            if parted.answer is not None:  # the ids have what vLLM cuts off its text
                answer = before_stops(parted.answer, self.task.sampling.stop)
                parted = replace(parted, answer=answer)
            return parted, self._of_harmony(ids).count
        markers = self.family.markers
        parted = part(text, markers, inside, is_held=is_held)
        if not parted.thought:
            return parted, 0
        return parted, self.model.count(ids, markers, inside)

    def start(self, ids: Sequence[int], *, thought: bool) -> int:
        """Behind how many tokens the answer begins, which a thought may come before."""
        if self.family is None:
            return 0
        if self.family.name == HARMONY:
            return self._of_harmony(ids).start
        return self.model.answer_start(ids, self.family.markers) if thought else 0

    def _of_harmony(self, ids: Sequence[int]) -> "HarmonyTokens":
        return HarmonyTokens.of(ids, self.model.token_of, self.model.decoded)


def before_stops(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string, as vLLM cuts a text."""
    places = (at for stop in stops if (at := text.find(stop)) >= 0)
    return text[: min(places, default=len(text))]


@dataclass(frozen=True, slots=True)
class HarmonyTokens:
    """Counts of the tokens of an answer of gpt-oss: `count` belong to the first thought, and `start` stand before
    the answer.
    """

    count: int
    start: int

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        token_of: Callable[[str], int | None],
        decode: Callable[[Sequence[int]], str],
    ) -> "HarmonyTokens":
        """Counted by the headers of the messages. A header ends with <|message|>, and a message with one of
        HARMONY_ENDS.
        """
        ends = {token_of(end) for end in HARMONY_ENDS}
        message = token_of(HARMONY_MESSAGE)
        count, start, header = 0, 0, 0
        for at, each in enumerate(ids, 1):
            if each in ends:
                header = at
            elif each == message:
                said = decode(ids[header : at - 1])
                is_thought = "analysis" in said and "to=" not in said
                if is_thought and not count:
                    count = next(
                        (n for n, one in enumerate(ids[at:]) if one in ends), len(ids) - at
                    )
                elif not is_thought and not start:
                    start = at
        return cls(count, start)


HARMONY_MESSAGE = "<|message|>"
HARMONY_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
HARMONY_HEADER = ("<|start|>", "<|channel|>", "<|constrain|>")
"""Tokens of gpt-oss: the one that ends a header, those that end a message, and those that a header has."""


def harmony(tokenizer: Any, ids: Sequence[int]) -> Parted:
    """The answer of gpt-oss, read from its token ids. Text that does not follow the format is an answer, except a
    header that was cut before its message.
    """
    parser = HarmonyOfThoughts(tokenizer)
    result = parser.process_chunk(list(ids))
    thoughts, answers = [], []
    is_cut = False
    for segment in [*result.segments, *parser.flush()]:
        message = segment.completed_message
        if message is None or not message.content:
            continue
        text = message.content[0].text
        if text.startswith(HARMONY_HEADER) and HARMONY_MESSAGE not in text:
            is_cut = True
        elif message.channel == "analysis" and not message.recipient:
            thoughts.append(text.strip())
        elif message.recipient:
            answers.append(f"to={message.recipient} {text}")
        else:
            answers.append(text)
    thought = bool(thoughts) or is_cut
    answer = "\n".join(answers).strip() if answers or not thought else None
    return Parted(answer, "\n".join(filter(None, thoughts)), thought)


class HarmonyOfThoughts(HarmonyParser):
    """vLLM's parser of the format of gpt-oss, with its thoughts."""

    reasoning_parser_cls = GptOssReasoningParser
