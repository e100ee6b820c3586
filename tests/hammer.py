"""`make test-hammer`: every test three times and the restless ones ten times, under changing load.

The restless tests kill, drain, wait or hand over. Each of them is among the three rounds of all tests,
and in seven rounds more.

The work is cut into parts, each a run of pytest over some tests that is bounded in time. What a part
found is kept in `.venv/hammer`, so that the same command goes on where the last one ended: parts that
were green are passed over, parts that were red run again. Whatever was red in any run stays in the
list until the folder is removed. Exit codes: 0 all green, 1 something was red, 3 parts are left.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

HOME = Path(__file__).parents[1]
FOLDER = HOME / ".venv" / "hammer"

WHOLE_ROUNDS = 3
RESTLESS_ROUNDS = 10
"""The rounds in which a restless test is seen, those of all tests included."""

WHOLE_PARTS = 12
"""Parts of one round over the whole suite."""

RESTLESS_PARTS = 6
"""Parts of one round over the restless tests."""

PART_SECONDS = 3600.0
"""A part that takes longer is ended, and counts as red."""

RUN = "HAMMER_RUN"
"""Variable by which every process of a part is known, however far it is from its parent."""

LEAVE_SECONDS = 120.0
"""So long may pytest take to end what its tests started, once it was interrupted."""

SYNC_MICROSECONDS = 30_000
"""What the slow disk adds to each sync; those of a network disk take about so long."""

RESTLESS_FOLDER = HOME / "tests" / "faults"
"""Every test of it kills, freezes or holds somebody up, if only by what it lets a function do."""

RESTLESS = re.compile(
    r"kill|terminate\(|SIG(TERM|KILL|STOP|INT|USR1)|drain|handover|hand_over|freeze|wait_until|wait\("
)
"""What a test does that kills, drains, waits or hands over."""

SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static int slowly(const char *name, int file) {
    int (*sync)(int) = dlsym(RTLD_NEXT, name);
    usleep(MICROSECONDS);
    return sync(file);
}

int fsync(int file) { return slowly("fsync", file); }
int fdatasync(int file) { return slowly("fdatasync", file); }
"""
"""Each sync of each process takes longer: Postgres's own, which is on then, and those of parts."""


@dataclass(frozen=True, slots=True)
class Load:
    """What else the machine has to do."""

    name: str
    loops: int = 0
    one_core: bool = False
    slow_disk: bool = False


LOADS = (
    Load("nothing else"),
    Load("two busy loops", loops=2),
    Load("six busy loops", loops=6),
    Load("one core", one_core=True),
    Load("slow fsync", slow_disk=True),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Some tests under one load: files, or tests of files by pytest's names."""

    name: str
    load: Load
    tests: tuple[str, ...]

    @property
    def log(self) -> str:
        """The name of its log; a part that runs again writes over it, unless it was red."""
        return re.sub(r"\W+", "-", self.name)


@dataclass(slots=True)
class Found:
    """What parts found so far, of this call and of earlier ones."""

    folder: Path = FOLDER
    green: set[str] = field(default_factory=set)
    red: list[dict[str, str]] = field(default_factory=list)

    def read(self) -> None:
        """What earlier calls have kept."""
        place = self.folder / "found.jsonl"
        for line in place.read_text().splitlines() if place.exists() else ():
            self._take(json.loads(line))

    def note(self, part: Part, failed: Sequence[str], log: Path) -> None:
        """Keeps the end of a part: `failed` are its tests that were red."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = {"part": part.name, "load": part.load.name, "failed": [*failed], "log": str(log)}
        with (self.folder / "found.jsonl").open("a") as place:
            place.write(json.dumps(line) + "\n")
        self._take(line)

    def _take(self, line: Mapping[str, object]) -> None:
        if not line["failed"]:
            self.green.add(str(line["part"]))
        for test in line["failed"]:  # type: ignore[attr-defined]
            kept = {name: str(line[name]) for name in ("part", "load", "log")}
            self.red.append({"test": test, **kept})


def files_of_tests() -> list[Path]:
    """Every file with tests, in one order on every machine."""
    return sorted((HOME / "tests").rglob("test_*.py"))


def parts(files: Sequence[Path], loads: Sequence[Load] = LOADS) -> list[Part]:
    """All the work. From round to round a file meets another load, and each load meets each folder."""
    names = [str(file.relative_to(HOME)) for file in files]
    whole = [names[at::WHOLE_PARTS] for at in range(WHOLE_PARTS)]
    restless = [
        f"{name}::{test}"
        for name, file in zip(names, files, strict=True)
        for test in restless_tests(file)
    ]
    # In a piece, so that a part has few files, and the fixtures of a file are made once.
    edges = [len(restless) * at // RESTLESS_PARTS for at in range(RESTLESS_PARTS + 1)]
    few = [restless[start:stop] for start, stop in pairwise(edges)]
    return [
        *_rounds("all tests", range(WHOLE_ROUNDS), whole, loads),
        *_rounds("restless tests", range(WHOLE_ROUNDS, RESTLESS_ROUNDS), few, loads),
    ]


def restless_tests(file: Path) -> list[str]:
    """The tests of a file that kill, drain, wait or hand over, themselves or by what they use of the file;
    all of the fault suite.
    """
    lines = file.read_text().splitlines()
    defined = {
        node.name: node
        for node in ast.parse("\n".join(lines)).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    uses = {name: _names(node) & defined.keys() for name, node in defined.items()}
    restless = {
        name
        for name, node in defined.items()
        if RESTLESS.search("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    }
    if file.is_relative_to(RESTLESS_FOLDER):
        restless = set(defined)
    while more := {name for name in defined if uses[name] & restless} - restless:
        restless |= more
    return [name for name in defined if name in restless and name.lower().startswith("test")]


def _names(node: ast.AST) -> set[str]:
    """What a definition names: variables, attributes, and parameters, which may be fixtures."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.arg):
            found.add(each.arg)
    return found


def _rounds(
    what: str, rounds: range, groups: Sequence[Sequence[str]], loads: Sequence[Load]
) -> Iterator[Part]:
    for number in rounds:
        for at, group in enumerate(groups):
            load = loads[(at + number) % len(loads)]
            name = f"{what}, round {number + 1} of {rounds.stop}, part {at + 1} of {len(groups)}"
            if group:
                yield Part(name, load, tuple(group))


def failed(said: str, code: int) -> list[str]:
    """The tests that pytest says were red; its exit code, where it could not say that."""
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.M)
    if code in (0, 5) and not names:  # 5: there was no test to run
        return []
    return list(dict.fromkeys(names)) or [f"(pytest ended with exit code {code})"]


