"""Computes every figure of `miot stat --by WHAT --format json` for the POSIX layer, by SQL from the
trace's Parquet files.

The computation uses only the documentation of MIOT: windows over the events of each process and
file, in stored order. Times stay integers of nanoseconds, because DuckDB's time with a zone has
microseconds.

    characterize.py TRACE PATTERN-OF-PATHS BLOCK-SIZE job=JSON process=JSON file=JSON node=JSON
"""

import json
import math
import statistics
import sys

import duckdb
import pyarrow
import pyarrow.dataset

trace, pattern, block = sys.argv[1], sys.argv[2], int(sys.argv[3])
tables = {by: json.load(open(path)) for by, path in (word.split("=", 1) for word in sys.argv[4:])}

events = pyarrow.dataset.dataset(f"{trace}/events", format="parquet").to_table()
events = events.set_column(events.schema.get_field_index("time"), "ended", events.column("time").cast("int64"))
for name in ["layer", "op", "node"]:
    at = events.schema.get_field_index(name)
    events = events.set_column(at, name, events.column(name).cast("string"))
events = events.append_column("row", pyarrow.array(range(events.num_rows)))

sql = duckdb.connect()
sql.register("raw", events)
sql.execute(f"create table files as select distinct file, path from '{trace}/files/*.parquet' where path like '{pattern}'")
sql.execute(f"create table processes as select process, pid, job, rank from '{trace}/processes/*.parquet'")
sql.execute(
    """
    create table events as
    select row, process, job, rank, node, path, ended, ended - duration as began, duration, op, "offset" as start, result, flags,
        case when op in ('read','pread','readv','preadv') then 'r'
             when op in ('write','pwrite','writev','pwritev') then 'w'
             when op in ('fsync','fdatasync') then 's'
             when op in ('open','openat','creat') then 'o'
             when op in ('close','lseek','stat','fstat') then 'm'
             else 'x' end as kind
    from raw join files using (file) join processes using (process) where layer = 'posix' and result >= 0
    """
)
unknown = sql.execute("select distinct op from events where kind = 'x'").fetchall()
assert not unknown, unknown
# Each open resets the last byte to 0.
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


# Time of requests by process, file and kind, counting overlaps once. Syncs count as writes.
sql.execute(
    """
    create table times as
    select process, path, timer, sum(greatest(0, ended - greatest(began, coalesce(last, began))))::bigint as total from (
        select *, max(ended) over (partition by process, path, timer order by row
            rows between unbounded preceding and 1 preceding) as last
        from (select *, case kind when 'o' then 'meta' when 'm' then 'meta' when 'r' then 'read' else 'write' end
            as timer from events))
    group by all
    """
)
# First and last event of each process in any layer, and the time with a request of the layer in
# flight.
sql.execute(
    """
    create table lives as
    select process, min(ended - duration) as began, max(ended) as ended, coalesce(sum(busy), 0)::bigint as busy from (
        select process, ended, duration, case when layer = 'posix' then greatest(0, ended - greatest(ended - duration,
            coalesce(max(ended) over (partition by process, layer order by row
                rows between unbounded preceding and 1 preceding), ended - duration))) end as busy from raw)
    group by process
    """
)


def rows(query):
    found = sql.execute(query)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row)) for row in found.fetchall()]


# Number of overwritten bytes, byte by byte.
written, overwritten = {}, {}
for row, path, start, length in sql.execute(
    "select row, path, start, result from events where kind = 'w' order by row"
).fetchall():
    seen = written.setdefault(path, bytearray())
    seen.extend(bytes(max(0, start + length - len(seen))))
    overwritten[row] = sum(seen[start : start + length])
    seen[start : start + length] = b"\1" * length
sql.register("again", pyarrow.table({"row": list(overwritten), "bytes": list(overwritten.values())}))


def per(amount, of):
    return amount / of if of else None


def quantiles(name, label, durations):
    """Exact quantiles. Those of MIOT are at most one class, 1/64, above."""
    found = {}
    for which, share in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)]:
        value = durations[max(1, math.ceil(share * len(durations))) - 1] / 1e9 if durations else None
        found[f"{name}_latency_{which}"] = value
    return found


