"""`ns.run`: a whole fleet for one call, in scripts, event loops and threads; nothing outlives it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import homes
from tests.support.fleet import RULES, Fleet, is_alive, logs, tree, wait_until

HEAD = """
import asyncio, signal, sys, threading
import pyarrow as pa
import nightshift as ns

# What a shell starts in the background ignores Ctrl-C, and so do these tests there.
signal.signal(signal.SIGINT, signal.default_int_handler)
rows = [{"id": f"r-{n}", "text": f"say {n}"} for n in range(ROWS)]
table = pa.Table.from_pylist(rows)

def call(function="rules:shout", **options):
    return ns.run(table, function=function, id="id", batch={"rows": 10}, **options)
"""

EVERYWHERE = """
async def in_a_loop():
    return call()

job = asyncio.run(in_a_loop())
assert job.to_arrow().column("loud").to_pylist() == [row["text"].upper() for row in rows]
assert [batch.num_rows for batch in job.batches()] == [10] * 10
assert job.to_polars()["id"].to_list() == [row["id"] for row in rows]

again = []
thread = threading.Thread(target=lambda: again.append(call()))
thread.start()
thread.join()
assert again[0].id == job.id

sys.path.append("elsewhere")
from package.own import picky
other = ns.run(table, function=picky, id="id", batch={"rows": 10}, progress=False)
assert other.output_uri != job.output_uri
assert other.status().rows_failed == other.errors().num_rows == 10
assert other.status().rows_done == 90
# Only who calls decides what SIGTERM does.
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
try:
    ns.run(table, function=lambda rows: rows)
except ns.BadInput as error:
    print(error)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    homes.furnish(found.folder / ".nightshift")
    yield found
    found.end()


def start(fleet: Fleet, rows: int, code: str) -> subprocess.Popen[bytes]:
    script = fleet.folder / f"script-{len(fleet.processes)}.py"
    script.write_text(HEAD.replace("ROWS", str(rows)) + code)
    with (fleet.folder / f"{script.stem}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, script],
            cwd=fleet.folder,
            env=fleet.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    fleet.processes.append(process)
    return process


def said(fleet: Fleet) -> str:
    return logs(fleet.folder)


def with_work_done(fleet: Fleet, script: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Every process of the call, once one more part is written."""
    found = fleet.folder / ".nightshift" / "runs"
    before = len(list(found.glob("*/part-*")))

    def begun() -> bool:
        assert script.poll() is None, said(fleet)
        return len(list(found.glob("*/part-*"))) > before

    wait_until(begun, what="a part")
    return tree(script)


@pytest.mark.slow
def test_the_same_call_in_an_event_loop_and_in_a_thread_gives_the_same_job(fleet: Fleet) -> None:
    own = fleet.folder / "elsewhere" / "package" / "own.py"
    own.parent.mkdir(parents=True)
    own.write_text(RULES)
    script = start(fleet, 100, EVERYWHERE)
    assert script.wait(200) == 0, said(fleet)
    assert "defined here, where workers cannot import it: put it into a module" in said(fleet)
    assert "100 of 100 rows, 0 failed; output in" in said(fleet)


@pytest.mark.slow
def test_an_interrupt_and_a_kill_end_every_process_and_the_same_call_goes_on(fleet: Fleet) -> None:
    fleet.let(20)
    script = start(fleet, 2000, 'call("rules:slow")')
    processes = with_work_done(fleet, script)
    script.send_signal(signal.SIGINT)
    assert script.wait(200) not in (0, None), said(fleet)
    assert [each for each in processes if is_alive(each)] == []
    assert "KeyboardInterrupt" in said(fleet)
    fleet.let(20)
    script = start(fleet, 2000, 'call("rules:slow")')
    processes = with_work_done(fleet, script)
    script.kill()
    wait_until(lambda: not any(map(is_alive, processes)), what="the end of the fleet")
    fleet.let()
    script = start(fleet, 2000, 'assert call("rules:slow").to_arrow().num_rows == 2000')
    assert script.wait(200) == 0, said(fleet)
    assert "job 1 continues where it stopped" in said(fleet)


@pytest.mark.slow
def test_once_the_ledger_of_the_folder_is_gone_the_same_call_takes_its_output_over(
    fleet: Fleet,
) -> None:
    assert start(fleet, 50, 'call("rules:shout")').wait(200) == 0, said(fleet)
    gone = fleet.command("gc", "--home", "--yes")
    assert "takes its own over with --adopt" in gone.stdout, gone.stderr
    assert start(fleet, 50, 'call("rules:shout")').wait(200) != 0
    assert "take the directory over with --adopt (adopt=True in Python)" in said(fleet)
    adopted = 'assert call("rules:shout", adopt=True).to_arrow().num_rows == 50'
    assert start(fleet, 50, adopted).wait(200) == 0, said(fleet)
