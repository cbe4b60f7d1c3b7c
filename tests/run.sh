#!/usr/bin/env bash
# Runs all checks and tests of MIOT and installs their requirements. Needs cargo, and root or sudo
# the first time.
#
#   tests/run.sh                   everything
#   tests/run.sh truth order       only the tests whose names contain one of the words
#
# Prints at the end: minutes per step, the twenty slowest tests, the summary of the test runner.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests run programs of the clone as other users, who may not be permitted to enter its folder (e.g.
# below /root). In that case root continues with the clone mounted at a place that all users may
# enter.
others_may_enter() {
    local folder=$PWD
    while [ "$folder" != / ]; do
        case $(stat -c %A "$folder") in *x | *t) folder=$(dirname "$folder") ;; *) return 1 ;; esac
    done
}
if [ "$(id -u)" = 0 ] && ! others_may_enter; then
    # Not below /run or /tmp, which services and tests mount over.
    public=/srv/miot-tests/$(pwd | cksum | cut -d' ' -f1)/miot
    mkdir -p "$public"
    echo "run.sh: other users may not enter $PWD: going on in $public"
    exec unshare --mount sh -c 'mount --bind . "$0" && cd "$0" && exec bash tests/run.sh "$@"' "$public" "$@"
fi
export PATH="$PWD/target/tools/bin:$PATH"

free=$(df --output=avail -BG . | tail -1 | tr -dc 0-9)
if [ "$free" -lt 16 ] && [ ! -d target/debug ]; then
    echo "run.sh: $free GiB are free here, and build and tests need 16 GiB: tests may fail for lack of space" >&2
fi

# A build server builds everything once: incremental files and line tables cost time, and old targets
# cost disk space.
if [ "${CI:-}" = true ]; then export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false; fi
discard() { [ "${CI:-}" != true ] || rm -rf "$@"; }

minutes=() name='' began=0 lints=() build=
end_step() {
    [ -z "$name" ] || minutes+=("$(awk -v s=$((SECONDS - began)) 'BEGIN { printf "%6.1f", s / 60 }')  $name")
}
step() {
    end_step
    name=$* began=$SECONDS
    printf '\n== %s ==\n' "$*"
}
log=target/nextest/default
report() {
    [ -z "$build" ] || kill "$build" || true
    end_step
    printf '\n== minutes per step ==\n'
    printf '%s\n' "${minutes[@]}"
    awk -v s=$SECONDS 'BEGIN { printf "%6.1f  in all\n", s / 60 }'
    if [ -s $log/junit.xml ]; then
        printf '\n== the twenty slowest tests, seconds ==\n'
        # A here-document, not a pipe into `head`, which would end `sort` with a signal.
        sed -n 's/.*<testcase name="\([^"]*\)" classname="\([^"]*\)".* time="\([0-9.]*\)".*/\3  \2 \1/p' $log/junit.xml |
            sort -rn | awk 'NR <= 20 { printf "%7.1f  %s %s\n", $1, $2, $3 }'
    fi
    # The summary of the test runner comes last.
    [ ! -s $log/output ] || { echo && sed -n '/^ *Summary /,$p; /^test result: /p' $log/output; }
}
trap report EXIT

step "what the tests need"
bash tests/setup.sh
[ "${CI:-}" != true ] || tests/dependencies.sh load

if [ $# = 0 ]; then
    # Clippy is a compiler. Called by cargo as the compiler, it checks and builds at once, whereas
    # `cargo clippy` would process all dependencies a second time. The variables are those that
    # `cargo clippy` sets.
    RUSTC_WORKSPACE_WRAPPER=$(dirname "$(rustup which rustc 2> /dev/null || command -v rustc)")/clippy-driver
    lints=("RUSTC_WORKSPACE_WRAPPER=$RUSTC_WORKSPACE_WRAPPER" CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__)
fi
# With the same targets as the tests below: other targets have other features, and everything would
# be built twice. It starts here, because the steps before the tests leave processors idle.
mkdir -p target
nice -n 10 env "${lints[@]}" cargo build --workspace --features miot/broker --lib --bins --tests --examples \
    --locked --quiet > target/build.log 2>&1 &
build=$!

if [ $# = 0 ]; then
    step "format"
    cargo fmt --all --check

    step "texts: words, spelling, links, the documentation site"
    tests/prose.sh

    step "unused dependencies"
    if command -v cargo-machete > /dev/null; then
        cargo machete
    else
        echo "SKIPPED: cargo-machete is not here and could not be built"
    fi

    step "the lane in a model checker, and mutants of its memory orders"
    tests/loom.sh
    discard target/loom

    step "licences, bans, sources of the dependencies"
    if command -v cargo-deny > /dev/null; then
        cargo deny --all-features check bans licenses sources
        echo "SKIPPED: advisories, which need a download of their database (cargo deny check advisories)"
    else
        echo "SKIPPED: cargo-deny is not here and could not be built"
    fi
fi

step "build, with lints"
wait "$build" || { build=; cat target/build.log; exit 1; }
build=
# For cargo, what the compiler is belongs to the build.
[ ${#lints[@]} = 0 ] || export "${lints[@]}"
export MIOT_TESTS_BUILT=1

if [ $# = 0 ]; then
    step "hostile bytes, and steps of lanes beside their oracle: a short run of each fuzz target"
    # Fuzz targets and tests leave processors idle, too, and ThreadSanitizer has a build of its own.
    nice -n 10 tests/sanitizers.sh build > target/sanitizer.log 2>&1 &
    build=$!
    tests/fuzz.sh all 10

    step "threads and memory under the compiler's sanitizers"
    tests/sanitizers.sh address
    wait "$build" || { build=; cat target/sanitizer.log; exit 1; }
    build=
    tests/sanitizers.sh thread
    [ "${CI:-}" != true ] || tests/dependencies.sh save ||
        echo "run.sh: the compiled dependencies were not kept for the next clone" >&2
    discard target/sanitizer

    step "examples in the documentation"
    cargo test --workspace --features miot/broker --locked --quiet --doc
fi

step "tests"
rm -rf $log
mkdir -p $log
if cargo nextest --version > /dev/null 2>&1; then
    runner=(cargo nextest run --workspace --features miot/broker --locked --no-fail-fast --config-file tests/nextest.toml "$@")
else
    echo "cargo-nextest is not here: cargo test"
    runner=(cargo test --workspace --features miot/broker --locked --no-fail-fast -- "$@")
fi
"${runner[@]}" 2>&1 | tee $log/output