def ranks(pairs, members):
    """Figures over all ranks of the job: files that all of them used, and performance."""
    of_file = {}
    for pair in pairs:
        of_file.setdefault(pair["path"], {}).setdefault(pair["rank"], []).append(pair)
    shared, unique = {}, dict.fromkeys(sorted(members), 0)
    for path, by_rank in of_file.items():
        times = {rank: sum(pair["ns"] for pair in of_rank) for rank, of_rank in by_rank.items()}
        moved = {rank: sum(pair["bytes"] for pair in of_rank) for rank, of_rank in by_rank.items()}
        if len(members) < 2 or set(by_rank) != members:
            for rank, time in times.items():
                unique[rank] += time
            continue
        all_pairs = [pair for of_rank in by_rank.values() for pair in of_rank]
        fastest, slowest = min(sorted(times), key=times.get), max(sorted(times), key=times.get)
        opened = min(pair["open_began"] for pair in all_pairs)
        shared[path] = {
            "shared_by_ranks": len(members),
            "fastest_rank": fastest,
            "fastest_rank_bytes": moved[fastest],
            "f_fastest_rank_time": times[fastest] / 1e9,
            "slowest_rank": slowest,
            "slowest_rank_bytes": moved[slowest],
            "f_slowest_rank_time": times[slowest] / 1e9,
            "f_variance_rank_time": statistics.pvariance([time / 1e9 for time in times.values()]),
            "f_variance_rank_bytes": float(statistics.pvariance(moved.values())),
            "estimates": (
                times[slowest],
                sum(times.values()) // len(members),
                max(pair["close_ended"] for pair in all_pairs) - opened,
                max(pair["io_ended"] for pair in all_pairs) - opened,
            ),
        }
    slowest = max(unique, key=unique.get)
    total = sum(pair["bytes"] for pair in pairs)
    sums = [sum(file["estimates"][which] for file in shared.values()) for which in range(4)]
    by_slowest, by_cumul, by_open, by_open_lastio = [total / 2**20 / ((unique[slowest] + ns) / 1e9) for ns in sums]
    performance = {
        "ranks": len(members),
        "nodes": 1,
        "shared_files": len(shared),
        "total_bytes_of_ranks": total,
        "slowest_rank_io_time": unique[slowest] / 1e9,
        "slowest_rank_io_rank": slowest,
        "agg_perf_by_slowest": by_slowest,
        "agg_perf_by_cumul": by_cumul,
        "agg_perf_by_open": by_open,
        "agg_perf_by_open_lastio": by_open_lastio,
        "mib_per_second_per_node": by_open_lastio,
    }
    for file in shared.values():
        del file["estimates"]
    return shared, performance


SHARED = """shared_by_ranks fastest_rank fastest_rank_bytes f_fastest_rank_time slowest_rank slowest_rank_bytes
    f_slowest_rank_time f_variance_rank_time f_variance_rank_bytes""".split()
PERFORMANCE = """ranks nodes shared_files total_bytes_of_ranks slowest_rank_io_time slowest_rank_io_rank
    agg_perf_by_slowest agg_perf_by_cumul agg_perf_by_open agg_perf_by_open_lastio mib_per_second_per_node""".split()
pairs = rows(
    """
    select rank, path, sum(result) filter (kind in ('r', 'w'))::bigint as bytes,
        min(began) filter (kind = 'o') as open_began, max(ended) filter (op = 'close') as close_ended,
        max(ended) filter (kind in ('r', 'w')) as io_ended, max(total)::bigint as ns
    from events join (select process, path, sum(total) as total from times group by all) using (process, path)
    where rank is not null group by process, rank, path
    """
)
members = {rank for (rank,) in sql.execute("select distinct rank from processes where rank is not null").fetchall()}
shared_files, performance_of_job = ranks(pairs, members)
assert shared_files and len(members) > 1


