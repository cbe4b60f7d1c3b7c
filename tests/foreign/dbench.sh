# shellcheck shell=bash disable=SC2034
# dbench: the load of a file server with four clients.
packages=(dbench)

work() {
    local seconds=20
    [ "$FOREIGN_SHORT" = no ] || seconds=3
    dbench -t "$seconds" -D . -c /usr/share/dbench/client.txt 4 > output
    # Kinds of operations. It ends with an error when one fails.
    awk '/^ Operation/ { on = 1; next } on && NF == 4 && $2 ~ /^[0-9]+$/ { print $1 }' output | sort
    find . -path './clients/*' | wc -l
}
