"""`make bench-serve`: a real `nightshift serve` on loopback beside a bare server of the same frame.

Both get the same requests from the same clients, round by round, so that ratios count. Each line has
the CPU seconds and the greatest memory of the server's process meanwhile.
"""

import json
import socket
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import psutil
import typer
import yaml
from pydantic import ByteSize, TypeAdapter

from benchmarks import report
from benchmarks.fleet import Fleet, fleet
from benchmarks.report import Line, Median
from benchmarks.serve.clients import Asked, Server, blocks, many, send, take
from nightshift.producer.serve import store_layout
from nightshift.producer.serve.tenants import tenants

SECTION = "HTTP API"

SIZE, SECONDS, ROUNDS, ROWS = "256MB", 2.0, 3, 2000
"""The sizes whose figures are kept for the page."""

CLIENTS = (1, 16, 300)

CREATING = 16
"""Clients that create batches at once."""

WANTED_MB = 150
"""What the server may take while one file of any size goes up or down."""

LIMIT_SECONDS = 300.0

ENDPOINT = "/v1/chat/completions"

TENANT = "bench"


@dataclass(slots=True)
class Figures:
    """One measurement: what was done, in `unit`, and what the server's process took for it."""

    unit: str
    done: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    asked: Asked | None = None

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.done / self.seconds

    def take(self, asked: Asked) -> None:
        """What many clients asked."""
        self.asked, self.done, self.seconds = asked, len(asked.milliseconds), asked.seconds


Measured = dict[str, dict[str, list[Figures]]]
"""By what was done, then by the server, a round each."""


def main(
    size: Annotated[
        str, typer.Option("--bytes", help="Size of the file that goes up and down.")
    ] = SIZE,
    seconds: Annotated[float, typer.Option(help="How long clients ask, each time.")] = SECONDS,
    rounds: Annotated[int, typer.Option(help="How often each server is measured.")] = ROUNDS,
    rows: Annotated[int, typer.Option(help="Lines of the results.")] = ROWS,
) -> None:
    """Measures creates, polls, bytes up and down, and results, with CPU and memory of the process."""
    count = TypeAdapter(ByteSize).validate_python(size)
    found: Measured = defaultdict(lambda: defaultdict(list))
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-bench-") as parent,
        _started(Path(parent), count) as (here, ours, bare),
    ):
        over, running = _batches(here, ours, rows)
        for number in range(rounds):
            # Who comes first changes: what a round leaves in the page cache helps nobody always.
            for server in (ours, bare) if number % 2 else (bare, ours):
                _files(here, server, count, found)
                _asked(here, server, running, seconds, found)
            print(f"round {number + 1} of {rounds} is over", flush=True)
        # Results load Arrow: they come last, so that the other lines are without it.
        for _ in range(rounds):
            _results(here, ours, over, rows, found)
    lines = list(_lines(found))
    if (size, seconds, rounds, rows) == (SIZE, SECONDS, ROUNDS, ROWS):
        report.keep("serve", lines)
    else:
        report.show("serve", lines)


@contextmanager
def _started(parent: Path, size: int) -> Iterator[tuple[Fleet, Server, Server]]:
    """The HTTP API with a key, and the bare server, which is also the engine of the model."""
    ports = _free_ports(2)
    ours, bare = Server("nightshift serve", ports[0]), Server("bare", ports[1])
    engine = {"backend": "openai", "model": "m", "base_url": f"{bare.url}/v1"}
    (parent / "models.yaml").write_text(yaml.safe_dump({"models": {"m": {"engine": engine}}}))
    settings = {
        "log_level": "warning",
        "serve_port": ours.port,
        "serve_store": str(parent / "store"),
        "serve_models": parent / "models.yaml",
        "serve_max_file_bytes": max(size, 2**30),  # the file of the batch is another
    }
    with fleet(parent, **settings) as here:
        here.program(ours.name, "nightshift.producer.cli", "serve")
        here.program(bare.name, "benchmarks.serve.bare", str(bare.port), str(parent))
        for server in (ours, bare):
            here.wait(server.is_up, LIMIT_SECONDS, log=server.name)
        _, key = tenants.create_key(here.ledger, TENANT, "user", "", None)
        yield here, replace(ours, key=key), bare


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


def _batches(here: Fleet, server: Server, rows: int) -> tuple[str, str]:
    """A batch that is over, and one that no worker runs: it is `in_progress`."""

    def line(number: int) -> str:
        messages = [{"role": "user", "content": f"question {number}"}]
        body = {"model": "m", "messages": messages}
        row = {"custom_id": f"r-{number}", "method": "POST", "url": ENDPOINT, "body": body}
        return json.dumps(row) + "\n"

    lines = "".join(line(number) for number in range(rows)).encode()
    file_id, _ = send(server, [lines], len(lines))
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}

    def made(status: str) -> str:
        id = server.call("POST", "/v1/batches", body)["id"]
        path = f"/v1/batches/{id}"
        here.wait(lambda: server.call("GET", path)["status"] == status, LIMIT_SECONDS, log="reaper")
        return str(id)

    here.reaper()
    here.worker()
    over = made("completed")
    here.stop("worker")
    running = made("in_progress")
    here.stop("reaper")
    return over, running


