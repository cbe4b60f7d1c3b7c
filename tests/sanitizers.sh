#!/usr/bin/env bash
# Runs real threads, real segments and a real log-client under the compiler's sanitizers.
#
#   tests/sanitizers.sh             both
#   tests/sanitizers.sh thread      ThreadSanitizer: data races
#   tests/sanitizers.sh address     AddressSanitizer: wrong accesses, leaks
#   tests/sanitizers.sh build       only builds for ThreadSanitizer, in a folder of its own, so that
#                                   other builds can run beside it
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
tests=(cargo test --quiet --locked --package miot-tracer --package miot-log-client --lib --test segment)

if [ "$chosen" != address ]; then
    # Dependencies as well: how threads synchronize in them must be seen.
    thread=(env RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/sanitizer "TSAN_OPTIONS=suppressions=$PWD/tests/tsan.txt"
        RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
        "${tests[@]}" --profile sanitizer --target x86_64-unknown-linux-gnu)
    # Cargo takes the place of the script, whose process id is what ends the build.
    [ "$chosen" != build ] || exec "${thread[@]}" --no-run
    echo "sanitizers: thread"
    "${thread[@]}"
fi

if [ "$chosen" != thread ]; then
    echo "sanitizers: address"
    RUSTC_WORKSPACE_WRAPPER=$PWD/tests/sanitizer-rustc.sh "${tests[@]}" --test delivery
fi
