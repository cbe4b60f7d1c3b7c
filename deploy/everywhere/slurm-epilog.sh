#!/bin/sh
# Epilog of slurm.conf: runs as root on each node when a job has ended. What the job's last programs left in memory goes to
# the log-server now, also where the node is a flight recorder. docs/guide/node-wide.md.
#
# An epilog that fails drains the node, so this one never fails, and never takes long.
if command -v miot > /dev/null 2>&1; then
    timeout 10 miot ctl snapshot --timeout 5s > /dev/null 2>&1
fi
exit 0
