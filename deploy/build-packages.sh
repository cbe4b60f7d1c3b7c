#!/usr/bin/env bash
# Makes the six Debian packages: miot-server, miot-client, miot-dev, miot-tools, miot-query, miot-uploader. Needs cargo and cargo-deb
# (tests/setup.sh builds it into target/tools).
#   deploy/build-packages.sh                     into target/packages
#   deploy/build-packages.sh --out DIR           into DIR
#   deploy/build-packages.sh --version 0.1.0-2   with this version
#   deploy/build-packages.sh --debug --no-build  of what a build of the workspace has left in target/debug: for tests
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH"

profile=dist out=target/packages build=yes options=()
while [ $# -gt 0 ]; do
    case "$1" in
        # By the program gzip: that in cargo-deb is many times slower, and xz four times.
        --debug) profile=debug && options+=(--fast --compress-type gz --compress-system) ;;
        --no-build) build=no ;;
        --out) out=$2 && shift ;;
        --version) options+=(--deb-version "$2") && shift ;;
        *) echo "build-packages: $1: no such option; see the head of this file" >&2 && exit 2 ;;
    esac
    shift
done
command -v cargo-deb > /dev/null || {
    echo "build-packages: cargo-deb is not here: cargo install cargo-deb, or tests/setup.sh" >&2
    exit 1
}

if [ "$build" = yes ]; then
    flags=(--locked --quiet)
    [ $profile = debug ] || flags+=(--profile "$profile")
    cargo build "${flags[@]}" --features miot/broker
    cargo build "${flags[@]}" -p miot-manuals
    cargo build "${flags[@]}" -p miot-query
    cargo build "${flags[@]}" -p miot-uploader
fi
built=${CARGO_TARGET_DIR:-target}/$profile

# What goes into the packages, laid out so that the metadata in the Cargo.toml files need not know of profiles.
stage=target/package-stage
rm -rf $stage
mkdir -p $stage/bin $stage/lib $stage/pkgconfig
for file in miot miot-query log-server log-client miot-uploader miot-fuse; do install -s -m 755 "$built/$file" $stage/bin/; done
for file in libmiot_posix.so libmiot_mpi.so libmiot.so; do install -s --strip-program=deploy/strip-library.sh -m 644 "$built/$file" $stage/lib/; done
install -m 644 "$built/libmiot.a" $stage/lib/
strip --strip-debug $stage/lib/libmiot.a
number=$(cargo pkgid --offline -p miot | sed 's/.*[#@]//')
sed -e 's|@PREFIX@|/usr|' -e "s|@VERSION@|$number|" -e 's|@INCLUDEDIR@|/usr/include|' \
    -e "s|@LIBDIR@|/usr/lib|" tracer-client/capi/miot.pc.in > $stage/pkgconfig/miot.pc
"$built/miot-manuals" $stage
gzip -9n $stage/man/*

mkdir -p "$out"
for package in miot-log-server miot-log-client miot-capi miot miot-query miot-uploader; do
    cargo deb --quiet --no-build --no-strip -p $package "${options[@]}" --output "$out/" > /dev/null
done
ls "$out"/*.deb
