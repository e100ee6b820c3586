"""Catalogs of tables by their names: opened in bounded time, or refused in a sentence without a secret; what
their tables name is opened within the roots.
"""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.settings import Settings
from nightshift.producer.tables.catalogs import load_table, open_catalog
from tests.support.rest_catalog import TOKEN, RestCatalogServer

ROWS = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where tables lie."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", "rest"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, lake: Path) -> Iterator[Settings]:
    """An operator who has named one catalog `lake`, of each kind."""
    if request.param == "sqlite":
        uri = f"sqlite:///{tmp_path}/catalog.db"
        yield Settings(
            catalogs={"lake": {"type": "sql", "uri": uri, "warehouse": f"file://{lake}"}}
        )
        return
    with RestCatalogServer(tmp_path, f"file://{lake}").running() as server:
        yield Settings(catalogs={"lake": server.properties})


@pytest.fixture
def opened(settings: Settings) -> Iterator[Callable[[], Any]]:
    """Opens the catalog, as often as a test likes."""
    found = []

    def open_it() -> Any:
        found.append(open_catalog(settings, "lake"))
        return found[-1]

    yield open_it
    for catalog in found:
        catalog.close()


def refusal(catalogs: dict[str, Any], name: str = "lake") -> str:
    with pytest.raises(BadInput) as refused:
        open_catalog(Settings(catalogs=catalogs), name)
    return str(refused.value)


def test_a_table_is_made_filled_and_read_by_its_name(opened: Callable[[], Any]) -> None:
    catalog = opened()
    catalog.create_namespace("shop")
    assert load_table(catalog, "shop.reviews") is None
    catalog.create_table("shop.reviews", ROWS.schema).append(ROWS)
    table = load_table(opened(), "shop.reviews")
    assert table.scan().to_arrow().sort_by("id").to_pylist() == ROWS.to_pylist()


def test_a_table_that_is_made_in_a_transaction_is_there_after_its_commit(
    opened: Callable[[], Any],
) -> None:
    catalog = opened()
    catalog.create_namespace("shop")
    with catalog.create_table_transaction("shop.reviews", ROWS.schema) as transaction:
        assert load_table(catalog, "shop.reviews") is None
        transaction.append(ROWS)
    assert load_table(catalog, "shop.reviews").scan().count() == 3


def test_a_namespace_that_is_not_there_is_refused(opened: Callable[[], Any]) -> None:
    with pytest.raises(BadInput, match="catalog lake has no namespace shop"):
        load_table(opened(), "shop.reviews")


