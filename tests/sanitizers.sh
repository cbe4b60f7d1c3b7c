#!/usr/bin/env bash
# Real threads, real segments and a real log-client under the compiler's sanitizers.
#   tests/sanitizers.sh             both
#   tests/sanitizers.sh thread      ThreadSanitizer: data races
#   tests/sanitizers.sh address     AddressSanitizer: wrong accesses, leaks
# ThreadSanitizer sees only a part. The log-client reads segments with system calls: the other side of a lane is for
# tests/loom.sh. The standard library has no instrumentation, so whatever waits in it for another thread (tokio) would
# be reported as races: tests of the whole log-client run under AddressSanitizer only.
# C programs under AddressSanitizer: tests/tests/capi.rs.
set -euo pipefail
cd "$(dirname "$0")/.."
chosen=${1:-all}
# Sanitizers are there in every compiler, behind a switch for unstable features.
export RUSTC_BOOTSTRAP=1

run_tests() {
    cargo test --quiet --locked --profile fuzz --target x86_64-unknown-linux-gnu \
        --package miot-tracer --package miot-log-client --lib --test segment "$@"
}

if [ "$chosen" != address ]; then
    echo "sanitizers: thread"
    CARGO_TARGET_DIR=target/thread RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
        TSAN_OPTIONS="suppressions=$PWD/tests/tsan.txt" run_tests
fi

if [ "$chosen" != thread ]; then
    echo "sanitizers: address"
    # With the flags of tests/fuzz.sh, so that most of the build is there.
    CARGO_TARGET_DIR=target/fuzz \
        RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer" \
        run_tests --test delivery
fi
