"""Validating: the file of a batch is read, and the batch becomes a job or fails."""

from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from nightshift.common.errors import BadInput, LeaseLost, Retryable
from nightshift.common.formats import streams
from nightshift.common.formats.jsonl.lines import MOST_LINE_BYTES
from nightshift.common.ledger import Connection, Ledger, audit_log
from nightshift.common.ledger.connection import Actor
from nightshift.common.ledger.holds import Hold
from nightshift.common.public_text import marked
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, OpenaiEngineSpec, parse_spec
from nightshift.common.text import counted
from nightshift.producer.reaper.renewed_hold import Renewed, renewed
from nightshift.producer.serve import model_table, store_layout
from nightshift.producer.serve.api_batches.batch_file import (
    FileFacts,
    Limits,
    Problem,
    read,
)
from nightshift.producer.serve.ledger import (
    api_batch_steps,
    files,
    quotas,
    tenants,
)
from nightshift.producer.serve.ledger.api_batches import ApiBatch
from nightshift.producer.serve.ledger.files import File
from nightshift.producer.serve.model_table import ModelTable, ServedModel
from nightshift.producer.serve.tenants import limits as tenant_limits
from nightshift.producer.submit.intake import Asked
from nightshift.producer.submit.submit import submit

log = structlog.get_logger(__name__)

LINES_A_CHECK = 20_000
"""Lines between two checks that the reaper still holds the batch."""


def validate_once(ledger: Ledger, settings: Settings, who: str) -> bool:
    """Validates the oldest batch that nobody validates; False where there is none.

    Raises Retryable on outages: the batch is taken again when its time is over.
    """
    with ledger.transaction() as connection:
        taken = api_batch_steps.take_validating(connection, who)
        if taken is None:
            return False
        batch, hold = taken
        file = files.get(connection, batch.tenant, batch.input_file_id)
    try:
        with renewed(ledger, hold) as work:
            problem = _validate(ledger, settings, batch, file, work)
    except LeaseLost as lost:
        log.info("batch_left", batch=batch.id, why=str(lost))
        return True
    except Retryable:
        raise
    except QuotaExceeded as error:
        problem = [error.problem.as_json]
    except BadInput as error:
        log.info("batch_invalid", batch=batch.id, error=str(error))
        problem = [Problem("invalid_request", error.public_message()).as_json]
    except Exception:
        log.exception("batch_crashed", batch=batch.id)
        problem = [Problem("server_error", "the server failed; its log says why").as_json]
    if problem:
        with ledger.transaction() as connection:
            api_batch_steps.refuse(connection, hold, problem)
        log.info("batch_refused", batch=batch.id, why=problem[0]["message"])
    return True


def _validate(
    ledger: Ledger, settings: Settings, batch: ApiBatch, file: File | None, work: Renewed
) -> list[dict[str, Any]]:
    """Makes the job of a batch; returns what is wrong with it otherwise."""
    if file is None:
        return [Problem("invalid_input_file", "the file is gone").as_json]
    limits = Limits(
        settings.serve_max_requests,
        settings.serve_max_batch_bytes,
        settings.serve_max_embedding_inputs,
    )
    if file.bytes > limits.bytes:
        message = f"the file has {counted(file.bytes, 'byte')}, and {limits.bytes:,} are allowed"
        return [Problem("file_too_large", message).as_json]
    if not file.bytes:
        return [Problem("empty_file", "the file is empty").as_json]
    skip = batch.options.get("on_bad_line") == "skip"
    facts = read(
        lambda: _lines(file.uri, work),
        batch.endpoint,
        limits,
        skip=skip,
        own_name=_table(settings).own_name,
    )
    if facts.problems:
        return facts.errors
    assert facts.model is not None
    found = _table(settings).find(facts.model)
    if found is None:
        message = f"unknown model {facts.model[:100]!r}"
        return [Problem("model_not_found", message, facts.model_line, "body.model").as_json]
    spec = _spec(settings, batch, file, found[1], facts.skipped if skip else None)
    with ledger.transaction() as connection:
        tenant = tenants.get(connection, batch.tenant)
    if tenant is not None and (why := tenant_limits.place_refusal(tenant, spec)):
        return [Problem("not_allowed", why).as_json]
    work.check()
    return _begin(ledger, settings, work.hold, batch, spec, facts)


