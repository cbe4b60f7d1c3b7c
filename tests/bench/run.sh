#!/bin/sh
# Measures what MIOT costs, beside its peers, and writes the tables of docs/performance.md.
#
#   tests/bench/run.sh [--quick] [op|threads|hook|pipeline|delay|tables]...
#
# Without a name: everything. Results: target/bench/NAME.json. What is not installed is skipped and said so;
# tests/setup.sh installs it (fio, strace, lttng-tools, liblttng-ust-dev, babeltrace2, zstd).
set -eu
cd "$(dirname "$0")/../.."
cargo build --release --quiet --package miot-bench
# A part that does not build is missed by the benchmarks that need it, not by the others.
for part in miot-hook-posix miot-log-client miot-log-server miot; do
	cargo build --release --quiet --package "$part" || echo "run.sh: $part does not build" >&2
done
exec "${CARGO_TARGET_DIR:-target}/release/miot-bench" "$@"
