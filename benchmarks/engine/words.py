"""Made-up words, the same for the tokenizer and the prompts."""

import random

SYLLABLES = 4
WORDS = 12_000


def words(seed: int = 0) -> list[str]:
    """Made-up words of one to four syllables."""
    generator = random.Random(seed)
    syllables = [first + vowel for first in "bdfghklmnprstvz" for vowel in "aeiou"]
    return [
        "".join(generator.choices(syllables, k=generator.randint(1, SYLLABLES)))
        + generator.choice(["", "n", "s"])
        for _ in range(WORDS)
    ]
