"""Darshan's counters of the POSIX layer by SQL, from a trace's Parquet files, beside `miot stat --by file --format json`.

Nothing here is taken from MIOT but its documentation: windows over the events of each process and file, in the order of
the trace. Times stay integers of nanoseconds, which DuckDB's time with a zone has not.
"""

import json
import sys

import duckdb
import pyarrow
import pyarrow.dataset

trace, pattern, block = sys.argv[1], sys.argv[2], int(sys.argv[3])
table = json.load(open(sys.argv[4]))

events = pyarrow.dataset.dataset(f"{trace}/events", format="parquet").to_table()
events = events.set_column(events.schema.get_field_index("time"), "ended", events.column("time").cast("int64"))
for name in ["layer", "op", "node"]:
    at = events.schema.get_field_index(name)
    events = events.set_column(at, name, events.column(name).cast("string"))
events = events.append_column("row", pyarrow.array(range(events.num_rows)))

sql = duckdb.connect()
sql.register("raw", events)
sql.execute(f"create table files as select distinct file, path from '{trace}/files/*.parquet' where path like '{pattern}'")
sql.execute(
    """
    create table events as
    select row, process, path, ended, ended - duration as began, duration, op, "offset" as start, result, flags,
        case when op in ('read','pread','readv','preadv') then 'r'
             when op in ('write','pwrite','writev','pwritev') then 'w'
             when op in ('fsync','fdatasync') then 's'
             when op in ('open','openat','creat') then 'o'
             when op in ('close','lseek','stat','fstat') then 'm'
             else 'x' end as kind
    from raw join files using (file) where layer = 'posix' and result >= 0
    """
)
unknown = sql.execute("select distinct op from events where kind = 'x'").fetchall()
assert not unknown, unknown
# Each open sets the last byte back to 0.
sql.execute(
    """
    create table accesses as
    select *, coalesce(lag(start + result - 1) over (partition by process, path, kind, opened order by row), 0) as last,
        lag(kind) over (partition by process, path order by row) as before
    from (select *, count(*) filter (kind = 'o') over (partition by process, path order by row) as opened from events)
    where kind in ('r', 'w')
    """
)
sql.execute(
    """
    create table strides as
    select *, case when start > 0 and start > last and last <> 0 then start - last - 1 else 0 end as stride from accesses
    """
)


def side(kind, read):
    bins = [100, 1024, 10240, 102400, 1048576, 4194304, 10485760, 104857600, 1073741824]
    names = "0_100 100_1k 1k_10k 10k_100k 100k_1m 1m_4m 4m_10m 10m_100m 100m_1g 1g_plus".split()
    what = "read" if read else "write"
    of = f"filter (kind = '{kind}')"
    bytes_ = "bytes_read" if read else "bytes_written"
    most = "max_byte_read" if read else "max_byte_written"
    columns = [
        f"count(*) {of} as {what}s",
        f"coalesce(sum(result) {of}, 0) as {bytes_}",
        f"coalesce(max(start + result - 1) {of}, 0) as {most}",
        f"count(*) filter (kind = '{kind}' and start > last) as seq_{what}s",
        f"count(*) filter (kind = '{kind}' and start = last + 1) as consec_{what}s",
        f"max(duration) {of} as max_{what}_ns",
    ]
    low = -1
    for name, high in zip(names, bins + [1 << 62]):
        within = f"kind = '{kind}' and result > {low} and result <= {high}"
        columns.append(f"count(*) filter ({within}) as size_{what}_{name}")
        low = high
    return columns


query = ", ".join(
    side("r", True)
    + side("w", False)
    + [
        "count(*) filter (before is not null and before <> kind) as rw_switches",
        "count(*) filter (flags & 256 <> 0) as mem_not_aligned",
        f"count(*) filter (start % {block} <> 0) as file_not_aligned",
    ]
)
found = sql.execute(f"select path, {query} from accesses group by path")
names = [column[0] for column in found.description]
counts = {row[0]: dict(zip(names, row)) for row in found.fetchall()}

# Non-overlapping time by process, file and kind; syncs count as writes.
times = sql.execute(
    """
    select path, timer, sum(greatest(0, ended - greatest(began, coalesce(last, began))))::bigint from (
        select *, max(ended) over (partition by process, path, timer order by row
            rows between unbounded preceding and 1 preceding) as last
        from (select *, case kind when 'o' then 'meta' when 'm' then 'meta' when 'r' then 'read' else 'write' end
            as timer from events))
    group by path, timer
    """
).fetchall()
for path, timer, total in times:
    counts[path][f"{timer}_ns"] = total
for path, opens, seeks, fdsyncs in sql.execute(
    """select path, count(*) filter (kind = 'o'), count(*) filter (op = 'lseek'), count(*) filter (op = 'fdatasync')
    from events group by path"""
).fetchall():
    counts[path].update(opens=opens, seeks=seeks, fdsyncs=fdsyncs)

# The first 32 distinct values of each process and file; 0 takes a place and is not reported.
for name, column in [("access", "result"), ("stride", "stride")]:
    values = sql.execute(
        f"""
        select path, value, sum(times)::bigint as total from (
            select *, row_number() over (partition by process, path order by first) as place from (
                select process, path, {column} as value, count(*) as times, min(row) as first from strides group by all))
        where place <= 32 and value <> 0 group by all order by path, total desc, value desc
        """
    ).fetchall()
    for path in counts:
        most = [(value, total) for where, value, total in values if where == path][:4]
        for place, (value, total) in enumerate(most + [(0, 0)] * (4 - len(most)), 1):
            counts[path][f"{name}{place}_{name}"], counts[path][f"{name}{place}_count"] = value, total

compared = 0
assert len(table["rows"]) == len(counts) >= 3, (len(table["rows"]), len(counts))
for row in table["rows"]:
    expected = counts[row["path"]]
    del expected["path"]
    for name, value in expected.items():
        if name.endswith("_ns"):
            name, value = f"f_{name[:-3]}_time", (value or 0) / 1e9
            assert abs(row[name] - value) < 5e-10, (row["path"], name, row[name], value)
        else:
            assert row[name] == value, (row["path"], name, row[name], value)
        compared += 1
print("compared", compared)
