"""Probes judge what processes say of themselves in `run_dir`, and nothing else."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.fleet import workers
from nightshift.common.settings import Settings, load_settings
from nightshift.common.telemetry import run_state
from nightshift.producer.reaper import alive as reaper_probe
from nightshift.worker.supervisor import probes
from nightshift.worker.supervisor.children import ChildConfig, EndedChild
from nightshift.worker.supervisor.liveness import ChildLiveness, SupervisorLiveness
from nightshift.worker.supervisor.supervisor import Supervisor
from nightshift.worker.telemetry.machine import MachineMetrics

HERE = Path(__file__).parents[2]

LONG_AGO = time.monotonic() - 3600

WORKER = """
import signal, sys, threading
from nightshift.common.settings import Settings
from types import SimpleNamespace
from nightshift.worker.supervisor.children import ChildConfig
from nightshift.worker.supervisor.liveness import SupervisorLiveness

liveness = SupervisorLiveness(Settings(run_dir=sys.argv[1], drain_seconds=float(sys.argv[2])))
config = ChildConfig("w-1", "s", "default", 0, "here", 0, "key", 1, 3)
slot = SimpleNamespace(number=0, config=config, group=None, leaving_since=None, lost=False)
slot.next_engine_key = None
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
liveness.step([slot])
print("up", flush=True)
asked.wait()
print("asked", flush=True)
liveness.step([slot], draining=True)
sys.stdin.readline()
slot.config = None
liveness.step([slot], draining=True)
sys.stdin.readline()
"""


def config(number: int) -> ChildConfig:
    return ChildConfig(f"w-{number}", "s", "default", number, "here", 0, "key", 1, 3)


def slot(
    number: int = 0,
    *,
    free: bool = False,
    leaving_since: float | None = None,
    lost: bool = False,
) -> Any:
    return SimpleNamespace(
        number=number,
        config=None if free else config(number),
        group=None,
        leaving_since=leaving_since,
        next_engine_key=None,
        lost=lost,
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(run_dir=tmp_path / "run")


@pytest.fixture
def folder(settings: Settings) -> Path:
    assert settings.run_dir is not None
    return settings.run_dir


@pytest.fixture
def liveness(settings: Settings) -> SupervisorLiveness:
    return SupervisorLiveness(settings)


def lays_back(path: Path, **facts: object) -> None:
    """The file as it would be had it been written with other facts."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_a_worker_has_started_once_every_slot_is_warm_or_has_nothing_to_load(
    settings: Settings, folder: Path, liveness: SupervisorLiveness
) -> None:
    liveness.step([slot(0), slot(1, free=True)])
    assert probes.answer_of("started", folder) == (1, "the supervisor has not looked for work yet")
    liveness.round_over()
    assert probes.answer_of("started", folder) == (1, "slot 0: w-0 is starting")
    child = ChildLiveness(settings, "w-0")
    child.write("loading")
    assert probes.answer_of("started", folder) == (1, "slot 0: w-0 is loading")
    child.write("ready", 0.0)
    assert probes.answer_of("started", folder)[0] == 0
    liveness.step([slot(0), slot(1)])
    assert probes.answer_of("started", folder) == (1, "slot 1: w-1 is starting")


def test_a_worker_lives_while_its_supervisor_looks_and_no_child_is_past_its_limits(
    settings: Settings, folder: Path, liveness: SupervisorLiveness
) -> None:
    assert probes.answer_of("alive", folder)[0] == 0
    liveness.step([slot(0)])
    assert probes.answer_of("alive", folder)[0] == 0
    child = ChildLiveness(settings, "w-0")
    child.write("loading")
    path = run_state.child_path(folder, "w-0")
    lays_back(path, at=LONG_AGO)
    assert probes.answer_of("alive", folder)[0] == 0, "a model may load for as long as it takes"
    child.write("ready", 200.0)
    assert probes.answer_of("alive", folder)[0] == 0, "its own heartbeat ends it"
    child.write("ready", 400.0)
    assert probes.answer_of("alive", folder) == (
        1,
        "slot 0: w-0 has an engine that has not moved for 400 s",
    )
    child.write("ready", 0.0)
    assert probes.answer_of("alive", folder)[0] == 0
    lays_back(path, at=LONG_AGO, late_at=LONG_AGO + 300)
    code, said = probes.answer_of("alive", folder)
    assert code == 1
    assert re.match(r"slot 0: w-0 has said nothing for \d+ s", said)
    child.write("closing")
    assert probes.answer_of("alive", folder)[0] == 0, (
        "how long it may close is the supervisor's to say"
    )
    lays_back(folder / "worker.json", at=LONG_AGO, late_at=LONG_AGO + 60)
    code, said = probes.answer_of("alive", folder)
    assert code == 1
    assert re.match(r"the supervisor has stood still for \d+ s", said)


