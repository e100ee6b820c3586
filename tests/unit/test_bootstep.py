"""A child claims only once a SIGTERM drains it."""

import subprocess
import sys

SCRIPT = """
import os, signal, sys
from celery import Celery, signals
from nightshift.worker.bootstep import once_signals_are_handled

def handled():
    return signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

def tell(moment):
    os.write(1, f"{moment} {handled()}\\n".encode())  # Celery has taken sys.stdout

def begin():
    tell("begins")
    if sys.argv[1:] == ["fails"]:
        raise RuntimeError("no thread can be started")
    os._exit(0)

signals.worker_init.connect(lambda **_: tell("loads"), weak=False)
app = Celery(broker="redis://127.0.0.1:1/0")  # nobody answers: the broker is asked later
once_signals_are_handled(app, begin)
app.worker_main(["--quiet", "worker", "--pool=threads", "--concurrency=1", "--without-gossip"])
"""


def test_a_child_begins_once_celery_handles_sigterm_and_waits_for_no_broker() -> None:
    done = started()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["loads False", "begins True"]


def test_a_child_that_cannot_begin_ends() -> None:
    done = started("fails")
    assert done.returncode == 1
    assert "no thread can be started" in done.stdout + done.stderr


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-W", "ignore", "-c", SCRIPT, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