def test_a_commit_that_was_overtaken_stays_the_error_of_pyiceberg(
    opened: Callable[[], Any],
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    catalog = opened()
    catalog.create_namespace("shop")
    catalog.create_table("shop.reviews", ROWS.schema)
    first, second = load_table(catalog, "shop.reviews"), load_table(catalog, "shop.reviews")
    second.metadata.properties["commit.retry.num-retries"] = "0"
    first.append(ROWS)
    with pytest.raises(CommitFailedException):
        second.append(ROWS)
    assert load_table(catalog, "shop.reviews").scan().count() == 3


def test_a_name_that_the_operator_has_not_given_is_refused_with_those_that_there_are() -> None:
    assert (
        refusal({})
        == "there is no catalog lake: NIGHTSHIFT_CATALOGS names no catalog on this machine"
    )
    said = refusal({"sea": {"type": "sql"}, "pond": {"type": "sql"}})
    assert said == "there is no catalog lake: NIGHTSHIFT_CATALOGS names pond, sea"


def test_a_missing_driver_is_named_with_the_command_that_installs_it() -> None:
    said = refusal({"lake": {"type": "sql", "uri": "mysql+pymysql://somebody:passw0rd@nowhere/x"}})
    assert said == "catalog lake needs the package pymysql: pip install pymysql"


@pytest.mark.parametrize("kind", ["rest", "postgresql"])
@pytest.mark.parametrize("answers", [False, True], ids=["dead", "silent"])
def test_a_catalog_out_of_reach_is_a_sentence_without_secrets(kind: str, answers: bool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if answers:
            listener.listen(5)
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        said = refusal(
            {"lake": {"type": "rest", "uri": f"http://me:passw0rd@{place}", "token": "s3cret"}}
            if kind == "rest"
            else {"lake": {"type": "sql", "uri": f"postgresql+psycopg://me:passw0rd@{place}/x"}}
        )
    assert "catalog lake at " in said
    assert f"{place}" in said
    assert "cannot be reached: " in said
    assert "passw0rd" not in said
    assert "s3cret" not in said


def test_refused_credentials_are_a_sentence_without_them(tmp_path: Path, lake: Path) -> None:
    with RestCatalogServer(tmp_path, f"file://{lake}").running() as server:
        said = refusal({"lake": {**server.properties, "token": "another-token"}})
    assert said.endswith("refuses the credentials that NIGHTSHIFT_CATALOGS gives it")
    assert "another-token" not in said
    assert TOKEN not in said


def test_damaged_metadata_is_a_sentence(opened: Callable[[], Any]) -> None:
    catalog = opened()
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.reviews", ROWS.schema)
    Path(table.metadata_location.removeprefix("file://")).write_text("{")
    with pytest.raises(
        BadInput, match=r"the table shop\.reviews of catalog lake cannot be read|catalog lake at .*"
    ):
        load_table(catalog, "shop.reviews")


@pytest.fixture
def filled(opened: Callable[[], Any]) -> Any:
    """A catalog whose table `shop.reviews` has rows."""
    catalog = opened()
    catalog.create_namespace("shop")
    catalog.create_table("shop.reviews", ROWS.schema).append(ROWS)
    return catalog


def read(catalog: Any, roots: list[str]) -> Any:
    with storage.within(roots, storage.SETTING):
        table = load_table(catalog, "shop.reviews")
    # In threads of pyiceberg, after the walls of this one have gone: those of the table stay.
    return table.scan().to_arrow()


def file_of(catalog: Any, kind: str) -> Path:
    """A file of the table of each kind that pyiceberg opens."""
    table = load_table(catalog, "shop.reviews")
    snapshot = table.current_snapshot()
    found = {
        "metadata": table.metadata_location,
        "manifest_list": snapshot.manifest_list,
        "manifest": snapshot.manifests(table.io)[0].manifest_path,
        "data": next(iter(table.scan().plan_files())).file.file_path,
    }
    return Path(found[kind].removeprefix("file://"))


# A REST catalog reads the metadata file itself.
@pytest.mark.parametrize(
    ("settings", "kind"),
    [(each, kind) for each in ("sqlite", "rest") for kind in ("data", "manifest", "manifest_list")]
    + [("sqlite", "metadata")],
    indirect=["settings"],
)
def test_a_link_that_leads_out_of_the_roots_is_refused_whichever_file_it_stands_for(
    filled: Any, kind: str, lake: Path, tmp_path: Path
) -> None:
    assert len(read(filled, [str(lake)])) == 3
    inside, outside = file_of(filled, kind), tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(BadInput, match="is outside the folders that NIGHTSHIFT_ALLOWED_ROOTS"):
        read(filled, [str(lake)])


def test_a_data_file_that_the_metadata_names_outside_the_roots_is_refused(
    filled: Any, lake: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    pq.write_table(ROWS, tmp_path / "elsewhere.parquet")
    table = load_table(filled, "shop.reviews")
    table.add_files([f"file://{tmp_path}/elsewhere.parquet"])
    assert len(read(filled, [str(tmp_path)])) == 6
    with pytest.raises(BadInput, match="is outside the folders that NIGHTSHIFT_ALLOWED_ROOTS"):
        read(filled, [str(lake)])


def test_a_table_cannot_name_another_class_that_opens_its_files(
    filled: Any, lake: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    pq.write_table(ROWS, tmp_path / "elsewhere.parquet")
    table = load_table(filled, "shop.reviews")
    with table.transaction() as transaction:
        transaction.set_properties({"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
        transaction.add_files([f"file://{tmp_path}/elsewhere.parquet"])
    with pytest.raises(BadInput, match="is outside the folders that NIGHTSHIFT_ALLOWED_ROOTS"):
        read(filled, [str(lake)])
