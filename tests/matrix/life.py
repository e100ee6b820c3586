"""The life of one job, and every command, route, page and method that shows or changes it on the way.

`READS` are asked again at each stage: while the job waits, with a failed row, at its end. `walk` takes the steps
between the stages. What is expected is worked out from `kinds.py` and `jobs.py`, never by the code under test.
"""

import csv
import io
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import typer

import nightshift
from nightshift.common.errors import BadInput
from nightshift.producer.cli.app import app
from tests.matrix.jobs import Combination, Rows
from tests.matrix.kinds import KINDS, OUTPUT_TOKENS, PROMPT_TOKENS

if TYPE_CHECKING:
    from tests.matrix.scene import Scene

GROUP = typer.main.get_command(app)


NEVER_SHOWN = re.compile(
    r"Traceback|psycopg|sqlalchemy|cannot extract|DatatypeMismatch|InternalError|StatementTimeout"
)
"""What no command and no page prints, whatever happens."""

LEFT_OUT_COMMANDS = {
    "alive": "asks about a reaper's process, not about a job",
    "completion": "prints a script for the shell",
    "console": "serves the pages, which are cells of their own, until Ctrl-C",
    "cordon": "is for machines",
    "doctor": "is for the fleet: tests/unit/test_doctor.py",
    "drain": "is for machines",
    "init": "drafts a spec and knows no job: tests/unit/test_draft.py",
    "judge": "runs a second job over text: tests/integration/test_judge.py",
    "key": "is for keys of the HTTP API",
    "logs": "shows the logs of `nightshift run` in its folder: tests/integration/test_run.py",
    "migrate": "changes tables, once: tests/integration/test_migrations.py",
    "reaper": "runs throughout",
    "release": "needs a lease that a worker holds: tests/integration/test_inspect.py",
    "schema": "prints the schema of specs",
    "serve": "runs in this process; its routes and pages are cells",
    "tenant": "is for tenants of the HTTP API",
    "tune": "loads vLLM: tests/engine/test_tune_vllm.py",
    "uncordon": "is for machines",
    "workers": "shows slots, not jobs",
}
"""Commands without a cell, with the reason."""

LEFT_OUT_ROUTES = {
    "/jobs/{id}/batches/{seq}": "is in /jobs/{id}/rows: tests/integration/test_console_rows.py",
    "/jobs/{id}/load": "is for a job whose engine cannot load: tests/integration/test_loads.py",
    "/jobs/{id}/results": "is the download of /api/jobs/{id}/results: tests/integration/test_console_results.py",
}
"""Routes of one job without a cell, with the reason."""


