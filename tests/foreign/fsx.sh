# shellcheck shell=bash disable=SC2034
# fsx: random operations on one file. Each read is compared with the written data.
packages=(gcc)
in_short=yes
fsx_version=0.3.2

ready() {
    [ ! -x "$FOREIGN_TOOLS/bin/fsx" ] || return 0
    [ "$FOREIGN_PRESENT" = no ] || { echo "fsx is not in target/tools"; return 1; }
    cargo install --quiet --locked fsx --version "$fsx_version" --root "$FOREIGN_TOOLS"
}

work() {
    local operations=100000 seed
    [ "$FOREIGN_SHORT" = no ] || operations=3000
    for seed in 1 2 3; do
        "$FOREIGN_TOOLS/bin/fsx" -q -N "$operations" -S "$seed" "file$seed" && echo "seed $seed: good"
        sha256sum < "file$seed"
    done
}
