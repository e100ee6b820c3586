"""Which models think, with which markers, and which of vLLM's parsers knows where a thought ends.

vLLM has no such table. Read from the parsers of vLLM 0.32 and tried on tiny models of each family; docs/models.md
says the same for users.
"""

from collections.abc import Collection
from dataclasses import dataclass

from nightshift.worker.engines.thinking import Markers

HARMONY = "openai_gptoss"
"""vLLM's name for the format of gpt-oss, which says by token ids what is a thought."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models that write their thoughts alike, under a name that jobs keep. `parser` is vLLM's name of the
    parser that ends a thought in the engine; None where none of vLLM's can tell by tokens. `model_types` are
    beginnings of a config's model_type; none for a family that is known by its markers alone. `always` says
    that the type alone tells.
    """

    name: str
    parser: str | None
    markers: Markers
    model_types: tuple[str, ...] = ()
    always: bool = False


def _think(*ends_too: str, dropped: tuple[str, ...] = ()) -> Markers:
    return Markers("<think>", "</think>", ends_too, dropped=dropped)


FAMILIES = (
    Family(
        HARMONY,
        HARMONY,
        Markers("<|channel|>analysis<|message|>", "<|end|>"),
        ("gpt_oss",),
        always=True,
    ),
    Family("qwen3", "qwen3", _think("<tool_call>"), ("qwen3",)),
    Family("deepseek_v4", "deepseek_v4", _think(), ("deepseek_v4",)),
    Family("glm45", "glm45", _think("<tool_call>"), ("glm4", "glm_moe")),
    Family(
        "kimi_k2", "kimi_k2", _think("<|tool_calls_section_begin|>"), ("kimi_k2", "kimi_linear")
    ),
    Family("minimax_m2", "minimax_m2", _think("<minimax:tool_call>"), ("minimax",)),
    Family("minimax_m3", "minimax_m3", Markers("<mm:think>", "</mm:think>"), ("minimax_m3",)),
    Family("mistral", "mistral", Markers("[THINK]", "[/THINK]", ("[TOOL_CALLS]",))),
    Family(
        "gemma4",
        "gemma4",
        Markers("<|channel>", "<channel|>", ("<|tool_call>",), header="thought"),
        ("gemma4",),
    ),
    Family(
        "granite_thinking",
        "granite_thinking_parser",
        _think(dropped=("<response>", "</response>")),
        ("granite",),
    ),
    Family(
        "granite",
        None,
        Markers("Here is my thought process:", "Here is my response:"),
        ("granite",),
    ),
    Family("nemotron_v3", "nemotron_v3", _think("<tool_call>"), ("nemotron",)),
    Family("seed_oss", "seed_oss", Markers("<seed:think>", "</seed:think>", ("<seed:tool_call>",))),
    Family("olmo3", "olmo3", _think(), ("olmo3",)),
    Family("ernie45", "ernie45", _think(), ("ernie4_5",)),
    Family("hunyuan", None, _think(dropped=("<answer>", "</answer>")), ("hunyuan",)),
    Family("mimo", "mimo", _think(), ("mimo",)),
    Family("step3", "step3", _think(), ("step3",)),
    Family("cohere_command3", "cohere_command3", Markers("<|START_THINKING|>", "<|END_THINKING|>")),
    Family("deepseek_r1", "deepseek_r1", _think()),
)
"""The first that fits: by the type of the model, else by the markers alone."""

BY_NAME = {family.name: family for family in FAMILIES}


def family_of(model_type: str, template: str, tokens: Collection[str]) -> Family | None:
    """The family of a model: by a marker of its own in the chat template, or among the tokens that its
    tokenizer has beside those of its vocabulary; None for a model that knows no marker.
    """
    of_type = [
        family
        for family in FAMILIES
        if not family.model_types or model_type.startswith(family.model_types)
    ]
    for family in of_type:
        if family.always:
            return family
    for is_known in (template.__contains__, tokens.__contains__):
        for family in of_type:
            if is_known(family.markers.start) or is_known(family.markers.end):
                return family
    return None


def of_parser(parser: str, markers: tuple[str | None, str | None]) -> Family | None:
    """The family of a parser that a spec names, else one with the markers that vLLM's parser has; None for a
    parser that has none.
    """
    for family in FAMILIES:
        if family.parser == parser:
            return family
    start, end = markers
    return Family(parser, parser, Markers(start, end)) if start and end else None
