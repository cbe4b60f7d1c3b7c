"""Counts the events of the live part of a trace with pyarrow, and with DuckDB on top of it."""

import glob
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet

total = 0
for path in glob.glob(f"{sys.argv[1]}/live/*.events.arrows"):
    batches = []
    with pa.OSFile(path) as file:
        reader = pa.ipc.open_stream(file)
        try:
            for batch in reader:
                batches.append(batch)
        except (pa.ArrowInvalid, OSError):
            pass  # the end is being written at this moment
    live = pa.Table.from_batches(batches, reader.schema)
    assert duckdb.sql("select count(*) from live").fetchone()[0] == live.num_rows
    total += live.num_rows
for path in glob.glob(f"{sys.argv[1]}/events/*.parquet"):
    total += pa.parquet.read_metadata(path).num_rows
print(total)
