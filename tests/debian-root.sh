#!/usr/bin/env bash
# Creates a small Debian in a folder, once. Tests boot it (systemd-nspawn) and install packages into
# it. Needs root, debootstrap, and the Debian mirror of this machine.
#   tests/debian-root.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
root=${1:?the folder}
[ -e "$root/made" ] && exit
say() { echo "debian-root: $*"; }
# shellcheck source=packages.sh
. tests/packages.sh

mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || { say "this machine has no mirror of Debian 12 (bookworm)" >&2 && exit 1; }
say "making $root (a minute, once)"
as_root rm -rf "$root"
as_root debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$root" "$mirror" > "$root.log" 2>&1 ||
    { tail -5 "$root.log" >&2 && exit 1; }
as_root rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
echo '127.0.0.1 localhost' | as_root tee "$root/etc/hosts" > /dev/null
# The test that boots a machine sets its name.
as_root rm -f "$root/etc/hostname" "$root/etc/machine-id"
as_root touch "$root/etc/machine-id" "$root/made"
