"""`miot.instrument("torch")` on a plain training loop, and ranks of torchrun, with Debian's python3-torch."""

import os
import subprocess
import textwrap

import pytest

import miot
from conftest import run

#: The interpreter of Debian, which has Debian's packages.
PYTHON = "/usr/bin/python3"
SAMPLES, BATCH, EPOCHS, BYTES = 16, 4, 2, 8192


def has_torch():
    return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has_torch(), reason="NOT TESTED: Debian's python3-torch is not installed")

#: A loop that knows nothing of MIOT.
TRAIN = f"""
    import os, sys
    import torch
    import torch.distributed as distributed
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return {SAMPLES}

        def __getitem__(self, index):
            file = os.open(f"sample-{{index}}", os.O_RDONLY)
            data = os.read(file, {BYTES})
            os.close(file)
            return torch.tensor(list(data[:8]), dtype=torch.float32)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

        def forward(self, batch):
            return self.layers(batch)

    class OwnOptimizer(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    def main(method, distribute):
        if distribute:
            distributed.init_process_group("gloo")
        model, samples = Model(), Samples()
        optimizer = OwnOptimizer(model.parameters(), lr=0.01)
        loader = DataLoader(samples, batch_size={BATCH}, num_workers=2, multiprocessing_context=method)
        for epoch in range({EPOCHS}):
            for batch in loader:
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                if distribute:
                    for parameter in model.parameters():
                        distributed.all_reduce(parameter.grad)
                optimizer.step()
            if not distribute or distributed.get_rank() == 0:
                torch.save(model.state_dict(), f"model-{{epoch}}.pt")
        model.load_state_dict(torch.load("model-0.pt"))
        for batch in loader:
            break
        print("loss is finite:", bool(torch.isfinite(loss)))

    if __name__ == "__main__":
        main(sys.argv[1], sys.argv[2:] == ["distribute"])
"""


