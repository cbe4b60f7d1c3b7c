#!/usr/bin/env bash
# All checks and tests of MIOT, with nothing to set up before. Needs cargo, and root or sudo the first time.
#   tests/run.sh                   everything
#   tests/run.sh truth order       only the tests whose names contain one of the words
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH"

# A build server builds everything once: it neither needs what makes the next build short, nor has room for it.
if [ "${CI:-}" = true ]; then export CARGO_INCREMENTAL=0; fi
used_up() { [ "${CI:-}" != true ] || rm -rf "$@"; }

step() { printf '\n== %s ==\n' "$*"; }

step "what the tests need"
bash tests/setup.sh

if [ $# = 0 ]; then
    step "format"
    cargo fmt --all --check

    step "lints"
    cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

    step "the lane in a model checker, and mutants of its memory orders"
    tests/loom.sh
    used_up target/loom

    step "hostile bytes, and steps of lanes beside their oracle: a short run of each fuzz target"
    tests/fuzz.sh all 10

    step "threads and memory under the compiler's sanitizers"
    tests/sanitizers.sh
    used_up target/fuzz target/thread

    step "licences, bans, sources of the dependencies"
    if command -v cargo-deny > /dev/null; then
        cargo deny --all-features check bans licenses sources
        echo "SKIPPED: advisories, which need a download of their database (cargo deny check advisories)"
    else
        echo "SKIPPED: cargo-deny is not here and could not be built"
    fi
fi

step "build"
# As the tests are built below: other targets have other features, and everything would be built twice.
cargo build --workspace --lib --bins --tests --examples --locked --quiet
export MIOT_TESTS_BUILT=1

if [ $# = 0 ]; then
    step "examples in the documentation"
    cargo test --workspace --locked --quiet --doc
fi

step "tests"
if cargo nextest --version > /dev/null 2>&1; then
    cargo nextest run --workspace --locked --no-fail-fast --config-file tests/nextest.toml "$@"
else
    echo "cargo-nextest is not here: cargo test"
    cargo test --workspace --locked --no-fail-fast -- "$@"
fi
