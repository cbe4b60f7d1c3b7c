"""Workloads of other people: figures of their traces against what they report, write and read themselves.

They run in an environment of their own (`tests/setup.sh`), with Debian's PyTorch.
"""

import collections
import json
import os
import pathlib
import subprocess
import textwrap

import pytest

import miot
import tracer_cost
from conftest import run

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "target/test-workloads/bin/python"
DFTRACER = ROOT / "target/test-dftracer/lib/python3.11/site-packages/dftracer/lib64/libdftracer_preload.so"


@pytest.fixture(scope="module", autouse=True)
def environment():
    for needed in [PYTHON, DFTRACER]:
        assert needed.exists(), f"{needed} is missing: run tests/setup.sh"


def traced(place, *words, **environment):
    """Runs a command under `miot run`, and returns the complete trace."""
    folder = os.path.dirname(os.path.dirname(miot.__file__))
    path = ":".join([folder, environment.pop("PYTHONPATH", "")])
    options = {"cwd": place, "env": {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}}
    run("miot", "run", "-q", "-o", "trace", "--", *words, **options)
    trace = miot.open(place / "trace")
    assert trace.lossless
    return trace


def script(place, text):
    (place / "program.py").write_text(textwrap.dedent(text))
    return [PYTHON, "-W", "ignore", "program.py"]


READS, WRITES = ["read", "readv", "pread"], ["write", "writev", "pwrite"]


def moved(trace, op, path):
    """Returns the bytes that calls with these operations moved, of matching files."""
    rows = trace.events(op=op, path=path, layer="posix", columns=["result"]).to_arrow()
    return sum(result for result in rows["result"].to_pylist() if result > 0)


def opened(trace, path):
    rows = trace.events(op="open", path=path, layer="posix", columns=["result"]).to_arrow()
    return sum(result >= 0 for result in rows["result"].to_pylist())


FILES, SAMPLES, EPOCHS, BATCH = 8, 4, 2, 4


def test_dlio_reports_the_same_samples_files_and_bytes(tmp_path):
    # DLIO imports TensorFlow for a profiler that is not used here.
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/tensorflow.py").touch()
    parameters = {
        "workload.framework": "pytorch",
        "workload.reader.data_loader": "pytorch",
        "workload.reader.read_threads": 2,
        "workload.reader.batch_size": BATCH,
        "workload.dataset.data_folder": "data",
        "workload.dataset.format": "npz",
        "workload.dataset.num_files_train": FILES,
        "workload.dataset.num_files_eval": 0,
        "workload.dataset.num_samples_per_file": SAMPLES,
        "workload.dataset.record_length": 4096,
        "workload.workflow.generate_data": True,
        "workload.workflow.train": True,
        "workload.workflow.evaluation": False,
        "workload.workflow.checkpoint": True,
        "workload.checkpoint.checkpoint_folder": "saved",
        "workload.checkpoint.model_size": 65536,
        "workload.checkpoint.type": "rank_zero",
        "workload.train.epochs": EPOCHS,
        "workload.train.computation_time": 0.001,
    }
    words = [f"++{name}={value}" for name, value in parameters.items()]
    program = PYTHON.parent / "dlio_benchmark"
    modules = str(tmp_path / "modules")
    trace = traced(tmp_path, program, "workload=default", "hydra.run.dir=out", *words, PYTHONPATH=modules)

    summary = json.loads((tmp_path / "out/summary.json").read_text())
    steps = json.loads((tmp_path / "out/0_output.json").read_text())
    samples = BATCH * sum(len(steps[str(epoch + 1)]["load"]["block1"]) for epoch in range(summary["epochs"]))
    assert (summary["num_files_train"], summary["num_samples_per_file"]) == (FILES, SAMPLES)
    assert samples == FILES * SAMPLES * EPOCHS
    # The reader opens the file of each sample. The generator opens each file once before.
    data = "**/data/train/**"
    assert opened(trace, data) == samples + FILES
    sizes = [file.stat().st_size for file in (tmp_path / "data/train").rglob("*.npz")]
    assert len(sizes) == FILES and moved(trace, WRITES, data) >= sum(sizes)
    # It reads at least each array of a file, which is `samples` records of bytes.
    assert moved(trace, READS, data) >= samples * SAMPLES * 4096
    saved = list((tmp_path / "saved").iterdir())
    epochs = json.loads((tmp_path / "out/per_epoch_stats.json").read_text())
    assert sum("ckpt1" in epoch for epoch in epochs.values()) == EPOCHS
    assert moved(trace, WRITES, "**/saved/*") == sum(file.stat().st_size for file in saved)
    assert opened(trace, "**/saved/*") == len(saved)
    # Its loaders are children, and the main process reads no sample.
    readers = trace.events(op="read", path=data, layer="posix", columns=["pid"]).to_arrow().to_pylist()
    main = trace.events(op="write", path="**/saved/*", columns=["pid"]).to_arrow().to_pylist()
    assert {row["pid"] for row in readers}.isdisjoint(row["pid"] for row in main)


