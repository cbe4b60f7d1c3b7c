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
# Every compiler has the sanitizers, behind a switch for unstable features. Both share one folder,
# because build scripts and procedural macros are the same.
export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/fuzz

run_tests() {
    cargo test --quiet --locked --profile fuzz --target x86_64-unknown-linux-gnu \
        --package miot-tracer --package miot-log-client --lib --test segment "$@"
}

if [ "$chosen" != address ]; then
    echo "sanitizers: thread"
    RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
        TSAN_OPTIONS="suppressions=$PWD/tests/tsan.txt" run_tests
fi

if [ "$chosen" != thread ]; then
    echo "sanitizers: address"
    # With the flags of tests/fuzz.sh, to reuse most of its build.
    RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer" \
        run_tests --test delivery
fi
