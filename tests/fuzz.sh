#!/usr/bin/env bash
# Builds the fuzz targets with AddressSanitizer and coverage, and runs them from their seeds.
#
#   tests/fuzz.sh                      all targets, 15 seconds each
#   tests/fuzz.sh segment 3600         one target, an hour
#   MIOT_SEED=7 tests/fuzz.sh wire     repeats the same mutations
#
# Interesting inputs are kept in target/fuzz/corpus, from which the next run starts. A failing input
# is written to target/fuzz/artifacts, and `tests/fuzz.sh TARGET FILE` runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."
chosen=${1:-all} seconds=${2:-15}
targets=(batch control dxt lane miller segment session spool strace trace wire)
[ "$chosen" = all ] || targets=("$chosen")

# The packages and features of the build of tests/run.sh, which has compiled all dependencies.
export RUSTC_WORKSPACE_WRAPPER=$PWD/tests/sanitizer-rustc.sh
binaries=(--bin seeds)
for target in "${targets[@]}"; do binaries+=(--bin "$target"); done
cargo build --quiet --locked --workspace --features miot/broker,miot-fuzz/libfuzzer "${binaries[@]}"
bin=${CARGO_TARGET_DIR:-target}/debug
data=target/fuzz

# Directory for files of the targets, removed at the end of this run, even after a failure.
TMPDIR=$(mktemp -d /dev/shm/miot-fuzz.XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

if [ -e "$seconds" ]; then
    "$bin/$chosen" "$seconds"
    exit
fi
"$bin/seeds" "$data/seeds"
# Runs one target from its seeds. Prints its output at the end, because several run in parallel.
run_target() {
    local target=$1 seed=${MIOT_SEED:-$((RANDOM * 32768 + RANDOM))}
    local corpus=$data/corpus/$target artifacts=$data/artifacts/$target/
    mkdir -p "$corpus" "$artifacts"
    if ! "$bin/$target" "$corpus" "$data/seeds/$target" -seed="$seed" -max_total_time="$seconds" \
        -max_len=16384 -len_control=20 -timeout=20 -rss_limit_mb=2048 -artifact_prefix="$artifacts" \
        -print_final_stats=1 > "$artifacts/log" 2>&1; then
        tail -n 60 "$artifacts/log"
        echo "fuzz: $target failed with MIOT_SEED=$seed; the input is in $artifacts" >&2
        return 1
    fi
    echo "fuzz: $target for $seconds s, MIOT_SEED=$seed:" \
        "$(grep -E 'stat::(number_of_executed_units|average_exec)|^#[0-9]+.*DONE' "$artifacts/log" | tr '\n' ' ')"
}
export -f run_target
export bin data seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I '{}' bash -c 'run_target {}'