def test_dftracer_records_the_same_calls(tmp_path):
    """Both tracers in one run: each call on data that DFTracer records is in the trace of MIOT once."""
    program = script(
        tmp_path,
        """
        import os
        import torch

        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, index):
                file = os.open(f"data/sample-{index}", os.O_RDONLY)
                os.lseek(file, 100, os.SEEK_SET)
                data = os.read(file, 8) + os.pread(file, 500, 3000 + index)
                os.close(file)
                return torch.tensor(list(data[:8]), dtype=torch.float32)

        os.mkdir("data")
        for index in range(16):
            with open(f"data/sample-{index}", "wb") as file:
                file.write(bytes(4096 + index))
        for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2):
            pass
        file = os.open("data/state", os.O_CREAT | os.O_RDWR)
        for length in range(1, 200):
            os.write(file, bytes(length))
        os.pwrite(file, bytes(77), 5)
        os.fsync(file)
        os.close(file)
        """,
    )
    assignments = " ".join(f"{name}={value}" for name, value in tracer_cost.dftracer_settings(tmp_path).items())
    trace = traced(tmp_path, "sh", "-c", f'{assignments} LD_PRELOAD="$LD_PRELOAD:{DFTRACER}" exec "$@"', "sh", *program)

    logged, hashes = [], {}
    for log in tmp_path.glob("log-*.pfw"):
        for line in log.read_text().splitlines():
            if line.startswith("{"):
                record = json.loads(line)
                if record["name"] == "FH":
                    hashes[record["args"]["value"]] = record["args"]["name"]
                elif record["cat"] == "POSIX":
                    logged.append(record)
    # Handles differ between processes only in time: results of the others are compared.
    def key(pid, op, path, result):
        return pid, op, os.path.basename(path), None if op == "open" else result

    results = {"lseek", "read", "write", "pread", "pwrite"}
    theirs = collections.Counter()
    for record in logged:
        op, path = record["name"].removesuffix("64"), hashes.get(record["args"].get("fhash"), "")
        if pathlib.Path(path).parent.name == "data" and pathlib.Path(path).name.startswith(("sample-", "state")):
            theirs[key(record["pid"], op, path, record["args"]["ret"] if op in results else 0)] += 1
    columns = ["pid", "op", "path", "result"]
    ours = collections.Counter()
    for row in trace.events(path=str(tmp_path / "data/*"), layer="posix", columns=columns).to_arrow().to_pylist():
        ours[key(row["pid"], row["op"], row["path"], row["result"])] += 1
    assert {op for _, op, _, _ in theirs} == results | {"open", "close", "fsync"}
    assert sum(theirs.values()) > 300 and len({pid for pid, _, _, _ in theirs}) == 3
    assert not theirs - ours
    # DFTracer does not hook fstat of this C library.
    assert {op for _, op, _, _ in ours - theirs} == {"fstat"}