def test_a_child_that_cannot_be_ended_is_stuck(
    settings: Settings, folder: Path, liveness: SupervisorLiveness
) -> None:
    now = time.monotonic()
    liveness.step([slot(0, leaving_since=now - settings.leave_seconds - 30)])
    assert probes.answer_of("alive", folder)[0] == 0, "its supervisor may be killing it"
    liveness.step([slot(0, leaving_since=now - 2 * settings.leave_seconds - 61)])
    assert probes.answer_of("alive", folder)[0] == 1
    liveness.step([slot(0, free=True)])
    assert probes.answer_of("alive", folder)[0] == 0

    liveness.step([slot(1)])
    liveness.killing(config(1))
    liveness.step([slot(1)])
    said = json.loads((folder / "worker.json").read_text())
    (held,) = said["slots"]
    assert held["overdue_at"] == pytest.approx(now + 60, abs=30)
    lays_back(folder / "worker.json", slots=[{**held, "overdue_at": LONG_AGO}])
    assert probes.answer_of("alive", folder)[0] == 1
    liveness.child_ended(config(1))
    liveness.step([slot(1)])
    assert json.loads((folder / "worker.json").read_text())["slots"][0]["overdue_at"] is None


def test_a_slot_that_is_lost_ends_a_container_only_where_every_slot_is(
    folder: Path, liveness: SupervisorLiveness
) -> None:
    liveness.killing(config(0))
    liveness._killed_at["w-0"] = time.monotonic() - 70
    liveness.step([slot(0, lost=True), slot(1, free=True)])
    assert probes.answer_of("alive", folder)[0] == 0
    liveness.step([slot(0, lost=True)])
    assert probes.answer_of("alive", folder)[0] == 1


