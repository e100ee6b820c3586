"""Train the model that ships in this folder: a Qwen3 of 1 M parameters that thinks before it answers.

    python examples/thinking/train_thinking.py --out first
    python examples/thinking/train_thinking.py --go-on first --bare 0.5 --steps 300 --seed 1 --rows 12000 --out model

The reviews are those of examples/reviews/make_reviews.py. A thought names the words of the review that say
something of the product, in order: `is` for a word that means what it says, `not` for one that its sentence
turns round, `aside` for one that is about something else. Then comes one word, the sentiment. The chat template
has Qwen3's switch: with `enable_thinking` false the prompt closes an empty thought, and the model answers at
once. Only what the model writes counts in the loss.

Behind a thought stands an empty line, as Qwen3 writes it. Where an answer is held to choices, vLLM leaves no room
for that line: the second run teaches the model both, since a model this small knows nothing that it did not see.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import jinja2
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

sys.path.append(str(Path(__file__).parents[1] / "reviews"))

from make_reviews import Pair, Review, Split, pairs_by_kind, reviews
from train import Example, accuracy, chat, train

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THOUGHT = ("<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif %}"
)
COMPILED_TEMPLATE = jinja2.Template(CHAT_TEMPLATE)
VOCABULARY = 1536
MAX_TOKENS = 512
MEANS = {"keep": "is", "flip": "not", "ignore": "aside"}


def effects(split: Split) -> dict[Pair, str]:
    """What the frame of each pair does with its word."""
    return {
        pair: MEANS[kind.effect] for kind, found in pairs_by_kind(split).items() for pair in found
    }


def thought(review: Review, means: dict[Pair, str]) -> str:
    """The words of a review that say something, in the order of the text."""
    text = review.text.lower()
    ordered = sorted(review.pairs, key=lambda pair: text.find(pair.word.lower()))
    return ", ".join(f"{pair.word} {means[pair]}" for pair in ordered)


def examples(
    found: Iterator[Review], split: Split, rng: Random, think: float, bare: float = 0.0
) -> Iterator[tuple[str, str]]:
    """(prompt, answer) of each review; a share of `think` of them thinks, and of these a share of `bare` has no
    empty line behind the thought.
    """
    means = effects(split)
    for review in found:
        is_on = rng.random() < think
        own = {} if is_on else {"enable_thinking": False}
        prompt = COMPILED_TEMPLATE.render(
            messages=chat(review.text, rng), add_generation_prompt=True, **own
        )
        start, end = THOUGHT
        line = "" if rng.random() < bare else "\n\n"
        said = f"{start}\n{thought(review, means)}\n{end}{line}" if is_on else ""
        yield prompt, said + review.label + END


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen's tokens and the chat template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(THOUGHT),
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in THOUGHT])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Heads of 64 are what vLLM's attention kernels support on every device."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=MAX_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the model of this folder.")
    parser.add_argument("--out", type=Path, required=True, help="model directory")
    parser.add_argument(
        "--go-on", type=Path, help="model directory to begin with, and its tokenizer"
    )
    parser.add_argument("--bare", type=float, default=0.0, help="share without an empty line")
    parser.add_argument("--rows", type=int, default=120_000, help="reviews of the training split")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32, help="reviews a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    rng = Random(asked.seed)

    made = reviews(asked.rows, "train", asked.seed)
    rows = list(examples(made, "train", rng, think=0.7, bare=asked.bare))
    if asked.go_on is None:
        tokenizer = train_tokenizer(prompt + answer for prompt, answer in rows)
        model = new_model(tokenizer)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(asked.go_on)
        model = Qwen3ForCausalLM.from_pretrained(asked.go_on, dtype=torch.float32)

    def encoded(rendered: list[tuple[str, str]]) -> list[Example]:
        prompts = tokenizer([prompt for prompt, _ in rendered])["input_ids"]
        answers = tokenizer([answer for _, answer in rendered])["input_ids"]
        return [Example(*both) for both in zip(prompts, answers, strict=True)]

    print(f"{model.num_parameters():,} parameters")
    pad = int(tokenizer.pad_token_id)
    train(model, encoded(rows), pad, asked.steps, asked.batch, rng)

    model.bfloat16()
    for name, think, bare in (
        ("a thought and its answer", 1.0, 0.0),
        ("the same without the empty line", 1.0, 1.0),
        ("an answer at once", 0.0, 0.0),
    ):
        found = examples(reviews(2000, "test", 0), "test", Random(0), think, bare)
        print(f"{name}: all tokens right in {accuracy(model, encoded(list(found)), pad):.4f}")
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=pad, do_sample=False
    )
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out, save_jinja_files=False)


if __name__ == "__main__":
    main()
