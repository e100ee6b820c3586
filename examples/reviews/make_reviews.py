"""Synthetic product reviews in English: positive, neutral or negative, balanced, fixed by the seed.

    python examples/reviews/make_reviews.py --split train --rows 40000 --out train.parquet

A review is a few opinions among sentences without one. An opinion is a word put in a frame, as in
'sturdy' in 'The {aspect} is anything but {word}.'; a frame keeps the sentiment of its word, turns
it round, or speaks of something else. Words and frames are in phrases.yaml.

The rule of the splits: number the words of one part of speech and sentiment and the frames of one
part of speech as listed; the pair of word w and frame f belongs to `test` when (w + f) % 5 == 0 and
to `train` otherwise. So every word and every frame occurs in both, and no pair does: whoever learnt
the training split by heart has never seen an opinion of the test split. `pairs` gives the pairs,
and `Review.pairs` the ones that a review is made of, at least one each.

Columns: review_id ('r-000017'), product, text, and label, the true sentiment, only for scoring.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

Split = Literal["train", "test"]
Label = Literal["positive", "neutral", "negative"]
LABELS: tuple[Label, ...] = get_args(Label)
OPPOSITE: Mapping[Label, Label] = {"positive": "negative", "negative": "positive"}
PHRASES = Path(__file__).with_name("phrases.yaml")
TEST_SHARE = 5  # one pair in this many is held out
PART_WEIGHTS = {"adjective": 11, "verb": 3, "adverb": 3, "noun": 3}
SCHEMA = pa.schema([(name, pa.string()) for name in ("review_id", "product", "text", "label")])


@dataclass(frozen=True, slots=True)
class Pair:
    """A word in a frame, both as listed in phrases.yaml."""

    word: str
    frame: str


@dataclass(frozen=True, slots=True)
class Kind:
    """What a pair is good for: part of speech, effect of the frame, sentiment of the word."""

    part: str
    effect: str
    sentiment: Label


@dataclass(frozen=True, slots=True)
class Review:
    """A review with its true label and the pairs it is made of, all of them of its split."""

    review_id: str
    product: str
    text: str
    label: Label
    pairs: tuple[Pair, ...]

    def row(self) -> dict[str, str]:
        """The four columns of the file."""
        return {
            "review_id": self.review_id,
            "product": self.product,
            "text": self.text,
            "label": self.label,
        }


@cache
def phrases() -> dict[str, Any]:
    """phrases.yaml as parsed."""
    parsed: dict[str, Any] = yaml.safe_load(PHRASES.read_text(encoding="utf-8"))
    return parsed


@cache
def pairs_by_kind(split: Split) -> dict[Kind, tuple[Pair, ...]]:
    """The pairs of a split by what they are good for; the rule is in the module's docstring."""
    table: dict[Kind, list[Pair]] = {}
    for part, effects in phrases()["frames"].items():
        frames = [(effect, frame) for effect, listed in effects.items() for frame in listed]
        for frame_number, (effect, frame) in enumerate(frames):
            for sentiment, words in phrases()["words"][part].items():
                if effect == "flip" and sentiment not in OPPOSITE:
                    continue
                for word_number, word in enumerate(words):
                    held_out = (word_number + frame_number) % TEST_SHARE == 0
                    if held_out == (split == "test"):
                        kind = Kind(part, effect, sentiment)
                        table.setdefault(kind, []).append(Pair(word, frame))
    return {kind: tuple(found) for kind, found in table.items()}


def pairs(split: Split) -> frozenset[tuple[str, str]]:
    """Every (word, frame) that reviews of the split are made of; the two splits share none."""
    return frozenset(
        (pair.word, pair.frame) for found in pairs_by_kind(split).values() for pair in found
    )


