#!/usr/bin/env bash
# Runs the commands of docs/guide/cookbook with small sizes, and checks that the trace has each
# finding and figure that a page names.
#
#   tests/cookbook.sh               all pages
#   tests/cookbook.sh late slurm    only these: loader, late, checkpoint, server, tracers, slurm,
#                                   pages
#
# MIOT_BIN: folder of the binaries; without it they are built. COOKBOOK_KEEP=yes keeps traces and
# outputs. DARSHAN_PYTHON: a Python with PyDarshan; default: the one that tests/setup.sh installs.
# Parts that need a missing program (MPICH, strace, babeltrace2, PyDarshan) are skipped with a
# message.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
programs=$root/docs/guide/cookbook/programs
say() { echo "cookbook: $*"; }

if [ -z "${MIOT_BIN:-}" ]; then
    cargo build --workspace --exclude miot-query --lib --bins --locked --quiet
    MIOT_BIN=$root/target/debug
fi
MIOT_BIN=$(realpath "$MIOT_BIN")
# Programs of Debian: wrappers of other installations (pyenv) would be traced as well.
export PATH=$MIOT_BIN:/usr/bin:$PATH
# Jobs and directories in the environment of this script would be in the traces.
unset SLURM_JOB_ID SLURM_PROCID MIOT_DIR MIOT_JOB LD_PRELOAD

top=$(mktemp -d "${TMPDIR:-/tmp}/miot-cookbook-XXXXXX")
memory=$(mktemp -d /dev/shm/miot-cookbook-XXXXXX)
# Number of the job of `slurm`, which no other job has.
number=$((1000000 + $$))
started=()
end() {
    for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
    wait 2> /dev/null || true
    rm -rf "$memory" "/dev/shm/miot-$number-n"[12]*
    if [ "${COOKBOOK_KEEP:-no}" = yes ]; then say "kept $top"; else rm -rf "$top"; fi
}
trap end EXIT

failed=0
fail() { say "FAILED: $*" >&2; failed=1; }
# has WHAT PATTERN COMMAND...: the output of the command has a line that matches.
has() {
    local what=$1 pattern=$2 output
    shift 2
    if ! output=$("$@" 2>&1); then fail "$what: $* failed: $output"; return; fi
    grep -qE -- "$pattern" <<< "$output" || fail "$what: no line matches '$pattern' in the output of: $*"$'\n'"$output"
}
# figure QUERY COMMAND...: a value of the JSON that the command prints.
figure() {
    local query=$1
    shift
    "$@" | python3 -c 'import json, sys; print(eval(sys.argv[1], {"it": json.load(sys.stdin)}))' "$query"
}
# than A '<' B WHAT
than() { awk "BEGIN { exit !($1 $2 $3) }" || fail "$4: $1 is not $2 $3"; }
there() { command -v "$1" > /dev/null || { say "SKIPPED: $2 ($1 is not installed)"; return 1; }; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# --- training-waits-for-data.md -------------------------------------------------------------------
loader() {
    idle() { figure 'it["definitions"][2]["idle"] / it["definitions"][2]["total"]' miot stat "$1" --show idle --format json; }
    python3 "$programs/loader.py" make data --samples 2048
    for trace in before workers after; do
        case $trace in before) options=() ;; workers) options=(--workers 4) ;; after) options=(--from shards) ;; esac
        python3 "$programs/loader.py" evict data
        has "training" '^1[0-9] steps in' \
            miot run -q -o "loader-$trace" -- python3 "$programs/loader.py" train data "${options[@]}"
    done
    has "small files" '^small_reads: ' miot stat loader-before --show findings
    has "small files" '^many_small_files: ' miot stat loader-before --show findings
    has "workers" '^many_small_files: ' miot stat loader-workers --show findings
    has "shards" '^0 findings in 1 programs' miot stat loader-after --show findings
    has "usage" 'python.* posix +[0-9.]+%' miot stat loader-before --by program --view usage --layer posix
    than "$(idle loader-after)" '>' "$(idle loader-before)" "idle time with shards"
    has "report" 'nothing lost' miot report loader-after -o loader-after.html --plots loader-plots
    [ -s loader-plots/activity.svg ] || fail "the report has no plot of idle times"
}

