"""Requests that no route fits: who is shown a page, and what is said."""

import pytest

from nightshift.producer.serve.strays import sentence, wants_page

BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize(
    ("path", "accept", "page"),
    [
        ("/nowhere", BROWSER, True),
        ("/v1x", BROWSER, True),
        ("/nowhere", "*/*", False),
        ("/nowhere", "application/json", False),
        ("/nowhere", "", False),
        ("/v1/nowhere", BROWSER, False),
        ("/v1", BROWSER, False),
        ("/api/jobs", BROWSER, False),
    ],
)
def test_a_browser_is_shown_a_page_outside_of_the_api(path: str, accept: str, page: bool) -> None:
    assert wants_page(path, accept) == page


@pytest.mark.parametrize(
    ("status", "path", "said"),
    [
        (404, "/v1/chat/completions", "answers /v1/chat/completions in batches alone"),
        (404, "/v1/responses", "answers /v1/responses in batches alone"),
        (404, "/v1/embeddings", "answers /v1/embeddings in batches alone"),
        (404, "/v1/completions", "answers /v1/completions in batches alone"),
        (404, "/chat/completions", "answers /v1/chat/completions in batches alone"),
        (404, "/v1/moderations", "POST /v1/files"),
        (404, "/v1/responses/resp_1", "POST /v1/files"),
        (405, "/v1/files", "does not take that method"),
        (405, "/files", "the OpenAI API is below /v1"),
        (404, "/api/nowhere", "there is no such address"),
        (404, "/nowhere", "the OpenAI API is below /v1"),
    ],
)
def test_a_program_is_told_where_it_is_answered(status: int, path: str, said: str) -> None:
    assert said in (sentence(status, path) or "")
