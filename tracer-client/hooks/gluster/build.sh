#!/bin/sh
# Builds miot.so, the translator for GlusterFS clients. Requires gcc, libglusterfs-dev, liburcu-dev,
# uuid-dev and libmiot.a.
#   tracer-client/hooks/gluster/build.sh LIBMIOT.A OUT.SO    for example
#   cargo build --release -p miot-capi && tracer-client/hooks/gluster/build.sh target/release/libmiot.a miot.so
set -eu
[ $# = 2 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
[ -f "$1" ] || { echo "build.sh: $1 does not exist: run cargo build -p miot-capi" >&2; exit 1; }
here=$(dirname "$0")
[ -f /usr/include/glusterfs/xlator.h ] || { echo "build.sh: GlusterFS's headers are not installed: run apt-get install libglusterfs-dev liburcu-dev uuid-dev" >&2; exit 1; }
# The macros are those of Debian's GlusterFS: the size of its structures depends on the last two.
# nodelete: threads that have recorded run destructors of the library, but GlusterFS unloads
# translators with their graph.
exec "${CC:-cc}" -shared -fPIC -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -Wno-override-init \
    -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DGF_LINUX_HOST_OS -DHAVE_ATOMIC_BUILTINS -DSIZEOF_LONG=8 \
    -I"$here/../../include" -o "$2" "$here/miot.c" "$1" \
    -Wl,--version-script="$here/exports.map" -Wl,-z,nodelete -Wl,-z,relro,-z,now -Wl,--no-undefined \
    -lglusterfs -luuid -lgcc_s -lpthread -ldl -lm -lc
