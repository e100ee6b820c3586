"""A signal comes while the main thread holds any lock."""

import subprocess
import sys

import pytest

PROGRAM = """
import signal, threading
from nightshift.common.processes.signals import act_on

held, acted = threading.Lock(), threading.Event()

def act():
    with held:
        acted.set()

act_on({signal.SIGTERM: act, signal.SIGUSR1: act})
with held:
    signal.raise_signal(signal.NUMBER)  # returns once the handler has run in this thread
assert acted.wait(30)
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR1"])
def test_an_action_that_needs_a_lock_of_the_main_thread_waits_for_it_and_is_done(
    number: str,
) -> None:
    program = PROGRAM.replace("NUMBER", number)
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr
