#!/usr/bin/env bash
# Installs a wheel into a Debian 11 (glibc 2.31, Python 3.9, no compiler), and traces a program there as
# a user without rights. Needs root, debootstrap, and the Debian mirror of this machine.
#   tests/old-debian.sh WHEEL
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=${1:?the wheel}
release=${OLD_DEBIAN:-bullseye}
root=${XDG_CACHE_HOME:-$HOME/.cache}/miot-tests/$release
say() { echo "old-debian: $*"; }
# shellcheck source=packages.sh
. tests/packages.sh

if [ ! -e "$root/made" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
    say "making $root (a minute, once)"
    as_root rm -rf "$root"
    mkdir -p "$(dirname "$root")"
    as_root debootstrap --variant=minbase --include=python3,python3-venv "$release" "$root" "$mirror" \
        > "$root.log" 2>&1 || { tail -5 "$root.log" >&2 && exit 1; }
    as_root rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
    as_root touch "$root/made"
fi
as_root rm -rf "$root/wheel"
as_root mkdir -p "$root/wheel"
as_root cp "$wheel" "$root/wheel/"
as_root tee "$root/wheel/try.sh" > /dev/null <<'EOF'
set -eu
ldd --version | head -1
cd "$HOME"
rm -rf venv trace written
python3 -m venv venv
venv/bin/pip install --quiet --no-index /wheel/miot-*.whl
PATH=$PWD/venv/bin:$PATH
miot run -q -o trace -- python -c 'open("written", "wb", 0).write(b"x" * 100000)'
python -c '
import miot
trace = miot.open("trace")
print(trace)
[row] = [row for row in trace.stat("file") if row["path"].endswith("/written")]
assert row["bytes"] == 100000, row
assert trace.lossless'
for program in log-client log-server miot-query; do $program --version; done
miot query trace 'SELECT count(*) FROM events'
echo "works"
EOF
# /dev/shm holds the shared memory of the tracer.
as_root mkdir -p "$root/home/user" && as_root chown 1000:1000 "$root/home/user"
as_root unshare --mount sh -euc '
    mount -t proc proc "$0/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" 2> /dev/null || { mkdir -p "$0/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"; }
    exec chroot --userspec 1000:1000 "$0" env -i HOME=/home/user PATH=/usr/bin:/bin sh /wheel/try.sh' "$root"
