"""The judge of a trace directory. It reads the trace with pyarrow and DuckDB and uses only the
documentation of MIOT.

- Every row is a request that a writer began, intact, in its process, and there once. No row is
  invented.
- The attempt numbers of a stream count from 0: each is an event, a record of a path, or in one
  range of `losses`, exactly once.
- The writes of a process that are missing are counted in `losses`, and so are those of the whole
  trace. The counts are exact, except that the request during which a thread was killed may be there
  or not.
- The requests of a thread are in order by number, attempt and time. Rows that are not marked late
  are in total order of time.
- Noted times enclose the completion, within the uncertainty that the trace states and `SLACK_NS`.

With damage, streams and processes of losses may be unknown. In that case the sums are compared.
"""

import glob
import os
import re

import duckdb
import numpy
import pyarrow as pa
import pyarrow.parquet

from notes import LENGTHS, MOST_LIVES

INTERRUPTED, LATE, MOVED = 1 << 3, 1 << 7, 1 << 14
# A log-client converts ticks by pairs of readings of two clocks.
SLACK_NS = 100_000
EVENTS = ["time", "process", "pid", "tid", "op", "file", "offset", "length", "result", "flags", "stream", "seq", "node"]
# With `overwrite-oldest` a path is recorded again after each quarter of its lane. Such records are
# lost with the overwritten events. A quarter of the smallest lane has 64 slots: a record of a path
# with two slots, and 62 events.
ATTEMPTS_PER_PATH = 63