class Life:
    """One job of the matrix from submit to delete; `failures` are the cells that did not agree. A job that does not look
    often asks for everything once, at its end; one that looks early also asks before the first row is answered.
    """

    def __init__(
        self, scene: "Scene", job: Combination, *, looks_often: bool, looks_early: bool
    ) -> None:
        self.scene, self.job = scene, job
        self.looks_often, self.looks_early = looks_often, looks_early
        self.kind = KINDS[job.kind]
        self.home = scene.folder / job.name
        self.spec = scene.stage.spec(job, self.home)
        self.name: str = self.spec["name"]
        self.number = 0
        self.rows: Rows = list(job.first)
        self.failed: set[str] = set()
        self.is_over = False
        self.tries = 0
        self.failures: list[str] = []
        self.steps: set[str] = set()

    # ------------------------------------------------------------ cells

    @contextmanager
    def cell(self, name: str) -> Iterator[None]:
        """One pair of this job and `name`; a failure is kept, and the job goes on."""
        try:
            yield
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            short = str(error)[:1500] or type(error).__name__
            self.failures.append(
                f"{self.job.name}: {name} ({Path(where.filename).name}:{where.lineno}): {short}"
            )

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A cell that changes the job."""
        assert name in STEPS, name
        self.steps.add(name)
        with self.cell(name):
            yield

    def command(self, *arguments: str, code: int | Sequence[int] = 0) -> str:
        """Runs `nightshift …` in this process and returns what it prints."""
        stdout, stderr = io.StringIO(), io.StringIO()
        exit_code: Any = 0
        with redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                # The group is built once: Typer's runner for tests builds it for each command, in 80 ms.
                GROUP.main(list(arguments), prog_name="nightshift")
            except SystemExit as end:
                exit_code = end.code or 0
            except Exception:
                traceback.print_exc()
                exit_code = "a traceback"
        found = stdout.getvalue() + stderr.getvalue()
        codes = [code] if isinstance(code, int) else code
        assert exit_code in codes, f"nightshift {' '.join(arguments)}: {exit_code}\n{found}"
        assert not NEVER_SHOWN.search(found), found
        return stdout.getvalue()

    def json(self, *arguments: str, code: int | Sequence[int] = 0) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.command(*arguments, "--json", code=code))

    def get(self, path: str, status: int = 200, **query: str) -> Any:
        """The response of a route or page to an operator."""
        pages = not path.startswith("/api")
        response = (self.scene.browser if pages else self.scene.client).get(path, params=query)
        assert response.status_code == status, (
            f"{path}: {response.status_code} {response.text[:1500]}"
        )
        if not query.get("format"):
            assert not NEVER_SHOWN.search(response.text), response.text
        return response

    def post(self, path: str, body: Any = None, status: int = 200, method: str = "POST") -> Any:
        """The JSON of the response of a route that changes a job."""
        response = self.scene.client.request(method, path, json=body if body is not None else {})
        assert response.status_code == status, f"{path}: {response.status_code} {response.text}"
        return response.json()

    # ------------------------------------------------------------ what is expected

    @property
    def answered(self) -> Rows:
        """The rows that have an answer, in order."""
        return (
            []
            if not self.is_over
            else [each for each in self.rows if each["id"] not in self.failed]
        )

    def refused(self) -> set[str]:
        """The row whose text the engine refuses until that is mended: the last one."""
        return {self.rows[-1]["id"]} if self.kind.refuses else set()

    def agree(self, status: dict[str, Any], state: str) -> None:
        """A status, wherever it was asked for."""
        done, failed = len(self.answered), len(self.failed) if self.is_over else 0
        found = {
            name: status[name]
            for name in ("name", "status", "rows_total", "rows_done", "rows_failed")
        }
        assert found == {
            "name": self.name,
            "status": state,
            "rows_total": len(self.rows),
            "rows_done": done,
            "rows_failed": failed,
        }
        if self.kind.has_tokens and self.kind.engine == "remote" and self.is_over:
            output = 0 if self.job.kind == "embed" else OUTPUT_TOKENS
            assert status["prompt_tokens"] == PROMPT_TOKENS * done, status["prompt_tokens"]
            assert status["output_tokens"] == output * done, status["output_tokens"]
            cost = done * (PROMPT_TOKENS * 1.0 + output * 2.0) / 1e6
            assert abs(float(status["cost"]) - cost) < 1e-9, (status["cost"], cost)

    def columns(self, text: str) -> dict[str, Any]:
        """The answer of a row, by hand."""
        return self.kind.columns(text)

    def agree_rows(self, rows: Rows, *, complete: bool = True) -> None:
        """Rows of the output, each with the answer that its text has."""
        by_id = {each["id"]: each for each in self.rows}
        id_column = "custom_id" if self.job.kind == "requests" else "id"
        ids = [str(each[id_column]) for each in rows]
        if complete:
            assert sorted(ids) == sorted(by_id), ids
            if self.job.shape != "arranged":
                assert ids == list(by_id), ids
        for each in rows:
            name = str(each[id_column])
            if name in self.failed:
                assert each["error"], each
                continue
            assert not each.get("error"), each
            for column, expected in self.columns(by_id[name]["text"]).items():
                found = self.value(each, column)
                assert found == expected, (name, column, found, expected)

    @staticmethod
    def value(row: dict[str, Any], column: str) -> Any:
        """A value of the output in the form in which `kinds.py` has it."""
        if column == "answer":
            response = row["response"]
            body = json.loads(response) if isinstance(response, str) else response
            return body["choices"][0]["message"]["content"]
        found = row[column]
        if column == "score":
            return round(float(found), 5)
        if column == "outputs":
            return [sample["output"] for sample in found]
        if column == "logprobs":
            return [token["logprob"] for token in found]
        return found

    # ------------------------------------------------------------ the walk

    def look(self, state: str, reads: "Sequence[Callable[[Life], None]]" = ()) -> None:
        """Cells that change nothing: these, or all."""
        self.state = state
        for read in dict.fromkeys(
            reads or READS.values()
        ):  # a page and what keeps it live are one cell
            names = ", ".join(name for name, each in READS.items() if each is read)
            with self.cell(f"{names} [{state}]"):
                read(self)
        if reads:
            return
        for name in new_commands():
            with self.cell(f"{name} [{state}]"):
                self.command(name, str(self.number))
        for path in self.scene.new_routes(READS):
            with self.cell(f"GET {path} [{state}]"):
                self.get(path.replace("{id}", str(self.number)))

    def walk(self) -> None:
        """Takes the job through its life."""
        path = self.scene.write_spec(self.spec)
        with self.step("estimate"):
            self.command("estimate", str(path))
        with self.step("submit"):
            self.number = self.json("submit", str(path))["job"]
            assert self.json("submit", str(path))["job"] == self.number, (
                "the same spec is the same job"
            )
        if not self.number:
            return
        if self.looks_early:
            self.look("running", BEFORE_WORK)
        with self.step("pause"):
            self.command("pause", self.name)
        self.look("paused", WHILE_PAUSED)
        with self.step("resume"):
            self.command("resume", self.name)
        with self.step("set"):
            self.command("set", str(self.number), "--pool", "default")
        with self.step("wait"):
            self.is_over, self.failed = True, self.refused()
            self.command("wait", str(self.number), code=1 if self.failed else 0)
        if self.looks_often:
            self.look("completed")
        self.scene.mend(True)
        with self.step("retry"):
            retried = self.command("retry", str(self.number), "--failed")
            assert ("1 row" in retried) is bool(self.failed), retried
            self.failed = set()
            self.command("wait", str(self.number))
        if self.job.later:
            with self.step("append"):
                self.scene.mend(False)
                self.append()
        self.look("completed", AT_THE_END if self.looks_often else ())
        with self.step("run"):
            self.command("run", str(path))
        self.other_job()
        with self.step("delete"):
            self.command("delete", str(self.number), "--output")
            assert not list(Path(self.spec["output"]["uri"]).glob("part-*")) or self.spec[
                "output"
            ].get("table")
            self.command("status", str(self.number), code=2)
            self.get(f"/api/jobs/{self.number}", 404)
            self.get(f"/jobs/{self.number}", 404)
        with self.step("gc"):
            self.json("gc")

    def append(self) -> None:
        """More rows come, of which one fails at first."""
        files = self.scene.stage.more(self.job, self.home)
        self.command("submit", "--append", str(self.number), *files)
        self.rows += self.job.later
        self.failed = self.refused()
        self.command("wait", str(self.number), code=1 if self.failed else 0)
        self.scene.mend(True)
        self.command("retry", str(self.number), "--failed")
        self.failed = set()
        self.command("wait", str(self.number))

    def other_job(self) -> None:
        """A job of the same spec into another directory is changed and cancelled by way of the API."""
        self.scene.mend(False)
        other = {
            **self.scene.stage.spec(self.job, self.home / "other"),
            "name": f"{self.name}-other",
        }
        with self.step("POST /api/jobs"):
            number = self.post("/api/jobs", other, 201)["job"]
            place = f"/api/jobs/{number}"
            with self.step("POST /api/jobs/{id}/pause"):
                self.post(f"{place}/pause")
                assert self.get(place).json()["status"] == "paused"
            with self.step("POST /api/jobs/{id}/resume"):
                self.post(f"{place}/resume")
                assert self.get(place).json()["status"] == "running"
            with self.step("PATCH /api/jobs/{id}"):
                self.post(place, {"priority": 3}, method="PATCH")
                assert self.get(place).json()["priority"] == 3
            with self.step("POST /api/jobs/{id}/cancel"):
                self.post(f"{place}/cancel")
            with self.step("cancel"):
                self.command("cancel", str(number))
                self.command("wait", str(number), code=3)
                self.command("status", str(number))
                self.command("explain", str(number))
                self.get(f"/jobs/{number}")
                self.command("verify", str(number))
            with self.step("POST /api/jobs/{id}/retry"):
                self.post(f"{place}/retry", status=400)
            with self.step("DELETE /api/jobs/{id}"):
                self.scene.until_closed(number)
                self.post(f"{place}?output=true", method="DELETE")
                self.get(place, 404)


STEPS = (
    "estimate",
    "submit",
    "pause",
    "resume",
    "set",
    "wait",
    "retry",
    "append",
    "run",
    "delete",
    "cancel",
    "gc",
    "POST /api/jobs",
    "POST /api/jobs/{id}/pause",
    "POST /api/jobs/{id}/resume",
    "POST /api/jobs/{id}/cancel",
    "POST /api/jobs/{id}/retry",
    "PATCH /api/jobs/{id}",
    "DELETE /api/jobs/{id}",
)
"""Cells that change a job; `append` is `submit --append`."""


def commands() -> dict[str, list[str]]:
    """Every command by its name, with the names of its arguments."""
    return {
        name: [each.name or "" for each in command.params if each.param_type_name == "argument"]
        for name, command in GROUP.commands.items()  # type: ignore[attr-defined]
        if not command.hidden
    }


def new_commands() -> list[str]:
    """Commands of one job that nobody has given a cell or a reason: they are asked without options."""
    known = {*READS, *STEPS, *LEFT_OUT_COMMANDS}
    return [
        name for name, arguments in commands().items() if name not in known and arguments == ["job"]
    ]


# ---------------------------------------------------------------- cells that change nothing


def status(life: Life) -> None:
    life.agree(life.json("status", str(life.number)), life.state)
    shown = life.command("status", life.name)
    assert life.name in shown
    whole = {each["job"]: each for each in life.json("status")}
    life.agree(whole[life.number], life.state)
    life.command("status")


def jobs(life: Life) -> None:
    life.agree({each["job"]: each for each in life.json("jobs")}[life.number], life.state)
    assert life.name[:20] in life.command("jobs")


def watch(life: Life) -> None:
    if life.state == "running":
        return  # it would not end
    life.command("watch", str(life.number))


def top(life: Life) -> None:
    found = {each["job"]: each for each in life.json("top")["jobs"]}
    if life.state != "completed":
        life.agree(found[life.number], life.state)


def explain(life: Life) -> None:
    kinds = [each["kind"] for each in life.json("explain", str(life.number))["reasons"]]
    expected = {"running": "no_worker", "paused": "paused", "completed": "completed"}[life.state]
    assert expected in kinds, kinds
    life.command("explain", str(life.number))


def sample(life: Life) -> None:
    if not life.is_over:
        life.command("sample", str(life.number), code=2)
        return
    lines = life.command("sample", str(life.number), "-n", "50", "--json").splitlines()
    found = [json.loads(line) for line in lines]
    rows = [{**each["input"], **each["output"], "error": each["error"]} for each in found]
    life.agree_rows(rows, complete=False)
    assert len(rows) == len(life.rows)
    life.command("sample", str(life.number))
    page = life.home / f"sample-{life.state}-{len(life.failed)}.html"
    life.command("sample", str(life.number), "--html", str(page))
    assert life.name in page.read_text()


def errors(life: Life) -> None:
    found = life.json("errors", str(life.number))
    assert sum(found["kinds"].values()) == len(life.failed)
    assert {str(each["row_id"]) for each in found["rows"]} == life.failed
    life.command("errors", str(life.number))


def history(life: Life) -> None:
    found = life.json("history", str(life.number), "-n", "0")
    if not life.is_over:
        assert found["attempts"] == []
        return
    done = [each for each in found["attempts"] if each["outcome"] == "done"]
    assert sum(each["rows"] for each in done) >= len(life.rows), done
    life.command("history", str(life.number))


def verify(life: Life) -> None:
    found = life.json("verify", str(life.number))
    assert [each for each in found["checks"] if each["problems"]] == []
    summaries = {each["check"]: each["summary"] for each in found["checks"]}
    assert summaries["rows"].startswith(
        f"{len(life.rows) if life.is_over else 0} of {len(life.rows)} rows"
    )
    life.command("verify", str(life.number))


def collect(life: Life) -> None:
    stem = life.home / f"all-{time.monotonic_ns()}"
    if not life.is_over:
        life.command("collect", str(life.number), "--to", f"{stem}.parquet", code=2)
        return
    suffixes = ["parquet", "jsonl", "csv"]
    for suffix in suffixes:
        life.command("collect", str(life.number), "--to", f"{stem}.{suffix}")
    life.agree_rows(pq.read_table(f"{stem}.parquet").to_pylist())
    life.agree_rows([json.loads(line) for line in Path(f"{stem}.jsonl").read_text().splitlines()])
    with Path(f"{stem}.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(life.rows)
    life.command("collect", str(life.number), "--manifest", "--to", f"{stem}-parts.jsonl")
    if life.job.kind == "requests":
        life.command(
            "collect", str(life.number), "--format", "openai", "--to", f"{stem}-openai.jsonl"
        )
        for name in ("", ".errors"):
            lines = Path(f"{stem}-openai{name}.jsonl").read_text().splitlines()
            ids = [json.loads(line)["custom_id"] for line in lines]
            assert set(ids) == (life.failed if name else {each["id"] for each in life.answered})
    table = life.scene.stage.table_rows(life.spec)
    if table is not None:
        life.agree_rows(table)


def from_python(life: Life) -> None:
    with nightshift.Client(life.scene.database_url) as client:
        [listed] = [each for each in client.jobs() if each.job == life.number]
        job = client.job(life.number)
        for found in (listed, job.status()):
            rows = (found.rows_total, found.rows_done, found.rows_failed)
            assert rows == (
                len(life.rows),
                len(life.answered),
                len(life.failed) if life.is_over else 0,
            )
            assert str(found.state) == life.state
        assert client.job(life.name).id == life.number
        if not life.is_over:
            return
        assert job.wait(60, progress=False).state == "completed"
        life.agree_rows(job.to_arrow().to_pylist())
        assert sum(batch.num_rows for batch in job.batches()) == len(life.rows)
        assert job.errors().num_rows == len(life.failed)
        assert len(job.to_pandas()) == len(job.to_polars()) == len(life.rows)
        if life.job.output == "jsonl":  # lines do not have the types of their values
            with pytest.raises(BadInput):
                job.dataset()
        else:
            life.agree_rows(job.dataset().to_table().sort_by("row_index").to_pylist())
        repr(job)


def api_job(life: Life) -> None:
    life.agree(life.get(f"/api/jobs/{life.number}").json(), life.state)


def api_jobs(life: Life) -> None:
    listed = life.get("/api/jobs", limit="100").json()["data"]
    life.agree({each["job"]: each for each in listed}[life.number], life.state)


def api_explain(life: Life) -> None:
    assert life.get(f"/api/jobs/{life.number}/explain").json()["reasons"]


def api_history(life: Life) -> None:
    found = life.get(f"/api/jobs/{life.number}/history").json()
    assert bool(found["attempts"]) is life.is_over


def api_errors(life: Life) -> None:
    found = life.get(f"/api/jobs/{life.number}/errors").json()
    assert {str(each["row_id"]) for each in found["rows"]} == life.failed


def api_results(life: Life) -> None:
    path = f"/api/jobs/{life.number}/results"
    if not life.is_over:
        life.get(path, 400, format="jsonl")
        return
    lines = life.get(path, format="jsonl").text.splitlines()
    life.agree_rows([json.loads(line) for line in lines])
    life.get(path, format="csv")
    assert life.get(path, format="parquet").content.startswith(b"PAR1")


def page_of_jobs(life: Life) -> None:
    assert life.name in life.get("/").text
    assert life.name in life.get("/live/jobs", name=life.name).text


def page_of_job(life: Life) -> None:
    page = life.get(f"/jobs/{life.number}").text
    assert life.name in page
    life.get(f"/live/jobs/{life.number}")
    life.get(f"/jobs/{life.number}/pictures")


def page_of_rows(life: Life) -> None:
    page = life.get(f"/jobs/{life.number}/rows").text
    for each in life.answered:
        assert each["text"] in page or each["id"] in page, each
    life.get(f"/live/jobs/{life.number}/rows")


def page_of_failed_rows(life: Life) -> None:
    page = life.get(f"/jobs/{life.number}/failed").text
    for each in life.failed:
        assert each in page


READS: dict[str, Callable[[Life], None]] = {
    "status": status,
    "jobs": jobs,
    "watch": watch,
    "top": top,
    "explain": explain,
    "sample": sample,
    "errors": errors,
    "history": history,
    "verify": verify,
    "collect": collect,
    "Python": from_python,
    "GET /api/jobs": api_jobs,
    "GET /api/jobs/{id}": api_job,
    "GET /api/jobs/{id}/explain": api_explain,
    "GET /api/jobs/{id}/history": api_history,
    "GET /api/jobs/{id}/errors": api_errors,
    "GET /api/jobs/{id}/results": api_results,
    "GET /": page_of_jobs,
    "GET /live/jobs": page_of_jobs,
    "GET /jobs/{id}": page_of_job,
    "GET /live/jobs/{id}": page_of_job,
    "GET /jobs/{id}/pictures": page_of_job,
    "GET /jobs/{id}/rows": page_of_rows,
    "GET /live/jobs/{id}/rows": page_of_rows,
    "GET /jobs/{id}/failed": page_of_failed_rows,
}
"""Cells that change nothing, by command, route or page. A page and what keeps it live are one cell."""

BEFORE_WORK = (status, jobs, explain, sample, errors, history, verify, collect, from_python)
BEFORE_WORK += (api_job, api_results, page_of_job)
"""Cells of a job that waits: those that could take missing rows for rows."""

WHILE_PAUSED = (status, watch, explain, api_job)
"""Cells that say that a job is paused."""

AT_THE_END = (status, errors, verify, collect, from_python, api_job, api_results, page_of_rows)
"""Cells that tell rows of a retry and of an append from those before."""
