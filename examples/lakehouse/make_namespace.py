"""Makes a namespace in a catalog of NIGHTSHIFT_CATALOGS: `python make_namespace.py lake support`."""

import json
import os
import sys

from pyiceberg.catalog import load_catalog

_, name, namespace = sys.argv
load_catalog(name, **json.loads(os.environ["NIGHTSHIFT_CATALOGS"])[name]).create_namespace(
    namespace
)
