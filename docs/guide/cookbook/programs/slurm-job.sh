#!/bin/bash
#SBATCH --job-name=traced
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --output=job-%j.out
#
# Traces the command that follows, on all nodes of a job, without root:
#   sbatch slurm-job.sh ./solver input
#
# MIOT: folder with log-server, log-client, miot and the libraries, on a file system of all nodes.
set -euo pipefail
export MIOT=${MIOT:-$HOME/miot}
TRACE=$SLURM_SUBMIT_DIR/trace-$SLURM_JOB_ID
export PKI=$HOME/.miot-pki-$SLURM_JOB_ID
export SERVER=$(hostname) PORT=$((20000 + SLURM_JOB_ID % 10000))
PATH=$MIOT:$PATH
everywhere="srun --overlap --nodes=$SLURM_JOB_NUM_NODES --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1"
at_node='export MIOT_DIR=/dev/shm/miot-$SLURM_JOB_ID-$SLURMD_NODENAME; '

# Certificates for this job alone: only its nodes may write into the trace.
trap 'rm -rf "$PKI"' EXIT
mapfile -t nodes < <(scontrol show hostnames)
(umask 077 && miot pki init "$PKI" && miot pki server "$PKI" --name "$SERVER" && miot pki node "$PKI" "${nodes[@]}") > /dev/null

# One log-server in the batch script, one log-client on each node.
log-server --listen "$SERVER:$PORT" --http off --trace "$TRACE" --tls-authority "$PKI/ca.pem" \
    --tls-certificate "$PKI/server/$SERVER.pem" --tls-key "$PKI/server/$SERVER.key" 2> "server-$SLURM_JOB_ID.log" &
server=$!
$everywhere bash -c "$at_node"'echo $$ > $MIOT_DIR.pid; exec log-client --node $SLURMD_NODENAME --dir $MIOT_DIR --server $SERVER:$PORT --http off \
    --tls-authority $PKI/ca.pem --tls-certificate $PKI/node/$SLURMD_NODENAME.pem --tls-key $PKI/node/$SLURMD_NODENAME.key' \
    2> "clients-$SLURM_JOB_ID.log" &
clients=$!

# A program that starts before the log-client of its node is not recorded.
$everywhere bash -c "$at_node"'for i in {1..100}; do miot ctl status > /dev/null 2>&1 && exit; sleep 0.1; done; exit 1'

# The program itself. Its exit code is that of the job.
code=0
srun --overlap bash -c "$at_node"'LD_PRELOAD=$MIOT/libmiot_posix.so exec "$@"' traced "$@" || code=$?

# Stop the log-clients, which deliver what is left, then the log-server, which seals the trace.
# (A signal to the srun of the log-clients would kill them.)
$everywhere bash -c "$at_node"'kill $(cat $MIOT_DIR.pid)'
wait "$clients" || echo "a log-client failed: clients-$SLURM_JOB_ID.log" >&2
kill "$server"
wait "$server" || echo "the log-server failed: server-$SLURM_JOB_ID.log" >&2
$everywhere bash -c "$at_node"'rm -r $MIOT_DIR $MIOT_DIR.pid'
miot fsck "$TRACE"
exit $code
