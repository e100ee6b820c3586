"""An answer without its thoughts: by the texts that the models of each family write."""

import pytest

from nightshift.worker.engines.thinking import Markers, answer_start, part, reasoning_tokens
from nightshift.worker.engines.vllm.families import BY_NAME, FAMILIES, HARMONY, family_of, of_parser
from tests.support.families.table import MADE, Made
from tests.support.families.transcripts import EVERY, Transcript

THINK = Markers("<think>", "</think>")

BY_MARKERS = [(made, each) for made, each in EVERY if made.splits not in (None, HARMONY)]


@pytest.mark.parametrize(("made", "said"), BY_MARKERS, ids=lambda each: each.name)
def test_the_text_of_each_family_is_parted(made: Made, said: Transcript) -> None:
    assert made.splits is not None
    parted = part(said.text, BY_NAME[made.splits].markers, said.inside)
    assert parted.answer == said.answer
    assert (parted.reasoning if parted.thought else None) == said.reasoning


@pytest.mark.parametrize(("made", "said"), BY_MARKERS, ids=lambda each: each.name)
def test_no_cut_of_a_transcript_leaves_a_marker_in_the_answer(made: Made, said: Transcript) -> None:
    assert made.splits is not None
    markers = BY_NAME[made.splits].markers
    for length in range(len(said.text)):
        answer = part(said.text[:length], markers, said.inside).answer or ""
        assert markers.start not in answer
        assert markers.end not in answer


@pytest.mark.parametrize(
    ("text", "inside", "answer", "reasoning"),
    [
        ("plain", None, "plain", None),
        ("  spaces stay  ", None, "  spaces stay  ", None),
        ("", None, "", None),
        ("", True, None, ""),
        ("<think>", None, None, ""),
        ("never ended", True, None, "never ended"),
        ("a</think>b", None, "ab", None),
        ("a\n</think>b", None, "b", "a"),
        ("a</think>\nb", None, "b", "a"),
        ("a\n</think>\n\nb", None, "b", "a"),
        ("a</think>b", False, "ab", None),
        ("x <think>a</think> y", None, "x  y", "a"),
        ("</think></think>b", True, "b", ""),
    ],
)
def test_markers_say_what_is_a_thought(
    text: str, inside: bool | None, answer: str | None, reasoning: str | None
) -> None:
    parted = part(text, THINK, inside)
    assert parted.answer == answer
    assert (parted.reasoning if parted.thought else None) == reasoning


@pytest.mark.parametrize(
    ("text", "inside", "answer", "reasoning"),
    [
        ("Okay.</think> yes", True, " yes", "Okay."),
        ("<think>Okay.</think> yes ", None, " yes ", "Okay."),
        ("Okay.</think> yes", None, " yes", "Okay."),
        ('a</think>{"said": "<think>b</think>"}', True, '{"said": "<think>b</think>"}', "a"),
        ('{"said": "<think>b</think>"}', False, '{"said": "<think>b</think>"}', None),
        (" yes", None, " yes", None),
        ("<think>Oka", None, None, "Oka"),
    ],
)
def test_all_of_a_held_answer_stays(
    text: str, inside: bool | None, answer: str | None, reasoning: str | None
) -> None:
    parted = part(text, THINK, inside, is_held=True)
    assert parted.answer == answer
    assert (parted.reasoning if parted.thought else None) == reasoning


def test_what_stands_around_an_answer_is_no_part_of_it() -> None:
    granite = BY_NAME["granite_thinking"].markers
    parted = part("<think>a</think>\n<response>positive</response>", granite, None)
    assert (parted.answer, parted.reasoning) == ("positive", "a")
    assert part("<response>positive</response>", granite, None).answer == "positive"


IDS = {"<think>": 1, "</think>": 2, "<tool_call>": 3}
WHOLE = {number: text for text, number in IDS.items()}