@contextmanager
def busy(load: Load, seconds: float) -> Iterator[None]:
    """So many loops beside the block. Each looks many times a second whether this process still
    lives, and ends with it; at last it ends after so many seconds.
    """
    loop = (
        f"while kill -0 {os.getpid()} 2>/dev/null; do "
        "count=0; while [ $count -lt 99999 ]; do count=$((count + 1)); done; done"
    )
    command = ["timeout", str(int(seconds)), "sh", "-c", loop]
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(load.loops)]
    try:
        yield
    finally:
        for each in loops:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def slow_disk() -> Path | None:
    """The library that makes syncs slow, compiled; None where there is no compiler."""
    made = FOLDER / "slow_disk.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    source = FOLDER / "slow_disk.c"
    source.write_text(SLOW_DISK.replace("MICROSECONDS", str(SYNC_MICROSECONDS)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def run(part: Part, log: Path, library: Path | None) -> int:
    """Runs the part; pytest's exit code, or 124 where it took too long."""
    run_id = uuid.uuid4().hex
    environment = {**os.environ, RUN: run_id}
    if part.load.slow_disk and library is not None:
        environment |= {"LD_PRELOAD": str(library), "TESTS_SYNC": "1"}
    own_core = {min(os.sched_getaffinity(0))}

    def before() -> None:
        if part.load.one_core:
            os.sched_setaffinity(0, own_core)

    options = ["-q", "-p", "no:cacheprovider", "--numprocesses", "3", "--dist", "loadscope"]
    with log.open("wb") as place, busy(part.load, PART_SECONDS + LEAVE_SECONDS):
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *part.tests],
            cwd=HOME,
            env=environment,
            stdout=place,
            stderr=place,
            start_new_session=True,
            preexec_fn=before,
        )
        try:
            return process.wait(PART_SECONDS)
        except subprocess.TimeoutExpired:
            place.write(f"\nERROR {part.tests[0]} took more than {PART_SECONDS:g} s\n".encode())
            return 124
        finally:
            _end(process, run_id)


def _end(process: subprocess.Popen[bytes], run_id: str) -> None:
    """Lets pytest end what its tests started, and then its whole group, and whatever is left of the run:
    a pytest that is interrupted does not come to the end of its fixtures.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(RUN) == run_id:
                each.kill()


def log_of(part: Part) -> Path:
    """Where this run of the part is logged: beside the logs of its earlier runs."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    number = len(list(FOLDER.glob(f"{part.log}.*.log"))) + 1
    return FOLDER / f"{part.log}.{number}.log"


def main() -> int:
    """Runs what is left, and lists whatever was ever red."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument(
        "--parts", type=int, default=10**6, help="run no more than so many parts now"
    )
    asked.add_argument("--only", default="", help="run parts whose name or tests hold this text")
    given = asked.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    found = Found()
    found.read()
    library = slow_disk()
    loads = [load for load in LOADS if library is not None or not load.slow_disk]
    if library is None:
        print("no C compiler here: no part has a slow disk", flush=True)
    every = parts(files_of_tests(), loads)
    chosen = [part for part in every if given.only in " ".join((part.name, *part.tests))]
    left = [part for part in chosen if part.name not in found.green]
    for part in left[: given.parts]:
        began, log = time.monotonic(), log_of(part)
        code = run(part, log, library)
        red = failed(log.read_text(errors="replace"), code)
        found.note(part, red, log)
        said = f"{len(red)} red" if red else "green"
        print(
            f"{part.name}, {part.load.name}: {said} ({time.monotonic() - began:.0f} s)", flush=True
        )
    return told(found, chosen)


def _leave(*_: object) -> None:
    """Ends the part that runs; make and a terminal may both send the signal, and the end takes its time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def told(found: Found, chosen: Sequence[Part]) -> int:
    """Says what is left and what was ever red; the exit code."""
    left = sum(part.name not in found.green for part in chosen)
    print(f"{len(chosen) - left} of {len(chosen)} parts are green")
    for each in found.red:
        print(f"was red: {each['test']} ({each['part']}, {each['load']}; {each['log']})")
    if found.red:
        return 1
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
