"""Where results lie whose user names no folder, in cases that have a name."""

from collections.abc import Sequence

import pytest

from nightshift.producer.serve.output_folders import candidates

STORE = "/store/"

CASES: dict[str, tuple[Sequence[str], Sequence[str] | None, str | None, list[str]]] = {
    "an upload": (["/store/acme/inputs/a.csv"], ["/data"], STORE, ["/store/acme/outputs"]),
    "results": (["/store/acme/outputs/a-1/*"], ["/data"], STORE, ["/store/acme/outputs"]),
    "an upload of an operator": (
        ["/store/acme/inputs/a.csv"],
        None,
        STORE,
        ["/store/acme/outputs"],
    ),
    "a tenant with roots": (
        ["/data/in/*.csv"],
        ["/data/", "/more"],
        STORE,
        ["/data/outputs", "/store/acme/outputs"],
    ),
    "roots and no store": (["/data/in/*.csv"], ["s3://acme/x"], None, ["s3://acme/x/outputs"]),
    "neither": (["/data/in/*.csv"], [], None, []),
    "the uploads of another": (["/store/bee/inputs/a"], ["/d"], None, ["/d/outputs"]),
    "an operator with a store": (
        ["/data/in/*.csv"],
        None,
        STORE,
        ["/store/acme/outputs", "/data"],
    ),
    "beside a folder": (["/data/in/"], None, None, ["/data"]),
    "beside a file": (["/data/in/a.csv"], None, None, ["/data/in"]),
    "beside a file of a mount": (["/data/a.csv"], None, None, ["/data"]),
    "beside files of a mount": (["/data/*.csv"], None, None, ["/data"]),
    "beside a file of the root": (["/a.csv"], None, None, []),
    "beside all files": (["/*.csv"], None, None, []),
    "in a bucket": (["s3://bucket/in/*.csv", "/data"], None, None, ["s3://bucket"]),
    "beside files of a bucket": (["s3://bucket/*.csv"], None, None, ["s3://bucket"]),
    "beside a deep folder of a bucket": (["gs://b/x/y/z"], None, None, ["gs://b/x/y"]),
    "a table of a catalog": ([], None, None, []),
}


@pytest.mark.parametrize(("places", "roots", "store", "folders"), CASES.values(), ids=CASES)
def test_the_folders_for_results(
    places: Sequence[str], roots: Sequence[str] | None, store: str | None, folders: list[str]
) -> None:
    assert candidates(places, roots=roots, store=store, tenant="acme") == folders