# --- one-rank-is-late.md --------------------------------------------------------------------------
late() {
    there mpicc.mpich "one rank is late" && there mpiexec.mpich "one rank is late" || return 0
    ranks() { figure "it['rows'][0]['$2']" miot stat "$1" --by file --view ranks --path '**/out.dat' --layer mpi-io --format json; }
    mpicc.mpich -O2 -Wall -Wextra -Werror -o late "$programs/late.c"
    has "late rank" '^8 steps in' miot run -q -o late-before -- mpiexec.mpich -n 4 ./late out.dat 8 20 20 80 20
    has "even ranks" '^8 steps in' miot run -q -o late-after -- mpiexec.mpich -n 4 ./late out.dat 8 35 35 35 35
    than "$(ranks late-before fastest_rank)" '==' 2 "rank with the least time in MPI-IO"
    than "$(ranks late-before f_variance_rank_time)" '>' "10 * $(ranks late-after f_variance_rank_time)" "variance of the ranks"
    has "latency of ranks" '^2 +mpi-io +write +8 ' miot stat late-before --by rank --view latency --layer mpi-io
    has "tree" '  posix +pwrite .* /.*/out.dat$' miot cat late-before --tree --layer mpi-io --op write_at_all -n 4
    has "MPI-IO alone" '^2 steps in' miot run -q --layers mpi-io -o late-mpi -- mpiexec.mpich -n 4 ./late out.dat 2 20 20 80 20
    has "report" 'nothing lost' miot report late-mpi -o late-mpi.html --plots late-plots
    grep -q 'time in mpi-io' late-plots/ranks.svg || fail "the plot of ranks is not of MPI-IO"
}

# --- slow-checkpoint.md ---------------------------------------------------------------------------
checkpoint() {
    local small=(--steps 1 --size 4194304)
    has "small pieces" '^1 checkpoints of 4 MiB' \
        miot run -q -o checkpoint-before -- python3 "$programs/checkpoint.py" checkpoints "${small[@]}"
    has "large pieces" '^1 checkpoints of 4 MiB' \
        miot run -q -o checkpoint-after -- python3 "$programs/checkpoint.py" checkpoints "${small[@]}" --piece 1048576 --sync end
    has "syncs" '^fdatasync +posix +1025 ' miot stat checkpoint-before --by operation
    has "sync latency" 'checkpoint-0-0.new +posix +sync +1025 ' \
        miot stat checkpoint-before --view latency --by file --path '**/checkpoints/*'
    has "findings" '^small_writes: ' miot stat checkpoint-before --show findings
    has "findings" '^sync_per_write: ' miot stat checkpoint-before --show findings
    has "one sync" '^fdatasync +posix +1 ' miot stat checkpoint-after --by operation
    has "no findings" '^0 findings in 1 programs' miot stat checkpoint-after --show findings
    python3 "$programs/checkpoint.py" checkpoints "${small[@]}" --piece 4096 --sync end > /dev/null
    python3 "$programs/checkpoint.py" checkpoints "${small[@]}" --piece 1048576 --sync each > /dev/null
}

