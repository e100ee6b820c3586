"""Makes the tiny models of the table: random weights from the family's config class, a tokenizer trained here
with the family's tokens, and the chat template. A family of the table takes a second.
"""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.families.table import Made

if TYPE_CHECKING:
    import transformers
    from tokenizers import Tokenizer

VOCABULARY = 600
LONGEST = 2048

WORDS = (
    "Name the sentiment of the review. I love it, it broke, it is fine. positive neutral negative "
    "Let me see what the review says: the answer is look at 1 <think> a </think> b <think> </think> of or "
)

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": LONGEST,
}
"""Heads of 64 are what vLLM's attention kernels support on every device."""


def build(made: Made, folder: Path) -> Path:
    """The folder of the family's model, ready for vLLM."""
    import torch
    import transformers

    assert made.config is not None
    tokens = _tokenizer(made, folder)
    end = made.end if made.tokenizer != "tekken" else None
    vocabulary = tokens if isinstance(tokens, int) else len(tokens)
    stop = 2 if end is None else tokens.convert_tokens_to_ids(end)
    shape = {**SHAPE, **made.shape, "vocab_size": vocabulary, "eos_token_id": stop}
    shape |= {"bos_token_id": None, "pad_token_id": stop}
    config = getattr(transformers, made.config)(**shape)
    transformers.set_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    if made.model_type:
        path = folder / "config.json"
        told = {**json.loads(path.read_text()), "model_type": made.model_type}
        path.write_text(json.dumps(told))
    return folder


def _tokenizer(made: Made, folder: Path) -> Any:
    """The tokenizer, saved; the size of its vocabulary where transformers does not know its kind."""
    if made.tokenizer == "tekken":
        return _tekken(folder)
    tokenizer = tokenizer_of(made)
    tokenizer.save_pretrained(folder)
    return tokenizer


def tokenizer_of(made: Made) -> "transformers.PreTrainedTokenizerFast":
    """The tokenizer of a family whose chats a template writes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    if made.tokenizer == "harmony":
        return _harmony(made)
    special = list(dict.fromkeys([made.end, *made.special]))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        [WORDS] * 8,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(special) - len(made.added),
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(each, normalized=False, special=False) for each in made.added])
    return _fast(bpe, made, special)


def _harmony(made: Made) -> "transformers.PreTrainedTokenizerFast":
    """The vocabulary of gpt-oss, which its package carries: each id means what it means there. Without the
    merges a text becomes one token a byte.
    """
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    ends = [*encoding.special_tokens_set]
    first = min(encoding.encode(each, allowed_special="all")[0] for each in ends)
    letters = _letters()
    vocabulary: dict[str, int] = {}
    for token in range(first):
        text = encoding._inner.decode_bytes([token])
        name = "".join(letters[byte] for byte in text)
        vocabulary[name if name not in vocabulary else f"unused {token}"] = token
    bpe = Tokenizer(models.BPE(vocabulary, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    ids = {encoding.encode(each, allowed_special="all")[0]: each for each in ends}
    named = [ids.get(token, f"<|unnamed_{token}|>") for token in range(first, max(ids) + 1)]
    bpe.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in named])
    known = ["<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>"]
    return _fast(bpe, made, known)


def _letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


def _fast(
    bpe: "Tokenizer", made: Made, special: Iterable[str]
) -> "transformers.PreTrainedTokenizerFast":
    import transformers

    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=made.end,
        pad_token=made.end,
        additional_special_tokens=list(special),
        chat_template=made.template or None,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )


CONTROL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
)


def _tekken(folder: Path) -> int:
    """Mistral's own file, with one token a byte and the control tokens of a model that thinks."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(256)
    ]
    control = [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(CONTROL)
    ]
    config = {
        "pattern": r"[^\r\n]+|[\r\n]+",
        "num_vocab_tokens": 256,
        "default_vocab_size": 256 + len(control),
        "default_num_special_tokens": len(control),
        "version": "v13",
    }
    told = {"config": config, "vocab": vocab, "special_tokens": control}
    (folder / "tekken.json").write_text(json.dumps(told))
    return 256 + len(control)
