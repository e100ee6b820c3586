"""The naive loop's queue, as its worker and its sender know it. Needs no vllm."""

from celery import Celery

from benchmarks.engine.contender import Workload

QUEUE = "naive"
TASK = "naive.batch"
WARM, DONE, ENGINE = "warm", "done.jsonl", "engine.json"


def make_app(broker_url: str) -> Celery:
    """Plain Celery, as its first steps show it."""
    app = Celery("naive", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    return app


def send(app: Celery, workload: Workload) -> int:
    """One message a batch; returns how many."""
    firsts = range(0, workload.rows, workload.batch)
    for first in firsts:
        app.send_task(TASK, (workload.path, first, workload.batch), queue=QUEUE)
    return len(firsts)
