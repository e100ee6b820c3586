"""Whether a loaded model thinks before it answers, what a job asks of that, and an answer without thoughts."""

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import structlog
from vllm.config import VllmConfig
from vllm.config.reasoning import ReasoningConfig
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers.mistral import MistralTokenizer

from nightshift.common.errors import JobRefused
from nightshift.common.spec.tasks.template_arguments import THINKING_SWITCHES
from nightshift.worker.engines.thinking import Markers, answer_start, reasoning_tokens
from nightshift.worker.engines.vllm.families import (
    HARMONY,
    Family,
    family_of,
    of_parser,
)

log = structlog.get_logger(__name__)

PROBE = "Nightshift asks 7c1d"
"""The text of a message after which a template shows what the model is to go on from."""

KEPT_PROBES = 1000
"""Prompts of our own message that are kept, one for each set of arguments that rows have."""

SECOND_PARSER = "deepseek_r1"
"""Knows <think> and </think> by their tokens, whatever the model."""


class Thinking:
    """How a loaded model thinks. `family` is None for a model that knows no marker of a thought; `gate` is
    vLLM's parser that ends a thought in the engine, None where none can be built for this tokenizer.
    """

    def __init__(
        self,
        tokenizer: Any,
        model_type: str,
        named: str | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """`named` is the parser that the engine's arguments name; JobRefused where vLLM has none of that name.
        `lock` is held around what the tokenizer does for one thread at a time.
        """
        self.tokenizer = tokenizer
        self._lock = lock or threading.Lock()
        self.is_named = named is not None
        self.template = template_of(tokenizer)
        self.family = self._found(model_type, named)
        self.gate = self._gate(named)
        self._probes: dict[str, str | None] = {}
        self._tokens: dict[str, int | None] = {}

    def _found(self, model_type: str, named: str | None) -> Family | None:
        if named is None:
            own: list[str] = getattr(self.tokenizer, "all_special_tokens", [])
            return family_of(model_type, self.template, {*self.tokenizer.get_added_vocab(), *own})
        parser = self._built(named)
        if parser is None:
            raise JobRefused(
                f"engine.args.reasoning_parser {named!r} is not one of vLLM's, or does not fit the model's tokenizer"
            )
        # Some parsers hand over to others and have no markers: the model's own are then known here.
        found = of_parser(named, (parser.reasoning_start_str, parser.reasoning_end_str))
        return found or self._found(model_type, None)

    def _gate(self, named: str | None) -> str | None:
        if named is not None or self.family is None or self.family.name == HARMONY:
            return named
        if self.family.parser is None:
            return None
        for name in (self.family.parser, SECOND_PARSER):
            if self._built(name) is not None:
                return name
        return None

    def _built(self, name: str) -> Any:
        try:
            return ReasoningParserManager.get_reasoning_parser(name)(self.tokenizer)
        except Exception as error:  # each parser has its own way to say that a token is missing
            log.info("reasoning_parser_not_built", parser=name, error=str(error))
            return None

    def tail(self, arguments: Mapping[str, Any]) -> str:
        """What the template puts behind the last message, with these arguments: there alone it says whether
        a thought is open, since a row's own text may hold any marker.
        """
        return (self._probe(arguments) or "").rpartition(PROBE)[2]

    def tail_of(
        self, arguments: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], text: str
    ) -> str:
        """What the template puts behind a row's own chat, of which `text` is the prompt. Templates may look at
        the chat: at a word that turns thinking off, or at a last message that is a tool's.
        """
        usual = self.tail(arguments)
        if not self.template or not text or (usual and text.endswith(usual)):
            return usual
        told = {**arguments, "tokenize": False, "add_generation_prompt": False}
        try:
            before = str(self.tokenizer.apply_chat_template([*messages], **told))
        except Exception as error:  # as by a template that wants a question last
            log.debug("chat_not_probed", error=str(error))
            return usual
        return text.removeprefix(before) if text.startswith(before) else usual

    def _probe(self, arguments: Mapping[str, Any]) -> str | None:
        """The prompt of a message of our own; None where the template refuses that."""
        key = repr(sorted(arguments.items()))
        kept = self._probes  # another thread may begin anew meanwhile
        if key in kept:
            return kept[key]
        if len(kept) >= KEPT_PROBES:
            kept = self._probes = {}
        found = kept[key] = self._probed(arguments)
        return found

    def _probed(self, arguments: Mapping[str, Any]) -> str | None:
        if not self.template:
            return None
        messages = [{"role": "user", "content": PROBE}]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **arguments
                )
            )
        except Exception as error:  # a template may raise whatever it likes; its rows say why
            log.info("chat_template_not_probed", error=str(error))
            return None

    def inside(
        self, family: Family, arguments: Mapping[str, Any], tail: str | None = None
    ) -> bool | None:
        """Whether a prompt with this tail ends inside a thought. Without a tail, the prompt of a message of our
        own is judged. None where the model itself may open a thought.
        """
        if family.name == HARMONY:
            return None
        position = family.markers.position(self.tail(arguments) if tail is None else tail)
        if position is None and (not self._writes_thoughts(family) or self.is_off(arguments)):
            return False
        return position

    def is_off(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the switch of the template is off. The arguments turn it off, or it is off by default where
        they do not set it.
        """
        if self.switch is None:
            return False
        off = self._probe({**arguments, self.switch: False})
        on = self._probe({**arguments, self.switch: True})
        return self._probe(arguments) == off != on

    def _writes_thoughts(self, family: Family) -> bool:
        """Whether the template knows thoughts: then the model knows them, too. The tokens of a tokenizer tell
        little, since models that think and models that do not share tokenizers.
        """
        return (
            family.always
            or not self.template
            or any(marker in self.template for marker in (family.markers.start, family.markers.end))
        )

    def thinks(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the model is known to think with these arguments."""
        family = self.family
        if family is None:
            return False
        if not self.template and not isinstance(self.tokenizer, MistralTokenizer):
            return family.always
        return self.inside(family, arguments) is not False

    def opened(self, family: Family, tail: str) -> int:
        """The tokens that the template itself puts behind the marker of the thought that it opens, such as one
        of a line's end: vLLM counts them as tokens of the thought.
        """
        own = tail.rpartition(family.markers.start)[2]
        if not own:
            return 0
        with self._lock:
            return len(self.tokenizer.encode(own, add_special_tokens=False))

    def count(self, ids: Sequence[int], markers: Markers, inside: bool | None) -> int:
        """The tokens of the first thought of an answer that has one."""
        return reasoning_tokens(ids, markers, inside, self.token_of, self.decoded)

    def answer_start(self, ids: Sequence[int], markers: Markers) -> int:
        """How many tokens stand before the answer that follows a thought."""
        return answer_start(ids, markers, self.token_of, self.decoded)

    def special(self, markers: Markers) -> frozenset[int]:
        """The tokenizer's special tokens, except markers."""
        kept = map(self.token_of, (markers.start, markers.end, *markers.ends_too, *markers.dropped))
        return frozenset(self.tokenizer.all_special_ids) - {*kept}

    def token_of(self, marker: str) -> int | None:
        """The id of a marker that is one token; None for another."""
        if marker not in self._tokens:
            try:
                token = self.tokenizer.convert_tokens_to_ids(marker)
                is_own = self.tokenizer.convert_ids_to_tokens([token]) == [marker]
            except (
                Exception
            ):  # a tokenizer that does not know the marker may raise whatever it likes
                is_own = False
            self._tokens[marker] = int(token) if is_own else None
        return self._tokens[marker]

    def decoded(self, ids: Sequence[int]) -> str:
        """The text of tokens, markers included."""
        with self._lock:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def switch(self) -> str | None:
        """The variable of the template that turns thinking on and off; None where there is none."""
        for name in THINKING_SWITCHES:
            if re.search(rf"\b{name}\b", self.template):
                on, off = self._probe({name: True}), self._probe({name: False})
                if on is not None and off is not None and on != off:
                    return name
        return None


def template_of(tokenizer: Any) -> str:
    """The text of the chat template; empty for a tokenizer that has none, or that is no template's."""
    if isinstance(tokenizer, MistralTokenizer):
        return ""
    try:
        return str(tokenizer.get_chat_template())
    except Exception:  # none, or several without a default
        found = getattr(tokenizer, "chat_template", None)
        return found if isinstance(found, str) else ""


def open_gate(config: VllmConfig, gate: str | None) -> None:
    """Lets the engine know where thoughts end: its grammars wait for that where a request says so, and it can
    end a thought itself. Before the engine's processes start.
    """
    if gate is None:
        return
    if not config.structured_outputs_config.reasoning_parser:
        config.structured_outputs_config.reasoning_parser = gate
    if config.reasoning_config is not None:
        return
    reasoning = ReasoningConfig(reasoning_parser=gate)
    reasoning.initialize_token_ids(config.model_config)
    config.reasoning_config = reasoning
