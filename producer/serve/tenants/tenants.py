"""Keys and tenants of the HTTP API: made, revoked, changed; each change is a row of the audit log."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, get_args

from nightshift.common import storage
from nightshift.common.allocation.demand import MOST_PRIORITY
from nightshift.common.errors import BadInput
from nightshift.common.ledger import Ledger, audit_log
from nightshift.common.ledger.jobs import tenant_costs
from nightshift.common.public_text import marked
from nightshift.common.spec import finish_by, job
from nightshift.common.spec.changes import NONE
from nightshift.producer.control.answer import Answer, detail
from nightshift.producer.serve.ledger import keys, tenants
from nightshift.producer.serve.ledger.keys import Role
from nightshift.producer.serve.ledger.tenants import Tenant

LONGEST_NAME = 100
MOST_WEIGHT = 1000.0
LARGEST = 2**63 - 1

Value = str | bool | Sequence[str]
"""A value of a change as a user writes it; several for pools and roots."""


def create_key(
    ledger: Ledger, tenant: str, role: str, name: str, expires: str | None
) -> tuple[Answer, str]:
    """Makes a key, and the tenant if there is none of its name; returns the key beside the answer.

    `expires` is a date or a duration by the clock of this machine. BadInput for what a key cannot have.
    """
    known: tuple[Role, ...] = get_args(Role)
    found = next((each for each in known if each == role), None)
    if found is None:
        raise BadInput(f"--role {role!r} is not one of {', '.join(known)}")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadInput(f"--name has at most {LONGEST_NAME} letters in one line")
    ends = _moment(expires)
    with ledger.transaction() as connection:
        is_new = tenants.ensure(connection, tenant)
        number, text = keys.create(connection, tenant, name, found, ends)
        facts: dict[str, object] = {
            "id": number,
            "tenant": tenant,
            "role": role,
            "name": name,
        }
        facts["expires_at"] = None if ends is None else ends.isoformat()
        audit_log.record(connection, "key create", subject=f"key {number}", detail=facts)
    until = "" if ends is None else f" until {ends.isoformat(' ', 'minutes')}"
    then = f"{role} of the {'new ' if is_new else ''}tenant {tenant}{until}; kept as a hash only"
    return Answer("key create", f"key {number}", then=then, facts=facts), text


def revoke_key(ledger: Ledger, number: int) -> Answer:
    """A key that opens nothing any more. BadInput where there is none of this number."""
    with ledger.transaction() as connection:
        if number not in [row["id"] for row in keys.listed(connection)]:
            raise BadInput(f"there is no key {number}: `nightshift key list` shows them")
        revoked = keys.revoke(connection, number)
        if revoked:
            audit_log.record(connection, "key revoke", subject=f"key {number}")
    then = "revoked, it opens nothing any more" if revoked else "it was revoked before"
    return Answer("key revoke", f"key {number}", then=then)


def change(ledger: Ledger, name: str, wanted: Mapping[str, Value]) -> Answer:
    """Changes fields of a tenant, which is made if there is none of this name; `none` takes a limit
    away. A budget begins anew. BadInput for values that a tenant cannot have.
    """
    values = {field: READ[field](field, value) for field, value in wanted.items()}
    begins_anew = "budget" in values
    with ledger.transaction() as connection:
        is_new = tenants.ensure(connection, name)
        tenants.lock(connection, name)
        before = tenants.get(connection, name)
        assert before is not None
        after = replace(before, **values)
        changes = {
            field: (_shown(before, field), _shown(after, field))
            for field in values
            if getattr(before, field) != getattr(after, field)
        }
        tenants.change(connection, after)
        if begins_anew:
            tenant_costs.begin(connection, name)
        if changes or is_new or begins_anew:
            subject = f"tenant {name}"
            audit_log.record(connection, "tenant set", subject=subject, detail=detail(changes))
    said = ["a new tenant"] if is_new else []
    if begins_anew and after.budget is not None:
        said.append("what its jobs spend counts from now on")
    then = "; ".join(said) if said or changes else "nothing changed"
    return Answer("tenant set", f"tenant {name}", changes=changes, then=then)


def _shown(tenant: Tenant, field: str) -> object:
    """A value for people and for JSON."""
    value = getattr(tenant, field)
    if isinstance(value, tuple):
        return ", ".join(value) or None
    return float(value) if isinstance(value, Decimal) else value


def _moment(expires: str | None) -> datetime | None:
    if expires is None:
        return None
    try:
        return finish_by.moment(expires, datetime.now().astimezone())
    except ValueError as error:
        raise BadInput(f"--expires: {marked(error)}") from error


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _number(field: str, value: Value) -> Decimal:
    try:
        found = Decimal(str(value))
    except InvalidOperation as error:
        raise BadInput(f"{_option(field)} {value!r} is no number") from error
    if not math.isfinite(found):
        raise BadInput(f"{_option(field)} {value!r} is no number")
    return found


def _weight(field: str, value: Value) -> float:
    found = _number(field, value)
    if not 0 < found <= MOST_WEIGHT:
        raise BadInput(f"a weight is above 0 and at most {MOST_WEIGHT:g}, which {value} is not")
    return float(found)


def _priority(field: str, value: Value) -> int:
    found = _number(field, value)
    if found != int(found) or abs(found) > MOST_PRIORITY:
        raise BadInput(
            f"a priority is a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}, which {value} "
            "is not"
        )
    return int(found)


def _most(field: str, value: Value) -> int | None:
    if value == NONE:
        return None
    found = _number(field, value)
    if found != int(found) or not 0 <= found <= LARGEST:
        raise BadInput(f"{_option(field)} is a whole number from 0 on, which {value} is not")
    return int(found)


def _money(field: str, value: Value) -> Decimal | None:
    if value == NONE:
        return None
    found = _number(field, value)
    if found < 0:
        raise BadInput(f"a budget is an amount from 0 on, which {value} is not")
    return found


def _pools(_field: str, value: Value) -> tuple[str, ...] | None:
    assert isinstance(value, Sequence)
    if list(value) == [NONE]:
        return None
    for name in value:
        if not re.fullmatch(job.NAME, name):
            raise BadInput(f"--pool {name[:100]!r} is not a valid name of a pool")
    return tuple(dict.fromkeys(value))


def _roots(_field: str, value: Value) -> tuple[str, ...]:
    assert isinstance(value, Sequence)
    return () if list(value) == [NONE] else tuple(dict.fromkeys(map(storage.resolve, value)))


def _flag(_field: str, value: Value) -> bool:
    return bool(value)


READ: Mapping[str, Callable[[str, Value], Any]] = {
    "weight": _weight,
    "max_priority": _priority,
    "pools": _pools,
    "max_rows": _most,
    "max_tokens": _most,
    "max_files": _most,
    "max_bytes": _most,
    "budget": _money,
    "roots": _roots,
    "callables": _flag,
    "remotes": _flag,
}
"""How a value of each field is read; BadInput for one that a tenant cannot have."""
