"""Reads a trace directory with pyarrow, pandas and DuckDB, using only the documentation of MIOT."""

import sys

import duckdb
import pandas
import pyarrow.dataset
import pyarrow.parquet

trace = sys.argv[1]
TABLES = ["events", "processes", "threads", "files", "losses", "clocks", "devices"]
for table in TABLES:
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

# Engines and table formats without unsigned numbers, and without times that have no zone.
for table in TABLES:
    file = f"{trace}/{table}/part-000000.parquet"
    for column in pyarrow.parquet.read_schema(file):
        kinds = [column.type, *([column.type.index_type] if pyarrow.types.is_dictionary(column.type) else [])]
        assert not any(pyarrow.types.is_unsigned_integer(kind) for kind in kinds), column
        assert not pyarrow.types.is_timestamp(column.type) or str(column.type) == "timestamp[ns, tz=UTC]", column
    assert pyarrow.parquet.read_metadata(file).metadata[b"miot.schema"] == b"3"
frame = pandas.read_parquet(f"{trace}/events")
assert frame["time"].astype("int64").tolist() == times
# A column with nulls has floating-point numbers in pandas: ids are exact in them.
files = [None if value != value else int(value) for value in frame["file"]]
assert files == events.column("file").to_pylist()
print("pandas", len(frame), int(frame[frame["op"].str.startswith("pwrite") & (frame["result"] > 0)]["result"].sum()))
