#!/usr/bin/env bash
# Installs what the benchmarks need beyond what tests/setup.sh does: the peers, the file systems, the counters.
# Can be run again at any time; does nothing when nothing is missing. What cannot be installed is left to the
# benchmarks, each of which says what it goes without.
set -euo pipefail

say() { echo "bench setup: $*"; }

# shellcheck source=../packages.sh
. "$(dirname "$0")/../packages.sh"

packages=(
    gcc libc6-dev mpich libmpich-dev strace fio sqlite3 tar zstd valgrind
    lttng-tools liblttng-ust-dev babeltrace2
    bindfs fuse3 libfuse3-dev pkg-config # pass-through file systems
    e2fsprogs mount util-linux glusterfs-server glusterfs-client libglusterfs-dev liburcu-dev uuid-dev
)
command -v git > /dev/null || packages+=(git)
mapfile -t wanted < <(missing "${packages[@]}")
if [ ${#wanted[@]} -gt 0 ]; then
    say "installing ${wanted[*]}"
    update || say "the package lists are old" >&2
    # One after the other if not together: an unavailable package does not prevent the installation of others.
    install "${wanted[@]}" || for package in "${wanted[@]}"; do
        install "$package" || say "$package CANNOT BE INSTALLED" >&2
    done
fi

# A GlusterFS volume is served under the host's own name.
name=$(cat /proc/sys/kernel/hostname)
if ! getent hosts "$name" > /dev/null; then
    say "adding $name to /etc/hosts"
    echo "127.0.0.1 $name" | as_root tee -a /etc/hosts > /dev/null
fi
