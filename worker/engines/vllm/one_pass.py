"""A choice in one forward pass: vLLM is asked for one token, out of those that begin a label.

A grammar of the labels allows the same tokens at the first place, so its likeliest token is the same one. Where
that token begins one label alone, the label is known: no grammar is compiled, no bitmask is filled, and the other
tokens of the label are not computed.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from vllm.outputs import RequestOutput

from nightshift.common.spec import GenerateTask
from nightshift.worker.engines.protocol import Answer, Outcome
from nightshift.worker.engines.vllm.spelling import Labels, Spelling, labels_of

log = structlog.get_logger(__name__)

MOST_ALLOWED = 1024
"""Tokens that a request of vLLM may name as allowed (vllm/v1/worker/gpu/sample/logit_bias.py)."""

FIRST_ROWS = 200
MOST_SEVERAL = 0.15
"""Of the first rows of a task, no more than this share may begin several labels: such a row pays for its prompt
twice. Measured on CPU: with 60 % of such rows one token first took 1.2 to 3 times as long as the grammar alone."""

SURELY_SEVERAL = 8
"""So many rows that begin several labels, more than half of those so far, need no further rows to judge."""

BEGUN_AT_ONCE = 16
"""Rows of a task that are asked for one token before any of them has told what becomes of that."""

Ask = Callable[[Sequence[int], Sequence[int]], Awaitable[RequestOutput]]
"""Asks vLLM for one token of an answer, behind its first tokens, out of allowed ones."""


def can_tell(task: GenerateTask) -> bool:
    """Whether one token may tell the answers of a task: nothing that the spec asks for looks at later tokens."""
    sampling, own = task.sampling, task.sampling_columns
    choices = (task.output and task.output.choice) or ()
    is_plain = (
        sampling.n == 1
        and sampling.logprobs is None
        and not (sampling.stop or sampling.ignore_eos or sampling.min_tokens or own.min_tokens)
    )
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, own.presence_penalty)
    has_penalty = any((*penalties, own.frequency_penalty, own.repetition_penalty))
    # A replacement character of a label would be taken for half of a character.
    is_text = not any("\ufffd" in choice for choice in choices)
    is_fair = not has_penalty and sampling.repetition_penalty == 1
    return bool(choices) and is_plain and is_fair and is_text


def pays(over: int, several: int) -> bool:
    """Whether rows are asked for one token any more, after `over` rows of which `several` began several labels."""
    if several > MOST_SEVERAL * max(over, FIRST_ROWS):
        return False
    return several < SURELY_SEVERAL or several <= over / 2


def may_begin(begun: int, over: int) -> bool:
    """Whether one more row may be asked, while `begun` - `over` rows have not told yet what becomes of that."""
    return begun - over < BEGUN_AT_ONCE + over


@dataclass(slots=True)
class Trial:
    """Whether one token is enough for most rows of a task. For one event loop."""

    begun: int = 0
    over: int = 0
    several: int = 0
    is_off: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a row may be asked now."""
        return not self.is_off and may_begin(self.begun, self.over)

    @contextmanager
    def row(self) -> Iterator[None]:
        """Around a row."""
        self.begun += 1
        try:
            yield
        finally:
            self.over += 1
            if not self.is_off and not pays(self.over, self.several):
                self.is_off = True
                log.info("choices_are_not_told_by_one_token", rows=self.over, several=self.several)


@dataclass(frozen=True, slots=True)
class Told:
    """What the passes of a row have told: `output` is vLLM's with the label as its text, None where several labels
    are left. `spent` has the tokens that `output` does not count.
    """

    output: RequestOutput | None
    spent: Outcome


@dataclass(frozen=True, slots=True)
class OnePass:
    """The labels of a choice, and how its rows have done so far. `is_sure` says that each token that begins one
    begins no other, and `is_small` that vLLM can be told all of these tokens.
    """

    spelling: Spelling
    labels: Labels
    is_sure: bool
    is_small: bool
    trial: Trial = field(default_factory=Trial)
    _behind: dict[Labels, dict[int, Labels]] = field(default_factory=dict)

    @classmethod
    def of(cls, spelling: Spelling, choices: Sequence[str]) -> "OnePass":
        """That of a task's choices."""
        labels = labels_of(choices)
        first = spelling.tokens(labels)
        return cls(spelling, labels, _is_sure(first), 0 < len(first) <= MOST_ALLOWED)

    @property
    def is_open(self) -> bool:
        """Whether a row may be asked for one token now."""
        return self.is_small and (self.is_sure or self.trial.is_open)

    async def told(self, ask: Ask, most_further: int) -> Told:
        """What one token of a row tells; two where a second one is sure to tell the label. The second is asked
        for where the model has room for one token more, `most_further` of them behind the prompt.
        """
        written: list[int] = []
        outputs: list[RequestOutput] = []
        left = self.labels
        with self.trial.row():
            while not written or len(left) > 1:
                behind = self._tokens(left)
                if written and not self._goes_on(behind, most_further - len(written)):
                    return Told(None, _spent(outputs))
                outputs.append(await ask(written, list(behind)))
                token = _token(outputs[-1])
                if token not in behind:  # as where the model's numbers are none
                    return Told(None, _spent(outputs))
                written.append(token)
                left = behind[token]
                self.trial.several += len(written) == 1 and len(left) > 1
        label = b"".join(self.spelling.text_of.get(token, b"") for token in written) + left[0]
        # The label has the tokens of all passes.
        further = replace(_spent(outputs[1:]), output_tokens=0)
        return Told(_whole(outputs, label.decode()), further)

    def _goes_on(self, behind: dict[int, Labels], room: int) -> bool:
        return room > 0 and len(behind) <= MOST_ALLOWED and _is_sure(behind)

    def _tokens(self, left: Labels) -> dict[int, Labels]:
        """The tokens that may come behind a beginning, ascending."""
        if left not in self._behind:
            self._behind[left] = dict(sorted(self.spelling.tokens(left).items()))
        return self._behind[left]


def _is_sure(behind: dict[int, Labels]) -> bool:
    """Whether each of the tokens leaves one label."""
    return all(len(left) == 1 for left in behind.values())


def _token(output: RequestOutput) -> int | None:
    ids = output.outputs[0].token_ids
    return ids[0] if ids else None


def _whole(outputs: Sequence[RequestOutput], label: str) -> RequestOutput:
    """The output of the first pass with the tokens of all, as if the label had been written to its end."""
    passes = [output.outputs[0] for output in outputs]
    whole = copy(outputs[0])
    numbers: list[Any] = [number for each in passes for number in each.logprobs or ()]
    whole.outputs = [
        replace(
            passes[0],
            text=label,
            token_ids=[token for each in passes for token in each.token_ids],
            logprobs=numbers or None,
            finish_reason="stop",
        )
    ]
    return whole


def _spent(outputs: Sequence[RequestOutput]) -> Outcome:
    return Answer(
        columns={},
        prompt_tokens=sum(len(each.prompt_token_ids or ()) for each in outputs),
        output_tokens=sum(len(each.outputs[0].token_ids) for each in outputs),
        cached_tokens=sum(each.num_cached_tokens or 0 for each in outputs),
    )
