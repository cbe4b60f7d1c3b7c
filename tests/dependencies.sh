#!/usr/bin/env bash
# Keeps the compiled dependencies of a build server's clones, so that the next clone compiles only
# MIOT. Cargo decides which of them it can use.
#
#   tests/dependencies.sh load    copies them to target/, if nothing was built there
#   tests/dependencies.sh save    copies them from target/, if there are none for this Cargo.lock
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${MIOT_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/miot-tests}
key=$({ rustc -vV; cat Cargo.lock Cargo.toml; } | cksum | cut -d' ' -f1)
kept=$cache/dependencies-$key
mkdir -p "$cache"
exec 9> "$cache/dependencies.lock"
flock 9

# Prints the files of a build folder that belong to dependencies: cargo names them all by a hash, and
# only MIOT's packages start with its name.
of_dependencies() {
    local hashes
    hashes=$(find "$1/.fingerprint" -mindepth 1 -maxdepth 1 ! -name 'miot*' -printf '%f\n' | sed 's/.*-//')
    find "$1"/{.fingerprint,build,deps} -mindepth 1 -maxdepth 1 | grep -F -e "$hashes"
}

case ${1:-} in
load)
    [ ! -d target/debug ] && [ -d "$kept" ] || exit 0
    # A part of them could be files that are cut off.
    cp -a "$kept/target/." target || rm -rf target/debug target/sanitizer
    ;;
save)
    [ ! -d "$kept" ] || exit 0
    # Those of earlier commits, and what a killed run has left, are not needed any more.
    rm -rf "$cache"/dependencies-*
    new=$(mktemp -d "$cache/dependencies-new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    find target -maxdepth 4 -name .fingerprint -printf '%h\n' |
        while read -r folder; do of_dependencies "$folder"; done |
        xargs -d '\n' cp -a --parents -t "$new"
    mv "$new" "$kept"
    ;;
*)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
