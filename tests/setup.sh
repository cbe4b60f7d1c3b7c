#!/usr/bin/env bash
# Installs what the tests need and is not there yet: Debian packages, Python packages in an environment of
# their own, some cargo tools, a small Debian to boot. Can be run again at any time; does nothing when nothing is
# missing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

# shellcheck source=packages.sh
. tests/packages.sh

# --- Debian -----------------------------------------------------------------------------------------
packages=(
    strace fio sqlite3 tar make python3 python3-venv gcc g++ libc6-dev pkg-config libcap2-bin tmux procps chromium
    libnss3-tools openssl # a browser's certificates
    librsvg2-bin # plots of a report as pictures
    mpich environment-modules e2fsprogs # jobs, ways to trace a node, devices
    libaio-dev liburing-dev # asynchronous I/O
    dbench stress-ng acl # other people's tests of file systems
    libmpich-dev openmpi-bin libopenmpi-dev gfortran # MPI programs in C and Fortran
    libpnetcdf-dev # a library that sets a view for each request
    lttng-tools liblttng-ust-dev babeltrace2 # the benchmarks' peers
    python3-bt2 # what babeltrace2 finds in an export
    iproute2 prometheus # networks of tests' own; promtool
    glusterfs-server glusterfs-client libglusterfs-dev liburcu-dev uuid-dev # a file system with a client to trace
    openssh-server openssh-client chrony vsftpd bubblewrap file man-db groff-base # programs that confine themselves
    postgresql redis-server nginx-light wrk curl libpython3.11-testsuite # programs of other people
    debootstrap systemd-container dpkg-dev   # packages, installed into a Debian that is booted
)
command -v git > /dev/null || packages+=(git)
mapfile -t wanted < <(missing "${packages[@]}")
if [ ${#wanted[@]} -gt 0 ]; then
    say "installing ${wanted[*]}"
    update
    install "${wanted[@]}"
    stop_services "${wanted[@]}"
fi

# --- Python -------------------------------------------------------------------------------------------
# python DIR "PACKAGES" [options of pip]
python() {
    [ "$(cat "$1/wanted" 2> /dev/null)" != "$2" ] || return 0
    say "making $1 with $2"
    rm -rf "$1"
    /usr/bin/python3 -m venv "$1"
    # shellcheck disable=SC2086
    "$1/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "${@:3}" $2
    echo "$2" > "$1/wanted"
}
# The readers of other people, and servers that keep files.
python target/test-venv "pyarrow==26.0.1 duckdb==1.5.6 pandas==3.1.1 moto[server]==5.2.5 WsgiDAV==4.3.5 cheroot==11.1.2"
# Real Darshan logs, and Darshan's own reader, without what it draws pictures with.
python target/test-darshan \
    "darshan==3.5.0 cffi==2.1.1 pycparser==3.12 numpy==2.4.6 pandas==3.1.1 python-dateutil==4.0.0" --no-deps

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
tool cargo-deb 3.8.0
# Other people's tests of file systems.
tool fsx 0.3.2
tool pjdfstest 0.2.2

# --- a small Debian to boot ---------------------------------------------------------------------------
bash tests/debian-root.sh || say "target/debian-root could not be made: the packages are not tested" >&2
