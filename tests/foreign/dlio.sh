# shellcheck shell=bash disable=SC2034
# DLIO, a benchmark of deep learning, with its PyTorch loader: formats, loaders and checkpoints. Its
# other formats take minutes to generate. python/tests/test_workloads.py compares a short run with
# its trace.
packages=(python3-torch openmpi-bin)

ready() {
    [ -x "${FOREIGN_TOOLS%/tools}/test-workloads/bin/dlio_benchmark" ] || { echo "run tests/setup.sh" && return 1; }
}

work() {
    local format threads
    mkdir modules
    # DLIO imports TensorFlow for a profiler that is not used here.
    touch modules/tensorflow.py
    export PYTHONPATH=$PWD/modules OMP_NUM_THREADS=1
    for format in npz npy; do
        for threads in 0 2; do
            "${FOREIGN_TOOLS%/tools}/test-workloads/bin/dlio_benchmark" workload=default \
                hydra.run.dir="out-$format-$threads" ++workload.framework=pytorch \
                ++workload.reader.data_loader=pytorch ++workload.reader.read_threads=$threads \
                ++workload.reader.batch_size=4 ++workload.dataset.data_folder="data-$format" \
                ++workload.dataset.format=$format ++workload.dataset.num_files_train=32 \
                ++workload.dataset.num_files_eval=0 ++workload.dataset.num_samples_per_file=4 \
                ++workload.dataset.record_length=65536 ++workload.workflow.generate_data=True \
                ++workload.workflow.train=True ++workload.workflow.evaluation=False \
                ++workload.workflow.checkpoint=True ++workload.checkpoint.checkpoint_folder="saved-$format-$threads" \
                ++workload.checkpoint.model_size=65536 ++workload.checkpoint.type=rank_zero \
                ++workload.train.epochs=3 ++workload.train.computation_time=0.001 > output 2>&1 ||
                { tail -n 5 output && return 1; }
            python3 -c '
import json, sys
steps = json.load(open(f"{sys.argv[1]}/0_output.json"))
print(sys.argv[1], [len(steps[str(epoch)]["load"]["block1"]) for epoch in (1, 2, 3)])' "out-$format-$threads"
        done
        # The names and sizes of the files are the same in each run.
        find "data-$format" "saved-$format-"* -type f -printf '%p %s\n' | sort
    done
}
