#!/usr/bin/env bash
# Installs the programs that the benchmarks need in addition to tests/setup.sh: the peers, the file
# systems, the counters. It can be run again at any time and does nothing if nothing is missing.
# Each benchmark reports what it skips because a program could not be installed.
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
    # One by one if not together, so that an unavailable package does not stop the others.
    install "${wanted[@]}" || for package in "${wanted[@]}"; do
        install "$package" || say "$package CANNOT BE INSTALLED" >&2
    done
fi

# A GlusterFS volume is served under the name of the host.
name=$(cat /proc/sys/kernel/hostname)
if ! getent hosts "$name" > /dev/null; then
    say "adding $name to /etc/hosts"
    echo "127.0.0.1 $name" | as_root tee -a /etc/hosts > /dev/null
fi
