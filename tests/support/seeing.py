"""A vision-language model with random weights, made where a test wants it.

It says nothing sensible, but takes the way of every such model: its own processor, chat template,
image tokens and vision tower.
"""

from pathlib import Path

from tests.support.models import MODEL

IMAGE_TOKENS = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(folder: Path) -> None:
    """An Idefics3 of about 0.6 M parameters, drawn widely enough that its image sways the answer."""
    import torch
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
        LlamaConfig,
    )

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": IMAGE_TOKENS})
    text = LlamaConfig(
        vocab_size=1_600,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = {
        "model_type": "idefics3_vision",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Idefics3Config(
        text_config=text.to_dict(),
        vision_config=vision,
        scale_factor=1,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(7)
    model = Idefics3ForConditionalGeneration(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=0.2)
    model.to(torch.bfloat16).save_pretrained(folder)
    whole = {"longest_edge": 28}
    images = Idefics3ImageProcessorPil(do_image_splitting=False, size=whole, max_image_size=whole)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=TEMPLATE)
    processor.save_pretrained(folder)


ARGS = {
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 2**27,
}
