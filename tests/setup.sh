#!/usr/bin/env bash
# Installs what the tests need and is not there yet: Debian packages, Python packages in an environment of
# their own, and two cargo tools. Can be run again at any time; does nothing when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo > /dev/null; then sudo -n "$@"
    else
        say "need root to run: $*; become root or install sudo" >&2
        return 1
    fi
}

# --- Debian -----------------------------------------------------------------------------------------
packages=(
    strace fio sqlite3 tar python3 python3-venv gcc libc6-dev pkg-config libcap2-bin
    lttng-tools liblttng-ust-dev babeltrace2 # the benchmarks' peers
)
command -v git > /dev/null || packages+=(git)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}\n' "$package" 2> /dev/null | grep -q '^install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi

# --- Python: the readers of other people --------------------------------------------------------------
venv=target/test-venv
wanted="pyarrow==26.0.1 duckdb==1.5.6"
if [ "$(cat "$venv/wanted" 2> /dev/null)" != "$wanted" ]; then
    say "making $venv with $wanted"
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: $wanted
    echo "$wanted" > "$venv/wanted"
fi

# --- cargo tools, kept in target/tools ----------------------------------------------------------------
# `|| say`: without them tests/run.sh does with less, and says so.
tool() {
    command -v "$1" > /dev/null || [ -x "target/tools/bin/$1" ] && return
    say "building $1 $2 (some minutes, once)"
    cargo install --quiet --locked "$1" --version "$2" --root target/tools ||
        say "$1 could not be built" >&2
}
tool cargo-deny 0.20.2
tool cargo-nextest 0.9.143
