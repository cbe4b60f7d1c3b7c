#!/usr/bin/env bash
# The lane under loom: the models must pass, and each mutant of a memory order must fail.
set -euo pipefail
cd "$(dirname "$0")/.."
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3} RUST_BACKTRACE=0
model() {
    CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" \
        cargo test --quiet --release --locked --package miot-tracer --lib -- loom_ 2>&1
}
echo "loom: the lane as it is"
model
mutants=(
    commit mark room claim retire reuse overwrite show count
    see_tail free see_state drained recheck see_shown see_count no-mark
)
named=$(sed -n 's/^    \([a-z_]*\) = [A-Za-z]*;$/\1/p' tracer-client/src/lane/order.rs | sort)
[ "$(printf '%s\n' "${mutants[@]}" | grep -v no-mark | sort)" = "$named" ] || {
    echo "loom: the mutants are not the orders of tracer-client/src/lane/order.rs" >&2
    exit 1
}
for mutant in "${mutants[@]}"; do
    if output=$(MIOT_MUTANT=$mutant model); then
        printf '%s\n' "$output"
        echo "loom: the mutant \"$mutant\" passed: the model does not notice that order" >&2
        exit 1
    fi
    grep -q 'test result: FAILED' <<< "$output" || {
        printf '%s\n' "$output"
        exit 1
    }
    echo "loom: mutant \"$mutant\" is caught"
done
