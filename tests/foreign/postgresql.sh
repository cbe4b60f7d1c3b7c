# shellcheck shell=bash disable=SC2034
# PostgreSQL: pgbench, a crash (SIGKILL of the postmaster under load), recovery. The consistency
# rules of pgbench's accounts must hold, and the transactions of one client give the same rows in
# each run.
packages=(postgresql)
user=postgres
in_short=yes

start() {
    # The processes of a killed postmaster need a moment to detect its death.
    for _ in $(seq 100); do
        pg_ctl -D data -s -w -l log -o "-k $PWD -h ''" start && return
        sleep 0.2
    done
    cat log >&2
    return 1
}
query() { psql -h "$PWD" -d postgres -X -A -t -c "$1"; }
# Each transaction adds the same amount to one row of each table and to the history.
holds() {
    query "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)
        and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)
        and (select coalesce(sum(delta), 0) from pgbench_history) = (select sum(bbalance) from pgbench_branches)"
}

work() {
    PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
    local transactions=5000 seconds=8
    [ "$FOREIGN_SHORT" = no ] || transactions=300 seconds=2
    initdb -D data -A trust -U postgres > /dev/null
    export PGUSER=postgres PGDATABASE=postgres PGHOST=$PWD
    start
    pgbench -i -q -s 1 > /dev/null 2>&1
    pgbench -n -c 1 -t "$transactions" --random-seed=7 > /dev/null
    query "select count(*), sum(hashtext(aid || ' ' || abalance)::bigint) from pgbench_accounts"
    query "select count(*), sum(delta) from pgbench_history"
    pgbench -n -c 4 -j 2 -T $((seconds * 10)) > /dev/null 2>&1 &
    local load=$! before
    before=$(query "select count(*) from pgbench_history")
    sleep "$seconds"
    query "select 'more under load: ' || (count(*) > $before) from pgbench_history"
    kill -9 "$(head -n 1 data/postmaster.pid)"
    wait "$load" || echo "the load ends with $?"
    start
    grep -q 'automatic recovery in progress' log && echo recovered
    holds
    query "vacuum full" > /dev/null
    query 'create extension amcheck' && pg_amcheck
    pg_dump -t pgbench_tellers --schema-only | grep -vE '^(--|\\)' | sha256sum
    query "select 'after the crash: ' || (count(*) > $before) from pgbench_history"
    pg_ctl -D data -s -m fast stop
    pg_controldata data | grep 'cluster state'
    pg_checksums --enable -D data > /dev/null && pg_checksums --check -D data | grep 'Bad checksums'
}
