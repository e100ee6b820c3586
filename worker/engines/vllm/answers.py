"""What a job asks of a model that may think, and an answer without its thoughts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.parser.harmony import HarmonyParser
from vllm.reasoning.gptoss_reasoning_parser import GptOssReasoningParser

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


def resolve(
    task: GenerateTask, thinking: Thinking, longest: int, *, can_force: bool
) -> dict[str, Any]:
    """What is fixed for a job at the first load of its model: the family by which its answers are split, and
    the longest answer where the spec names none. JobRefused for what the model cannot do.

    `longest` is the model's context, in tokens; `can_force` says that the engine can end a thought.
    """
    _check_arguments(task, thinking)
    switch = thinking.switch if task.thinking in ("on", "off") else None
    arguments = arguments_of(task, switch)
    thinks = thinking.thinks(arguments)
    _check_word(task, switch, thinks=thinks)
    if task.thinking_budget is not None:
        family = thinking.family
        if family is None or thinking.inside(family, arguments) is not True:
            raise JobRefused(
                "task.thinking_budget counts the tokens of a thought that the prompt opens, and the model's chat "
                "template opens none: leave thinking_budget out, and bound the answer by sampling.max_tokens"
            )
        if not can_force:
            raise JobRefused(
                "task.thinking_budget: vLLM cannot end a thought of this model, whose markers are no tokens of "
                "its own: bound the answer by sampling.max_tokens"
            )
    splits = thinking.family is not None and (task.output is None or task.thinking is not None)
    if splits and thinks and task.output is not None and thinking.gate is None:
        raise JobRefused(
            "vLLM cannot tell where a thought of this model ends, and so not where task.output begins to hold: "
            "say thinking: off, or leave thinking or output out"
        )
    is_long = splits and thinks and not task.sampling.has_max_tokens
    return {
        "thinking": thinking.family.name if splits and thinking.family is not None else None,
        "max_tokens": max(task.sampling.max_tokens, min(THINKING_TOKENS, longest))
        if is_long
        else None,
    }


def _check_arguments(task: GenerateTask, thinking: Thinking) -> None:
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


@dataclass(frozen=True, slots=True)
class Split:
    """How the answers of one job are parted from their thoughts; `family` is None where they are not."""

    model: Thinking
    task: GenerateTask
    family: Family | None

    @classmethod
    def of(cls, resolved: Mapping[str, Any], model: Thinking, task: GenerateTask) -> "Split":
        """By what is fixed for the job; nothing is for a job of before, whose answers are not parted."""
        name = resolved.get("thinking")
        known = {**BY_NAME, **({model.family.name: model.family} if model.family else {})}
        return cls(model, task, known.get(name) if name else None)

    def arguments(self, of_row: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a row's template."""
        switch = self.model.switch if self.task.thinking in ("on", "off") else None
        return {**of_row, **({switch: self.task.thinking == "on"} if switch else {})}

    def inside(self, arguments: Mapping[str, Any]) -> bool | None:
        """Whether a row's prompt ends inside a thought; None where the model may open one."""
        return None if self.family is None else self.model.inside(self.family, arguments)

    def budget(self, arguments: Mapping[str, Any], inside: bool | None) -> int | None:
        """The most tokens of a row's thought as vLLM counts them; None where the job has no bound."""
        most = self.task.thinking_budget
        if most is None or self.family is None or inside is not True:
            return most
        return most + self.model.opened(self.family, arguments)

    def ended(self, inside: bool | None) -> bool | None:
        """What a request tells the engine of its prompt: whether structured output holds from the first token.
        None where the engine knows no thoughts.
        """
        if self.model.gate is None:
            return None
        return self.family is None or inside is False

    def part(self, text: str, ids: Sequence[int], inside: bool | None) -> tuple[Parted, int]:
        """The answer and its thoughts, with the number of tokens of the first thought."""
        if self.family is None:
            return Parted(text), 0
        if self.family.name == HARMONY:
            return harmony(self.model.tokenizer, ids)
        markers = self.family.markers
        parted = part(text, markers, inside)
        if not parted.thought:
            return parted, 0
        return parted, self.model.count(ids, markers, inside)

    def start(self, ids: Sequence[int]) -> int:
        """Behind how many tokens the answer begins that follows a thought: behind the last marker that ends
        one; 0 where that marker is no token of its own.
        """
        if self.family is None:
            return 0
        end = "<|message|>" if self.family.name == HARMONY else self.family.markers.end
        token = self.model.token_of(end)
        places = [at for at, each in enumerate(ids, 1) if each == token]
        return places[-1] if places else 0


def harmony(tokenizer: Any, ids: Sequence[int]) -> tuple[Parted, int]:
    """The answer of gpt-oss, by its token ids. What is not of its format is an answer."""
    parser = HarmonyOfThoughts(tokenizer)
    result = parser.process_chunk(list(ids))
    tokens = int(result.reasoning_token_count)
    thoughts, answers = [], []
    for segment in [*result.segments, *parser.flush()]:
        message = segment.completed_message
        if message is None or not message.content:
            continue
        text = message.content[0].text
        if message.channel == "analysis" and not message.recipient:
            thoughts.append(text.strip())
        elif message.recipient:
            answers.append(f"to={message.recipient} {text}")
        else:
            answers.append(text)
    thought = bool(thoughts)
    answer = "\n".join(answers).strip() if answers or not thought else None
    return Parted(answer, "\n".join(filter(None, thoughts)), thought), tokens


class HarmonyOfThoughts(HarmonyParser):
    """vLLM's parser of the format of gpt-oss, with its thoughts."""

    reasoning_parser_cls = GptOssReasoningParser
