"""Kinds of job: for each kind of task and form of answer a spec, and the answers worked out by hand."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nightshift.common.spec.tasks.structured import StructuredOutput
from tests.support.remote import Call, Remote, Reply, refused

SENTIMENT = Path(__file__).parents[2] / "examples" / "sentiment" / "model"
"""The classifier that ships with an example."""

PROMPT_TOKENS, OUTPUT_TOKENS = 7, 3
"""What the stand-in server reports for each request, however many samples it has."""

GRAMMAR = 'root ::= "yes " [a-z0-9 -]+'
"""A grammar of the texts that the stand-in server gives."""

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its task, its engine, what the server answers to a text, and the columns of the row."""

    task: dict[str, Any]
    columns: Callable[[str], Columns]
    says: Callable[[str], str] = str.upper
    """The text of the stand-in server's answer."""
    engine: str = "remote"
    choice: dict[str, Any] = field(default_factory=dict)
    """More members of each choice of the server's answer."""
    message: dict[str, Any] = field(default_factory=dict)
    samples: int = 1
    has_tokens: bool = True
    refuses: bool = True
    """Whether the engine refuses a text that begins with `bad`; models in PyTorch refuse none."""
    slow: str = ""
    """Why the kind is in `make test-slow` alone."""


def generate(name: str, **fields: Any) -> dict[str, Any]:
    """A task whose prompt begins with the kind's name, by which the stand-in server answers."""
    return {"kind": "generate", "prompt": name + "|{{ text }}", **fields}


def output(says: Callable[[str], str]) -> Callable[[str], Columns]:
    """The one column of free text."""
    return lambda text: {"output": says(text)}


def label(text: str) -> str:
    return "even" if len(text) % 2 == 0 else "odd"


def as_json(text: str) -> str:
    return json.dumps({"loud": text.upper(), "size": len(text)})


def dashed(text: str) -> str:
    return re.sub("[^a-z0-9]", "-", text)


def agreed(text: str) -> str:
    return f"yes {text}"


@cache
def sentiment(text: str) -> str:
    """The label of the shipped classifier, by the library alone."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(SENTIMENT)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(SENTIMENT)
    with torch.inference_mode():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    return str(model.config.id2label[int(logits.argmax())])


SCHEMA = {
    "type": "object",
    "properties": {"loud": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["loud", "size"],
    "additionalProperties": False,
}

LOGPROBS = {
    "logprobs": {
        "content": [
            {
                "token": "A",
                "logprob": -0.5,
                "bytes": [65],
                "top_logprobs": [{"token": "A", "logprob": -0.5, "bytes": [65]}],
            }
        ]
    }
}

SAMPLED = {"n": 3, "temperature": 0.7}

KINDS: dict[str, Kind] = {
    "text": Kind(generate("text"), output(str.upper)),
    "choice": Kind(
        generate("choice", output={"choice": ["even", "odd"]}), output(label), says=label
    ),
    "json_schema": Kind(
        generate("json_schema", output={"json_schema": SCHEMA}),
        lambda text: {"output": as_json(text), "parsed": json.loads(as_json(text))},
        says=as_json,
    ),
    "regex": Kind(
        generate("regex", output={"regex": "[a-z0-9-]+"}),
        output(dashed),
        says=dashed,
        slow="answers have the column of a choice",
    ),
    "grammar": Kind(
        generate("grammar", output={"grammar": GRAMMAR}),
        output(agreed),
        says=agreed,
        slow="answers have the column of a choice",
    ),
    "samples": Kind(
        generate("samples", sampling=SAMPLED),
        lambda text: {"outputs": [text.upper()] * 3},
        samples=3,
    ),
    "vote": Kind(
        generate("vote", sampling=SAMPLED, output={"choice": ["even", "odd"]}, vote="choice"),
        lambda text: {"output": label(text), "vote_share": 1.0},
        says=label,
        samples=3,
        slow="samples and choice are kinds of their own",
    ),
    "logprobs": Kind(
        generate("logprobs", sampling={"logprobs": 1}),
        lambda text: {"output": text.upper(), "logprobs": [-0.5]},
        choice=LOGPROBS,
    ),
    "thinking": Kind(
        generate("thinking", thinking="on", keep_reasoning=True),
        lambda text: {"output": text.upper(), "reasoning": "hm"},
        message={"reasoning": "hm"},
    ),
    "embed": Kind(
        {"kind": "embed", "text": "embed|{{ text }}", "normalize": False},
        lambda text: {"embedding": [3.0, 4.0, float(len(f"embed|{text}"))]},
        engine="remote",
    ),
    "requests": Kind({"kind": "requests"}, lambda text: {"answer": text.upper()}),
    "function": Kind(
        {"kind": "function"},
        lambda text: {"loud": text.upper()},
        engine="function",
        has_tokens=False,
    ),
    "classify": Kind(
        {"kind": "classify", "text": "{{ text }}"},
        lambda text: {"label": sentiment(text)},
        engine="classifier",
        refuses=False,
        slow="a child imports PyTorch for ten seconds",
    ),
    "score": Kind(
        {"kind": "score", "text": "{{ text }}", "text_pair": "{{ text }}"},
        lambda text: {"score": 1.0},
        engine="embedder",
        refuses=False,
        slow="a child imports PyTorch for ten seconds",
    ),
}

LEFT_OUT = {
    "confidence": "vLLM alone gives it: tests/engine/test_choices_vllm.py",
    "prompt_logprobs": "vLLM alone gives them: tests/engine/test_numbers_vllm.py",
}
"""Columns of answers that no kind has, with the reason."""

FORMS = [
    name
    for name, field in StructuredOutput.model_fields.items()
    if "The answer" in (field.description or "")
]
"""The forms that an answer can have."""


def answering(remote: Remote, is_mended: Callable[[], bool]) -> None:
    """Lets the stand-in server answer each kind; it refuses a text that begins with `bad` until that is mended."""

    def behave(call: Call) -> Reply:
        name, _, text = call.text.partition("|")
        if text.startswith("bad") and not is_mended():
            return refused(400, "this text is refused")
        if name == "embed":
            vector = [3.0, 4.0, float(len(call.text))]
            data = [{"object": "embedding", "index": 0, "embedding": vector}]
            usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
            return Reply(body={"object": "list", "data": data, "usage": usage})
        kind = KINDS[name]
        message = {"role": "assistant", "content": kind.says(text), **kind.message}
        choices = [
            {"index": place, "message": message, "finish_reason": "stop", **kind.choice}
            for place in range(kind.samples)
        ]
        usage = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": PROMPT_TOKENS + OUTPUT_TOKENS,
        }
        return Reply(body={"id": "c-1", "choices": choices, "usage": usage})

    remote.behave = behave
