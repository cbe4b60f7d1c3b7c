"""Analyses, compared with the JSON output of the tool."""

import math
import warnings

import pytest

import miot

from conftest import FILES, WRITE_BYTES, WRITES, python, run, tool

#: Text of a warning about something missing.
pytestmark = pytest.mark.filterwarnings("error::miot.LossWarning")


def same(one, other):
    """Values are equal; a field that a row lacks is null, and a whole number may be a float."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(key), other.get(key)) for key in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-12)
    return one == other


def check(table, expected):
    found = list(table)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert same(one, other), f"{one}\n{other}"


@pytest.mark.parametrize(
    "by", ["job", "step", "process", "program", "rank", "file", "node", "directory", "user"]
)
def test_counters(trace, directory, by):
    expected = tool("stat", directory, "--by", by)
    table = trace.stat(by)
    check(table, expected.pop("rows"))
    assert table.columns[:2] != []
    assert table.info == expected


def test_counters_of_a_selection(trace, directory, data):
    words = ["--by", "file", "--path", f"{data}/*", "--layer", "posix", "--job", "4711", "--sort", "ios", "--top", "2"]
    expected = tool("stat", directory, *words)["rows"]
    found = trace.stat("file", path=f"{data}/*", layer="posix", job="4711", sort="ios", top=2)
    check(found, expected)
    assert sum(found["posix_bytes_written"] if "posix_bytes_written" in found.columns else found["bytes_written"]) == 2 * WRITES * WRITE_BYTES


def test_operations_and_layers(trace, directory):
    check(trace.stat(), tool("stat", directory, "--by", "operation")["rows"])
    check(trace.stat(sort="count", top=3), tool("stat", directory, "--by", "operation", "--sort", "count", "--top", "3")["rows"])
    check(trace.stat("layer"), tool("stat", directory, "--by", "layer"))


def test_findings(trace, directory):
    expected = tool("stat", directory, "--show", "findings")
    table = trace.findings()
    check(table, expected.pop("findings"))
    assert same({**table.info, "findings": []}, {**expected, "findings": []})


def test_bursts(trace, directory):
    expected = tool("stat", directory, "--show", "bursts", "--interval", "10ms")
    table = trace.bursts("10ms")
    check(table, expected.pop("series"))
    assert same({**table.info, "series": None}, {**expected, "series": None}) or table.info["total"] == expected["total"]
    assert list(trace.bursts(10_000_000)) == list(table)


def test_idle_cycles_patterns(trace, directory):
    check(trace.idle("10ms"), tool("stat", directory, "--show", "idle", "--interval", "10ms")["definitions"])
    expected = tool("stat", directory, "--show", "cycles")
    check(trace.cycles(), ([expected["all"]] if expected["all"] else []) + expected["processes"])
    patterns = trace.patterns(top=10)
    expected = tool("stat", directory, "--show", "patterns", "--top", "10")
    check(patterns, expected["files"])
    assert same(patterns.info["programs"], expected["programs"])


def test_phases_of_several_runs_of_a_rank_are_an_error(trace):
    """The children of the traced program have the rank of their parent, and other programs."""
    with pytest.raises(miot.Error, match="rank 3 occurs several times"):
        trace.phases()


def test_phases_and_model(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import sys\nopen(sys.argv[1], 'wb', 0).writelines([b'x' * 8192] * 9)\n")
    directory = tmp_path / "trace"
    run("miot", "run", "-q", "-o", directory, "--", python(), script, tmp_path / "written")
    trace = miot.open(directory)
    expected = tool("phases", directory)
    check(trace.phases(), expected.pop("phase"))
    model = trace.model()
    assert model.to_toml() == run("miot", "model", "save", directory)
    assert model.info["processes"] == expected["processes"]
    model.save(tmp_path / "model.toml")
    assert run("miot", "model", "compare", tmp_path / "model.toml", directory).strip() == "no difference"
    with pytest.raises(FileExistsError):
        model.save(tmp_path / "model.toml")


def test_simulations(trace, directory):
    one = trace.simulate("nvme")
    assert same(one.info, tool("simulate", directory, "--storage", "nvme"))
    several = trace.simulate(["nvme", "disk"], {"cache.size": "4M..16M", "write_behind": [True, False]})
    words = ["--storage", "nvme,disk", "--vary", "cache.size=4M..16M", "--vary", "write_behind=true,false"]
    expected = tool("simulate", directory, *words)
    assert len(several) == 12
    check(several, expected["simulations"])


@pytest.mark.parametrize("by", ["rank", "node", "file", "process"])
def test_heatmap_has_every_byte(trace, directory, by):
    totals = tool("stat", directory)["totals"]
    for what, expected in [
        ("read_bytes", totals["bytes_read"]),
        ("write_bytes", totals["bytes_written"]),
        ("bytes", totals["bytes_read"] + totals["bytes_written"]),
        ("time", totals["time"]),
    ]:
        for bins, top in [(1, 1), (7, 2), (500, 100)]:
            found = trace.heatmap(by, what, bins=bins, top=top)
            assert found.shape == (len(found.rows), bins)
            assert len(found.rows) <= top + 1
            assert sum(map(sum, found.cells)) == expected
            assert len(found.edges) == bins + 1


def test_heatmap_rows_and_axes(trace, data):
    numpy = pytest.importorskip("numpy")
    found = trace.heatmap("file", "write_bytes", bins=10)
    sums = dict(zip(found.rows, found.values.sum(axis=1)))
    for number in range(FILES):
        assert sums[f"{data}/file-{number}"] == WRITES * WRITE_BYTES
    assert found.values.dtype == numpy.uint64
    assert numpy.asarray(found).shape == found.shape
    assert found.edges[0] == found.begin and found.edges[-1] == found.end
    assert trace.heatmap("rank").rows == ["3"]
    frame = found.to_pandas()
    assert list(frame.index) == found.rows


def test_heatmap_of_one_second_agrees_with_events(trace, data):
    """The cells of short requests are those of their completion."""
    found = trace.heatmap("process", "requests", bins=1000)
    events = trace.events(["time", "layer", "enclosing"]).to_arrow().to_pandas()
    outermost = events[events.enclosing.isna()]
    assert sum(map(sum, found.cells)) == len(outermost)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: t.stat("flie"), "by flie: no such rows"),
        (lambda t: t.stat("file", sort="colour"), "--sort colour"),
        (lambda t: t.stat("operation", sort="colour"), "--sort colour"),
        (lambda t: t.stat("file", layer="posx"), "no such layer"),
        (lambda t: t.stat("file", block_size="0"), "--block-size 0"),
        (lambda t: t.bursts("0s"), "above 0"),
        (lambda t: t.bursts(-1), "above 0"),
        (lambda t: t.heatmap("rnk"), "by rnk"),
        (lambda t: t.heatmap(what="colour"), "what colour"),
        (lambda t: t.heatmap(bins=0), "at least one"),
        (lambda t: t.heatmap(bins=10**9), "at most"),
        (lambda t: t.simulate("tape"), "no such storage"),
        (lambda t: t.simulate("nvme", {"cash.size": 1}), "cash.size: no such parameter"),
        (lambda t: t.simulate("nvme", {"cache.size": "8M..4M"}), "expected from something above 0"),
        (lambda t: t.simulate("nvme", copies=0), "copies 0"),
        (lambda t: t.phases(layer="app"), "no such layer"),
    ],
)
def test_wrong_arguments_are_errors(trace, call, text):
    with pytest.raises(miot.OptionError, match=text):
        call(trace)


def test_times_limit_analyses(trace):
    assert len(trace.stat(until="2020-01-01T00:00:00Z")) == 0
    assert trace.summary(until="2020-01-01T00:00:00Z")["totals"]["events"] == 0
    assert trace.heatmap(until="2020-01-01T00:00:00Z").shape == (0, 100)


def test_display(trace, directory, data):
    text = repr(trace)
    totals = tool("stat", directory)["totals"]
    assert f"{totals['events']:,} events" in text and "events lost: 0" in text and "findings: " in text
    page = trace._repr_html_()
    assert "events lost: 0" in page and "<script" not in page
    assert trace.lossless
    table = trace.stat("file")
    assert "more columns" in repr(table) and "<table>" in table._repr_html_()
    assert table[0]["path"] == table["path"][0] and table[-1]["path"] == table["path"][-1]
    with pytest.raises(IndexError):
        table[len(table)]
    with pytest.raises(miot.OptionError, match="no column"):
        table["colour"]


def test_tables_are_data_frames(trace):
    pandas = pytest.importorskip("pandas")
    frame = trace.stat("file").to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(trace.stat("file"))
    assert trace.findings().to_arrow().num_rows == len(trace.findings())
    pytest.importorskip("polars")
    assert trace.stat("file").to_polars().shape[0] == len(frame)


def test_warnings_are_errors_of_pytest_only_where_something_is_missing(trace):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace.stat("file")
        trace.events(["op"]).to_arrow()
