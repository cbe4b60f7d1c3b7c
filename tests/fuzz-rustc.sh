#!/bin/sh
# Compiler wrapper for tests/fuzz.sh: adds coverage instrumentation to the crates of MIOT only.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
case " $* " in
# shellcheck disable=SC2086
*" --crate-name miot_"*) exec "$@" $coverage ;;
*) exec "$@" ;;
esac
