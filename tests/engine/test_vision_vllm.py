"""Images in messages, for real, in a vision-language model with random weights."""

import asyncio
import gc
import io
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image as Pillow

from nightshift.common import storage
from nightshift.common.errors import StorageUnavailable
from nightshift.common.spec import GenerateTask, VllmEngineSpec
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines import images
from nightshift.worker.engines.images import Image
from nightshift.worker.engines.protocol import Answer, Engine, Outcome, Refusal, Request, Work
from tests.support.seeing import ARGS, make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def seeing(folder: Path) -> Iterator[Engine]:
    from nightshift.worker.engines.vllm.engine import VllmEngine

    engine = VllmEngine.load(VllmEngineSpec(backend="vllm", model=str(folder), args=ARGS), None)
    yield engine
    engine.close()


def drawn(color: str, size: int = 40, kind: str = "PNG", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Pillow.new(mode, (size, 30), color).save(buffer, kind)
    return buffer.getvalue()


TASK = GenerateTask.model_validate(
    {
        "kind": "generate",
        "messages": [{"role": "user", "content": [{"type": "image", "column": "photo"}]}],
        "sampling": {"max_tokens": 6, "ignore_eos": True},
    }
)


def ask(engine: Engine, rows: list[list[Any]]) -> list[Outcome]:
    """`rows` hold the parts of one user message each: texts, and images as bytes or URI."""
    outcomes: dict[int, Outcome] = {}
    begin(engine, rows, outcomes).result()
    return [outcomes[row] for row in range(len(rows))]


def begin(engine: Engine, rows: list[list[Any]], outcomes: dict[int, Outcome]) -> "Future[None]":
    """The future of the batch, whose outcomes come into `outcomes`."""
    requests = [
        Request(row, messages=[{"role": "user", "content": parts}])
        for row, parts in enumerate(rows)
    ]
    return engine.start(Work(TASK, requests, 600, outcomes.__setitem__))


def image(value: bytes | str, *roots: str) -> dict[str, Any]:
    return {"type": "image", "image": Image(value, roots)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_images_of_every_kind_reach_the_model(seeing: Engine, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(drawn("red", kind="JPEG"))
    rows = [
        [image(drawn("red")), text("What is it?")],
        [text("Between "), image(str(path), str(tmp_path)), text(" texts.")],
        [image(drawn("red", mode="RGBA")), image(drawn("blue", kind="GIF", mode="P")), text("x")],
    ]
    outcomes = ask(seeing, rows)
    assert all(isinstance(outcome, Answer) for outcome in outcomes), outcomes
    assert [outcome.output_tokens for outcome in outcomes] == [6, 6, 6]
    again = ask(seeing, rows)
    assert again == outcomes


def test_the_answer_is_about_the_row_s_own_image(seeing: Engine) -> None:
    red, blue, same = ask(
        seeing, [[image(drawn(color)), text("x")] for color in ("red", "blue", "red")]
    )
    assert isinstance(red, Answer)
    assert red == same != blue


def test_each_image_takes_its_tokens(seeing: Engine) -> None:
    one, two = ask(
        seeing, [[image(drawn("red")), text("x")], [image(drawn("red"))] * 2 + [text("x")]]
    )
    assert two.prompt_tokens - one.prompt_tokens >= 4


def test_a_bad_image_is_the_error_of_its_row_alone(seeing: Engine, tmp_path: Path) -> None:
    whole = drawn("red", size=300)
    good, torn, gone, outside = ask(
        seeing,
        [
            [image(drawn("green")), text("x")],
            [image(whole[:-30]), text("x")],
            [image(str(tmp_path / "none.png")), text("x")],
            [image("/etc/hostname", str(tmp_path)), text("x")],
        ],
    )
    assert isinstance(good, Answer)
    for outcome, says in (
        (torn, "cannot be decoded"),
        (gone, "is not there"),
        (outside, "outside the folders"),
    ):
        assert isinstance(outcome, Refusal)
        assert outcome.kind is RowErrorKind.RENDER_ERROR
        assert says in outcome.message


def test_a_row_with_a_bad_image_is_progress(
    seeing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.png"
    slow.write_bytes(drawn("red"))
    asked, goes_on = threading.Event(), threading.Event()
    read = storage.read_range

    def blocked(uri: str, offset: int, length: int) -> bytes:
        if uri.endswith("slow.png"):
            asked.set()
            assert goes_on.wait(60)
        return read(uri, offset, length)

    monkeypatch.setattr(storage, "read_range", blocked)
    first = begin(seeing, [[image(str(slow)), text("x")]], {})
    try:
        assert asked.wait(60)
        seeing._moved_at -= 1000
        assert seeing.stalled_seconds() > 900
        (refused,) = ask(seeing, [[image(str(tmp_path / "none.png")), text("x")]])
        assert isinstance(refused, Refusal)
        assert seeing.stalled_seconds() < 900
    finally:
        goes_on.set()
        first.result(60)


def test_text_and_images_longer_than_the_model_takes_are_refused(seeing: Engine) -> None:
    long, short = ask(
        seeing, [[image(drawn("red")), text("word " * 300)], [image(drawn("red")), text("x")]]
    )
    assert isinstance(long, Refusal)
    assert long.kind is RowErrorKind.TOO_LONG
    assert isinstance(short, Answer)


def test_a_store_of_images_that_is_away_gives_back_its_rows_and_no_others(
    seeing: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(drawn("red"))
    rows = [[image(drawn("red")), text("x")], [image(str(path)), text("x")]]
    outcomes: dict[int, Outcome] = {}

    def away(uri: str, offset: int, length: int) -> bytes:
        raise StorageUnavailable(f"{uri} cannot be read: the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "read_range", away)
        patched.setattr(images, "READ_TRIES", 1)
        future = begin(seeing, rows, outcomes)
        with pytest.raises(StorageUnavailable, match="the store is away"):
            future.result(60)
    assert 1 not in outcomes
    good, again = ask(seeing, rows)
    assert isinstance(good, Answer)
    assert good == again


def test_few_rows_hold_decoded_pictures_and_none_that_is_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.renderers import renderer_from_config

    from nightshift.worker.engines.vllm.generate import Prompt
    from nightshift.worker.engines.vllm.model import DECODED_ROWS, Model
    from nightshift.worker.engines.vllm.thinking import Thinking
    from nightshift.worker.engines.vllm.vision import Vision

    config = AsyncEngineArgs(model=str(folder), **ARGS).create_engine_config()
    renderer: Any = renderer_from_config(config)
    thinking = Thinking(renderer.tokenizer, str(config.model_config.hf_text_config.model_type))
    model = Model(SimpleNamespace(renderer=renderer), renderer.tokenizer, 128, {}, thinking)
    made: list[weakref.ref[Any]] = []
    most: list[int] = []
    decoded, counting = Image.picture, threading.Lock()

    def held() -> int:
        return sum(each() is not None for each in made)

    def watched(image: Image) -> Any:
        picture = decoded(image)
        with counting:
            made.append(weakref.ref(picture))
            most.append(held())
        return picture

    async def ready() -> list[Any]:
        vision = Vision(model, TASK, {})
        rows = [[image(drawn("red", size=100 + n)), text("x")] for n in range(4 * DECODED_ROWS)]
        return await asyncio.gather(
            *(vision._ready(Prompt([{"role": "user", "content": parts}])) for parts in rows)
        )

    monkeypatch.setattr(Image, "picture", watched)
    rendered = asyncio.run(ready())
    model.reads.close()
    renderer.shutdown()
    assert all(len(each.prompt["prompt_token_ids"]) > 4 for each in rendered)
    assert len(most) == 4 * DECODED_ROWS
    # A thread may keep its last one until it has the next.
    assert max(most) <= 2 * DECODED_ROWS
    gc.collect()
    assert held() <= DECODED_ROWS
