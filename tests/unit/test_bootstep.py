"""A child claims only once a SIGTERM drains it."""

import subprocess
import sys

SCRIPT = """
import os, signal
from celery import Celery, signals
from nightshift.worker.bootstep import once_signals_are_handled

def handled():
    return signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

def tell(moment):
    os.write(1, f"{moment} {handled()}\\n".encode())  # Celery has taken sys.stdout

def begin():
    tell("begins")
    os._exit(0)

signals.worker_init.connect(lambda **_: tell("loads"), weak=False)
app = Celery(broker="redis://127.0.0.1:1/0")  # nobody answers: the broker is asked later
once_signals_are_handled(app, begin)
app.worker_main(["--quiet", "worker", "--pool=threads", "--concurrency=1", "--without-gossip"])
"""


def test_a_child_begins_once_celery_handles_sigterm_and_waits_for_no_broker() -> None:
    argv = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["loads False", "begins True"]
