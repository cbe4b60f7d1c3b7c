#!/usr/bin/env bash
# All checks and tests of MIOT, with nothing to set up before. Needs cargo, and root or sudo the first time.
#   tests/run.sh                   everything
#   tests/run.sh truth order       only the tests whose names contain one of the words
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH"

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

    step "licences, bans, sources of the dependencies"
    if command -v cargo-deny > /dev/null; then
        cargo deny --all-features check bans licenses sources
        echo "SKIPPED: advisories, which need a download of their database (cargo deny check advisories)"
    else
        echo "SKIPPED: cargo-deny is not here and could not be built"
    fi
fi

step "build"
cargo build --locked --quiet
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
