"""Who looks at a page: by the cookie of a session, else as any request of the HTTP API.

The cookie holds the key itself, which scripts cannot read and other sites cannot send. So a session ends
with its key, whichever server is asked, and no server keeps a list of sessions.
"""

import secrets
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from nightshift.common.ledger import audit_log
from nightshift.producer.serve import access
from nightshift.producer.serve.calls import CALLER, Context
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.ledger.keys import Caller

COOKIE = "nightshift_key"

SESSION_SECONDS = 12 * 3600


class Session:
    """The one person at this machine who has followed the link that a command printed. The link opens
    the pages once; from then on the cookie does.
    """

    def __init__(self) -> None:
        self.ticket = secrets.token_urlsafe(24)
        self._secret = secrets.token_urlsafe(32)
        # Browsers send a cookie to every port of a host: two commands need two names.
        self.cookie = f"{COOKIE}_{secrets.token_hex(4)}"
        self._used = threading.Lock()

    def enter(self, ticket: str) -> str | None:
        """The value of the cookie, for the browser that comes first with the ticket; None for all others."""
        fits = secrets.compare_digest(ticket.encode(), self.ticket.encode())
        return self._secret if fits and self._used.acquire(blocking=False) else None

    def knows(self, cookie: str | None) -> bool:
        """Whether a cookie is the one that `enter` gave."""
        return secrets.compare_digest((cookie or "").encode(), self._secret.encode())


@dataclass(frozen=True, slots=True)
class Looker:
    """The user of a browser; `scope` is the tenant whose jobs are seen, None for every job."""

    caller: Caller
    host: str

    @property
    def scope(self) -> str | None:
        """The tenant that bounds what is seen; None for an operator."""
        return None if self.sees_all else self.caller.tenant

    @property
    def sees_all(self) -> bool:
        """Whether machines and other tenants are seen, too."""
        return self.caller.role == "operator"

    @property
    def acts(self) -> bool:
        """Whether buttons are shown, and work."""
        return self.caller.role != "viewer"

    @property
    def who(self) -> str:
        """The caller as the audit log names it."""
        return audit_log.of_key(self.caller.name, self.caller.tenant)


def looker(request: Request) -> Looker:
    """Who asks for a page; ApiError 401 where nothing says so. Asks the ledger."""
    context: Context = request.app.state.context
    host = request.client.host if request.client else ""
    session: Session | None = request.app.state.session
    if session is not None:
        if not session.knows(request.cookies.get(session.cookie)):
            raise ApiError(401, "the link that the command has printed opens this page")
        return _known(request, Looker(Caller(access.LOCAL_TENANT, "operator", "local"), host))
    key = request.cookies.get(COOKIE)
    found = access.caller(request, context.ledger, context.settings, key=key)
    return _known(request, Looker(found, host))


def _known(request: Request, found: Looker) -> Looker:
    setattr(request.state, CALLER, found.caller)
    return found


def refuse_foreign(request: Request) -> None:
    """ApiError 403 for a change that no page of this server has asked for.

    Browsers name the site of each form in Origin, or in Referer; what names none is no browser's form.
    """
    said = request.headers.get("origin") or request.headers.get("referer") or ""
    if urlsplit(said).netloc != request.headers.get("host", "") or not said:
        raise ApiError(403, "the change does not come from a page of this server", code="forbidden")
