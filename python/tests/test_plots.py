"""Pictures."""

import pytest

import miot

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def test_heatmap(trace):
    axes = trace.plot.heatmap("file", "write_bytes", bins=20)
    expected = trace.heatmap("file", "write_bytes", bins=20)
    (image,) = axes.get_images()
    assert (image.get_array() == expected.values).all()
    assert axes.get_ylabel() == "file"
    assert trace.plot.heatmap("node", "time").get_images()


def test_throughput_has_every_byte(trace):
    axes = trace.plot.throughput()
    totals = trace.summary()["totals"]
    areas = [bar.get_height() * bar.get_width() for bar in axes.patches]
    assert sum(area for area in areas if area > 0) == pytest.approx(totals["bytes_read"], rel=1e-6)
    assert -sum(area for area in areas if area < 0) == pytest.approx(totals["bytes_written"], rel=1e-6)


def test_file_shows_offsets(trace, data):
    axes = trace.plot.file(f"{data}/file-0")
    found = {line.get_label(): line for line in axes.get_lines()}
    assert sorted(set(found["write"].get_ydata())) == [65536 * number for number in range(16)]
    assert len(found["read"].get_ydata()) == 129
    with pytest.raises(miot.Error, match="no reads and writes"):
        trace.plot.file("/no/such/file")


def test_durations(trace):
    axes = trace.plot.durations(top=3)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{row['op']} ({row['layer']})" for row in trace.stat(top=3)
    ]