def train(tmp_path, launcher, *arguments, source=TRAIN, program=None, environment=None):
    (tmp_path / "train.py").write_text(textwrap.dedent(source))
    (tmp_path / "program.py").write_text(textwrap.dedent(program or source))
    for sample in range(SAMPLES):
        (tmp_path / f"sample-{sample}").write_bytes(bytes(range(256)) * (BYTES // 256))
    folder = os.path.dirname(os.path.dirname(miot.__file__))
    environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1", **(environment or {})}
    words = ["run", "-q", "-o", "trace", "--", PYTHON, *launcher, "-m", "miot", "instrument", "torch"]
    said = run("miot", *words, "program.py", *arguments, env=environment, cwd=tmp_path)
    assert "loss is finite: True" in said
    return miot.open(tmp_path / "trace")


def counts(table):
    return {row["region"]: row["count"] for row in table if row["layer"] is None}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_regions_of_a_plain_loop(tmp_path, method):
    trace = train(tmp_path, [], method)
    table = trace.stat("region")
    steps = SAMPLES // BATCH * EPOCHS
    assert counts(table) == {
        # And one that is left after its first batch.
        "epoch": EPOCHS + 1,
        "fetch": steps + 1,
        "step": steps + 1,
        "forward": steps,
        "backward": steps,
        "optimizer": steps,
        "checkpoint": EPOCHS,
        "restart": 1,
    }
    assert table.info["tasks"] == 1, "the workers belong to the loop"
    epoch = next(row for row in table if row["region"] == "epoch" and row["layer"] is None)
    assert epoch["is_main"] and epoch["bytes_read"] >= SAMPLES * EPOCHS * BYTES
    checkpoint = next(row for row in table if row["region"] == "checkpoint" and row["layer"] is None)
    assert checkpoint["bytes_written"] == sum(os.path.getsize(tmp_path / f"model-{n}.pt") for n in range(EPOCHS))
    single = [row["attributes"] for row in trace.stat("region", region="checkpoint") if row["layer"] is None]
    assert sorted(single) == ["file=model-0.pt", "file=model-1.pt"]
    epochs = {row["attributes"]: row for row in trace.stat("region", region="epoch") if row["layer"] is None}
    assert sorted(epochs) == [f"loader=0,epoch={number}" for number in range(EPOCHS + 1)]
    # Also what the workers read at their start.
    assert all(epochs[f"loader=0,epoch={number}"]["bytes_read"] >= SAMPLES * BYTES for number in range(EPOCHS))
    # The requests for samples are those of the workers.
    rows = trace.events(op="read", path="**/sample-*", columns=["pid"]).to_arrow().to_pylist()
    main = trace.events(op="region", columns=["pid"]).to_arrow().to_pylist()
    assert {row["pid"] for row in main}.isdisjoint(row["pid"] for row in rows)


SAVED = """
    import sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Saved(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            torch.save(torch.load(f"saved-{index}.pt"), f"cached-{index}.pt")
            return torch.zeros(8)

    if __name__ == "__main__":
        for index in range(4):
            torch.save(torch.ones(8), f"saved-{index}.pt")
        for batch in DataLoader(Saved(), batch_size=2, num_workers=int(sys.argv[1])):
            loss = batch.mean()
        torch.load("saved-0.pt")
        print("loss is finite:", bool(torch.isfinite(loss)))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_saved_tensors_are_no_restarts(tmp_path, workers):
    trace = train(tmp_path, [], str(workers), source=SAVED)
    assert counts(trace.stat("region")) == {"epoch": 1, "fetch": 2, "step": 2, "checkpoint": 4, "restart": 1}
    assert all((tmp_path / f"cached-{index}.pt").exists() for index in range(4))


def test_ranks_of_torchrun(tmp_path):
    # In Python 3.11, PyTorch 1.13 does not start with its default for the output.
    output = ["--redirects", "1", "--tee", "1", "--log_dir", str(tmp_path / "logs")]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *output]
    trace = train(tmp_path, launcher, "fork", "distribute")
    readers = {row["pid"] for row in trace.events(op="read", path="**/sample-*", columns=["pid"]).to_arrow().to_pylist()}
    ranks = {}
    for row in trace.processes:
        if row["rank"] is not None:
            assert row["world_size"] == 2 and row["job_step"] not in (None, "none")
            ranks.setdefault(row["rank"], set()).add(row["pid"])
    assert set(ranks) == {0, 1} and not ranks[0] & ranks[1]
    assert readers <= ranks[0] | ranks[1]
    # Two workers of each rank in each epoch. The iteration that is left after its first batch has the
    # worker of this batch; the other one may be ended before it reads.
    for pids in ranks.values():
        assert 2 * EPOCHS + 1 <= len(readers & pids) <= 2 * EPOCHS + 2
    table = trace.stat("region")
    assert table.info["tasks"] == 2
    steps = SAMPLES // BATCH * EPOCHS
    assert counts(table)["forward"] == 2 * steps and counts(table)["checkpoint"] == EPOCHS


#: Ranks that the program starts itself. Their number is not in the environment.
SPAWN = """
    import os, sys
    import torch.distributed as distributed
    import torch.multiprocessing as multiprocessing
    from torch.utils.data import DataLoader
    from train import BATCH, Model, Samples

    RANKS = 2

    def rank_of(index, node, folder):
        rank = node * RANKS + index
        if node == 0:
            store = f"file://{folder}/store"
            distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
        for batch in DataLoader(Samples(), batch_size=BATCH, num_workers=1, multiprocessing_context=sys.argv[1]):
            Model()(batch)
        with open(f"of-rank-{rank}", "w") as file:
            file.write("x" * (rank + 1))
        assert "TORCHELASTIC_RUN_ID" not in os.environ

    if __name__ == "__main__":
        multiprocessing.spawn(rank_of, args=(int(sys.argv[2]), os.getcwd()), nprocs=RANKS)
        assert "MIOT_RANK" not in os.environ
        open("of-the-parent", "w").close()
        print("loss is finite: True")
"""


@pytest.mark.parametrize(
    ("method", "node", "environment", "size"),
    [("fork", 0, {}, 2), ("spawn", 1, {"RANK": "1", "WORLD_SIZE": "3"}, 6)],
)
def test_ranks_that_spawn_starts(tmp_path, method, node, environment, size):
    source = TRAIN.replace("def main(", f"BATCH = {BATCH}\n\n    def main(")
    trace = train(tmp_path, [], method, str(node), source=source, program=SPAWN, environment=environment)
    ranks = {row["pid"]: (row["rank"], row["world_size"]) for row in trace.processes}
    first = 2 * node
    files = trace.events(op="write", path="**/of-rank-*", columns=["pid", "path", "result"]).to_arrow().to_pylist()
    assert len(files) == 2
    for row in files:
        rank = int(row["path"].rpartition("-")[2])
        assert row["result"] == rank + 1 and ranks[row["pid"]] == (rank, size)
    assert {ranks[row["pid"]][0] for row in files} == {first, first + 1}
    # Workers belong to their ranks, the parent to none of them.
    reads = trace.events(op="read", path="**/sample-*", columns=["pid"]).to_arrow().to_pylist()
    readers = {row["pid"] for row in reads}
    assert len(readers) == 2 and {ranks[pid][0] for pid in readers} == {first, first + 1}
    assert readers.isdisjoint(row["pid"] for row in files)
    parent = {row["pid"] for row in trace.events(path="**/of-the-parent", columns=["pid"]).to_arrow().to_pylist()}
    assert [ranks[pid][0] for pid in parent] == [int(environment["RANK"]) if environment else None]
    # Regions are marked in the ranks, too.
    table = trace.stat("region")
    assert counts(table)["forward"] == 2 * SAMPLES // BATCH and counts(table)["epoch"] == 2
    assert table.info["tasks"] == 2
