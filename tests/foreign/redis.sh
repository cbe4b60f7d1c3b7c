# shellcheck shell=bash disable=SC2034
# redis: redis-benchmark, snapshots and the append-only file by forked children, SIGKILL, and a
# check that no data is lost.
packages=(redis-server)
in_short=yes

cli() { redis-cli -s "$PWD/socket" "$@"; }
start() {
    redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --appendonly yes --appendfsync everysec \
        --enable-debug-command yes --daemonize yes --pidfile "$PWD/pid" --logfile "$PWD/log" > /dev/null
    until [ "$(cli ping 2> /dev/null)" = PONG ]; do sleep 0.05; done
}
settled() { until [ "$(cli info persistence | tr -d '\r' | grep -cE '^(rdb_bgsave|aof_rewrite)_in_progress:0|^loading:0')" = 3 ]; do sleep 0.05; done; }

work() {
    local requests=20000 keys=20000
    [ "$FOREIGN_SHORT" = no ] || requests=1000 keys=2000
    start
    redis-benchmark -s "$PWD/socket" -q -n "$requests" -t set,get,incr,lpush,rpop,sadd,hset,mset > rates
    grep -c 'requests per second' rates
    seq "$keys" | sed 's/.*/SET key:& value-of-&/' | cli > answers
    sort answers | uniq -c | tr -s ' '
    cli get counter:__rand_int__
    cli bgsave > /dev/null && settled
    cli bgrewriteaof > /dev/null && settled
    seq "$keys" | sed 's/.*/APPEND key:& -more/' | cli > /dev/null
    local before
    before=$(cli debug digest)
    kill -9 "$(cat pid)"
    start && settled
    [ "$(cli debug digest)" = "$before" ] && echo "all is there after SIGKILL"
    cli dbsize
    cli get "key:$keys"
    redis-check-rdb dump.rdb | grep -o 'RDB looks OK'
    cli shutdown save || true
    yes | redis-check-aof appendonlydir/*.manifest | grep -c valid
    while kill -0 "$(cat pid 2> /dev/null || echo 0)" 2> /dev/null && [ -f pid ]; do sleep 0.05; done
}