def test_costs_are_measured_on_calls_that_each_tracer_records():
    rows = tracer_cost.measure(str(DFTRACER), 1, 5, 100)["rows"]
    assert {row["run"]: (row["recorded"]["miot"], row["recorded"]["dftracer"]) for row in rows} == {
        "plain": (None, None),
        "miot": (500, None),
        "dftracer": (None, 500),
        "both": (500, 500),
    }


def test_checkpoints_of_torch_and_safetensors_have_the_size_of_their_files(tmp_path):
    program = script(
        tmp_path,
        """
        import torch, safetensors.torch
        state = {"weight": torch.zeros(1 << 18), "bias": torch.ones(1000)}
        torch.save(state, "state.pt")
        safetensors.torch.save_file(state, "state.safetensors")
        assert torch.equal(torch.load("state.pt")["bias"], state["bias"])
        assert torch.equal(safetensors.torch.load_file("state.safetensors")["bias"], state["bias"])
        """,
    )
    trace = traced(tmp_path, *program)
    # safetensors writes a temporary file and renames it, by a system call without a C function.
    for name, written in [("state.pt", "state.pt"), ("state.safetensors", ".tmp*")]:
        size = (tmp_path / name).stat().st_size
        assert size > 4 << 18
        assert moved(trace, WRITES, str(tmp_path / written)) == size, name
    assert moved(trace, READS, "**/state.pt") >= 4 << 18
    # safetensors maps the file.
    maps = trace.events(op="mmap", path="**/state.safetensors", columns=["length"]).to_arrow()
    assert (tmp_path / "state.safetensors").stat().st_size in maps["length"].to_pylist()


