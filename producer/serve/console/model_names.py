"""The names of the models that engines have: by the jobs of the ledger, and by the operator's table of models."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping

from nightshift.common.ledger import Connection
from nightshift.common.ledger.queries import job_facts
from nightshift.producer.serve.console.wording import model_name
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.model_table import ModelTable

MOST_KNOWN = 10_000

AGAIN_SECONDS = 30.0
"""After this time the table is read again, and the ledger asked again for engines that it did not know."""

Asked = tuple[str | None, float]
"""The model of an engine, None where the ledger knew none, and when it was asked."""

NEVER: Asked = None, -math.inf


class ModelNames:
    """What pages call the models of engines. An engine keeps its model, so the ledger is asked once for each.

    `table` reads the operator's table of models; None where there is none.
    """

    def __init__(self, table: Callable[[], ModelTable | None]) -> None:
        self._table = table
        self._aliases: Mapping[str, str] = {}
        self._read_at = -math.inf
        self._known: OrderedDict[tuple[str | None, str], Asked] = OrderedDict()

    def aliases(self) -> Mapping[str, str]:
        """The name in the operator's table of each model that has one there."""
        now = time.monotonic()
        if now - self._read_at >= AGAIN_SECONDS:
            self._read_at = now
            try:
                table = self._table()
            except ApiError:  # the names of before stay until the table can be read
                return self._aliases
            self._aliases = {} if table is None else aliases_of(table)
        return self._aliases

    def of(
        self, connection: Connection, keys: Collection[str], tenant: str | None
    ) -> dict[str, str]:
        """The names by engine key; of a tenant those of its own jobs, with None those of all."""
        now = time.monotonic()
        known = {key: self._known.get((tenant, key), NEVER) for key in keys}
        unknown = [
            key
            for key, (model, asked_at) in known.items()
            if model is None and now - asked_at >= AGAIN_SECONDS
        ]
        if unknown:
            found = job_facts.models(connection, unknown, tenant)
            for key in unknown:
                known[key] = self._known[tenant, key] = found.get(key), now
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        aliases = self.aliases()
        return {key: model_name(model, aliases) for key, (model, _) in known.items() if model}


def aliases_of(table: ModelTable) -> dict[str, str]:
    """The one name that the table has for a model; none for a model that stands there under several."""
    loads = {
        name: getattr(served.engine, "model", "") or getattr(served.engine, "callable", "")
        for name, served in table.models.items()
    }
    times = Counter(loads.values())
    return {model: name for name, model in loads.items() if model and times[model] == 1}
