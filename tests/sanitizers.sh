#!/usr/bin/env bash
# Runs real threads, real segments and a real log-client under the compiler's sanitizers.
#
#   tests/sanitizers.sh             both
#   tests/sanitizers.sh thread      ThreadSanitizer: data races
#   tests/sanitizers.sh address     AddressSanitizer: wrong accesses, leaks
#
# ThreadSanitizer covers only a part. The log-client reads segments with system calls, so the other
# side of a lane is checked by tests/loom.sh. The standard library has no instrumentation, so every
# wait for another thread in it (tokio) would be reported as a race: tests of the whole log-client
# run under AddressSanitizer only. tests/tests/capi.rs runs C programs under AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."
chosen=${1:-all}
# That of tests/run.sh.
unset RUSTC_WORKSPACE_WRAPPER
run_tests() {
    cargo test --quiet --locked --package miot-tracer --package miot-log-client --lib --test segment "$@"
}

if [ "$chosen" != address ]; then
    echo "sanitizers: thread"
    # Dependencies as well: how threads synchronize in them must be seen.
    RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/sanitizer TSAN_OPTIONS="suppressions=$PWD/tests/tsan.txt" \
        RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
        run_tests --profile sanitizer --target x86_64-unknown-linux-gnu
fi

if [ "$chosen" != thread ]; then
    echo "sanitizers: address"
    RUSTC_WORKSPACE_WRAPPER=$PWD/tests/sanitizer-rustc.sh run_tests --test delivery
fi
