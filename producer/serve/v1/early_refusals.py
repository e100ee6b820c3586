"""What is wrong with a batch before anybody has read its file: refused at its create, and told by a reaper else.

The model stands in the file. So the create looks at the first line, and goes on without it where the store
takes long.
"""

import codecs
from concurrent.futures import ThreadPoolExecutor

from nightshift.common import storage
from nightshift.common.errors import NightshiftError
from nightshift.common.formats.jsonl.lines import is_blank, parse_line
from nightshift.producer.serve.calls import Call
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger import files, tenants
from nightshift.producer.serve.ledger.api_batches import NewApiBatch
from nightshift.producer.serve.ledger.files import File
from nightshift.producer.serve.ledger.tenants import Tenant
from nightshift.producer.serve.model_table import ModelTable
from nightshift.producer.serve.tenants import limits

LOOK_BYTES = 256 * 1024
"""A first line that is longer says its model to a reaper alone."""

LOOK_SECONDS = 2.0
"""How long a create waits for the store: clients send a create again that takes long."""

LOOKS = ThreadPoolExecutor(8, thread_name_prefix="first-line")
"""Threads that read first lines; a store that stalls holds up no others."""


def refusal(call: Call, new: NewApiBatch) -> ApiError | None:
    """Why the batch can never run as it is asked for; None where nothing says so yet. Reads the ledger, the
    table of models and the beginning of the file.
    """
    with call.ledger.transaction() as connection:
        tenant = tenants.get(connection, new.tenant)
        file = files.get(connection, new.tenant, new.input_file_id)
    if file is None:
        return None
    priority = new.options.get("priority", 0)
    if tenant is not None and (why := limits.priority_refusal(tenant, priority)):
        return ApiError(400, why, param="nightshift.priority", code="not_allowed")
    if new.options.get("on_bad_line") == "skip":
        return None  # the first line may be a bad one, which is skipped
    try:
        table = call.context.models()
    except ApiError:
        return None  # the batch waits until the operator has repaired the table
    model = first_model(file)
    return None if model is None else model_refusal(table, tenant, model, new)


def model_refusal(
    table: ModelTable, tenant: Tenant | None, model: str, new: NewApiBatch
) -> ApiError | None:
    """Why a batch for this `model` can never run. Whether a worker lives is none of the reasons. Pure."""
    found = table.find(model)
    if found is None:
        message = f"unknown model {model[:100]!r}; GET /v1/models lists the known models"
        return ApiError(400, message, param="body.model", code="model_not_found")
    served = found[1]
    if tenant is not None and (why := limits.pool_refusal(tenant, served.pool)):
        return ApiError(400, why, param="body.model", code="not_allowed")
    if new.options.get("budget") is not None and not served.engine.has_price:
        said = f"the model {model[:100]!r} has no price, so that a batch of it can have no budget"
        return ApiError(400, said, param="nightshift.budget", code="invalid_value")
    return None


def first_model(file: File) -> str | None:
    """The model that the first line of a file asks for; None where that is not known soon."""
    look = LOOKS.submit(_first_line, file)
    try:
        body = parse_line(look.result(LOOK_SECONDS)).get("body")
    except (OSError, NightshiftError, ValueError):  # TimeoutError is an OSError
        look.cancel()
        return None
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) and model else None


def _first_line(file: File) -> bytes:
    """The first line that is a row; empty where the file has none within LOOK_BYTES."""
    size = min(file.bytes, LOOK_BYTES)
    text = storage.read_range(file.uri, 0, size).removeprefix(codecs.BOM_UTF8)
    lines = text.split(b"\n")
    if size < file.bytes:
        lines.pop()  # cut off
    return next((line for line in lines if line and not is_blank(line)), b"")
