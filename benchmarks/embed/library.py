"""The models and the rows, and the library's own loops over them: what the fleet is held against."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import BertWordPieceTokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

from benchmarks.engine.words import words

LABELS = ("good", "bad", "neither")

LONGEST = 256

Numbers = npt.NDArray[np.float32]

Loop = Callable[[list[str]], Numbers]
"""The numbers of each text, in order."""


@dataclass(frozen=True, slots=True)
class Size:
    """A device and a model for it. Every loop but `encode` has `loop_rows` texts in a pass."""

    device: str
    dtype: str
    hidden: int
    layers: int
    rows: int
    batch_size: int = 32
    loop_rows: int = 64
    batch_rows: int = 256


GPU = Size("cuda", "bfloat16", 768, 12, 40_000, 256, 256, 1024)
"""A BERT of about 100 M parameters."""

CPU = Size("cpu", "float32", 384, 6, 2_000)
"""A BERT as large as all-MiniLM-L6-v2. `encode` has 32 texts in a pass, as it has by itself; the sorted
loop is fastest with 64 of 32, 64 and 128.
"""


def models(home: Path, size: Size) -> dict[str, str]:
    """A BERT with random weights, as sentence-transformers and as a classifier: speed needs no training."""
    known = words()
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator([" ".join(known)], vocab_size=30_000, show_progress=False)
    bare = home / "bare"
    bare.mkdir(parents=True)
    tokenizer.save_model(str(bare))
    fast = BertTokenizerFast(vocab_file=str(bare / "vocab.txt"), model_max_length=LONGEST)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_000,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=LONGEST,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
    )
    BertModel(config).save_pretrained(bare)
    fast.save_pretrained(bare)
    transformer = Transformer(str(bare), max_seq_length=LONGEST)
    pooling: Any = Pooling(size.hidden)
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(home / "embed"))
    BertForSequenceClassification(config).save_pretrained(home / "classify")
    fast.save_pretrained(home / "classify")
    return {"embed": str(home / "embed"), "classify": str(home / "classify")}


def rows(path: Path, count: int, lengths: str) -> Path:
    """`short` texts have 3 to 12 words; `mixed` texts 3 to 150, half of them up to 25."""
    generator = np.random.default_rng(0)
    known = np.asarray(words())
    if lengths == "short":
        counts = generator.integers(3, 13, count)
    else:
        counts = np.clip(generator.lognormal(3.2, 0.8, count), 3, 150).astype(int)
    texts = [" ".join(generator.choice(known, each)) for each in counts]
    pq.write_table(pa.table({"id": [f"r-{at}" for at in range(count)], "text": texts}), path)
    return path


def timed(loop: Loop, task: str, data: Path, out: Path) -> float:
    """The seconds of a loop from a file of rows to a file of answers."""
    began = time.monotonic()
    table = pq.read_table(data)
    found = loop(table.column("text").to_pylist())
    answer: pa.Array
    if task == "classify":
        answer = pa.array([LABELS[at] for at in found.argmax(axis=1)])
    else:
        answer = pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), found.shape[1])
    pq.write_table(pa.table({"id": table.column("id"), "answer": answer}), out)
    return time.monotonic() - began


def loops(task: str, model: str, size: Size) -> Mapping[str, Loop]:
    """The library's loops over a task, warm: `encode` of all texts, and passes over texts that are sorted by
    their length.
    """
    made = _embedding(model, size) if task == "embed" else _classifying(model, size)
    for loop in made.values():
        loop(["warm up"] * size.loop_rows)
    return made


def _embedding(model: str, size: Size) -> Mapping[str, Loop]:
    kind = getattr(torch, size.dtype)
    loaded = SentenceTransformer(model, device=size.device, model_kwargs={"dtype": kind})

    def encode(texts: list[str]) -> Numbers:
        return np.asarray(
            loaded.encode(texts, batch_size=size.batch_size, show_progress_bar=False), np.float32
        )

    def one_pass(texts: list[str]) -> Numbers:
        features = {name: each.to(size.device) for name, each in _tensors(loaded, texts).items()}
        found: Numbers = loaded(features)["sentence_embedding"].float().cpu().numpy()
        return found

    return {"encode": encode, "a sorted loop": _sorted(one_pass, size)}


def _tensors(loaded: SentenceTransformer, texts: list[str]) -> dict[str, torch.Tensor]:
    return dict(loaded.tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))


def _classifying(model: str, size: Size) -> Mapping[str, Loop]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    kind = getattr(torch, size.dtype)
    loaded = AutoModelForSequenceClassification.from_pretrained(model, dtype=kind)
    loaded = loaded.to(size.device).eval()

    def one_pass(texts: list[str]) -> Numbers:
        given = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        logits = loaded(**given.to(size.device)).logits
        found: Numbers = torch.softmax(logits.float(), dim=-1).cpu().numpy()
        return found

    return {"a sorted loop": _sorted(one_pass, size)}


def _sorted(one_pass: Loop, size: Size) -> Loop:
    def loop(texts: list[str]) -> Numbers:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        passes = [
            order[start : start + size.loop_rows] for start in range(0, len(order), size.loop_rows)
        ]
        with torch.inference_mode():
            found = [one_pass([texts[at] for at in each]) for each in passes]
        answers = np.empty((len(texts), found[0].shape[1]), np.float32)
        answers[order] = np.concatenate(found)
        return answers

    return loop
