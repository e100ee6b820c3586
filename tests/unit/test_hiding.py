"""Which answers paths of the server are taken out of: those that hold its sentences, and none that hold rows."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from nightshift.common.settings import load_settings
from nightshift.producer.serve.hiding import Hiding

SAYS = "the file /srv/shop/store/acme/part-1.parquet is gone"


@pytest.mark.parametrize(
    ("media_type", "is_hidden"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("text/html; charset=utf-8", True),
        ("text/event-stream", True),
        ("application/jsonl", False),
        ("application/x-ndjson", False),
        ("text/csv; charset=utf-8; header=present", False),
    ],
)
def test_paths_are_hidden_in_sentences_and_lines_of_results_stay_as_they_are(
    media_type: str, is_hidden: bool
) -> None:
    def answer(_request: Request) -> Response:
        return Response(SAYS, headers={"content-type": media_type})

    app = Starlette(routes=[Route("/", answer)])
    app.state.context = None
    hiding = Hiding(app, load_settings(serve_store="/srv/shop/store"))
    said = TestClient(hiding).get("/").text
    assert (said != SAYS) is is_hidden
    assert ("/srv/shop/store" in said) is not is_hidden