class Judge:
    def __init__(self, trace, programs, when_full, damaged):
        self.trace, self.when_full, self.damaged = trace, when_full, damaged
        self.sql = duckdb.connect()
        self.problems = []
        self.figures = {}
        self.tables()
        self.noted(programs)

    def one(self, query):
        return self.sql.execute(query).fetchone()

    def wrong(self, what, query):
        """Records rows that should not exist."""
        rows = self.sql.execute(f"{query} limit 5").fetchall()
        if rows:
            self.problems.append(f"{what}: {rows}")

    # --- what is there -------------------------------------------------------------------------------

    def parts(self, table):
        """Reads the tables of sealed and live parts, in order."""
        sealed = {int(path[-14:-8]): path for path in glob.glob(f"{self.trace}/events/part-*.parquet")}
        live = {}
        for path in glob.glob(f"{self.trace}/live/part-*.{table}.arrows"):
            part = int(re.search(r"part-(\d+)\.", path)[1])
            if part not in sealed:
                live[part] = path
        folder = f"{self.trace}/{table}"
        for path in sorted(glob.glob(f"{folder}/carried-*.parquet")):
            yield False, pa.parquet.read_table(path)
        for part in sorted(sealed.keys() | live.keys()):
            if part in live:
                with pa.memory_map(live[part]) as file:
                    yield False, pa.ipc.open_stream(file).read_all()
            elif os.path.exists(f"{folder}/part-{part:06}.parquet"):
                yield True, pa.parquet.read_table(f"{folder}/part-{part:06}.parquet")

    def table(self, name, columns):
        parts = [plain(rows.select(columns)) for _, rows in self.parts(name)]
        if not parts:
            self.problems.append(f"there is no table {name}")
            return
        self.sql.register(f"read_{name}", pa.concat_tables(parts, promote_options="permissive"))
        self.sql.execute(f"create table {name} as select * from read_{name}")
        self.sql.unregister(f"read_{name}")

    def tables(self):
        latest, parts = -(1 << 63), []
        for sealed, rows in self.parts("events"):
            rows = plain(rows.select(EVENTS))
            times, flags = rows["time"].to_numpy(), rows["flags"].to_numpy()
            if sealed and (numpy.diff(times) < 0).any():
                self.problems.append("a sealed part is not sorted by time")
            ordered = times[(flags & LATE) == 0]
            if len(ordered) and ((numpy.diff(ordered) < 0).any() or ordered[0] < latest):
                self.problems.append("rows that are not marked late are out of order")
            latest = max(latest, ordered[-1]) if len(ordered) else latest
            parts.append(rows)
        self.figures["parts"] = len(parts)
        self.sql.register("read", pa.concat_tables(parts))
        # The open is request 0 of its thread. The path identifies the thread, the offset of a write
        # its number.
        self.sql.execute(
            """create table events as select *, case when op = 'open' then 0 else "offset" end as number from read"""
        )
        self.table("processes", ["process", "node", "pid", "cmdline"])
        self.table("threads", ["stream", "process", "tid", "incarnation"])
        self.table("files", ["file", "path", "stream", "seq"])
        self.table("losses", ["process", "stream", "place", "count", "first_seq", "last_seq"])
        self.table("clocks", ["time", "node", "uncertainty"])
        self.sql.execute("delete from losses where place = 'filtered'")

    # --- what was written ----------------------------------------------------------------------------

    def noted(self, programs):
        lives = [
            (p.number, p.node, p.pid, p.number * MOST_LIVES + life, tid, begun, done)
            for p in programs
            for life, tid, begun, done in p.lives
        ]
        samples = [(p.number * MOST_LIVES + life, *rest) for p in programs for life, *rest in p.samples]
        self.insert("lives", ["program", "node", "pid", "tag", "tid", "begun", "done"], lives)
        self.insert("samples", ["tag", "number", "before", "after"], samples)

    def insert(self, name, columns, rows):
        columns = {column: [row[at] for row in rows] for at, column in enumerate(columns)}
        self.sql.register("noted", pa.table(columns))
        self.sql.execute(f"create table {name} as select * from noted")
        self.sql.unregister("noted")

    # --- the comparison ------------------------------------------------------------------------------

    def judge(self):
        self.identities()
        self.events()
        self.attempts()
        self.conservation()
        self.order()
        self.times()
        return self.problems

    def identities(self):
        """Maps processes to programs, and streams to threads."""
        self.sql.execute(
            r"""create table programs as select process, node, pid,
            regexp_extract(cmdline, 'numbered (\d+) ', 1)::bigint as program from processes"""
        )
        self.wrong("a process is there twice", "select process from processes group by 1 having count(*) > 1")
        self.wrong(
            "a process that no writer was",
            """select * from programs where not exists
            (select 1 from lives where lives.program = programs.program and lives.node = programs.node and lives.pid = programs.pid)
            and exists (select 1 from events where events.process = programs.process)""",
        )
        # A thread without a request under its name may have a stream.
        self.sql.execute(
            """create table streams as select threads.*, lives.tag from threads join programs using (process)
            left join lives on lives.program = programs.program and lives.tid = threads.tid"""
        )
        self.wrong("a stream is there twice", "select stream from streams group by 1 having count(*) > 1")

    def events(self):
        """Checks that every row equals a request."""
        self.sql.execute(
            f"""create table rows as select events.*, streams.tag, lives.begun, lives.done, lives.program,
            events.flags & {INTERRUPTED} <> 0 as cut_off from events left join streams using (stream)
            left join lives on lives.tag = streams.tag"""
        )
        self.sql.execute("drop table events")
        # An interrupted request may have no number: it was the last one.
        self.sql.execute("update rows set number = begun - 1 where cut_off")
        problems = {
            "of no thread": "tag is null",
            "another operation": "op not in ('open', 'pwrite')",
            "never begun": "number >= begun or number < 0",
            "torn": f"""not cut_off and op = 'pwrite' and
                ("length" <> 1 + (tag + number) % {LENGTHS} or result <> "length" or number < 1)""",
            "failed": "not cut_off and result < 0",
            "cut off, but done": "cut_off and (done = begun or result <> -4)",
        }
        for what, condition in problems.items():
            self.wrong(f"invented, {what}", f'select process, stream, seq, op, tag, number, "offset", result, flags from rows where {condition}')
        self.wrong("twice", "select tag, number from rows group by 1, 2 having count(*) > 1")
        self.wrong(
            "of another thread's file",
            """select rows.stream, rows.seq, path from rows join (select distinct file, path from files) using (file)
            where not ends_with(path, '/files/' || tag)""",
        )
        self.figures["present"], self.figures["nameless"] = self.one("select count(*), count(*) filter (file is null) from rows")

    def attempts(self):
        """Checks that each attempt of a stream is there exactly once."""
        self.sql.execute(
            """create table ranges as select stream, first_seq, last_seq, last_seq - first_seq + 1 as count from losses
            where first_seq is not null"""
        )
        self.wrong("a range and its count differ", "select * from losses where count <> last_seq - first_seq + 1")
        self.sql.execute(
            """create table spans as select stream, seq as first, seq as last from rows
            union all select stream, seq, seq from files where seq is not null and stream is not null
            union all select stream, first_seq, last_seq from ranges"""
        )
        self.wrong(
            "attempts that are nothing, or two things",
            """select * from (select stream, first, last, lag(last, 1, -1) over (partition by stream order by first, last) as before
            from spans) where first <> before + 1""",
        )
        self.figures["lost"] = {
            place: count for place, count in self.sql.execute("select place, sum(count)::bigint from losses group by 1").fetchall()
        }

    def conservation(self):
        """Checks that the missing events are those recorded as lost."""
        self.sql.execute(
            """create table counts as select lives.program, lives.tag, lives.begun, lives.done,
            count(distinct number) filter (number < lives.done) as present,
            count(distinct number) filter (number >= lives.done) as in_flight,
            count(*) filter (number = 0) as opened from lives left join rows using (tag) group by all"""
        )
        self.sql.execute(
            """create table missing as select program, sum(done - present)::bigint as least,
            sum(begun - done - in_flight)::bigint as unsure, count(*) as threads,
            sum(greatest(0, 1 - opened))::bigint as unopened, sum(done)::bigint as written from counts group by 1"""
        )
        self.sql.execute(
            f"""create table lost as select program, sum(count)::bigint as lost, sum(count // {ATTEMPTS_PER_PATH} + 1)::bigint as laps
            from losses left join programs using (process) group by 1"""
        )
        # Records of paths are attempts in addition to requests: where the open is lost, or the lane
        # wrapped around.
        paths = "unopened" if self.when_full != "overwrite-oldest" else "unopened + laps"
        both = "(select missing.*, coalesce(lost, 0) as lost, coalesce(laps, 0) as laps from missing left join lost using (program))"
        self.sql.execute(f"create table balance as select *, {paths} as paths from {both}")
        if not self.damaged:
            self.wrong(
                "of a program, missing and lost differ (program, least missing, perhaps, lost, records of paths)",
                "select program, least, unsure, lost, paths from balance where lost < least or lost > least + unsure + paths",
            )
            self.wrong("lost by nobody", "select * from losses where process is null")
        else:
            self.wrong(
                "of a program more is recorded as lost than is missing (program, most missing, lost, records of paths)",
                "select program, least + unsure, lost, paths from balance where lost > least + unsure + paths",
            )
        total = self.one("select sum(least)::bigint, sum(unsure)::bigint, sum(paths)::bigint, sum(written)::bigint from balance")
        least, unsure, paths, written = (number or 0 for number in total)
        lost = sum(self.figures["lost"].values())
        if not least <= lost <= least + unsure + paths:
            self.problems.append(f"{least} to {least + unsure} are missing, {lost} are recorded as lost (records of paths: {paths})")
        if self.when_full == "wait" and not self.damaged and lost > 0:
            self.problems.append(f"{lost} are lost, although writers wait")
        self.figures |= {"written": written, "missing": least, "unsure": unsure}

    def order(self):
        self.wrong(
            "out of order in its thread (thread, request, attempt, time, and those of the request before)",
            """select tag, number, seq, time, before, before_seq, before_time from (select tag, number, seq, time, stream,
            lag(number) over thread as before, lag(seq) over thread as before_seq, lag(time) over thread as before_time,
            lag(stream) over thread as before_stream
            from rows window thread as (partition by tag order by number))
            where stream = before_stream and seq <= before_seq or time < before_time""",
        )

    def times(self):
        self.sql.execute(
            f"""create table errors as select greatest(before - rows.time, rows.time - after, 0) as error, clocks.uncertainty, flags, rows.tag, number
            from rows join samples using (tag, number) asof left join clocks on rows.node = clocks.node and rows.time >= clocks.time
            where not cut_off and flags & {LATE | MOVED} = 0"""
        )
        self.wrong(
            "further off than the trace states (thread, request, error, uncertainty, flags)",
            f"select tag, number, error, uncertainty, flags from errors where error > {SLACK_NS} and error - {SLACK_NS} > uncertainty",
        )
        compared, error, percentile = self.one("select count(*), max(error), quantile_disc(error, 0.999) from errors")
        late = self.one(f"select count(*) from rows where flags & {LATE} <> 0")[0]
        self.figures |= {"compared": compared, "error": error or 0, "usual": percentile or 0, "late": late}

    def __str__(self):
        f = self.figures
        lost = ", ".join(f"{count} {place}" for place, count in sorted(f["lost"].items())) or "nothing"
        return (
            f"{f['written']} writes noted: {f['present']} are there ({f['late']} late, {f['nameless']} without a path), {f['missing']} missing, {f['unsure']} unsure; "
            f"lost: {lost}; {f['parts']} parts; {f['compared']} times compared, at most {f['error'] / 1000:.1f} µs off, "
            f"99.9 % within {f['usual'] / 1000:.1f} µs"
        )


def plain(rows):
    """Without dictionaries, and with times as numbers."""
    columns = []
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        if name in ("seq", "first_seq", "last_seq", "count", "stream", "process", "tid", "pid", "flags", "incarnation"):
            column = column.cast(pa.int64())
        columns.append(column)
    return pa.table(columns, names=rows.column_names)
