#!/usr/bin/env bash
# Long versions of the tests that run briefly on every change: random faults for a given time.
#
#   tests/soak.sh                       each for ten minutes
#   tests/soak.sh oracle torture        only these
#   tests/soak.sh --minutes 240 oracle  four hours
#   tests/soak.sh --damage oracle       files are damaged as well
#
# MIOT_SEED, which each run prints, repeats the same kind of run. Needs the programs that
# tests/setup.sh installs.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH"
export PYTHONDONTWRITEBYTECODE=1

all=(oracle torture network road everything crash streams soak)
minutes=10 damage=() names=()
while [ $# -gt 0 ]; do
    case "$1" in
        --minutes) minutes=${2:?--minutes needs a number}; shift ;;
        --damage) damage=(--damage) ;;
        -*) echo "soak: unknown option $1; see the head of tests/soak.sh" >&2; exit 2 ;;
        *) [[ " ${all[*]} " = *" $1 "* ]] || { echo "soak: there is no $1; there are: ${all[*]}" >&2; exit 2; }
            names+=("$1") ;;
    esac
    shift
done
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")

bash tests/setup.sh
# Built with optimization, because millions of events are judged.
cargo build --workspace --exclude miot-query --lib --bins --tests --release --locked --quiet
export MIOT_TESTS_BUILT=1

# Without tests/nextest.toml, which kills long tests.
tests() { cargo nextest run --workspace --exclude miot-query --release --locked --no-capture "$@"; }
run() {
    case "$1" in
        oracle) target/test-venv/bin/python tests/programs/oracle --bin target/release --seconds $((minutes * 60)) "${damage[@]}" ;;
        torture) MIOT_TORTURE_KILLS=$((minutes * 400)) tests -E 'binary(conservation) and test(torture)' ;;
        network) MIOT_NETWORK_SECONDS=$((minutes * 60)) tests -E 'binary(conservation) and test(network)' ;;
        road) MIOT_ROAD_SECONDS=$((minutes * 60)) tests -E 'binary(conservation) and test(road)' ;;
        everything) MIOT_EVERYTHING_SECONDS=$((minutes * 60)) tests -E 'binary(conservation) and test(everything)' ;;
        crash) MIOT_CRASH_POINTS=all MIOT_POWER_CUTS=$((minutes * 40)) tests -E 'binary(crash_points)' ;;
        streams) MIOT_STREAMS_NODES=300 MIOT_STREAMS=1000 tests -E 'binary(streams)' ;;
        soak) MIOT_SOAK_MINUTES=$minutes tests -E 'binary(conservation) and test(soak)' ;;
    esac
}

rows=() failed=0
for name in "${names[@]}"; do
    printf '\n== %s ==\n' "$name"
    begun=$SECONDS verdict=good
    run "$name" || { verdict=FAILED failed=$((failed + 1)); }
    rows+=("$name|$verdict|$((SECONDS - begun))")
done
echo
{ echo "soak|result|seconds"; printf '%s\n' "${rows[@]}"; } | column -t -s '|'
[ "$failed" = 0 ]
