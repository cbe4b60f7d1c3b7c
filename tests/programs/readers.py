"""Reads a trace directory with pyarrow and DuckDB, using only the documentation of MIOT."""

import sys

import duckdb
import pyarrow.dataset
import pyarrow.parquet

trace = sys.argv[1]
for table in ["events", "processes", "threads", "files", "losses", "clocks", "devices"]:
    print("columns", table, ",".join(pyarrow.parquet.read_schema(f"{trace}/{table}/part-000000.parquet").names))

events = pyarrow.dataset.dataset(f"{trace}/events", format="parquet").to_table()
print("pyarrow", events.num_rows)

sql = duckdb.connect()
sql.execute(f"create view events as select * from '{trace}/events/*.parquet'")
sql.execute(f"create view files as select * from '{trace}/files/*.parquet'")


def one(query):
    return sql.execute(query).fetchone()[0]


print("duckdb", one("select count(*) from events"))
print("written", one("select sum(result)::bigint from events where op like 'pwrite%' and result > 0"))
print("first", events.column("time").cast("int64")[0].as_py())
print("microseconds", one("select epoch_us(min(time)) from events"))
print("named", one("select count(*) from events join files using (file) where path like '%/test.db'"))
times = events.column("time").cast("int64").to_pylist()
assert times == sorted(times)
print("ordered")
