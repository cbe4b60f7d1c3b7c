"""Events and side tables, compared with pyarrow's reading of the Parquet files."""

import datetime
import glob

import pytest

import miot

from conftest import FILES, READ_BYTES, WRITE_BYTES, WRITES, tool

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def parquet(directory, table="events", columns=None):
    files = sorted(glob.glob(f"{directory}/{table}/part-*.parquet"))
    return pa.concat_tables([pq.read_table(file, columns=columns) for file in files])


def plain(table):
    """Names as text, so that dictionaries with another order are equal."""
    columns = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names).combine_chunks()


def test_events_are_those_of_the_parquet_files(trace, directory):
    expected = parquet(directory)
    found = trace.events(expected.column_names).to_arrow()
    assert found.num_rows == expected.num_rows > 0
    assert plain(found).equals(plain(expected))


def test_all_columns_have_the_names_of_files_and_threads(trace):
    found = trace.events().to_arrow()
    assert found.column_names[-3:] == ["path", "path2", "comm"]
    names = {row["file"]: row["path"] for row in trace.files}
    for row in found.slice(0, 200).to_pylist():
        assert row["path"] == names.get(row["file"])


def test_columns_have_the_requested_order(trace):
    assert trace.events(["path", "time", "op"]).to_arrow().column_names == ["path", "time", "op"]


def test_known_requests_are_selected(trace, data):
    writes = trace.events(["result", "length"], op="write", path=f"{data}/*").to_arrow()
    assert writes.column("result").to_pylist() == [WRITE_BYTES] * WRITES * FILES
    reads = trace.events(["result"], op=["read"], layer="posix", path=f"{data}/file-1").to_arrow()
    assert reads.column("result").to_pylist() == [READ_BYTES] * (WRITES * WRITE_BYTES // READ_BYTES) + [0]


def test_filters_are_those_of_the_tool(trace, directory):
    expected = [json_line for json_line in lines(directory, "--op", "open,close")]
    found = trace.events(["op", "pid"], op=["open", "close"]).to_arrow().to_pylist()
    assert [(row["op"], row["pid"]) for row in found] == [(row["op"], row["pid"]) for row in expected]
    assert trace.events(["op"], job="4711").to_arrow().num_rows == trace.events(["op"]).to_arrow().num_rows
    assert trace.events(["op"], job="1").to_arrow().num_rows == 0
    pid = found[0]["pid"]
    assert set(trace.events(["pid"], pid=pid).to_arrow().column("pid").to_pylist()) == {pid}


def lines(directory, *words):
    import json

    from conftest import run

    return [json.loads(line) for line in run("miot", "cat", directory, *words, "--format", "json").splitlines()]


def test_times_select(trace):
    times = trace.events(["time"]).to_arrow().column("time").cast(pa.int64()).to_pylist()
    middle = times[len(times) // 2]
    expected = [time for time in times if time >= middle]
    after = trace.events(["time"], since=middle).to_arrow().column("time").cast(pa.int64()).to_pylist()
    assert after == expected
    before = trace.events(["time"], until=middle).to_arrow().num_rows
    assert before + len(after) == len(times)
    utc = datetime.timezone.utc
    assert trace.events(["time"], since="2020-01-01T00:00:00Z").to_arrow().num_rows == len(times)
    assert trace.events(["time"], until=datetime.datetime(2020, 1, 1, tzinfo=utc)).to_arrow().num_rows == 0
    assert trace.events(["time"], since="1d").to_arrow().num_rows == len(times)


@pytest.mark.parametrize("table", ["processes", "threads", "files", "losses", "clocks", "devices"])
def test_side_tables_are_those_of_the_parquet_files(trace, directory, table):
    found = getattr(trace, table)
    if glob.glob(f"{directory}/{table}/part-*.parquet"):
        assert plain(found.to_arrow()).equals(plain(parquet(directory, table)))
    else:
        assert len(found) == 0


def test_processes_have_job_and_rank(trace):
    assert set(trace.processes["job"]) == {"4711"}
    assert set(trace.processes["rank"]) == {3}


def test_other_libraries_read_the_stream(trace):
    expected = trace.events(["op"]).to_arrow().num_rows
    pandas = pytest.importorskip("pandas")
    assert isinstance(trace.events(["time", "op"]).to_pandas(), pandas.DataFrame)
    polars = pytest.importorskip("polars")
    assert trace.events(["op"]).to_polars().shape == (expected, 1)
    assert polars.DataFrame(trace.events(["op", "path"])).shape == (expected, 2)
    duckdb = pytest.importorskip("duckdb")
    events = trace.events(["op", "result"])  # noqa: F841, DuckDB finds it by its name
    assert duckdb.sql("SELECT count(*) FROM events").fetchall() == [(expected,)]
    assert pa.table(trace.events(["op"])).num_rows == expected


def test_batches_stream_in_order(trace):
    batches = list(trace.events(["time"]).batches())
    assert sum(batch.num_rows for batch in batches) == trace.events(["time"]).to_arrow().num_rows
    assert trace.events(["time"]).schema.names == ["time"]


def test_sql_is_that_of_miot_query(trace, directory):
    sql = "SELECT op, count(*) AS n FROM events GROUP BY op ORDER BY n DESC, op"
    found = trace.sql(sql).to_arrow()
    expected = parquet(directory, columns=["op"]).column("op").cast(pa.string()).value_counts()
    counts = {item["values"]: item["counts"] for item in expected.to_pylist()}
    assert {row["op"]: row["n"] for row in found.to_pylist()} == counts
    path = trace.sql("SELECT sum(bytes) AS b FROM io WHERE class = 'write' AND path LIKE '%/file-%'")
    assert path.to_arrow().column("b").to_pylist() == [FILES * WRITES * WRITE_BYTES]
    assert trace.sql("SELECT 1 AS one WHERE false").to_arrow().num_rows == 0


def test_wrong_sql_has_the_text_of_the_tool(trace):
    with pytest.raises(miot.Error, match="no_such_table"):
        trace.sql("SELECT * FROM no_such_table").to_arrow()
    with pytest.raises(miot.Error):
        trace.sql("SELEC 1").to_arrow()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"columns": ["tme"]}, "no column `tme`"),
        ({"op": "raed"}, "no such operation"),
        ({"layer": "posx"}, "no such layer"),
        ({"path": "a["}, "--path a\\["),
        ({"since": "yesterday"}, "10m"),
        ({"since": object()}, "nanoseconds since 1970"),
    ],
)
def test_wrong_arguments_are_errors(trace, arguments, text):
    with pytest.raises(miot.OptionError, match=text):
        trace.events(**arguments)


def test_totals_agree_with_the_tool(trace, directory):
    assert trace.summary() == tool("stat", directory)