def test_checkpoints_are_listed_with_their_files(tmp_path):
    program = script(
        tmp_path,
        """
        import torch, miot
        miot.instrument("torch")
        state = {"weight": torch.zeros(1 << 16)}
        for epoch in range(2):
            with miot.region("compute"):
                sum(range(100_000))
            with miot.region("checkpoint", epoch=epoch):
                torch.save(state, f"first-{epoch}.pt")
                torch.save({**state, "more": torch.zeros(100)}, f"second-{epoch}.pt")
        """,
    )
    trace = traced(tmp_path, *program)
    table = trace.stat("checkpoint")
    size = lambda name: (tmp_path / name).stat().st_size
    rows = [(row["checkpoint"], row["file"] and os.path.basename(row["file"]), row["bytes_written"]) for row in table]
    expected = []
    for epoch in range(2):
        first, second = f"first-{epoch}.pt", f"second-{epoch}.pt"
        expected += [(epoch, None, size(first) + size(second)), (epoch, second, size(second)), (epoch, first, size(first))]
    assert rows == expected
    for row in table:
        if row["file"] is None:
            assert (row["files"], row["tasks"], row["writers"], row["blocked"]) == (2, 1, 1, 1.0)
    # The same figures in the tool and in the report.
    printed = json.loads(run("miot", "stat", tmp_path / "trace", "--by", "checkpoint", "--format", "json"))
    # Bandwidths may differ in their last digit, because one of them was a text.
    for row, known in zip(printed["rows"], map(dict, table), strict=True):
        assert row.pop("bandwidth") == pytest.approx(known.pop("bandwidth"), rel=1e-12)
        assert row == known
    assert run("miot", "stat", tmp_path / "trace", "--by", "checkpoint", "--format", "csv").count("\n") == 7
    run("miot", "report", tmp_path / "trace", "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "checkpoints-table" in page and page.count("second-1.pt") >= 1
    assert page.count('<td data-value="0">0</td>') == 3, "rows of the first checkpoint"


def test_scientific_formats_move_the_bytes_of_their_files(tmp_path):
    program = script(
        tmp_path,
        """
        import numpy, pandas, pyarrow, pyarrow.parquet, h5py, zarr
        values = numpy.random.default_rng(1).random(100_000)
        frame = pandas.DataFrame({"values": values})
        frame.to_csv("table.csv", index=False)
        assert len(pandas.read_csv("table.csv")) == len(values)
        pyarrow.parquet.write_table(pyarrow.Table.from_pandas(frame), "table.parquet")
        assert pyarrow.parquet.read_table("table.parquet", memory_map=False).num_rows == len(values)
        with h5py.File("array.h5", "w") as file:
            file["values"] = values
        with h5py.File("array.h5") as file:
            assert (file["values"][:] == values).all()
        array = zarr.create_array("array.zarr", shape=values.shape, chunks=(25_000,), dtype="f8", compressors=None)
        array[:] = values
        assert (zarr.open_array("array.zarr", mode="r")[:] == values).all()
        """,
    )
    trace = traced(tmp_path, *program)
    for name in ["table.csv", "table.parquet"]:
        size = (tmp_path / name).stat().st_size
        assert size > 700_000
        assert moved(trace, WRITES, f"**/{name}") == size, name
        # The reader of Parquet reads the end of the file twice.
        assert size <= moved(trace, READS, f"**/{name}") <= size * 1.25, name
    # The file of HDF5 has holes between the array and the metadata.
    size = (tmp_path / "array.h5").stat().st_size
    assert 800_000 < moved(trace, WRITES, "**/array.h5") <= size
    assert 800_000 < moved(trace, READS, "**/array.h5") <= size + 4096
    chunks = [file for file in (tmp_path / "array.zarr/c").iterdir()]
    assert sorted(file.stat().st_size for file in chunks) == [200_000] * 4
    assert moved(trace, READS, "**/array.zarr/c/*") == 800_000


def test_pytest_xdist_workers_are_traced(tmp_path):
    (tmp_path / "test_files.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.mark.parametrize("number", range(40))
            def test_file(number, request):
                with open(f"made-{number}", "wb") as file:
                    file.write(bytes(1000 + number))
            """
        )
    )
    trace = traced(tmp_path, PYTHON, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider", "test_files.py")
    rows = trace.events(op="write", path="**/made-*", layer="posix", columns=["pid", "path", "result"]).to_arrow()
    assert sorted(rows["result"].to_pylist()) == [1000 + number for number in range(40)]
    assert len(set(rows["pid"].to_pylist())) == 3


def test_lightning_callback_marks_regions(tmp_path):
    program = script(
        tmp_path,
        """
        import torch, torch.distributed
        # PyTorch 1.13 cannot import its sharded tensors in Python 3.11, which Lightning would do.
        torch.distributed.is_available = lambda: False
        import pytorch_lightning as lightning
        from miot.lightning import RegionCallback

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)

            def training_step(self, batch, index):
                return self.layer(batch[0]).square().mean()

            def validation_step(self, batch, index):
                self.layer(batch[0])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        samples = torch.utils.data.TensorDataset(torch.ones(16, 8))
        loader = torch.utils.data.DataLoader(samples, batch_size=4)
        trainer = lightning.Trainer(
            max_epochs=2, logger=False, enable_progress_bar=False, num_sanity_val_steps=0, accelerator="cpu",
            callbacks=[RegionCallback()],
        )
        trainer.fit(Model(), loader, loader)
        """,
    )
    table = traced(tmp_path, *program).stat("region")
    counts = {row["region"]: row["count"] for row in table if row["layer"] is None}
    assert counts == {
        "epoch": 2, "fetch": 8, "step": 8, "backward": 8, "optimizer": 8, "validate": 2, "checkpoint": 2,
    }
    checkpoint = next(row for row in table if row["region"] == "checkpoint" and row["layer"] is None)
    assert checkpoint["bytes_written"] >= sum(file.stat().st_size for file in (tmp_path / "checkpoints").iterdir())
