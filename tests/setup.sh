#!/usr/bin/env bash
# Installs what the tests need and is missing: Debian packages, Python packages in environments of their own, some
# cargo tools, a small Debian to boot. Can be run again at any time; does nothing when nothing is missing.
#
# All but the Debian packages is kept once per machine, below $MIOT_TEST_CACHE (default ~/.cache/miot-tests), and every
# clone has links to it in target/. Each version has a folder of its own, so clones of different commits share it.
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

cache=${MIOT_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/miot-tests}
mkdir -p "$cache" target
# Two clones do not install at the same time.
exec 9> "$cache/lock"
flock 9

# link FOLDER NAME: target/NAME leads to FOLDER.
link() {
    [ "$(readlink "target/$2")" = "$1" ] && return
    rm -rf "target/$2"
    ln -s "$1" "target/$2"
}

# --- Python -------------------------------------------------------------------------------------------
# python NAME "PACKAGES" [options of pip]
python() {
    local made
    made=$cache/$1-$(echo "$2" | cksum | cut -d' ' -f1)
    if [ ! -e "$made/complete" ]; then
        say "making $1 with $2"
        rm -rf "$made"
        /usr/bin/python3 -m venv "$made"
        # shellcheck disable=SC2086
        "$made/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "${@:3}" $2
        touch "$made/complete"
    fi
    link "$made" "$1"
}
# Readers of Arrow and Parquet, servers that keep files, and the check of spelling.
python test-venv "pyarrow==26.0.1 duckdb==1.5.6 pandas==3.1.1 moto[server]==5.2.5 WsgiDAV==4.3.5 cheroot==11.1.2
    codespell==2.4.3"
# Real Darshan logs, and Darshan's own reader, without what it draws pictures with.
python test-darshan \
    "darshan==3.5.0 cffi==2.1.1 pycparser==3.12 numpy==2.4.6 pandas==3.1.1 python-dateutil==4.0.0" --no-deps

# --- cargo tools ----------------------------------------------------------------------------------------
# Built without optimization: that is a fifth of the time, and they do not work hard.
# `|| say`: without them tests/run.sh does with less, and says so.
mkdir -p "$cache/tools/bin"
link "$cache/tools" tools
# tool NAME VERSION [options of cargo install]
tool() {
    local made=$cache/$1-$2
    if [ ! -x "$made/bin/$1" ]; then
        command -v "$1" > /dev/null && return
        say "building $1 $2 (a minute, once)"
        CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$cache/build \
            cargo install --quiet --debug --locked --no-track "$1" --version "$2" --root "$made" "${@:3}" ||
            { say "$1 could not be built" >&2 && return; }
    fi
    ln -sf "$made/bin/$1" "$cache/tools/bin/"
}
tool cargo-deny 0.20.2
tool cargo-nextest 0.9.143
tool cargo-deb 3.8.0
tool cargo-machete 0.9.2
tool mdbook 0.5.4 --no-default-features
# Other people's tests of file systems.
tool fsx 0.3.2
tool pjdfstest 0.2.2
rm -rf "$cache/build"

# --- a small Debian to boot ---------------------------------------------------------------------------
bash tests/debian-root.sh "$cache/debian-root" || say "no small Debian could be made: the packages are not tested" >&2
link "$cache/debian-root" debian-root
