"""What is known of each family: the config class of its models, its tokens, its chat template, and how it
writes a tool call. The templates are our own, in the family's syntax.

A model of a family is built by `build`; what its models write stands in `transcripts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}ASK{% endif %}"
)
"""The form of Qwen's chats, which many makers share; ASK is what the assistant's turn begins with."""


def chatml(ask: str) -> str:
    """A template of that form."""
    return CHATML.replace("ASK", ask)


def turns(start: str, end: str, ask: str, first: str = "") -> str:
    """A template whose turns stand between `start`, which holds ROLE, and `end`."""
    opened = "{{ '" + start.replace("ROLE", "' + m.role + '") + "' }}"
    return (
        f"{first}{{%- for m in messages %}}{opened}{{{{ m.content }}}}{{{{ '{end}' }}}}{{% endfor %}}"
        f"{{%- if add_generation_prompt %}}{ask}{{% endif %}}"
    )


@dataclass(frozen=True, slots=True)
class Made:
    """A family. `config` is the name of the config class in transformers, `shape` what it wants beside the
    usual sizes; None for a family that vLLM's CPU build does not load.

    `splits` is the family of our table, None for a model that does not think. `opened` says whether the
    prompt ends inside a thought when nothing is said of thinking: None where the model may open one. `switch`
    is the variable of the template that turns thinking on and off, `opened_on` is `opened` when the switch is
    on, and `gate` vLLM's parser that ends a thought.
    """

    name: str
    config: str | None
    template: str
    splits: str | None
    opened: bool | None = False
    switch: str | None = None
    opened_on: bool | None = True
    gate: str | None = None
    model_type: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    end: str = "<|im_end|>"
    start: str = "<think>"
    stop: str = "</think>"
    tool_call: str = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    ends_thought: bool = False
    tokenizer: str = "bpe"
    load: Mapping[str, Any] = field(default_factory=dict)


THINK = ("<think>", "</think>")
IM = ("<|im_start|>", "<|im_end|>")
TOOL = ("<tool_call>", "</tool_call>")
OFF = "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
LATENT = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
"""DeepSeek's shape, which Kimi has, too: experts, and keys and values in a latent space."""
MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

QWEN3 = Made(
    "qwen3",
    "Qwen3Config",
    chatml(OFF),
    "qwen3",
    opened=None,
    switch="enable_thinking",
    opened_on=None,
    gate="qwen3",
    special=IM,
    added=(*THINK, *TOOL),
    ends_thought=True,
)

