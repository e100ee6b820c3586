"""Children of a node that share a cache fetch a model once."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.fake_hub import COMMIT, FakeHub
from tests.support.fleet import wait_until

HERE = Path(__file__).parents[2]
MODEL = HERE / "examples" / "reviews" / "model"
WEIGHTS = "model.safetensors"

# Children wait for the locks of small files too, for a moment.
WAITS = f"Still waiting to acquire lock on .*{sha256((MODEL / WEIGHTS).read_bytes()).hexdigest()}"

# One interpreter that has imported everything becomes as many processes as are asked for.
CHILDREN = """
import logging, multiprocessing, os, sys
from pathlib import Path
import structlog
from huggingface_hub import constants
from nightshift.worker.engines import hub

def tell(_logger, _method, event):
    words = " ".join(f"{name}={value}" for name, value in event.items())
    os.write(1, f"{os.getpid()} {words}\\n".encode())
    raise structlog.DropEvent

structlog.configure(processors=[tell])
constants.FILELOCK_LOG_EVERY_SECONDS = 0.2
write = logging.Handler()
write.emit = lambda record: os.write(1, f"{os.getpid()} {record.getMessage()}\\n".encode())
logging.getLogger("huggingface_hub").addHandler(write)
logging.getLogger("huggingface_hub").setLevel(logging.INFO)

def child():
    commit = hub.fetch_snapshot("acme/reviews", None)
    folder = os.path.join(constants.HF_HUB_CACHE, "models--acme--reviews", "snapshots", str(commit))
    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    os.write(1, f"{os.getpid()} got {commit} {','.join(found)}\\n".encode())

fork = multiprocessing.get_context("fork")
children = [fork.Process(target=child) for _ in range(int(sys.argv[1]))]
for each in children: each.start()
for each in children: each.join()

def contents():
    folder = Path(constants.HF_HUB_CACHE)
    return {str(path): path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}

before = contents()
child()
os.write(1, f"{os.getpid()} {'untouched' if contents() == before else 'changed'}\\n".encode())
"""


class Children:
    """So many processes that fetch the model, and what they said so far."""

    def __init__(self, count: int, hub: FakeHub, cache: Path, **more: str) -> None:
        self.log = cache.parent / f"children-{len(list(cache.parent.glob('children-*')))}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILDREN, str(count)],
                cwd=HERE,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(cache.parent),
                    "HF_HOME": str(cache),
                    "HF_ENDPOINT": hub.address,
                    "HF_HUB_DISABLE_TELEMETRY": "1",
                    "HF_HUB_DOWNLOAD_TIMEOUT": "300",
                    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                    **more,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def who(self, said: str) -> set[str]:
        """The processes that said this."""
        return set(re.findall(rf"^(\d+) .*{said}", self.log.read_text(), re.MULTILINE))

    def kill(self) -> None:
        """Ends all of them at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def children(count: int, hub: FakeHub, cache: Path, **more: str) -> Iterator[Children]:
    started = Children(count, hub, cache, **more)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(MODEL, "acme/reviews") as served:
        yield served


@pytest.mark.slow
def test_eight_children_fetch_the_weights_once_and_then_none_asks_again(
    hub: FakeHub, cache: Path
) -> None:
    hub.may_go_on.clear()
    with children(8, hub, cache) as eight:
        wait_until(lambda: hub.gets[WEIGHTS], what="the first bytes of the weights")
        wait_until(lambda: len(eight.who(WAITS)) == 7, what="7 that say they wait")
        hub.may_go_on.set()
        assert eight.process.wait(100) == 0, eight.log.read_text()
        got = eight.who(f"got {COMMIT} .*{WEIGHTS}.*tokenizer.json")
        assert len(got) == 9, eight.log.read_text()
        assert eight.who("untouched"), "a cache that can only be read serves as well"
    assert dict(hub.gets) == dict.fromkeys([path.name for path in MODEL.iterdir()], 1)


@pytest.mark.slow
def test_when_the_one_that_fetches_is_killed_another_takes_over(hub: FakeHub, cache: Path) -> None:
    hub.may_go_on.clear()
    with children(1, hub, cache) as first:
        wait_until(lambda: hub.gets[WEIGHTS], what="the first bytes of the weights")
        others_of_model = len(list(MODEL.iterdir())) - 1
        fetched = lambda: len(list((cache / "hub").glob("*/snapshots/*/*")))  # noqa: E731
        wait_until(lambda: fetched() == others_of_model, what="every file but the weights")
        with children(3, hub, cache) as others:
            waiting = lambda: len(others.who(WAITS)) == 3  # noqa: E731
            wait_until(waiting, what="3 that say they wait")
            (left,) = (cache / "hub").rglob("*.incomplete")
            first.kill()
            os.utime(left, (0, 0))  # nobody has written to it for long
            hub.may_go_on.set()
            assert others.process.wait(100) == 0, others.log.read_text()
            assert len(others.who(f"got {COMMIT} .*{WEIGHTS}")) == 4, others.log.read_text()
            assert len(others.who("event=half_fetched_removed")) == 1
    assert hub.gets[WEIGHTS] == 2, "the one that was cut off, and one more"
    assert not list((cache / "hub").rglob("*.incomplete"))


@pytest.mark.slow
def test_offline_or_without_a_place_to_write_nothing_is_fetched_and_nobody_waits(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    from nightshift.worker.engines.hub import fetch_snapshot

    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch_snapshot("acme/reviews", None) is None
    assert not hub.gets
    assert not list(cache.iterdir())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    (cache / ".locks").touch()  # no folder, so that root cannot write there either
    assert fetch_snapshot("acme/reviews", None) == COMMIT
    assert not hub.gets
    assert fetch_snapshot("acme/another", "v1") == "v1", "the library says what is wrong with it"
    assert fetch_snapshot(str(MODEL), "v1") == "v1"