def expected(by, label, origin):
    """Computes every figure of the row with this label."""
    of = f"\"{by if by != 'file' else 'path'}\" = '{label}'"
    figures = rows(
        "select "
        + ", ".join(
            side("r", True)
            + side("w", False)
            + [
                "count(*) filter (before is not null and before <> kind) as rw_switches",
                "count(*) filter (flags & 256 <> 0) as mem_not_aligned",
                f"count(*) filter (start % {block} <> 0) as file_not_aligned",
            ]
        )
        + f" from accesses where {of}"
    )[0]
    figures |= rows(
        f"""
        select count(distinct process) as processes, count(distinct path) as files,
            count(*) filter (kind = 'o') as opens, count(*) filter (op = 'lseek') as seeks,
            count(*) filter (op in ('stat', 'fstat')) as stats, count(*) filter (op = 'fsync') as fsyncs,
            count(*) filter (op = 'fdatasync') as fdsyncs, count(*) filter (op = 'close') as closes
        from events where {of}
        """
    )[0]
    # The program makes none of these.
    for name in "dups mmaps rename_sources rename_targets other_syncs other_metas failed without_offset".split():
        figures[name] = 0
    figures["other_meta_seconds"] = 0.0
    figures |= {"cpu_seconds": None, "mem_alignment": 8, "file_alignment": block, "layer": "posix"}

    # The first 32 distinct values of each process and file; 0 takes a place and is not reported.
    for name, column in [("access", "result"), ("stride", "stride")]:
        values = sql.execute(
            f"""
            select value, sum(times)::bigint as total from (
                select *, row_number() over (partition by process, path order by first) as place from (
                    select process, path, {column} as value, count(*) as times, min(row) as first
                    from strides where {of} group by all))
            where place <= 32 and value <> 0 group by all order by total desc, value desc limit 4
            """
        ).fetchall()
        for place, (value, total) in enumerate(values + [(0, 0)] * (4 - len(values)), 1):
            figures[f"{name}{place}_{name}"], figures[f"{name}{place}_count"] = value, total

    times = dict(
        sql.execute(
            f"""select timer, sum(total)::bigint
            from times join (select distinct process, path, job, node from events) using (process, path)
            where {of} group by timer"""
        ).fetchall()
    )
    for timer in ["read", "write", "meta"]:
        figures[f"f_{timer}_time"] = times.get(timer, 0) / 1e9
    for what, kind in [("read", "kind = 'r'"), ("write", "kind = 'w'"), ("open", "kind = 'o'"), ("close", "op = 'close'")]:
        began, ended = sql.execute(f"select min(began), max(ended) from events where {of} and {kind}").fetchone()
        figures[f"f_{what}_start_timestamp"] = None if began is None else (began - origin) / 1e9
        figures[f"f_{what}_end_timestamp"] = None if ended is None else (ended - origin) / 1e9
    for what in ["read", "write"]:
        longest = figures.pop(f"max_{what}_ns") or 0
        figures[f"f_max_{what}_time"] = longest / 1e9
        # Among equal values in several files, any is accepted.
        figures[f"max_{what}_time_size"] = {
            size
            for (size,) in sql.execute(
                f"select result from events where {of} and kind = '{what[0]}' and duration = {longest}"
            ).fetchall()
        }
    for name, kind in [("read", "kind = 'r'"), ("write", "kind = 'w'"), ("sync", "kind = 's'"), ("meta", "kind in ('o', 'm')")]:
        found = sql.execute(f"select duration from events where {of} and {kind} order by 1").fetchall()
        figures |= quantiles(name, label, [duration for (duration,) in found])

    (figures["data_size"],) = sql.execute(
        f"""select coalesce(sum(size), 0)::bigint from (
            select path, max(size) as size from (
                select path, max(start + result) as size from events
                where {of} and kind in ('r', 'w') group by process, path, kind having sum(result) > 0)
            group by path)"""
    ).fetchone()
    if by == "file":
        (wall,) = sql.execute(f"select max(ended) - min(began) from events where {of}").fetchone()
        figures["io_share_of_run"] = None
    else:
        wall, busy, lives_ = sql.execute(
            f"""select max(ended) - min(began), sum(busy)::bigint, sum(ended - began)::bigint
            from lives where process in (select process from events where {of})"""
        ).fetchone()
        figures["io_share_of_run"] = busy / lives_
    figures["wall_seconds"] = wall / 1e9
    reads, writes = figures["reads"], figures["writes"]
    read, write = figures["bytes_read"], figures["bytes_written"]
    figures |= {"bytes": read + write, "ios": reads + writes, "average_size": per(read + write, reads + writes)}
    figures["read_write_ratio"] = per(read, write)
    for name, bytes_, count in [("", read + write, reads + writes), ("read_", read, reads), ("write_", write, writes)]:
        figures[f"{name}mib_per_wall_second"] = bytes_ / 2**20 / (wall / 1e9)
        figures[f"{name}ios_per_wall_second"] = count / (wall / 1e9)
        figures[f"{name}mib_per_cpu_second"] = figures[f"{name}ios_per_cpu_second"] = None
    for what, count in [("reads", reads), ("writes", writes)]:
        figures[f"seq_{what}_share"] = per(figures[f"seq_{what}"], count)
        figures[f"consec_{what}_share"] = per(figures[f"consec_{what}"], count)
    (again,) = sql.execute(f"select coalesce(sum(bytes), 0)::bigint from again join events using (row) where {of}").fetchone()
    (used,) = sql.execute(
        f"select count(*) from (select distinct process, path from events where {of} and kind in ('o', 'r', 'w'))"
    ).fetchone()
    figures |= {"overwritten_bytes": again, "overwritten_share": per(again, write)}
    figures |= {"opens_per_process": figures["opens"] / figures["processes"], "files_per_process": used / figures["processes"]}
    figures["meta_share_of_io"] = per(times.get("meta", 0), sum(times.values()))
    figures |= shared_files.get(label, {}) if by == "file" else {}
    figures |= performance_of_job if by == "job" else {}
    return dict.fromkeys(SHARED + PERFORMANCE) | figures


def same(name, found, value):
    if isinstance(value, set):
        return found in value or not value and found == 0
    if value is None or found is None:
        return found is value
    if "_latency_" in name:
        return value <= found <= value * (1 + 1 / 64) + 1e-9
    if isinstance(value, float):
        return math.isclose(found, value, rel_tol=1e-9, abs_tol=5e-10 if name.startswith("f_") and "variance" not in name else 0)
    return found == value


LABELS = {"job": ["job_system"], "process": ["node", "pid", "rank", "command"], "file": [], "node": []}
compared = 0
for by, table in tables.items():
    column = "path" if by == "file" else by
    labels = {str(label) for (label,) in sql.execute(f"select distinct \"{column}\" from events").fetchall()}
    assert labels == {str(row[column]) for row in table["rows"]}, (by, labels)
    for row in table["rows"]:
        label = row[column]
        figures = expected(by, label, table["begin"])
        missing = row.keys() ^ (figures.keys() | {column, *LABELS[by]})
        assert not missing, (by, sorted(missing))
        for name, value in figures.items():
            assert same(name, row[name], value), (by, label, name, row[name], value)
            compared += 1
    print(by, len(table["rows"]), "rows")
print("compared", compared)