MADE = (
    QWEN3,
    Made(
        "qwen3-thinking",
        "Qwen3MoeConfig",
        chatml("{{ '<think>\\n' }}"),
        "qwen3",
        opened=True,
        gate="qwen3",
        shape=MIXED,
        special=IM,
        added=(*THINK, *TOOL),
        ends_thought=True,
    ),
    Made(
        "qwen3-instruct",
        "Qwen3Config",
        chatml(""),
        "qwen3",
        opened=False,
        gate="qwen3",
        special=IM,
        added=(*THINK, *TOOL),
    ),
    Made(
        "gpt-oss",
        "GptOssConfig",
        "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort | default('medium')) + '<|end|>' }}"
        "{%- for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endfor %}"
        "{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
        "openai_gptoss",
        opened=None,
        shape={
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 128,
        },
        end="<|return|>",
        tokenizer="harmony",
    ),
    Made(
        "deepseek-r1",
        "DeepseekV3Config",
        turns(
            "<｜ROLE｜>",
            "",
            "{{ '<｜assistant｜><think>\\n' }}",
            "{{ '<｜begin▁of▁sentence｜>' }}",
        ),
        "deepseek_r1",
        opened=True,
        gate="deepseek_r1",
        shape={
            **LATENT,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
        },
        special=("<｜begin▁of▁sentence｜>", "<｜user｜>", "<｜assistant｜>", "<｜system｜>"),
        added=THINK,
        end="<｜end▁of▁sentence｜>",
        tool_call='<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    Made(
        "deepseek-v3.1",
        "DeepseekV2Config",
        turns(
            "<｜ROLE｜>",
            "",
            "{{ '<｜assistant｜>' }}{% if thinking is defined and thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}",
            "{{ '<｜begin▁of▁sentence｜>' }}",
        ),
        "deepseek_r1",
        opened=False,
        switch="thinking",
        gate="deepseek_r1",
        shape={
            **LATENT,
            "topk_method": "greedy",
        },
        special=("<｜begin▁of▁sentence｜>", "<｜user｜>", "<｜assistant｜>", "<｜system｜>"),
        added=THINK,
        end="<｜end▁of▁sentence｜>",
        tool_call='<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    Made(
        "gemma3",
        "Gemma3TextConfig",
        turns(
            "<start_of_turn>ROLE\\n",
            "<end_of_turn>\\n",
            "{{ '<start_of_turn>model\\n' }}",
            "{{ '<bos>' }}",
        ),
        None,
        shape={"head_dim": 64},
        special=("<bos>", "<start_of_turn>", "<end_of_turn>"),
        added=("\n", "\n\n"),
        end="<end_of_turn>",
    ),
    Made(
        "gemma4",
        "Gemma4TextConfig",
        turns(
            "<|turn>ROLE\\n",
            "<turn|>\\n",
            "{{ '<|turn>model\\n' }}",
            "{{ '<bos>' }}{% if enable_thinking is defined and enable_thinking %}{{ '<|turn>system\\n<|think|><turn|>\\n' }}{% endif %}"
            "{# thoughts stand between <|channel> and <channel|> #}",
        ),
        "gemma4",
        opened=False,
        switch="enable_thinking",
        opened_on=None,
        gate="gemma4",
        shape={"head_dim": 64, "global_head_dim": 64, "hidden_size_per_layer_input": 16},
        special=("<bos>", "<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>"),
        added=("\n", "\n\n", "<|tool_call>", "<tool_call|>"),
        end="<turn|>",
        start="<|channel>thought\n",
        stop="<channel|>",
        tool_call="<|tool_call>call:look{at:1}<tool_call|>",
        ends_thought=True,
    ),
    Made(
        "llama3",
        "LlamaConfig",
        turns(
            "<|start_header_id|>ROLE<|end_header_id|>\\n\\n",
            "<|eot_id|>",
            "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}",
            "{{ '<|begin_of_text|>' }}",
        ),
        None,
        special=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        end="<|eot_id|>",
    ),
    Made(
        "mistral",
        "MistralConfig",
        "",
        "mistral",
        opened=None,
        gate="mistral",
        end="</s>",
        start="[THINK]",
        stop="[/THINK]",
        tool_call='[TOOL_CALLS][{"name": "look", "arguments": {"at": 1}}]',
        ends_thought=True,
        tokenizer="tekken",
        load={"tokenizer_mode": "mistral"},
    ),
    Made(
        "glm4.5",
        "Glm4MoeConfig",
        turns(
            "<|ROLE|>\\n",
            "",
            "{{ '<|assistant|>' }}{% if enable_thinking is defined and not enable_thinking %}{{ '\\n<think></think>' }}{% endif %}",
            "{{ '[gMASK]<sop>' }}",
        ),
        "glm45",
        opened=None,
        switch="enable_thinking",
        opened_on=None,
        gate="glm45",
        shape={
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 64,
        },
        special=("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>"),
        added=(*THINK, *TOOL),
        end="<|endoftext|>",
        tool_call="<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        ends_thought=True,
    ),
    Made(
        "kimi-k2-thinking",
        "DeepseekV3Config",
        turns(
            "<|im_ROLE|>ROLE<|im_middle|>",
            "<|im_end|>",
            "{{ '<|im_assistant|>assistant<|im_middle|><think>' }}",
        ),
        "kimi_k2",
        opened=True,
        gate="kimi_k2",
        model_type="kimi_k2",
        shape={
            **LATENT,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
        },
        special=("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
        added=(
            *THINK,
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        tool_call="<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
        '{"at": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ends_thought=True,
    ),
    Made(
        "minimax-m2",
        None,
        turns("]~b]ROLE\\n", "[e~[\\n", "{{ ']~b]ai\\n<think>\\n' }}"),
        "minimax_m2",
        opened=True,
        gate="minimax_m2",
        model_type="minimax_m2",
        special=("]~b]", "[e~["),
        added=(*THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
        end="[e~[",
        tool_call='<minimax:tool_call>\n<invoke name="look">\n<parameter name="at">1</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        ends_thought=True,
    ),
    Made(
        "granite-3.2",
        "GraniteConfig",
        turns(
            "<|start_of_role|>ROLE<|end_of_role|>",
            "<|end_of_text|>\\n",
            "{{ '<|start_of_role|>assistant<|end_of_role|>' }}",
            "{% if thinking is defined and thinking %}{{ '<|start_of_role|>system<|end_of_role|>Write your thoughts "
            "after \\'Here is my thought process:\\' and your answer after \\'Here is my response:\\'."
            "<|end_of_text|>\\n' }}{% endif %}",
        ),
        "granite",
        opened=False,
        switch="thinking",
        opened_on=None,
        special=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
        end="<|end_of_text|>",
        start="Here is my thought process:",
        stop="Here is my response:",
        tool_call='<|tool_call|>[{"name": "look", "arguments": {"at": 1}}]',
    ),
    Made(
        "olmo3-think",
        "Olmo3Config",
        chatml("{{ '<think>' }}"),
        "olmo3",
        opened=True,
        shape={
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 128,
        },
        special=IM,
        tool_call="<function_calls>\nlook(at=1)\n</function_calls>",
    ),
    Made(
        "phi4-reasoning",
        "Phi3Config",
        chatml(
            "{# The assistant writes <think> {{Thought}} </think> {{Solution}} #}".replace(
                "{{", "("
            ).replace("}}", ")")
        ),
        "deepseek_r1",
        opened=None,
        gate="deepseek_r1",
        special=IM,
        added=THINK,
    ),
    Made(
        "nemotron-h",
        "NemotronHConfig",
        chatml(
            "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}"
            "{% else %}{{ '<think>\\n' }}{% endif %}"
        ),
        "nemotron_v3",
        opened=True,
        switch="enable_thinking",
        gate="nemotron_v3",
        shape={
            "hybrid_override_pattern": "M*",
            "head_dim": 64,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 1,
        },
        special=IM,
        added=(*THINK, *TOOL),
        tool_call="<tool_call>\n<function=look>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>",
        ends_thought=True,
    ),
    Made(
        "seed-oss",
        "SeedOssConfig",
        turns(
            "<seed:bos>ROLE\\n",
            "<seed:eos>",
            "{{ '<seed:bos>assistant\\n' }}{# thoughts stand between <seed:think> and </seed:think> #}",
        ),
        "seed_oss",
        opened=None,
        gate="seed_oss",
        shape={"head_dim": 64},
        special=("<seed:bos>", "<seed:eos>"),
        added=(
            "<seed:think>",
            "</seed:think>",
            "<seed:tool_call>",
            "</seed:tool_call>",
        ),
        end="<seed:eos>",
        start="<seed:think>",
        stop="</seed:think>",
        tool_call="<seed:tool_call>\n<function=look>\n<parameter=at>1</parameter>\n</function>\n</seed:tool_call>",
        ends_thought=True,
    ),
)
"""Eighteen, of which the CPU build of vLLM loads all but MiniMax-M2."""

LOADED = tuple(made for made in MADE if made.config is not None)
