"""Fleets in one state each, as rows of a ledger: machines that work, jobs in every state, and one job that needs a
person.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nightshift.common.states import RowErrorKind
from tests.support.world import World

MODEL = "Qwen/Qwen3-0.6B"

ALIVE = "now() + interval '1 day'"
"""Nobody writes signs of life here: machines stay alive for the length of a test."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The job that needs a person, a part of the reason, and the button that mends it, with what somebody has `typed`
    before; `mended` is a question that has an answer once the button was pressed.
    """

    job: int
    name: str
    why: str
    button: str
    mended: str
    typed: str = ""


def reaper(world: World) -> None:
    """A reaper that was seen a moment ago, for as long as a test lasts."""
    world.do(
        f"INSERT INTO reapers (name, host, code_version, seen_at) VALUES ('r-1', 'head-1', 'x', {ALIVE})"
    )


def machine(
    world: World, host: str, job: int, pool: str = "default", slots: int = 2, state: str = "ready"
) -> None:
    """A machine whose slots have the engine of a job, or none with the state free."""
    for number in range(slots):
        has = None if state == "free" else world.specs[job].engine_key
        world.do(
            "INSERT INTO slots (supervisor, slot, host, pool, gpus, state, engine_key, worker_id, refused, "
            f"seen_at, gpu_figures) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, '{{}}', {ALIVE}, %s)",
            *(f"s-{host}", number, host, pool, str(number), state, has),
            None if state == "free" else f"{host}/{number}",
            f'[{{"gpu": "{number}", "busy": 0.93, "memory_used": 61203283968, "memory_total": 85899345920}}]',
        )
        if has is not None:
            world.do(
                "INSERT INTO workers (id, supervisor, pool, slot, host, pid, engine_key, engine, engine_version, "
                "state, window_rows, started_at, ready_at, seen_at) VALUES "
                "(%s, %s, %s, %s, %s, 1, %s, 'vllm', '0.32.0', 'ready', 256, "
                f"now() - interval '3 hours', now() - interval '178 minutes', {ALIVE})",
                *(f"{host}/{number}", f"s-{host}", pool, number, host, has),
            )


def job(world: World, name: str, batches: int = 40, pool: str = "default", **sections: Any) -> int:
    """A job of a model, of batches of 250 rows."""
    task = {"kind": "generate", "prompt": "Is this friendly? {{ text }}"}
    engine = {"backend": "vllm", "model": MODEL}
    return world.job(
        *[250] * batches,
        **{"name": name, "task": task, "engine": engine, "pool": pool, "tenant": "acme"} | sections,
    )


def work(world: World, job_id: int, owners: list[str], done: int, errors: int = 0) -> None:
    """Some batches are done, one after the other up to now, and each owner holds one."""
    minutes = 8 * -(-done // len(owners))
    world.admit(job_id)
    leases = [
        world.claim(job_id, owner=owners[number % len(owners)], most=1, seconds=86_400)[0]
        for number in range(done + len(owners))
    ]
    for number, lease in enumerate(leases[:done]):
        first = 250 * number
        failed = {first + row: RowErrorKind.INVALID_OUTPUT for row in range(errors)}
        world.commit(lease, failed)
    # Each owner works its batches off one after the other, 8 minutes each, up to now.
    world.do(
        "UPDATE attempts a SET ended_at = now() - make_interval(mins => %s - 8 * (b.seq / %s) + b.seq %% 3), "
        "claimed_at = now() - make_interval(mins => %s - 8 * (b.seq / %s) + 7 - b.seq %% 2) "
        "FROM batches b WHERE b.id = a.batch_id AND a.job_id = %s AND a.ended_at IS NOT NULL",
        *(minutes - 8, len(owners), minutes - 8, len(owners), job_id),
    )
    world.do(
        "UPDATE attempts SET claimed_at = now() - interval '1 minute' WHERE job_id = %s AND ended_at IS NULL",
        job_id,
    )
    world.do(
        "UPDATE jobs SET started_at = now() - make_interval(mins => %s), "
        "created_at = now() - make_interval(mins => %s) WHERE id = %s",
        *(minutes + 3, minutes + 4, job_id),
    )


def life(world: World, job_id: int) -> None:
    """Tokens of each lease that ended, and bytes of each part."""
    world.do(
        "UPDATE attempts SET prompt_tokens = 210 * row_count, output_tokens = 120 * row_count "
        "WHERE job_id = %s AND ended_at IS NOT NULL",
        job_id,
    )
    world.do(
        "INSERT INTO job_counters SELECT job_id, 0, 0, 0, 0, 0, 0, 0, 0, 210 * sum(rows_done + rows_failed) "
        "- sum(prompt_tokens), 120 * sum(rows_done + rows_failed) - sum(output_tokens) "
        "FROM job_counters WHERE job_id = %s GROUP BY job_id",
        job_id,
    )
    world.do(
        "UPDATE batches SET part_bytes = 400 * row_count WHERE job_id = %s AND state = 'done'",
        job_id,
    )


def over(world: World, name: str, state: str = "completed", reason: str | None = None) -> int:
    """A job that ended an hour ago."""
    job_id = job(world, name, 4)
    work(world, job_id, ["gone/0"], 3, errors=0 if state == "completed" else 40)
    (last,) = world.ask(
        "SELECT id, attempt FROM batches WHERE job_id = %s AND state = 'leased'", job_id
    )
    lease = world.ask("SELECT * FROM batches WHERE id = %s", last.id)[0]
    world.do(
        "UPDATE batches SET state = 'done', part_name = 'p-last', part_bytes = 10, part_checksum = 's', "
        "lease_expires_at = NULL WHERE id = %s",
        lease.id,
    )
    world.do("UPDATE attempts SET ended_at = now(), outcome = 'done' WHERE batch_id = %s", last.id)
    world.do(
        "UPDATE jobs SET state = %s, reason = %s, finished_at = now() - interval '1 hour', "
        "closed_at = now() - interval '1 hour', worked_seconds = 480, "
        "started_at = now() - interval '70 minutes' WHERE id = %s",
        *(state, reason, job_id),
    )
    return job_id


def an_hour_later(world: World) -> None:
    """Jobs have their states, and hosts are cordoned, for an hour longer than the rows say."""
    world.do("UPDATE jobs SET state_since = state_since - interval '1 hour'")
    world.do("UPDATE cordons SET since = since - interval '1 hour'")


def _usual(world: World) -> int:
    """A fleet in which everything goes well: one job at work on two machines, one done, one cancelled."""
    reaper(world)
    over(world, "labels-of-june")
    over(world, "trial-of-a-prompt", "cancelled")
    # Queued batches of one engine are claimed whatever their job: this job has an engine of its own.
    busy = job(world, "reviews-of-july", 60, engine={"backend": "vllm", "model": "Qwen/Qwen3-32B"})
    machine(world, "gpu-1", busy)
    machine(world, "gpu-2", busy)
    work(world, busy, ["gpu-1/0", "gpu-1/1", "gpu-2/0", "gpu-2/1"], 32)
    return busy


def without_worker(world: World) -> Staged:
    """A job waits in a pool that has no worker; another pool has machines."""
    _usual(world)
    found = job(world, "nightly-embeddings", 20, "a100")
    job(world, "summaries-of-august", 8)
    an_hour_later(world)
    return Staged(
        found,
        "nightly-embeddings",
        "no worker of the pool a100 is alive",
        "default",
        f"SELECT FROM jobs WHERE id = {found} AND pool = 'default'",
    )


def failed(world: World) -> Staged:
    """A job failed since too many rows did."""
    why = "120 of 1,000 rows failed, more than limits.max_failed_fraction 0.05"
    _usual(world)
    found = over(world, "extract-invoices", "failed", why)
    job(world, "summaries-of-august", 8)
    an_hour_later(world)
    return Staged(
        found,
        "extract-invoices",
        "120 of 1,000 rows failed",
        "again",
        f"SELECT FROM jobs WHERE id = {found} AND state = 'running'",
    )


def engine_does_not_load(world: World) -> Staged:
    """No machine can load the engine of a job."""
    _usual(world)
    found = job(
        world,
        "translate-manuals",
        20,
        "big",
        engine={"backend": "vllm", "model": "/models/Big-70B"},
    )
    for host in ("gpu-8", "gpu-9"):
        machine(world, host, found, "big", state="free")
        world.do(
            "INSERT INTO refusals (supervisor, host, failures, pool, engine_key, error, public_error, retry_at) VALUES "
            "(%s, %s, 3, 'big', %s, %s, 'no space left on device', now() + interval '1 day')",
            *(f"s-{host}", host, world.specs[found].engine_key),
            "no space left on device: /models/cache is full",
        )
    an_hour_later(world)
    return Staged(
        found,
        "translate-manuals",
        "could not be loaded",
        "Try again now",
        "SELECT WHERE NOT EXISTS (SELECT FROM refusals)",
    )


def out_of_budget(world: World) -> Staged:
    """A job has spent its budget and is paused."""
    _usual(world)
    engine = {"backend": "vllm", "model": MODEL, "price_per_hour": 4.0}
    found = job(world, "catalogue-in-french", 30, engine=engine, limits={"budget": 25})
    world.admit(found)
    for lease in world.claim(found, owner="gone/1", most=9, seconds=86_400):
        world.commit(lease)
    world.do(
        "INSERT INTO job_spending (job_id, worker_id, engine_microseconds, rows_run, prompt_tokens, output_tokens) "
        "VALUES (%s, 'gone/1', 22320000000, 2250, 472500, 270000)",
        found,
    )
    why = "24.80 is spent and about 0.31 under way, which reaches limits.budget 25.00"
    world.do("UPDATE jobs SET state = 'paused', reason = %s WHERE id = %s", why, found)
    an_hour_later(world)
    return Staged(
        found,
        "catalogue-in-french",
        "limits.budget",
        "Resume",
        f"SELECT FROM jobs WHERE id = {found} AND state = 'running' AND (spec #>> '{{limits,budget}}')::numeric = 60",
        "60",
    )


def cordoned(world: World) -> Staged:
    """Every machine of a pool was cordoned and not given back."""
    _usual(world)
    found = job(world, "moderate-comments", 20, "edge")
    for host in ("edge-1", "edge-2"):
        machine(world, host, found, "edge")
        world.do("INSERT INTO cordons (kind, name, drains) VALUES ('host', %s, false)", host)
    an_hour_later(world)
    return Staged(
        found,
        "moderate-comments",
        "cordoned",
        "Uncordon edge-1",
        "SELECT WHERE NOT EXISTS (SELECT FROM cordons WHERE name = 'edge-1')",
    )


FLEETS: dict[str, Callable[[World], Staged]] = {
    "no worker": without_worker,
    "failed": failed,
    "load failed": engine_does_not_load,
    "budget": out_of_budget,
    "cordoned": cordoned,
}
"""Five fleets by what is wrong."""
