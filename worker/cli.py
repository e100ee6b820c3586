"""The `nightshift-worker` command: serves one pool with the engines of this machine."""

import math
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nightshift.common import logs
from nightshift.common.errors import BadInput, NightshiftError, Retryable
from nightshift.common.exit_codes import ExitCode
from nightshift.common.ledger import Ledger, schema
from nightshift.common.permits import engine_args
from nightshift.common.processes import signals
from nightshift.common.processes.hardware import slot_count
from nightshift.common.settings import load_settings, visible_gpus
from nightshift.common.spec.finish_by import duration
from nightshift.common.telemetry import step_table, steps
from nightshift.common.telemetry.steps import Step, StepFile
from nightshift.worker.supervisor import probes
from nightshift.worker.supervisor.liveness import QUICK_ANSWER_SECONDS
from nightshift.worker.supervisor.supervisor import Supervisor
from nightshift.worker.telemetry import machine

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    *,
    pool: Annotated[str, typer.Option(help="Pool whose jobs this machine runs.")] = "default",
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Engines at once; default one a GPU, or one on CPU."),
    ] = None,
    engine_key: Annotated[
        str | None, typer.Option(help="Serve only this engine key; default all of the pool.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append the steps of each child to FILE, and print them as a table at the end.",
        ),
    ] = None,
    preempt_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Once this file is there, the machine is taken away: drain in "
            "NIGHTSHIFT_PREEMPT_SECONDS. SIGUSR1 says the same.",
        ),
    ] = None,
    leave_idle: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Drain and exit 0 after so long with nothing to do, such as 10m; default never.",
        ),
    ] = None,
    supervisor_id: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run engines for a pool until SIGTERM, then drain: finish, commit, release, exit 0."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings()
    logs.configure(settings)
    if settings.database_url is None:
        raise BadInput("NIGHTSHIFT_DATABASE_URL is not set: a worker needs the ledger")
    engine_args.words(settings.allowed_engine_args or ())
    profile = None if profile is None else steps.checked(profile)
    leave_idle_seconds = math.inf if leave_idle is None else idle_seconds(leave_idle)
    gpus = visible_gpus()
    # Short answers: the supervisor waits for them, and neither drains nor sees a child end meanwhile.
    ledger = Ledger(
        settings.database_url,
        connections=2,
        answer_seconds=min(settings.answer_seconds, QUICK_ANSWER_SECONDS),
    )
    with machine.served(settings, pool) as metrics:
        supervisor = Supervisor(
            ledger,
            settings,
            pool=pool,
            slot_count=slot_count(slots, len(gpus)),
            gpus=gpus,
            engine_key=engine_key,
            identity=supervisor_id or f"s-{uuid.uuid4().hex[:12]}",
            profile=profile,
            metrics=metrics,
            preempt_file=preempt_file,
            leave_idle_seconds=leave_idle_seconds,
        )
        StepFile(profile, {"supervisor": supervisor.identity}).note(Step.WORKER)
        _run_until_signal(supervisor, ledger)
    if profile is not None:
        step_table.show(step_table.way(step_table.read(profile, supervisor.identity)), Console())


def idle_seconds(text: str) -> float:
    """The seconds of `--leave-idle`. Raises BadInput where the text is no duration above 0."""
    try:
        return duration(text).total_seconds()
    except ValueError as error:
        raise BadInput(f"--leave-idle: {error}") from error


def _run_until_signal(supervisor: Supervisor, ledger: Ledger) -> None:
    """Runs a supervisor whose drain SIGTERM and SIGINT begin, and SIGUSR1 a shorter one.

    Raises BadInput where the ledger does not answer at the start.
    """
    signals.act_on(
        {
            signal.SIGTERM: supervisor.stop,
            signal.SIGINT: supervisor.stop,
            signal.SIGUSR1: supervisor.preempt,
        }
    )
    try:
        schema.check(ledger)
    except Retryable as error:
        raise BadInput(str(error)) from error
    supervisor.run()


@app.command()
def started() -> None:
    """Say whether every slot has a warm engine or nothing to load; for a startup probe."""
    raise typer.Exit(probes.answer("started"))


@app.command()
def alive() -> None:
    """Say whether the worker of NIGHTSHIFT_RUN_DIR makes progress; for a liveness probe."""
    raise typer.Exit(probes.answer("alive"))


@app.command()
def drain() -> None:
    """Ask the worker of NIGHTSHIFT_RUN_DIR to drain, and wait for it; for a preStop hook."""
    raise typer.Exit(probes.answer("drain"))


def main() -> None:
    """Console script: one sentence and exit code 2 for a problem that the operator can solve."""
    try:
        sys.exit(app(standalone_mode=False))
    except NightshiftError as error:
        print(f"nightshift-worker: {error}", file=sys.stderr)
        sys.exit(ExitCode.REFUSED)
    except (typer.Exit, typer.Abort) as leaving:
        sys.exit(getattr(leaving, "exit_code", ExitCode.CRASHED))
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()
            os._exit(ExitCode.REFUSED)
        raise


if __name__ == "__main__":
    main()
