"""Tables in an object store: both libraries reach it by what our own driver has."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.settings import Settings
from nightshift.producer.tables.catalogs import load_table, open_catalog
from nightshift.producer.tables.store_options import storage_options
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    import s3fs

ROWS = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})


def test_a_delta_table_is_written_and_read_in_a_store(
    store: ObjectStore, client: "s3fs.S3FileSystem", fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{fresh}/lake/reviews"
    options = storage_options(uri)
    for name in store.environment:
        monkeypatch.delenv(name)  # what the options say is enough
    write_deltalake(uri, ROWS, storage_options=options)
    write_deltalake(uri, ROWS, mode="append", storage_options=options)
    assert DeltaTable(uri, storage_options=options).version() == 1
    assert len(client.find(f"{fresh}/lake/reviews/_delta_log")) == 2


def test_an_iceberg_table_is_written_and_read_in_a_store(
    client: "s3fs.S3FileSystem", fresh: str, tmp_path: Path
) -> None:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{fresh}/lake",
    }
    catalog = open_catalog(Settings(catalogs={"lake": properties}), "lake")
    catalog.create_namespace("shop")
    catalog.create_table("shop.reviews", ROWS.schema).append(ROWS)
    assert load_table(catalog, "shop.reviews").scan().to_arrow().sort_by("id").to_pylist() == (
        ROWS.to_pylist()
    )
    assert client.find(f"{fresh}/lake")
    catalog.close()


def test_objects_outside_the_roots_are_refused_whichever_file_of_a_table_they_are(
    client: "s3fs.S3FileSystem", fresh: str, tmp_path: Path
) -> None:
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{fresh}/lake"}
    catalog = open_catalog(Settings(catalogs={"lake": {"type": "sql", **place}}), "lake")
    catalog.create_namespace("shop")
    catalog.create_table("shop.reviews", ROWS.schema).append(ROWS)

    def read(*roots: str) -> int:
        with storage.within(roots, storage.SETTING):
            table = load_table(catalog, "shop.reviews")
        return len(table.scan().to_arrow())

    assert read(f"s3://{fresh}/lake") == 3
    for outside in (f"s3://{fresh}/other", f"s3://{fresh}/lake/shop/reviews/metadata"):
        with pytest.raises(BadInput, match="is outside the folders that NIGHTSHIFT_ALLOWED_ROOTS"):
            read(outside)
    catalog.close()


def test_a_local_table_needs_no_options(tmp_path: Path) -> None:
    assert storage_options(str(tmp_path)) == {}
