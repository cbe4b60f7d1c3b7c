"""Asks a DuckLake catalog: ``python lake.py register-ducklake CATALOG QUERY…``.

Prints the rows of each query as a line of JSON. The schema of the catalog is ``lake``; the environment has the
credentials of the object store, as for the script that registers parts.
"""

import importlib.machinery
import importlib.util
import json
import sys

script, catalog, *queries = sys.argv[1:]
loader = importlib.machinery.SourceFileLoader("register", script)
register = importlib.util.module_from_spec(importlib.util.spec_from_loader("register", loader))
loader.exec_module(register)
connection = register.duckdb.connect()
for extension in ("ducklake", "sqlite_scanner"):
    register.load(connection, extension)
register.use_s3(connection)
connection.execute(f"ATTACH 'ducklake:{catalog}' AS lake (READ_ONLY)")
for query in queries:
    print(json.dumps(connection.sql(query).fetchall()))
