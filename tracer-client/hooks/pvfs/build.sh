#!/bin/sh
# Builds libmiot_pvfs.so, which is preloaded into programs that use OrangeFS's client library.
# Requires a C compiler and libmiot.a.
#   tracer-client/hooks/pvfs/build.sh LIBMIOT.A OUT.SO    for example
#   cargo build --release -p miot-capi && tracer-client/hooks/pvfs/build.sh target/release/libmiot.a libmiot_pvfs.so
set -eu
[ $# = 2 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
[ -f "$1" ] || { echo "build.sh: $1 does not exist: run cargo build -p miot-capi" >&2; exit 1; }
here=$(dirname "$0")
exec "${CC:-cc}" -shared -fPIC -O2 -g -std=gnu11 -Wall -Wextra -Werror -Wno-override-init -fvisibility=hidden \
    -I"$here/../../include" -o "$2" "$here/pvfs.c" "$1" \
    -Wl,--version-script="$here/exports.map" -Wl,-z,nodelete -Wl,-z,relro,-z,now -Wl,--no-undefined \
    -lgcc_s -lpthread -ldl -lm -lc
