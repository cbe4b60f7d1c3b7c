# shellcheck shell=bash disable=SC2034
# git: creates, clones, repacks, checks and bundles a repository.
packages=(git)
in_short=yes

work() {
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@example.org
    export GIT_CONFIG_NOSYSTEM=1
    local commits=200 n
    [ "$FOREIGN_SHORT" = no ] || commits=25
    git init -q -b main origin
    for ((n = 1; n <= commits; n++)); do
        mkdir -p "origin/d$((n % 7))"
        seq $((n * 10)) > "origin/d$((n % 7))/f$((n % 31))"
        export GIT_AUTHOR_DATE="2026-01-01T00:00:00Z" GIT_COMMITTER_DATE="2026-01-01T00:00:00Z"
        git -C origin add .
        git -C origin commit -q -m "commit $n"
    done
    git clone -q origin clone
    git clone -q --no-local --depth 5 "file://$PWD/origin" shallow
    git -C clone gc -q --aggressive --prune=now
    git -C clone fsck --full --strict
    git -C clone checkout -q -b side HEAD~10
    seq 77 > clone/side && git -C clone add side && git -C clone commit -q -m side
    git -C clone merge -q -m merge origin/main
    git -C clone worktree add -q ../tree HEAD~1
    git -C clone bundle create -q ../all.bundle --all
    git clone -q -b side all.bundle unbundled
    git -C unbundled rev-list --all | sort | sha256sum
    git -C clone rev-parse HEAD HEAD^{tree}
    git -C clone count-objects -v | grep -E 'count|packs|garbage'
    for folder in clone shallow tree unbundled; do
        (cd $folder && find . -name .git -prune -o -type f -exec sha256sum {} + | sort -k 2 | sha256sum)
    done
}
