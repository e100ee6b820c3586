"""A fleet that is a test build: orders for its processes, faults, and the oracle at the end."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow.dataset as ds

from nightshift.common.failpoints import Moment
from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import jobs
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec
from nightshift.producer.submit.submit import submit
from nightshift.producer.submit.submitted import Submitted
from nightshift.producer.verify.verify import verify
from tests.support.fleet import (
    Fleet,
    function_spec,
    is_alive,
    logs,
    tree,
    wait_until,
    write_rows,
)

BUILD = Path(__file__).parent / "build"

SLOW = {"backend": "function", "callable": "rules:slow"}
"""10 ms a row, or what `Rig.let` lets pass; as one call a batch."""


class Rig(Fleet):
    """Real processes over one database and one broker, and what the fault suite does to them.

    `url` is the true address of the database, whatever the fleet is told (`told`).
    """

    def __init__(
        self, folder: Path, url: str, broker: str, told: str | None = None, **environment: str
    ) -> None:
        self.url = url
        self.tag = uuid.uuid4().hex
        self.faults = folder / "faults"
        for name in ("armed", "fired"):
            (self.faults / name).mkdir(parents=True)
        path = [str(BUILD), os.environ.get("PYTHONPATH", "")]
        super().__init__(
            folder,
            **{
                "NIGHTSHIFT_DATABASE_URL": told or url,
                "NIGHTSHIFT_BROKER_URL": broker,
                "NIGHTSHIFT_ALLOWED_MODULES": "rules",
                "NIGHTSHIFT_CALLABLE_PATHS": str(folder),
                "NIGHTSHIFT_ANSWER_SECONDS": "3",
                "NIGHTSHIFT_DRAIN_SECONDS": "3",
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "FAULTS": str(self.faults),
                "FAULTS_TAG": self.tag,
                # A process that gives itself a title would write it over the tag.
                "SPT_NOENV": "1",
                **environment,
            },
        )
        self.ledger = Ledger(url, connections=2)
        self._asking: psycopg.Connection[Any] | None = None
        self._members: set[psutil.Process] = set()
        self._done: set[Path] = set()

    # ------------------------------------------------------------ orders

    def arm(self, moment: Moment, action: str, times: int = 1) -> None:
        """The next `times` processes that reach the moment do it: kill, freeze, errno N; or the next
        `times` threads: hang.
        """
        for _ in range(times):
            order = self.faults / "armed" / f"{moment}.{time.monotonic_ns()}"
            new = self.faults / f"new-{order.name}"
            new.write_text(action)
            new.rename(order)

    def fired(self, moment: Moment) -> list[int]:
        """Process ids that did what an order for this moment says, the first one first. One that took the
        order to freeze stands still by now, so that it can be thawed.
        """
        taken = sorted((self.faults / "fired").glob(f"{moment}.*"))
        return [int(path.name.rpartition(".")[2]) for path in taken if self._is_done(path)]

    def _is_done(self, order: Path) -> bool:
        if order in self._done or order.read_text() != "freeze":
            return True
        with suppress(psutil.NoSuchProcess):  # somebody ended it, and may not have reaped it yet
            taker = psutil.Process(int(order.suffix[1:]))
            if is_alive(taker) and taker.status() != psutil.STATUS_STOPPED:
                return False
        self._done.add(order)
        return True

    def wait_fired(self, moment: Moment, seconds: float = 120) -> int:
        """Waits until the order was carried out; returns the process id of the first that did."""
        wait_until(lambda: self.fired(moment), seconds, f"the order at {moment}")
        return self.fired(moment)[0]

    # ------------------------------------------------------------ looks

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """A query, over a connection that no fault reaches but that of the server itself."""
        with suppress(psycopg.OperationalError):  # it was of an earlier boot of the server
            if self._asking is not None:
                return self._asking.execute(query, values or None).fetchall()
        self._asking = psycopg.connect(self.url, autocommit=True)
        return self._asking.execute(query, values or None).fetchall()

    def value(self, query: str, *values: object) -> Any:
        """The one value of a query."""
        return self.ask(query, *values)[0][0]

    def rows_done(self, name: str) -> int:
        """Rows with an answer so far."""
        return int(self.value("SELECT rows_done FROM job_progress WHERE name = %s", name))

    def wait_rows(self, name: str, rows: int, seconds: float = 120) -> None:
        """Waits until so many rows have an answer."""
        wait_until(lambda: self.rows_done(name) >= rows, seconds, f"{rows} rows of {name}")

    def wait_ready(self, children: int = 1, seconds: float = 120) -> list[str]:
        """Waits until so many children have a warm engine; returns their ids."""
        query = "SELECT id FROM workers WHERE state = 'ready' ORDER BY ready_at"
        wait_until(lambda: len(self.ask(query)) >= children, seconds, f"{children} ready children")
        return [row[0] for row in self.ask(query)]

    def computed(self) -> Counter[str]:
        """How often each row was computed, by its id."""
        return Counter((self.folder / "computed").read_text().split())

    # ------------------------------------------------------------ processes

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Like Fleet.start."""
        return super().start(module, *arguments)

    def children(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The worker children below a supervisor, alive now; Celery renames them when they serve."""
        titles = ("nightshift.worker.child", "[celeryd:")
        return [
            member
            for member in tree(process)
            if any(title in " ".join(_cmdline(member)) for title in titles)
        ]

    def child(self, process: subprocess.Popen[bytes], seconds: float = 120) -> psutil.Process:
        """The first worker child of a supervisor, as soon as there is one."""
        wait_until(lambda: self.children(process), seconds, "a worker child")
        return self.children(process)[0]

    def freeze(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """SIGSTOP for a process and all below it; returns them."""
        members = tree(process)
        for member in members:
            member.send_signal(signal.SIGSTOP)
        return members

    def thaw(self, members: Iterable[psutil.Process]) -> None:
        """SIGCONT for what was frozen; whoever is gone is passed over."""
        for member in members:
            try:
                member.send_signal(signal.SIGCONT)
            except psutil.NoSuchProcess:
                continue

    def tagged(self) -> list[psutil.Process]:
        """Every process anywhere that descends from this rig, alive now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FAULTS_TAG") == self.tag and is_alive(process):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def end(self) -> None:
        """Ends everything; fails when something survives its supervisor."""
        for process in self.processes:
            self._members.update(tree(process))
        self.thaw(self._members)
        for process in self.processes:
            # The main process alone: what it started must end with it.
            process.kill()
            process.wait(60)
        try:
            wait_until(
                lambda: not self.tagged() and not any(map(is_alive, self._members)),
                seconds=60,
                what="the end of every process",
            )
        finally:
            for left in self.tagged():
                left.kill()
            self.ledger.close()
            if self._asking is not None:
                self._asking.close()

    # ------------------------------------------------------------ jobs

    def spec_of(self, name: str, **sections: Any) -> dict[str, Any]:
        """A spec of the function engine, 5 rows a batch unless told otherwise."""
        sections = {"engine": SLOW, "batch": {"rows": 5}, **sections}
        return function_spec(name, self.folder / f"in-{name}", self.folder / name, **sections)

    def submit(self, name: str, rows: int | list[tuple[str, int]], **sections: Any) -> list[str]:
        """Writes rows, submits a job over them in this process, returns the ids in order."""
        files = [("a.parquet", rows)] if isinstance(rows, int) else rows
        ids = write_rows(self.folder / f"in-{name}", files)
        self.put(self.spec_of(name, **sections))
        return ids

    def put(self, data: dict[str, Any]) -> Submitted:
        """Submits a spec in this process."""
        settings = Settings(database_url=self.url)
        self.ledger.close()  # its connections may be of an earlier boot of the server
        return submit(self.ledger, JobSpec.model_validate(data), settings)

    def wait_closed(self, name: str, seconds: float = 240) -> str:
        """Waits until a job is over and its files are finished; returns its state."""

        def closed() -> bool:
            query = "SELECT closed_at IS NOT NULL FROM jobs WHERE name = %s"
            return bool(self.value(query, name))

        try:
            wait_until(closed, seconds, f"the end of {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.standing()}\n{logs(self.folder)}") from error
        return str(self.value("SELECT state FROM jobs WHERE name = %s", name))

    def standing(self) -> str:
        """Where every job and batch stands, for the message of an assertion."""
        queries = (
            "SELECT name, status, reason, rows_done, rows_failed, rows_total FROM job_progress",
            "SELECT job_id, state, failures, losses, count(*) FROM batches GROUP BY 1, 2, 3, 4",
            "SELECT id, state, pid, now() - seen_at, error FROM workers",
        )
        return "\n".join(str(row) for query in queries for row in self.ask(query))

    # ------------------------------------------------------------ the oracle

    def finished(
        self,
        name: str,
        ids: list[str],
        *,
        failed: Mapping[str, str] | None = None,
        state: str = "completed",
        seconds: float = 240,
    ) -> None:
        """Waits for the end of a job and asks the oracle; `failed` maps ids to error kinds."""
        ended = self.wait_closed(name, seconds)
        assert ended == state, f"{ended}\n{self.standing()}\n{logs(self.folder)}"
        self.oracle(name, ids, failed=failed)

    def oracle(
        self,
        name: str,
        ids: list[str],
        failed: Mapping[str, str] | None = None,
        filesystem: Any = None,
    ) -> None:
        """From the outside, files and SQL only: what `nightshift verify` says, and that each row
        is there once with the answer that the function gives for it. `filesystem` is that of an
        output that is not on local disk.
        """
        self.ledger.close()
        with self.ledger.transaction() as connection:
            job = jobs.find(connection, name)
        found = verify(self.ledger, job)
        assert not found, "\n".join(f"{one.check}: {one.message}" for one in found)
        failed = failed or {}
        table = ds.dataset(
            job.output_uri.partition("://")[2] or job.output_uri,
            format=job.spec.output.format,
            filesystem=filesystem,
        ).to_table()
        rows = sorted(table.to_pylist(), key=lambda row: row["row_index"])
        assert [row["id"] for row in rows] == ids
        for row in rows:
            kind = row["error"] and row["error"]["kind"]
            assert kind == failed.get(row["id"]), row
            if kind is None:
                assert row["loud"] == f"SAY {row['id'].upper()}", row
        listed = self.ask(
            "SELECT row_id, kind FROM failed_rows WHERE name = %s ORDER BY row_index", name
        )
        assert listed == [(row["id"], row["error"]["kind"]) for row in rows if row["error"]]

    def charges(self) -> tuple[int, int]:
        """(failures, losses) over all batches."""
        query = "SELECT coalesce(sum(failures), 0), coalesce(sum(losses), 0) FROM batches"
        failures, losses = self.ask(query)[0]
        return int(failures), int(losses)

    def manifest(self, name: str) -> dict[str, Any]:
        """The manifest of a finished job."""
        found: dict[str, Any] = json.loads((self.folder / name / "_manifest.json").read_text())
        return found


def _cmdline(member: psutil.Process) -> list[str]:
    try:
        return list(member.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return []