@contextmanager
def _measured(
    here: Fleet, server: Server, what: str, unit: str, found: Measured
) -> Iterator[Figures]:
    """Figures to fill in; the peak of the process begins anew."""
    process = psutil.Process(here.groups[server.name].pid)
    (Path("/proc") / str(process.pid) / "clear_refs").write_text("5")
    before = process.cpu_times()
    figures = Figures(unit)
    yield figures
    after = process.cpu_times()
    figures.cpu_seconds = after.user + after.system - before.user - before.system
    figures.peak_mb = _peak_mb(process.pid)
    found[what][server.name].append(figures)


def _peak_mb(pid: int) -> float:
    """The most memory that a process has held since its peak was reset; VmHWM is in KiB."""
    status = (Path("/proc") / str(pid) / "status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def _files(here: Fleet, server: Server, size: int, found: Measured) -> None:
    """One file up, then down."""
    is_bare = server.name == "bare"
    with _measured(here, server, f"{size / 1e6:,.0f} MB up", "MB", found) as up:
        file_id, up.seconds = send(server, blocks(size), size, as_form=not is_bare)
        up.done = size / 1e6
    with _measured(here, server, f"{size / 1e6:,.0f} MB down", "MB", found) as down:
        taken, _, down.seconds = take(server, f"/v1/files/{file_id}/content")
        down.done = taken / 1e6
    if taken != size:
        raise RuntimeError(f"{server.name} sent {taken:,} of {size:,} bytes")
    if not is_bare:
        server.call("DELETE", f"/v1/files/{file_id}")
        # No reaper runs that would sweep the bytes away, and many rounds of a large file fill the disk.
        Path(store_layout.file(here.settings, TENANT, file_id)).unlink()


def _asked(here: Fleet, server: Server, batch_id: str, seconds: float, found: Measured) -> None:
    """Polls by few and by many clients, and creates."""
    path = f"/v1/batches/{batch_id}"
    for clients in CLIENTS:
        with _measured(here, server, f"polls, {clients} at once", "polls", found) as figures:
            figures.take(many(server, "GET", path, clients, seconds))
    seen = server.call("GET", path)
    body = {key: seen[key] for key in ("input_file_id", "endpoint", "completion_window")}
    with _measured(here, server, f"creates, {CREATING} at once", "creates", found) as figures:
        figures.take(many(server, "POST", "/v1/batches", CREATING, seconds, body))


def _results(here: Fleet, server: Server, batch_id: str, rows: int, found: Measured) -> None:
    """Every line of a batch that is over, from its parts."""
    with _measured(here, server, "results", "lines", found) as figures:
        _, lines, figures.seconds = take(server, f"/v1/batches/{batch_id}/results")
        figures.done = lines
    if lines != rows:
        raise RuntimeError(f"{lines} of {rows} lines came")


def _lines(found: Measured) -> Iterator[Line]:
    for what, servers in found.items():
        bare = servers.get("bare")
        for name, figures in servers.items():
            ratio = ""
            if bare is not None:
                pairs = zip(figures, bare, strict=True)
                ratio = str(Median.of([one.rate / other.rate for one, other in pairs]))
            rates = [each.rate for each in figures]
            yield Line(
                f"{SECTION}, {what}",
                name,
                _said(figures),
                "1" if name == "bare" else ratio,
                len(figures),
                report.spread(rates),
                *_verdict(name, figures),
            )


def _said(figures: list[Figures]) -> str:
    """Medians over the rounds; the peak is the greatest."""
    unit = figures[0].unit
    words = [f"{_three_digits(Median.of([each.rate for each in figures]).value)} {unit}/s"]
    asked = [each.asked for each in figures if each.asked is not None]
    for share in (50, 99) if asked else ():
        middle = Median.of([each.percentile(share) for each in asked]).value
        words.append(f"p{share} {_three_digits(middle)} ms")
    cpu = Median.of([1000 * each.cpu_seconds / each.done for each in figures]).value
    words.append(f"CPU {cpu:.3g} ms a {unit.removesuffix('s')}")
    words.append(f"peak {max(each.peak_mb for each in figures):.0f} MB")
    return ", ".join(words)


def _three_digits(value: float) -> str:
    """At least three digits, and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(name: str, figures: list[Figures]) -> tuple[str, str]:
    """What is wanted of the memory while a file goes up or down."""
    if figures[0].unit != "MB" or name == "bare":
        return "", ""
    most = max(each.peak_mb for each in figures)
    return (
        f"{WANTED_MB} MB of memory",
        "met" if most <= WANTED_MB else f"missed by {most - WANTED_MB:.0f} MB",
    )


if __name__ == "__main__":
    typer.run(main)