class Writer:
    """Writes one review; `pairs` fills up as sentences are asked for."""

    def __init__(self, rng: Random, split: Split) -> None:
        self.rng = rng
        self.split: Split = split
        category = phrases()["categories"][rng.choice(list(phrases()["categories"]))]
        self.product: str = rng.choice(category["products"])
        self.pairs: list[Pair] = []
        aspects = [*category["aspects"], *phrases()["aspects"]]
        # An aspect is spoken of once: 'the price is good' and 'the price is bad' is no review.
        self._aspects: list[str] = rng.sample(aspects, len(aspects))
        self._slots = {name: rng.choice(found) for name, found in phrases()["slots"].items()}

    def opinion(self, sentiment: Label, *, ignored: bool = False) -> str:
        """A sentence of this sentiment; `ignored`: its word has it, yet it is not about this."""
        rng = self.rng
        effect = "ignore" if ignored else "keep"
        if not ignored and sentiment in OPPOSITE and rng.random() < 0.35:
            effect, sentiment = "flip", OPPOSITE[sentiment]
        part = rng.choices(list(PART_WEIGHTS), list(PART_WEIGHTS.values()))[0]
        pair = rng.choice(pairs_by_kind(self.split)[Kind(part, effect, sentiment)])
        self.pairs.append(pair)
        strength = "weak" if sentiment == "neutral" else "strong"
        very = rng.choice(phrases()["intensifiers"][strength]) if rng.random() < 0.4 else ""
        filled = pair.frame.format(
            word=pair.word,
            Word=pair.word.capitalize(),
            very=very,
            aspect=self._aspects.pop(),
            product=self.product,
        )
        return _tidy(filled)

    def fact(self) -> str:
        """A sentence without an opinion."""
        fact: str = self.rng.choice(phrases()["facts"])
        slots = self._slots
        return _tidy(fact.format(product=self.product, Whom=_capital(slots["whom"]), **slots))

    def text(self, label: Label) -> str:
        """The whole review: opinions of the label, facts, and words about other things."""
        rng = self.rng
        if label == "neutral" and rng.random() < 0.15:
            both: list[Label] = rng.sample(["positive", "negative"], 2)
            opinions = [_join(self.opinion(both[0]), ", but ", self.opinion(both[1]))]
        else:
            opinions = [self.opinion(label) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
            if len(opinions) > 1 and rng.random() < 0.3:
                opinions[:2] = [_join(opinions[0], ", and ", opinions[1])]
        if rng.random() < 0.25:
            opinions.insert(
                rng.randint(0, len(opinions)), self.opinion(rng.choice(LABELS), ignored=True)
            )
        facts = dict.fromkeys(self.fact() for _ in range(rng.choice((0, 0, 1, 1, 2))))
        for fact in facts:
            opinions.insert(rng.randint(0, len(opinions)), fact)
        return self._styled(" ".join(opinions))

    def _styled(self, text: str) -> str:
        style = self.rng.random()
        if style < 0.06:
            return text.lower()
        if style < 0.12:
            return text.removesuffix(".")
        return text[:-1] + "!" if style < 0.2 else text


def reviews(rows: int, split: Split, seed: int) -> Iterator[Review]:
    """That many reviews, the labels in equal shares (within one) and in random order."""
    rng = Random(f"{split}/{seed}")
    labels = [LABELS[number % len(LABELS)] for number in range(rows)]
    rng.shuffle(labels)
    for number, label in enumerate(labels):
        writer = Writer(rng, split)
        text = writer.text(label)
        yield Review(f"r-{number:06d}", writer.product, text, label, tuple(writer.pairs))


def write(found: Iterator[Review], out: Path) -> None:
    """Write JSON lines when the name ends in .jsonl, Parquet otherwise."""
    rows = [review.row() for review in found]
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        out.write_text("".join(lines), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), out)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _join(first: str, between: str, second: str) -> str:
    """Two sentences as one; 'I' and its forms keep their capital."""
    keeps = re.match(r"I\b", second) is not None
    return first.rstrip(".?") + between + (second if keeps else second[0].lower() + second[1:])


def _tidy(sentence: str) -> str:
    """Capital at the start, 'an' before a vowel."""
    return _capital(re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write synthetic product reviews.")
    parser.add_argument("--out", type=Path, required=True, help="FILE.parquet or FILE.jsonl")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--split", choices=get_args(Split), default="test")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    write(reviews(asked.rows, asked.split, asked.seed), asked.out)


if __name__ == "__main__":
    main()
