#!/usr/bin/env bash
# Third-party programs, each run without and with the hook: results are compared, and the trace must
# be complete.
#
#   tests/foreign.sh                    all programs, long runs (nightly)
#   tests/foreign.sh --short            the programs of every change, short runs
#   tests/foreign.sh git postgresql     only these; also with --short
#   tests/foreign.sh --list             their names
#   tests/foreign.sh --present ...      installs nothing
#
# MIOT_BIN: folder of the binaries; without it they are built. MIOT_FOREIGN_KEEP=yes keeps traces
# and outputs.
#
# A program is a file tests/foreign/NAME.sh, which sets:
#   packages   Debian packages
#   ready      function, optional: installs further requirements; fails with a message if it cannot
#   user       optional: user to run as when this script runs as root
#   work       function: runs in an empty folder and prints its result, which is the same in each
#              run; FOREIGN_SHORT=yes: short run
#   compare    optional: `tests`, if the result is lines of `ok NAME`: each line of the plain run
#              must be in the result with the hook
#   in_short   yes, if it belongs to --short
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
say() { echo "foreign: $*"; }

# shellcheck source=packages.sh
. tests/packages.sh

FOREIGN_SHORT=no
FOREIGN_PRESENT=no
names=()
for word; do
    case "$word" in
        --short) FOREIGN_SHORT=yes ;;
        --present) FOREIGN_PRESENT=yes ;;
        --list) basename -s .sh tests/foreign/*.sh; exit ;;
        -*) say "unknown option $word; see the head of tests/foreign.sh" >&2; exit 2 ;;
        *) [ -f "tests/foreign/$word.sh" ] || { say "there is no $word; see --list" >&2; exit 2; }
            names+=("$word") ;;
    esac
done
export FOREIGN_SHORT FOREIGN_PRESENT
# Installed once per clone: Python environments, programs built from source.
export FOREIGN_TOOLS=$root/target/tools
if [ ${#names[@]} -eq 0 ]; then
    for file in tests/foreign/*.sh; do
        [ "$FOREIGN_SHORT" = no ] || grep -q '^in_short=yes' "$file" || continue
        names+=("$(basename -s .sh "$file")")
    done
fi

# --- what is needed -------------------------------------------------------------------------------
mapfile -t wanted < <(for name in "${names[@]}"; do (. "tests/foreign/$name.sh"; printf '%s\n' "${packages[@]}"); done | sort -u)
mapfile -t wanted < <(missing "${wanted[@]}")
if [ ${#wanted[@]} -gt 0 ] && [ "$FOREIGN_PRESENT" = no ]; then
    say "installing ${wanted[*]}"
    if update && install "${wanted[@]}"; then
        stop_services "${wanted[@]}"
    else
        say "could not be installed: ${wanted[*]}" >&2
    fi
fi
if [ -z "${MIOT_BIN:-}" ]; then
    cargo build --workspace --exclude miot-query --lib --bins --locked --quiet
    MIOT_BIN=$root/target/debug
fi

# A place that other users can read, too.
top=$(mktemp -d "${TMPDIR:-/tmp}/miot-foreign-XXXXXX")
keep() { [ "${MIOT_FOREIGN_KEEP:-no}" = yes ]; }
trap 'keep || rm -rf "$top"' EXIT
chmod 755 "$top"
mkdir "$top/bin"
# Hard links where the file system permits: debug builds are large.
cp --link "$MIOT_BIN/miot" "$MIOT_BIN"/libmiot_{posix,mpi}.so "$top/bin/" 2> /dev/null ||
    cp "$MIOT_BIN/miot" "$MIOT_BIN"/libmiot_{posix,mpi}.so "$top/bin/"
cp -r tests/foreign "$top/programs"

# --- one run --------------------------------------------------------------------------------------
# once NAME HOW [wrapper]: writes HOW.result, HOW.code, HOW.errors, HOW.seconds to the program's
# folder.
once() {
    local name=$1 how=$2 place=$top/$1 begun=$SECONDS code=0
    # The same path in both runs.
    rm -rf "$place/work" && mkdir -p "$place/work"
    local as=()
    if [ -n "$user" ] && [ "$(id -u)" = 0 ]; then
        chown -R "$user" "$place"
        as=(setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups)
    fi
    (
        cd "$place/work" && export HOME=$place/work LC_ALL=C TZ=UTC
        # shellcheck disable=SC2016
        exec "${as[@]}" "${@:3}" bash -ec '. "$1"; work' "$name" "$top/programs/$name.sh"
    ) < /dev/null > "$place/$how.result" 2> "$place/$how.errors" || code=$?
    echo "$code" > "$place/$how.code"
    echo $((SECONDS - begun)) > "$place/$how.seconds"
}

# Prints the differences between the two runs; empty if there are none.
differences() {
    local place=$1
    if [ "$compare" = tests ]; then
        comm -23 <(grep '^ok ' "$place/plain.result" | sort -u) <(grep '^ok ' "$place/hooked.result" | sort -u) |
            sed 's/^ok /not so with the hook: /'
        grep -q '^ok ' "$place/plain.result" || echo "no test was run"
    else
        diff "$place/plain.result" "$place/hooked.result" || true
        cmp "$place/plain.code" "$place/hooked.code" || true
    fi
}

# Prints events and losses of a trace, and whether it is valid.
checked() {
    "$top/bin/miot" fsck --format json "$1" 2>&1 | /usr/bin/python3 -c '
import json, sys
report = json.load(sys.stdin)
print(report["events"], report["lost"], "problems" if report["problems"] or report["unfinished"] else "good")' ||
        echo "- - unreadable"
}

# --- all ------------------------------------------------------------------------------------------
failed=0 rows=()
for name in "${names[@]}"; do
    packages=() user= compare=diff
    ready() { :; }
    # shellcheck source=/dev/null
    . "tests/foreign/$name.sh"
    place=$top/$name
    mkdir "$place"
    if [ -n "$(missing "${packages[@]}")" ] || ! ready > "$place/ready" 2>&1; then
        say "NOT TESTED: $name: $(missing "${packages[@]}" | paste -sd' ') $(tail -n 3 "$place/ready" 2> /dev/null)"
        rows+=("$name|not tested|||||")
        continue
    fi
    once "$name" plain
    once "$name" hooked "$top/bin/miot" run --quiet -o "$place/trace" --
    read -r events lost state < <(checked "$place/trace")
    problems=$(differences "$place")
    if [ "$compare" != tests ] && [ "$(cat "$place/plain.code")" != 0 ]; then
        problems+=$'\n'"plain, it fails: $(tail -n 5 "$place/plain.result" "$place/plain.errors")"
    fi
    [ "$lost $state" = "0 good" ] || problems+=$'\n'"trace: lost $lost, $state: $("$top/bin/miot" fsck "$place/trace" 2>&1 | head -5)"
    verdict=same
    if [ -n "$problems" ]; then
        failed=$((failed + 1)) verdict=DIFFERENT
        say "FAILED: $name"
        head -c 4000 <<< "$problems"
        tail -n 15 "$place/hooked.errors" | cut -c -300
    fi
    rows+=("$name|$(cat "$place/plain.code")|$(cat "$place/hooked.code")|$verdict|$events|$lost|$(cat "$place/plain.seconds") + $(cat "$place/hooked.seconds")")
    say "$name: $verdict"
    keep || rm -rf "$place"
done

{
    echo "program|plain|hooked|results|events|lost|seconds"
    printf '%s\n' "${rows[@]}"
} | column -t -s '|'
keep && say "kept: $top"
[ "$failed" = 0 ] || { say "$failed of ${#names[@]} failed"; exit 1; }