def test_each_child_that_is_reported_is_a_sign_of_life(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine of many slots reports many deaths, each of which may take Postgres seconds."""
    ledger = cast(Ledger, SimpleNamespace(transaction=nullcontext))
    supervisor = Supervisor(
        ledger,
        settings,
        pool="default",
        slot_count=1,
        gpus=(),
        engine_key=None,
        identity="s",
        profile=None,
        metrics=MachineMetrics("default"),
    )
    left: list[int] = []
    said = lambda *_, **__: left.append(len(supervisor.unreported))  # noqa: E731
    monkeypatch.setattr(SupervisorLiveness, "step", said)
    monkeypatch.setattr(workers, "child_state", lambda *_: None)
    monkeypatch.setattr(workers, "end", lambda *_, **__: 0)
    supervisor.unreported = [EndedChild(config(n), None, "it died", False) for n in range(8)]
    supervisor.report()
    assert left == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_supervisor_may_take_its_time_to_kill(folder: Path, liveness: SupervisorLiveness) -> None:
    before = json.loads((folder / "worker.json").read_text())["late_at"]
    liveness.killing(config(0))
    assert json.loads((folder / "worker.json").read_text())["late_at"] > before + 30


def test_what_an_earlier_boot_left_fools_nobody(
    settings: Settings, folder: Path, liveness: SupervisorLiveness
) -> None:
    path = folder / "worker.json"
    liveness.round_over()
    mine = json.loads(path.read_text())
    assert probes.answer_of("alive", folder)[0] == 0
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    for other in ({"kernel": "another boot"}, {"started": mine["started"] - 1}, {"pid": gone.pid}):
        path.write_text(json.dumps({**mine, **other}))
        for probe in ("alive", "started"):
            code, said = probes.answer_of(probe, folder)
            assert (code, said[:29]) == (1, "no nightshift-worker runs wit")
        assert probes.answer_of("drain", folder)[0] == 0, "and it is not drained either"
    path.write_text('{"torn')
    assert probes.answer_of("alive", folder)[0] == 1
    ChildLiveness(settings, "w-0").write("ready", 0.0)
    liveness_again = folder / "worker.lock"
    liveness_again.unlink()  # as if that process were gone
    SupervisorLiveness(settings)
    assert list((folder / "children").iterdir()) == []


def test_a_folder_has_one_worker_and_one_reaper(
    settings: Settings, folder: Path, liveness: SupervisorLiveness
) -> None:
    with pytest.raises(BadInput, match="another worker uses"):
        SupervisorLiveness(settings)
    assert probes.answer_of("alive", folder)[0] == 0
    run_state.claim(folder, run_state.REAPER)
    with pytest.raises(BadInput, match="another reaper uses"):
        run_state.claim(folder, run_state.REAPER)


def test_without_a_run_dir_nobody_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    liveness, child = SupervisorLiveness(Settings()), ChildLiveness(Settings(), "w-0")
    liveness.step([slot(0)])
    liveness.killing(config(0))
    liveness.child_ended(config(0))
    liveness.round_over()
    child.write("loading")
    child.write("ready", 0.0)
    child.write("closing")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_any_more_stops_no_work(tmp_path: Path) -> None:
    home = tmp_path / "run"
    file = run_state.claim(home, run_state.REAPER)
    assert file.write(None, word=1) is None
    for path in home.iterdir():
        path.unlink()
    home.rmdir()
    assert "there is no such file" in (file.write(None, word=2) or "")
    assert file.write(None, word=3) is None, "said once"
    home.mkdir()
    assert file.write(None, word=4) is None
    assert json.loads((home / "reaper.json").read_text())["word"] == 4


def test_what_stays_the_same_is_not_written_anew_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "AGAIN_SECONDS", 600.0)
    file = run_state.claim(tmp_path, run_state.REAPER)
    path = tmp_path / "reaper.json"
    file.write(1000.0, word=1)
    path.unlink()
    file.write(1000.25, word=1)
    assert not path.exists()
    file.write(1000.5, word=2)
    assert path.exists()


@pytest.fixture
def worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A supervisor of one child, which it keeps until it reads a line; then it waits for one."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, folder, "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env={"PYTHONPATH": str(HERE)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def draining(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from nightshift.worker.entry import main; main()", "drain"],
        env={"NIGHTSHIFT_RUN_DIR": str(folder), "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_drain_asks_the_supervisor_and_waits_for_its_last_child(
    worker: subprocess.Popen[str], folder: Path
) -> None:
    assert worker.stdout is not None
    assert worker.stdin is not None
    with draining(folder) as first, draining(folder) as second:
        assert worker.stdout.readline() == "asked\n"
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(1)
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert [first.wait(60), second.wait(60)] == [0, 0], "also when it drains already"
        assert first.stdout is not None
        assert first.stdout.read() == "nightshift-worker drain: no child is left\n"
    assert worker.poll() is None, "it does not wait for the supervisor to be gone"


def test_drain_waits_no_longer_than_a_worker_may_take(
    worker: subprocess.Popen[str], folder: Path
) -> None:
    lays_back(folder / "worker.json", leave_seconds=0.3)
    code, said = probes.answer_of("drain", folder)
    assert (code, said) == (1, "w-1 still there after 0 s")


def test_drain_is_over_when_the_supervisor_dies(
    worker: subprocess.Popen[str], folder: Path
) -> None:
    with draining(folder) as asked:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "asked\n"
        os.kill(worker.pid, signal.SIGKILL)
        assert asked.wait(60) == 0


def test_a_reaper_lives_while_it_makes_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_RUN_DIR", str(tmp_path))
    assert reaper_probe.answer() == 1
    assert "no nightshift reaper runs" in capsys.readouterr().err
    file = run_state.claim(tmp_path, run_state.REAPER)
    file.write(time.monotonic() + 60)
    assert reaper_probe.answer() == 0
    file.write(LONG_AGO)
    assert reaper_probe.answer() == 1
    assert "stood still" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "NIGHTSHIFT_RUN_DIR is not set"),
        ("", "NIGHTSHIFT_RUN_DIR is not set"),
        ("/nowhere/at/all", "/nowhere/at/all cannot be read: there is no such file"),
        (__file__, "cannot be read: a file lies where its path has a folder"),
    ],
)
def test_without_a_usable_folder_a_probe_says_so_in_one_sentence(
    said: str | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_RUN_DIR", raising=False)
    if said is not None:
        monkeypatch.setenv("NIGHTSHIFT_RUN_DIR", said)
    for name in probes.PROBES:
        assert probes.answer(name) == 2
        heard = capsys.readouterr()
        assert heard.out == ""
        assert heard.err.startswith(f"nightshift-worker {name}: ")
        assert why in heard.err
        assert heard.err.count("\n") == 1
    assert reaper_probe.answer() == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("said", [None, "", "relative", "/run/nightshift"])
def test_probes_and_settings_read_the_same_folder(
    said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_RUN_DIR", raising=False)
    if said is not None:
        monkeypatch.setenv("NIGHTSHIFT_RUN_DIR", said)
    assert load_settings().run_dir == run_state.given()


def test_a_folder_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="NIGHTSHIFT_RUN_DIR: "):
        SupervisorLiveness(Settings(run_dir=tmp_path / "file"))


def test_probes_load_nothing_heavy() -> None:
    """They run every few seconds, in containers that may have a tenth of a core."""
    heavy = "typer click rich pydantic structlog sqlalchemy celery pyarrow tenacity dataclasses"
    script = (
        "import sys; from nightshift.worker import entry; from nightshift.worker.supervisor import probes; from nightshift.producer import entry; from nightshift.producer.reaper import alive; "
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=HERE, check=True
    )
    assert done.stdout.strip() == "[]"
