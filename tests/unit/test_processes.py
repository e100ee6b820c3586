"""Process groups end with their parent, and a later boot ends what is left; no sockets."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from nightshift.common.errors import Permanent
from nightshift.common.processes import process_group, process_table
from nightshift.common.processes.process_group import ProcessGroup, end_recorded

# A main process with a grandchild, both deaf to polite signals; it prints the grandchild's pid.
STUBBORN = ["/bin/sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait"]
LEAVES_A_CHILD = ["/bin/sh", "-c", "sleep 1000 & echo $!"]

# A parent of such a group, in a process of its own; it prints watcher, main and grandchild.
PARENT = f"""
import subprocess, sys
from pathlib import Path
from nightshift.common.processes.process_group import ProcessGroup
group = ProcessGroup.start({STUBBORN!r}, stdout=subprocess.PIPE, record=Path(sys.argv[1]))
print(group.pgid, group.pid, int(group.main.stdout.readline()), flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    seen = process_table.look(pid)
    return seen is not None and not seen.is_over


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition; a RetryError after 60 seconds."""
    Retrying(
        stop=stop_after_delay(60),
        wait=wait_fixed(0.005),
        retry=retry_if_result(lambda reached: not reached),
    )(condition)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that started a group and recorded it in tmp_path, with the pids of the group."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3  # a parent that failed prints none, and none are alive
        yield process, pids
        process.kill()


def start_and_read(argv: list[str], record: Path | None = None) -> tuple[ProcessGroup, int]:
    """A group, and the pid that its main process prints first."""
    read_end, write_end = os.pipe()
    with open(read_end) as lines, open(write_end, "w") as output:
        group = ProcessGroup.start(argv, stdout=output, record=record)
        output.close()
        return group, int(lines.readline())


def test_whole_group_ends_when_its_parent_is_killed(
    parent: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = parent
    assert all(is_alive(pid) for pid in pids)
    process.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))


def test_watcher_survives_polite_signals_to_the_group(
    parent: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = parent
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(pids[0], number)
    process.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))


def test_parent_that_dies_before_the_main_process_leaves_no_watcher() -> None:
    watcher, lifeline = process_group._start_watcher()
    os.close(lifeline)  # what the kernel does for a dead parent
    assert watcher.wait(60) == -signal.SIGKILL


def test_kill_ends_what_a_dead_main_process_left_and_may_be_repeated() -> None:
    group, grandchild = start_and_read(LEAVES_A_CHILD)
    assert group.wait(60) == 0
    assert is_alive(grandchild)
    group.kill()
    assert not is_alive(grandchild)
    assert not is_alive(group.pgid)
    group.kill()
    assert group.poll() == 0


def test_terminate_reaches_the_main_process_alone() -> None:
    group, grandchild = start_and_read(
        ["/bin/sh", "-c", "trap 'exit 7' TERM; sleep 1000 & echo $!; wait"]
    )
    group.terminate()
    assert group.wait(60) == 7
    assert is_alive(grandchild)
    group.kill()
    assert not is_alive(grandchild)


def test_stop_gives_grace_and_returns_the_exit_status() -> None:
    group, _ = start_and_read(["/bin/sh", "-c", "trap 'exit 7' TERM; sleep 1000 & echo $!; wait"])
    assert group.stop(60) == 7


def test_stop_kills_what_does_not_listen() -> None:
    group, grandchild = start_and_read(STUBBORN)
    assert group.poll() is None
    assert group.stop(0.05) == -signal.SIGKILL
    assert not is_alive(grandchild)


def test_wait_says_when_the_time_is_over() -> None:
    group, _ = start_and_read(STUBBORN)
    with pytest.raises(TimeoutError):
        group.wait(0.01)
    group.kill()


def test_group_without_its_watcher_is_ended_at_the_next_poll() -> None:
    group, grandchild = start_and_read(STUBBORN)
    os.kill(group.pgid, signal.SIGKILL)
    until(lambda: group.poll() is not None)
    until(lambda: not is_alive(grandchild))
    until(group.killed)


def test_a_member_that_the_kernel_keeps_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    group, grandchild = start_and_read(STUBBORN)
    monkeypatch.setattr(process_group, "_members", lambda _pgid: ["kept"])
    assert not group.killed()
    until(lambda: group.poll() == -signal.SIGKILL)
    assert not group.killed()
    monkeypatch.undo()
    until(group.killed)
    assert not is_alive(grandchild)


def test_program_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="no-such-program"):
        ProcessGroup.start([str(tmp_path / "no-such-program")], record=tmp_path / "records")
    assert list((tmp_path / "records").iterdir()) == []


def test_groups_started_by_several_threads_end_one_by_one() -> None:
    groups: list[ProcessGroup] = []
    starters = [
        threading.Thread(target=lambda: groups.append(ProcessGroup.start(["/bin/sleep", "1000"])))
        for _ in range(8)
    ]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert len({group.pgid for group in groups}) == 8
    groups[0].kill()
    assert [group.poll() for group in groups[1:]] == [None] * 7
    for group in groups[1:]:
        # No other child may hold this group's pipe open, else its watcher would never wake.
        assert group.lifeline is not None
        os.close(group.lifeline)
        assert group.watcher.wait(60) == -signal.SIGKILL
        group.lifeline = None
        group.main.wait(60)


def test_record_lives_as_long_as_the_group(tmp_path: Path) -> None:
    group, _ = start_and_read(STUBBORN, tmp_path)
    (record,) = tmp_path.iterdir()
    assert record.name == f"{group.pgid}.json"
    group.kill()
    assert list(tmp_path.iterdir()) == []


def test_next_boot_ends_a_recorded_group_whose_watcher_still_lives(
    parent: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    process, pids = parent
    process.send_signal(signal.SIGSTOP)  # as good as dead, but its pipe stays open
    end_recorded(tmp_path)
    assert not any(is_alive(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == []


def test_next_boot_ends_a_recorded_group_whose_watcher_is_gone(
    parent: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    process, pids = parent
    os.kill(pids[0], signal.SIGKILL)
    process.kill()
    process.wait()
    assert is_alive(pids[1])
    end_recorded(tmp_path)
    assert not any(is_alive(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [{"started": 1}, {"kernel": "an earlier boot"}, {"pgid": 2**22 + 1}],
    ids=["reused pid", "earlier boot of the kernel", "nobody left"],
)
def test_record_of_somebody_else_is_removed_and_harms_nobody(
    change: dict[str, object], tmp_path: Path
) -> None:
    group, grandchild = start_and_read(STUBBORN, tmp_path)
    (record,) = tmp_path.iterdir()
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    end_recorded(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert group.poll() is None
    assert is_alive(grandchild)
    group.kill()


def test_group_of_a_later_owner_in_another_session_is_left_alone(tmp_path: Path) -> None:
    group, grandchild = start_and_read(STUBBORN, tmp_path)
    (record,) = tmp_path.iterdir()
    facts = json.loads(record.read_text())
    os.kill(group.pgid, signal.SIGKILL)
    os.waitpid(group.pgid, 0)  # a group without a leader, as a reused number may be
    assert not process_group.is_still_ours(facts | {"session": facts["session"] + 1})
    assert process_group.is_still_ours(facts)
    end_recorded(tmp_path)
    assert not is_alive(grandchild)
    group.main.wait(60)
    group.watcher.wait(60)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_torn_record_is_removed(text: str, tmp_path: Path) -> None:
    (tmp_path / "123.json.new").write_text(text)
    (tmp_path / "124.json").write_text(text)
    end_recorded(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_without_records_is_fine(tmp_path: Path) -> None:
    end_recorded(tmp_path / "never made")
