#!/bin/sh
# Measures the cost of MIOT, compared with the floor and with its peers.
#
#   tests/bench/run.sh             everything (about 105 minutes on two processors), and writes
#                                  docs/dev/performance.md
#   tests/bench/run.sh op hook     only these: op threads drain idle startup hook mpi apps fuse
#                                  gluster pipeline nodes cluster broker bytes sync streams recovery
#                                  delay sets store fsstats replay simulate bench estimate paper
#                                  analysis python
#   tests/bench/run.sh --quick     everything, about six minutes: the figures are rough, the page
#                                  is unchanged
#   tests/bench/run.sh --report    only the page, from the last results in target/bench/*.json
#   tests/bench/run.sh --help      the other flags
#
# The script calls tests/bench/setup.sh, which installs missing programs. Unavailable ones are
# skipped with a message. `apps` and `fuse` create file systems of their own and need root. The
# machine should be idle otherwise.
set -eu
cd "$(dirname "$0")/../.."

build() { cargo build --profile dist --quiet --locked "$@"; }
bench="${CARGO_TARGET_DIR:-target}/dist/miot-bench"

case " $* " in
*" --help "* | *" -h "*)
	sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' tests/bench/run.sh
	[ -x "$bench" ] || build --package miot-bench
	exec "$bench" --help
	;;
*" --clean "*)
	[ -x "$bench" ] || build --package miot-bench
	exec "$bench" "$@"
	;;
esac
tests/bench/setup.sh || echo "run.sh: not everything could be installed" >&2
# Built together, because packages that are built separately have other features and are built
# twice. If a part does not build, only the benchmarks that need it fail.
parts="miot-hook-fuse miot-capi miot-hook-posix miot-hook-mpi miot-log-client miot-log-server miot-uploader miot"
# shellcheck disable=SC2046
if ! build --features miot/broker $(printf -- '--package %s ' miot-bench $parts); then
	build --package miot-bench
	for part in $parts; do
		build --package "$part" || echo "run.sh: $part does not build" >&2
	done
fi

# Succeeds if this benchmark is named, or none is.
wanted() {
	benchmark=$1 others=
	shift
	for word; do
		case $word in
		"$benchmark") return 0 ;;
		[a-z]* | --report) others=yes ;;
		esac
	done
	[ -z "$others" ]
}
# Built separately, because the engine of miot-query takes many minutes to build.
if wanted analysis "$@" || wanted distributed "$@"; then
	build --package miot-query || echo "run.sh: miot-query does not build" >&2
fi
if wanted python "$@"; then
	build --package miot-python || echo "run.sh: miot-python does not build" >&2
fi

# Not with exec, so that the leftovers of the driver are removed even if it is killed.
if [ $# = 0 ]; then
	"$bench" op threads drain idle startup hook mpi apps fuse gluster pipeline nodes cluster broker bytes sync streams recovery delay sets store fsstats replay simulate bench estimate paper analysis distributed python --report &
else
	"$bench" "$@" &
fi
driver=$!
trap 'kill -TERM $driver 2> /dev/null' INT TERM HUP
status=0
while kill -0 $driver 2> /dev/null; do
	status=0
	wait $driver || status=$?
done
"$bench" --clean "$@"
exit $status
