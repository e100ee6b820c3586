"""The start of a child: its command line, its environment, its end of the channel."""

import json
import sys
import uuid
from dataclasses import asdict
from pathlib import Path

import structlog

from nightshift.common import logs
from nightshift.common.ledger.fleet.slots import Machine
from nightshift.common.ledger.jobs.jobs import Job
from nightshift.common.processes.process_group import ProcessGroup
from nightshift.common.settings import Settings, child_environment
from nightshift.worker.supervisor.channel import ToChild
from nightshift.worker.supervisor.children import ChildConfig, Slot, secrets_for
from nightshift.worker.telemetry.machine import FOLDERS_VARIABLE, MachineMetrics

log = structlog.get_logger(__name__)

CHILD_MODULE = "nightshift.worker.child"


def start(
    slot: Slot,
    machine: Machine,
    job: Job,
    engine_key: str,
    settings: Settings,
    metrics: MachineMetrics,
    profile: Path | None,
) -> None:
    """Starts a child in a free slot, which loads the engine of the job."""
    own, without = secrets_for(job.spec.engine, settings)
    identity = f"w-{uuid.uuid4().hex[:12]}"
    counts = metrics.child_starts(identity, slot.number)
    slot.channel, childs_end = ToChild.pair()
    config = ChildConfig(
        id=identity,
        supervisor=machine.supervisor,
        pool=machine.pool,
        slot=slot.number,
        host=machine.host,
        pid=0,
        engine_key=engine_key,
        job_id=job.id,
        channel=childs_end.fileno(),
        profile=None if profile is None else str(profile),
        metrics=counts.get(FOLDERS_VARIABLE),
    )
    extra = {"VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", **counts}
    unless_given = {}
    if own.log_format == "json":
        extra |= logs.NO_BARS
        unless_given = logs.JSON_OF_VLLM
    if slot.gpus:
        extra["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    environment = child_environment(own, unless_given, without, **extra)
    with childs_end:
        slot.group = ProcessGroup.start(
            [sys.executable, "-P", "-m", CHILD_MODULE, json.dumps(asdict(config))],
            env=environment,
            pass_fds=(config.channel,),
        )
    slot.config = config
    log.info(
        "child_started",
        worker_id=config.id,
        slot=slot.number,
        engine_key=engine_key,
        job_id=job.id,
        pid=slot.group.pid,
    )
