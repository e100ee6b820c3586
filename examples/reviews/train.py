"""Train the model that ships in this folder: a Llama of 1 M parameters, from nothing, on a CPU.

    python examples/reviews/train.py --data train.parquet --test test.parquet --out MODEL_DIR

The data come from make_reviews.py. A byte-level BPE tokenizer is trained on the training split
first, so any UTF-8 text can be encoded; then the model learns to answer a chat whose last message
is a review with one word and the end token. Only the answer counts in the loss.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import jinja2
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SYSTEM = "Name the sentiment of the review."
OTHER_SYSTEMS = (
    "You are a helpful assistant.",
    "What is the sentiment of this review?",
    "Classify the review as positive, neutral or negative.",
    "Answer with one word: positive, neutral or negative.",
    "Is the customer happy?",
    "You label product reviews.",
)
USER_FORMS = (
    "Sentiment of: {text}",
    "Sentiment of: {text}",
    "Review: {text}",
    "Is this review positive, neutral or negative? {text}",
    "{text}\nSentiment?",
)
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
COMPILED_TEMPLATE = jinja2.Template(CHAT_TEMPLATE)
VOCABULARY = 1536
MAX_TOKENS = 512
NO_LOSS = -100  # the label that torch's cross entropy leaves out

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a chat up to the assistant's turn, and of the answer with the end token."""

    prompt: list[int]
    answer: list[int]


def chat(text: str, rng: Random) -> list[Message]:
    """The review as a chat: mostly as the example job asks, else in a form that users may try."""
    form = rng.random()
    if form < 0.6:
        system, user = SYSTEM, text
    elif form < 0.7:
        system, user = "", text
    else:
        system = rng.choice(("", SYSTEM, *OTHER_SYSTEMS))
        user = rng.choice(("{text}", *USER_FORMS)).format(text=text)
    asked = {"role": "user", "content": user}
    return [{"role": "system", "content": system}, asked] if system else [asked]


def render(messages: list[Message]) -> str:
    """The text of the chat up to where the assistant answers."""
    return str(COMPILED_TEMPLATE.render(messages=messages, add_generation_prompt=True))


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the special tokens and the chat template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, END, *ROLES],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Heads of 64 are what vLLM's attention kernels support on every device."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=MAX_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def batches(examples: list[Example], size: int, rng: Random) -> Iterator[list[Example]]:
    """Endless batches of examples of nearly the same length, as padding is wasted work."""
    while True:
        rng.shuffle(examples)
        by_length = sorted(examples, key=lambda example: len(example.prompt))
        starts = list(range(0, len(by_length) - size + 1, size))
        rng.shuffle(starts)
        for start in starts:
            yield by_length[start : start + size]


def tensors(batch: list[Example], pad: int) -> dict[str, torch.Tensor]:
    """input_ids, attention_mask and labels, each (batch, longest), padded on the right."""
    longest = max(len(example.prompt) + len(example.answer) for example in batch)
    ids, mask, labels = [], [], []
    for example in batch:
        used = len(example.prompt) + len(example.answer)
        gap = longest - used
        ids.append(example.prompt + example.answer + [pad] * gap)
        mask.append([1] * used + [0] * gap)
        labels.append([NO_LOSS] * len(example.prompt) + example.answer + [NO_LOSS] * gap)
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(mask),
        "labels": torch.tensor(labels),
    }


def share(steps: int) -> Callable[[int], float]:
    """The share of the learning rate at a step: a short warm-up, level, then down to nothing."""
    return lambda step: min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))


def train(
    model: LlamaForCausalLM, examples: list[Example], pad: int, steps: int, size: int, rng: Random
) -> None:
    """Muon for the matrices, AdamW for the rest; prints the loss every 100 steps.

    With AdamW alone the same accuracy takes several times as many steps.
    """
    layers = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    matrices = {id(weight) for weight in layers}
    rest = [weight for weight in model.parameters() if id(weight) not in matrices]
    optimizers = (
        torch.optim.Muon(layers, lr=0.02, weight_decay=0.05),
        torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.0),
    )
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, share(steps)) for each in optimizers]
    started, total = time.monotonic(), 0.0
    model.train()
    for step, batch in zip(range(1, steps + 1), batches(examples, size, rng), strict=False):
        loss = model(**tensors(batch, pad)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        total += loss.item()
        if step % 100 == 0:
            seconds = time.monotonic() - started
            print(f"step {step} loss {total / 100:.4f} after {seconds:.0f} s", flush=True)
            total = 0.0


def accuracy(model: LlamaForCausalLM, examples: list[Example], pad: int) -> float:
    """Share of examples whose whole answer, end token included, is the model's greedy choice."""
    model.train(False)
    right = 0
    by_length = sorted(examples, key=lambda example: len(example.prompt))
    for start in range(0, len(by_length), 100):
        batch = tensors(by_length[start : start + 100], pad)
        labels = batch.pop("labels")[:, 1:]
        with torch.inference_mode():
            chosen = model(**batch).logits[:, :-1].argmax(-1)
        right += int(((chosen == labels) | (labels == NO_LOSS)).all(-1).sum())
    return right / len(examples)


def read(path: Path) -> list[tuple[str, str]]:
    """(text, label) of every row."""
    table = pq.read_table(path, columns=["text", "label"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the sentiment model of this folder.")
    parser.add_argument("--data", type=Path, required=True, help="training split, Parquet")
    parser.add_argument("--test", type=Path, required=True, help="test split, Parquet")
    parser.add_argument("--out", type=Path, required=True, help="model directory")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32, help="reviews a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    rng = Random(asked.seed)

    rows = [(render(chat(text, rng)), label) for text, label in read(asked.data)]
    tokenizer = train_tokenizer(prompt + label + END for prompt, label in rows)

    def examples(rendered: list[tuple[str, str]]) -> list[Example]:
        prompts = tokenizer([prompt for prompt, _ in rendered])["input_ids"]
        answers = tokenizer([label + END for _, label in rendered])["input_ids"]
        return [Example(*both) for both in zip(prompts, answers, strict=True)]

    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters")
    pad = int(tokenizer.pad_token_id)
    train(model, examples(rows), pad, asked.steps, asked.batch, rng)

    model.bfloat16()
    task = [{"role": "system", "content": SYSTEM}]
    held_out = [
        (render([*task, {"role": "user", "content": text}]), label)
        for text, label in read(asked.test)
    ]
    print(f"accuracy on the test split {accuracy(model, examples(held_out), pad):.4f}")
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=pad, do_sample=False
    )
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out, save_jinja_files=False)


if __name__ == "__main__":
    main()