@pytest.mark.parametrize(
    ("ids", "inside", "tokens"),
    [
        ([5, 6, 7, 2, 8], True, 3),
        ([1, 5, 6, 2, 8], None, 2),
        ([5, 6, 2, 8], None, 2),
        ([1, 5, 2, 8, 1, 5, 5, 2, 9], None, 1),
        ([5, 6, 7], True, 3),
        ([1, 5, 6, 3, 9], None, 2),
        ([2, 8], True, 0),
    ],
)
def test_the_tokens_of_the_first_thought_are_counted(
    ids: list[int], inside: bool | None, tokens: int
) -> None:
    markers = Markers("<think>", "</think>", ("<tool_call>",))

    def decoded(some: object) -> str:
        return "".join(WHOLE.get(each, chr(96 + each)) for each in some)  # type: ignore[attr-defined]

    assert reasoning_tokens(ids, markers, inside, IDS.get, decoded) == tokens
    in_letters = list("".join(WHOLE.get(each, chr(96 + each)) for each in ids))
    counted = reasoning_tokens(
        in_letters,  # type: ignore[arg-type]
        markers,
        inside,
        lambda _: None,
        "".join,  # type: ignore[arg-type]
    )
    assert counted == tokens


@pytest.mark.parametrize(
    ("ids", "start"),
    [
        ([5, 6, 7, 2, 8], 4),
        ([1, 5, 2, 8, 2, 9], 3),
        ([1, 5, 2, 8, 1, 5, 2, 9], 3),
        ([2, 8], 1),
        ([5, 6, 7], 0),
    ],
)
def test_an_answer_begins_behind_the_first_thought(ids: list[int], start: int) -> None:
    def decoded(some: object) -> str:
        return "".join(WHOLE.get(each, chr(96 + each)) for each in some)  # type: ignore[attr-defined]

    assert answer_start(ids, THINK, IDS.get, decoded) == start
    text = decoded(ids)
    found = answer_start(list(text), THINK, lambda _: None, "".join)  # type: ignore[arg-type]
    assert text[:found] == decoded(ids[:start])
    tools = Markers("<think>", "</think>", ("<tool_call>",))
    assert answer_start([1, 5, 3, 9], tools, IDS.get, decoded) == 2


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
def test_the_table_knows_each_family_by_its_type_and_its_template(made: Made) -> None:
    kinds = {
        "Qwen3Config": "qwen3",
        "Qwen3MoeConfig": "qwen3_moe",
        "GptOssConfig": "gpt_oss",
        "DeepseekV3Config": "deepseek_v3",
        "DeepseekV2Config": "deepseek_v2",
        "Gemma3TextConfig": "gemma3_text",
        "Gemma4TextConfig": "gemma4_text",
        "LlamaConfig": "llama",
        "MistralConfig": "mistral",
        "Glm4MoeConfig": "glm4_moe",
        "GraniteConfig": "granite",
        "Olmo3Config": "olmo3",
        "Phi3Config": "phi3",
        "NemotronHConfig": "nemotron_h",
        "SeedOssConfig": "seed_oss",
    }
    model_type = made.model_type or kinds[str(made.config)]
    tokens = (*made.added, *made.special, *(("[THINK]",) if made.tokenizer == "tekken" else ()))
    family = family_of(model_type, made.template, tokens)
    assert (family and family.name) == made.splits


def test_families_have_names_of_their_own_and_their_parsers_are_found() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    for family in FAMILIES:
        if family.parser is not None:
            found = of_parser(family.parser, (None, None))
            assert found is not None
            assert found.markers.end
    assert of_parser("a plugin", ("<a>", "</a>")) is not None
    assert of_parser("a plugin", (None, None)) is None


def test_a_model_without_a_marker_has_no_family() -> None:
    assert family_of("llama", "{{ messages }}", []) is None
    assert family_of("qwen2", "{{ '<|im_start|>' }}", ["<|im_end|>"]) is None
