#!/bin/sh
# TaskProlog of slurm.conf: what it prints as `export NAME=value` is in the environment of the task. It runs as the
# user, once for each task, before the program. docs/guide/node-wide.md.
#
# A job that is not to be traced: sbatch --export=ALL,MIOT_TRACE=off
# Only jobs that ask for it: MIOT_DEFAULT=off below, and sbatch --comment=miot or --export=ALL,MIOT_TRACE=on

MIOT_DEFAULT=${MIOT_DEFAULT:-on}

wanted=${MIOT_TRACE:-$MIOT_DEFAULT}
case ",${SLURM_JOB_COMMENT:-}," in *,miot,*) wanted=on ;; esac
[ "$wanted" = on ] || exit 0

for library in "${MIOT_LIBRARY:-}" /usr/lib/miot/libmiot_posix.so /usr/lib/*/miot/libmiot_posix.so /usr/lib64/miot/libmiot_posix.so; do
    if [ -n "$library" ] && [ -r "$library" ]; then
        case ":${LD_PRELOAD:-}:" in
        *libmiot_posix.so:*) ;;
        *) echo "export LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$library" ;;
        esac
        break
    fi
done
exit 0
