"""In and out: the page that takes a key, and the files that pages are made with."""

from functools import partial

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from nightshift.producer.serve import access
from nightshift.producer.serve.calls import Context, body
from nightshift.producer.serve.console import render
from nightshift.producer.serve.console.page_calls import form_fields
from nightshift.producer.serve.console.session import (
    COOKIE,
    SESSION_SECONDS,
    Session,
    refuse_foreign,
)
from nightshift.producer.serve.errors import ApiError
from nightshift.producer.serve.slow import ENTRANCE

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


async def show_login(request: Request) -> Response:
    """Asks for a key."""
    return _login(request, "")


async def login(request: Request) -> Response:
    """Takes the key, if it opens something."""
    context: Context = request.app.state.context
    try:
        refuse_foreign(request)
        form = form_fields(await body(request))
        key, target = (form.get(name, [""])[0].strip() for name in ("key", "next"))
        ask = partial(access.caller, request, context.ledger, context.settings, key=key)
        await to_thread.run_sync(ask, limiter=ENTRANCE)
    except ApiError as error:
        return _login(request, str(error), error.status)
    return _opened(_own(target), COOKIE, key, request)


def _opened(target: str, cookie: str, value: str, request: Request) -> Response:
    answer = RedirectResponse(target, 303)
    answer.set_cookie(
        cookie,
        value,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=_is_https(request),
    )
    return answer


def _is_https(request: Request) -> bool:
    """Whether the browser came by HTTPS: behind a proxy that ends TLS only its Origin says so."""
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.startswith("https://")


async def enter(request: Request) -> Response:
    """Opens the pages for the browser that comes first with the link that a command printed."""
    session: Session | None = request.app.state.session
    if session is not None and (secret := session.enter(request.query_params.get("ticket", ""))):
        return _opened("/", session.cookie, secret, request)
    return _login(request, "This link was used, or is another command's.", 401)


async def logout(_request: Request) -> Response:
    """Forgets the key."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


async def static(request: Request) -> Response:
    """A file of the pages: a script, a style."""
    name = request.path_params["name"]
    file = render.STATIC / name
    kind = KINDS.get(name[name.rfind(".") :])
    if kind is None or not file.is_file():
        return Response(status_code=404)
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(file.read_bytes(), headers=headers, media_type=kind)


def _login(request: Request, why: str, status: int = 200) -> Response:
    target = _own(request.query_params.get("next", "/"))
    return render.page(
        "login.html",
        status,
        looker=None,
        path="",
        message=why or None,
        title="Key",
        target=target,
        by_link=request.app.state.session is not None,
    )


def _own(target: str) -> str:
    """An address of this server; "/" for any other."""
    is_own = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_own and target.isprintable() else "/"


ROUTES: list[Route] = [
    Route("/login", show_login, methods=["GET"]),
    Route("/login", login, methods=["POST"]),
    Route("/enter", enter, methods=["GET"]),
    Route("/logout", logout, methods=["POST"]),
    Route("/static/{name}", static, methods=["GET"]),
]