# --- overloaded-file-server.md --------------------------------------------------------------------
server() {
    local port http hook server since
    local clients=() jobs=()
    port=$(free_port) http=$(free_port) hook=$MIOT_BIN/libmiot_posix.so
    mkdir shared
    log-server --listen "127.0.0.1:$port" --http "127.0.0.1:$http" --trace site 2> server.log &
    server=$!
    for node in n1 n2; do
        log-client --node "$node" --dir "$memory/$node" --server "localhost:$port" --http off 2> "$node.log" &
        clients+=($!)
    done
    started+=("$server" "${clients[@]}")
    for node in n1 n2; do
        for _ in {1..100}; do miot ctl --dir "$memory/$node" status > /dev/null 2>&1 && break; sleep 0.1; done
    done
    job() { MIOT_DIR=$memory/$1 SLURM_JOB_ID=$2 LD_PRELOAD=$hook python3 "$programs/job.py" "${@:3}" & jobs+=($!); }
    job n1 101 write shared --seconds 3; job n1 102 read shared --seconds 3
    job n2 103 write shared --seconds 3; job n2 104 poll shared --stats 10000
    wait "${jobs[@]}"
    # Only complete seconds count.
    sleep 1.5
    has "jobs" '^ +[0-9.]+k? .* 104$' miot top "127.0.0.1:$port" --once --view jobs
    [ "$(miot top "127.0.0.1:$port" --once --view jobs | awk '/ JOB$/ { getline; print $NF }')" = 104 ] ||
        fail "job 104 is not the first of miot top"
    has "operations" 'posix.stat$' miot top "127.0.0.1:$port" --once --view operations
    has "page" 'MIOT' python3 -c "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:$http/').read().decode())"
    has "findings" '^metadata_storm: .* of job 104$' miot stat site --show findings
    has "findings" '^redundant_stats: .* of job 104$' miot stat site --show findings
    has "findings" '^2 findings in 4 programs' miot stat site --show findings
    has "stats of the job" '^stat +posix +1[0-9]{4} ' miot stat site --by operation --job 104 --sort count --top 1
    since=$(date -u +%FT%T.%NZ) jobs=()
    job n2 204 poll shared --parts 1 --every 0.2 --stats 5
    wait "${jobs[@]}"
    kill "${clients[@]}"; wait "${clients[@]}" || fail "a log-client failed: $(cat n?.log)"
    kill "$server"; wait "$server" || fail "the log-server failed: $(cat server.log)"
    has "after" '^0 findings in 1 programs' miot stat site --show findings --since "$since"
    has "trace" '^good: ' miot fsck site
}

# --- from-other-tracers.md ------------------------------------------------------------------------
tracers() {
    local poll=(python3 "$programs/job.py" poll polled --stats 2000 --every 0) darshan count
    mkdir polled
    miot run -q -o with-miot -- "${poll[@]}"
    has "stats" '^stat +posix +2[0-9]{3} ' miot stat with-miot --by operation
    has "findings" '^redundant_stats: ' miot stat with-miot --show findings
    if there strace "import of strace"; then
        strace -f -ttt -T -y -o strace.log "${poll[@]}"
        has "import" '^[0-9]+ requests of 1 process on ' miot import strace.log -o with-strace
        has "imported stats" '^(fstatat|stat) +posix +2[0-9]{3} ' miot stat with-strace --by operation
        has "imported findings" '^metadata_storm: ' miot stat with-strace --show findings
        has "imported findings" '^redundant_stats: ' miot stat with-strace --show findings
    fi
    # Commands of the table.
    has "--ops" '/part-000$' eval 'miot run -q -o opens --ops open,openat -- "${poll[@]}" && miot cat opens --op open,openat'
    has "--path" '/part-007$' miot cat with-miot --path '**/part-007' -n 1
    has "failed" '"result":-2' miot cat with-miot --format json
    has "darshan" 'stats +2[0-9]{3}' miot stat with-miot --by job --view darshan --layer posix
    has "darshan" 'part-000 +posix' miot stat with-miot --by file --view darshan --layer posix --path '**/part-*'
    has "performance" 'MiB/s by slowest' miot stat with-miot --by job --view performance
    darshan=${DARSHAN_PYTHON:-$root/target/test-darshan/bin/python}
    if [ -x "$darshan" ]; then
        "$darshan" "$root/tests/programs/darshan_dxt.py" text ior_hdf5_example.darshan > job.txt 2> /dev/null
        has "DXT" '^118 requests of 4 processes on 1 file' miot import job.txt -o with-darshan
        has "slowest rank" 'posix +4 +3 +24.7ms .* 1 +210.0ms' miot stat with-darshan --by file --view ranks --layer posix
    else
        say "SKIPPED: import of Darshan DXT (target/test-darshan is not there: tests/setup.sh)"
    fi
    miot export with-miot --format ctf -o ctf
    if there babeltrace2 "export as CTF"; then
        count=$(miot cat with-miot --format csv | tail -n +2 | wc -l)
        [ "$(babeltrace2 ctf | wc -l)" = "$count" ] || fail "CTF has other events than the trace"
    fi
}

