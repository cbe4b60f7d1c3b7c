# shellcheck shell=bash disable=SC2034
# dbench: the load of a file server, by four clients.
packages=(dbench)

work() {
    local seconds=20
    [ "$FOREIGN_SHORT" = no ] || seconds=3
    dbench -t "$seconds" --warmup=1 -D . -c /usr/share/dbench/client.txt 4 > output
    # Kinds of operations, none of which failed.
    awk '/^ Operation/ { on = 1; next } on && NF == 4 && $2 ~ /^[0-9]+$/ { print $1 }' output | sort
    grep -ciE 'fail|error' output || true
    find . -path './clients/*' | wc -l
}