def _table(settings: Settings) -> ModelTable:
    """The operator's table of models; Retryable while it cannot be used: no client can repair it."""
    try:
        return model_table.load(settings.serve_models)
    except BadInput as error:
        raise Retryable(f"no batch can be validated: {marked(error)}") from error


def _begin(
    ledger: Ledger, settings: Settings, hold: Hold, batch: ApiBatch, spec: JobSpec, facts: FileFacts
) -> list[dict[str, Any]]:
    assert facts.model is not None
    model = facts.model

    def within(connection: Connection, job_id: int) -> None:
        tenants.lock(connection, batch.tenant)
        _check_quota(connection, batch.tenant, facts, job_id)
        begun = api_batch_steps.begin(
            connection,
            hold,
            job_id=job_id,
            model=model,
            rows=facts.rows,
            tokens=facts.tokens,
        )
        if not begun:
            raise LeaseLost(f"the batch {batch.id} is not validating any more")

    # Whoever asked for the batch has asked for the job, and this reaper has not.
    who_asked = audit_log.of_key(batch.created_by or "nobody", batch.tenant)
    own = ledger.acting(Actor(who_asked, batch.created_from))
    done = submit(own, spec, settings, Asked(tenant=batch.tenant, within=within))
    log.info("batch_begun", batch=batch.id, job_id=done.job_id, rows=done.rows)
    return []


def _check_quota(connection: Connection, tenant_name: str, facts: FileFacts, job_id: int) -> None:
    """QuotaExceeded where the batch is more than its tenant may have; the tenant's row is locked."""
    tenant = tenants.get(connection, tenant_name)
    assert tenant is not None
    why = tenant_limits.quota_refusal(
        tenant,
        quotas.reserved(connection, tenant_name, besides=job_id),
        (facts.rows, facts.tokens),
    )
    if why is not None:
        raise QuotaExceeded(Problem("token_limit_exceeded", why))


class QuotaExceeded(BadInput):
    """A batch that its tenant may not have now."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _spec(
    settings: Settings,
    batch: ApiBatch,
    file: File,
    model: ServedModel,
    skipped: Mapping[int, str] | None,
) -> JobSpec:
    options = batch.options
    return parse_spec(
        {
            "name": batch.id,
            "pool": model.pool,
            "priority": options.get("priority", 0),
            "input": {"uri": file.uri, "format": "openai"},
            "task": {
                "kind": "requests",
                "endpoint": batch.endpoint,
                **_model(model),
                **({} if skipped is None else {"skipped_rows": dict(skipped)}),
            },
            "engine": model.engine.model_dump(mode="json", exclude_unset=True),
            "output": {"uri": store_layout.output(settings, batch.tenant, batch.id)},
            # Sorting takes memory and disk, which reapers have little of.
            "batch": {"arrange": "none"},
            "limits": {
                # All rows may fail: the batch is completed, and says so line by line.
                "max_failed_fraction": 1,
                "finish_by": options.get("finish_by") or batch.expires_at.isoformat(),
                **({"budget": options["budget"]} if "budget" in options else {}),
            },
        },
        f"the batch {batch.id}",
    )


def _model(model: ServedModel) -> dict[str, str]:
    """Return the source of the model of a batch's requests. An engine of our own has one model, whatever the
    requests call it.
    """
    return {"model_from": "engine"} if isinstance(model.engine, OpenaiEngineSpec) else {}


def _lines(uri: str, work: Renewed) -> Iterator[tuple[int, bytes]]:
    for number, text in enumerate(streams.lines(uri, MOST_LINE_BYTES), 1):
        if number % LINES_A_CHECK == 0:
            work.check()
        yield number, text