# --- slurm-without-root.md ------------------------------------------------------------------------
# Scripts simulate Slurm: two nodes on this machine, two tasks on each, with the variables that
# Slurm sets.
slurm() {
    local code=0
    mkdir -p cluster home job
    ln -s "$MIOT_BIN"/{miot,log-server,log-client,libmiot_posix.so,libmiot_mpi.so} cluster/
    printf '#!/bin/sh\necho localhost\n' > cluster/hostname
    printf '#!/bin/sh\nprintf "n1\\nn2\\n"\n' > cluster/scontrol
    cat > cluster/srun << 'SRUN'
#!/bin/bash
tasks=2 code=0 pids=() rank=0
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks-per-node=* ]] && tasks=${1#*=}
    shift
done
for node in n1 n2; do
    for ((task = 0; task < tasks; task++)); do
        SLURMD_NODENAME=$node SLURM_STEP_ID=$$ SLURM_PROCID=$rank "$@" &
        pids+=($!) rank=$((rank + 1))
    done
done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
SRUN
    chmod +x cluster/{hostname,scontrol,srun}
    export SLURM_JOB_ID=$number SLURM_JOB_NUM_NODES=2 SLURM_SUBMIT_DIR=$PWD/job
    run_job() { (cd job && HOME=$top/home MIOT=$PWD/../cluster "$programs/slurm-job.sh" "$@") > job.out 2>&1; }
    run_job python3 "$programs/checkpoint.py" checkpoints --steps 1 --size 1048576 || fail "the job: $(cat job.out job/*.log)"
    has "fsck" '^good: ' cat job.out
    has "tasks" '^4$' grep -c '^1 checkpoints of 1 MiB' job.out
    for rank in 0 1 2 3; do has "ranks" "^$rank +posix" miot stat "job/trace-$number" --by rank --view usage --layer posix; done
    has "nodes" '^n1 +posix +sync +514 ' miot stat "job/trace-$number" --by node --view latency --layer posix
    has "nodes" '^n2 +posix +sync +514 ' miot stat "job/trace-$number" --by node --view latency --layer posix
    has "findings" "^sync_per_write: .* of job $number\$" miot stat "job/trace-$number" --show findings
    # The exit code is that of the command.
    rm -rf "job/trace-$number"
    run_job sh -c 'exit 3' || code=$?
    [ "$code" = 3 ] || fail "the job ended with $code, its command with 3"
    [ -z "$(ls -A "$top/home")" ] || fail "certificates are left: $(ls -A "$top/home")"
    ! ls -d "/dev/shm/miot-$number-"* 2> /dev/null || fail "shared memory is left"
    unset SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_SUBMIT_DIR
    # On one node.
    has "one node" "^1 checkpoints" env SLURM_JOB_ID="$number" miot run -q -o one -- cluster/srun --ntasks-per-node=1 \
        python3 "$programs/checkpoint.py" one-checkpoints --steps 1 --size 65536
    for rank in 0 1; do has "ranks of one node" "^$rank +posix" miot stat one --by rank --view usage --layer posix; done
}

# --- the pages themselves -------------------------------------------------------------------------
pages() {
    local page picture
    for page in "$root"/docs/guide/cookbook/*.md; do
        [ "$(wc -l < "$page")" -le 130 ] || fail "$page has more than 130 lines"
        [[ $page == */index.md ]] && continue
        picture=$root/docs/images/cookbook/$(basename "$page" .md).png
        [ "$(stat -c %s "$picture" 2> /dev/null || echo 999999)" -lt 204800 ] || fail "$picture is missing, or is larger than 200 KB"
        grep -q "images/cookbook/$(basename "$picture")" "$page" || fail "$page does not show $picture"
    done
}

cd "$top"
[ $# -gt 0 ] || set -- loader late checkpoint server tracers slurm pages
for page; do
    case $page in
        loader | late | checkpoint | server | tracers | slurm | pages) ;;
        *) say "no part is called $page; see the head of tests/cookbook.sh" >&2; exit 2 ;;
    esac
    before=$failed begun=$SECONDS failed=0
    "$page"
    [ $failed = 1 ] || say "$page: $((SECONDS - begun)) s"
    failed=$((before | failed))
done
exit $failed
