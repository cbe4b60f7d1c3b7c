#!/usr/bin/env bash
# Measures what profile-guided optimization gives to the daemons.
#
#   tests/bench/pgo.sh [ROUNDS]     8 rounds by default, about 15 minutes on two processors
#
# Builds the daemons with counters, trains them with a short run of `pipeline` and `nodes`, and builds
# them again with the profile. Then the same short run alternates between these daemons and those of the
# profile `dist`. Prints the medians of CPU time per event. Needs rustup, for the component llvm-tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-8}
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rustup component add llvm-tools
profdata=$(find "$(rustc --print sysroot)" -name llvm-profdata | head -n 1)
build() {
    cargo build --locked --profile dist --quiet -p miot-log-client -p miot-log-server \
        --features miot-log-client/broker,miot-log-server/broker
}
# The benchmark starts the programs beside it.
bench() {
    "$1/miot-bench" pipeline nodes --quick --out "$2" < /dev/null > "$2.log" || { cat "$2.log"; exit 1; }
}
tests/bench/run.sh --quick pipeline nodes
mkdir "$work/bin" "$work/found"
find "$target/dist" -maxdepth 1 -type f \( -name 'miot*' -o -name 'libmiot*.so' \) -perm -100 \
    -exec cp -t "$work/bin" {} +

echo "== training"
RUSTFLAGS="-Cprofile-generate=$work/counts" CARGO_TARGET_DIR=$target/pgo build
cp "$target"/pgo/dist/log-{client,server} "$work/bin"
bench "$work/bin" "$work/trained"
"$profdata" merge -o "$work/profile" "$work/counts"

echo "== comparison, $rounds rounds"
RUSTFLAGS="-Cprofile-use=$work/profile" CARGO_TARGET_DIR=$target/pgo build
cp "$target"/pgo/dist/log-{client,server} "$work/bin"
for round in $(seq "$rounds"); do
    bench "$target/dist" "$work/found/dist-$round"
    bench "$work/bin" "$work/found/pgo-$round"
done
python3 - "$work/found" << 'PY'
import collections, glob, json, statistics, sys

figures = collections.defaultdict(lambda: collections.defaultdict(list))
for path in glob.glob(f"{sys.argv[1]}/*-*/*.json"):
    profile = path.split("/")[-2].split("-")[0]
    with open(path) as file:
        results = json.load(file)["results"]
    # The runs of `pipeline` are those of MIOT and of its peer.
    for run in results if isinstance(results, list) else results["runs"]:
        if run.get("who", "MIOT").startswith("MIOT"):
            daemons = run.get("client_ns", 0) + run["server_ns"]
            name = f"{run.get('who', run.get('pattern'))}, {run.get('streams', run.get('nodes'))}"
            for what, value in (("user", daemons - run["kernel_ns"]), ("kernel", run["kernel_ns"])):
                figures[name, what][profile].append(value)
print(f"{'daemons, ns per event':<46} {'':>6} {'dist':>6} {'PGO':>6} {'less by':>8}")
for (name, what), of in sorted(figures.items()):
    dist, pgo = (statistics.median(of[profile]) for profile in ("dist", "pgo"))
    print(f"{name:<46} {what:>6} {dist:6.0f} {pgo:6.0f} {1 - pgo / dist:8.0%}")
PY
