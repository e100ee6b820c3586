"""Train the classifier that ships in this folder: a ModernBERT of 0.6 M parameters, from nothing, on a CPU.

    python examples/sentiment/train.py --data train.parquet --test test.parquet --out MODEL_DIR

The data come from examples/reviews/make_reviews.py, the tokenizer from the model beside it: its
chat tokens mark the start and the end of a text here.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

LABELS = ("negative", "neutral", "positive")
TOKENIZER = Path(__file__).parents[1] / "reviews" / "model"
START, END = "<|user|>", "<|end|>"
MAX_TOKENS = 512

Example = tuple[list[int], int]


def new_tokenizer() -> PreTrainedTokenizerFast:
    """The reviews' byte-level BPE with a start and an end token around each text."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER)
    inner = tokenizer.backend_tokenizer
    inner.post_processor = TemplateProcessing(
        single=f"{START} $A {END}",
        pair=f"{START} $A {END} $B:1 {END}:1",
        special_tokens=[(token, inner.token_to_id(token)) for token in (START, END)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        cls_token=START,
        sep_token=END,
        pad_token=tokenizer.pad_token,
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> ModernBertForSequenceClassification:
    """Heads of 64 are what vLLM's attention kernels support on every device."""
    return ModernBertForSequenceClassification(
        ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=3,
            num_attention_heads=2,
            global_attn_every_n_layers=1,
            max_position_embeddings=MAX_TOKENS,
            classifier_pooling="mean",
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            cls_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            sep_token_id=tokenizer.sep_token_id,
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
        )
    )


def batches(examples: list[Example], size: int, rng: Random) -> Iterator[list[Example]]:
    """Endless batches of examples of nearly the same length, as padding is wasted work."""
    while True:
        rng.shuffle(examples)
        by_length = sorted(examples, key=lambda example: len(example[0]))
        starts = list(range(0, len(by_length) - size + 1, size))
        rng.shuffle(starts)
        for start in starts:
            yield by_length[start : start + size]


def tensors(batch: list[Example], pad: int) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask, each (batch, longest), and labels (batch)."""
    longest = max(len(ids) for ids, _ in batch)
    gaps = [longest - len(ids) for ids, _ in batch]
    return {
        "input_ids": torch.tensor(
            [ids + [pad] * gap for (ids, _), gap in zip(batch, gaps, strict=True)]
        ),
        "attention_mask": torch.tensor([[1] * (longest - gap) + [0] * gap for gap in gaps]),
        "labels": torch.tensor([label for _, label in batch]),
    }


def share(steps: int) -> Callable[[int], float]:
    """The share of the learning rate at a step: a short warm-up, level, then down to nothing."""
    return lambda step: min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))


def train(
    model: ModernBertForSequenceClassification,
    examples: list[Example],
    pad: int,
    steps: int,
    size: int,
    rng: Random,
) -> None:
    """Muon for the matrices of the layers, AdamW for the rest; prints the loss now and then."""
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


def accuracy(
    model: ModernBertForSequenceClassification, examples: list[Example], pad: int
) -> float:
    """Share of examples whose most probable label is the true one."""
    model.train(False)
    right = 0
    by_length = sorted(examples, key=lambda example: len(example[0]))
    for start in range(0, len(by_length), 100):
        batch = tensors(by_length[start : start + 100], pad)
        labels = batch.pop("labels")
        with torch.inference_mode():
            right += int((model(**batch).logits.argmax(-1) == labels).sum())
    return right / len(examples)


def read(path: Path, tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Token ids and label number of every row."""
    table = pq.read_table(path, columns=["text", "label"])
    ids = tokenizer(table.column("text").to_pylist())["input_ids"]
    numbers = [LABELS.index(label) for label in table.column("label").to_pylist()]
    return list(zip(ids, numbers, strict=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the sentiment classifier of this folder.")
    parser.add_argument("--data", type=Path, required=True, help="training split, Parquet")
    parser.add_argument("--test", type=Path, required=True, help="test split, Parquet")
    parser.add_argument("--out", type=Path, required=True, help="model directory")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32, help="reviews a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)

    tokenizer = new_tokenizer()
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters")
    pad = int(tokenizer.pad_token_id)
    examples = read(asked.data, tokenizer)
    train(model, examples, pad, asked.steps, asked.batch, Random(asked.seed))

    # Kept in half precision: half the file, the same labels.
    held_out = read(asked.test, tokenizer)
    model.half().float()
    print(f"accuracy on the test split {accuracy(model, held_out, pad):.4f}")
    model.half().save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)


if __name__ == "__main__":
    main()
