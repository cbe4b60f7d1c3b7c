#!/usr/bin/env bash
# Compiler wrapper for tests/fuzz.sh and tests/sanitizers.sh: instruments the crates of MIOT, and
# optimizes those with the code that is tested. Cargo calls it for crates of the workspace only, so
# that everything else is what other builds have compiled. In bash, because dash removes variables
# such as CARGO_BIN_EXE_log-client.
#
# Every compiler has AddressSanitizer and coverage, behind a switch for unstable features.
sanitizer="--cfg fuzzing -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
optimized="-Copt-level=2"
case " $* " in
*" --crate-name build_script_"* | *" - "*) exec "$@" ;;
*" --crate-name miot_fuzz "* | *" --crate-name miot_proto "* | *" --crate-name miot_tracer "* | *" --crate-name miot_log_client "*) ;;
*) optimized= ;;
esac
case " $* " in
*" --crate-name miot_"*) ;;
*) coverage= ;;
esac
# shellcheck disable=SC2086
RUSTC_BOOTSTRAP=1 exec "$@" $sanitizer $coverage $optimized
