"""The tickets of each team, read as anybody reads such a table: `python read.py lake/tickets`, or `python read.py
lake.support.tickets` for a table of a catalog.
"""

import json
import os
import sys

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

QUESTION = """
SELECT coalesce(team, 'nobody') AS team, count(*) AS tickets, count(*) FILTER (WHERE urgent) AS urgent
FROM rows GROUP BY 1 ORDER BY 1
"""


def main(name: str) -> None:
    """Prints the versions that the table has had, and the tickets of each team in the last one."""
    if "/" in name:
        table = DeltaTable(name)
        rows: pa.Table | ds.Dataset = table.to_pyarrow_dataset()
        versions = [str(each["version"]) for each in reversed(list(table.history()))]
    else:
        catalog, _, inside = name.partition(".")
        properties = json.loads(os.environ["NIGHTSHIFT_CATALOGS"])[catalog]
        iceberg = load_catalog(catalog, **properties).load_table(inside)
        rows = iceberg.scan().to_arrow()
        versions = [str(each.snapshot_id) for each in iceberg.snapshots()]
    print("versions:", ", ".join(versions))
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        answer: pa.Table = connection.sql(QUESTION).to_arrow_table()
    for each in answer.to_pylist():
        print(f"{each['team']:10} {each['tickets']:3} tickets, {each['urgent']} urgent")


main(sys.argv[1])
