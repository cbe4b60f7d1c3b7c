# shellcheck shell=bash disable=SC2034
# stress-ng: all stressors for file systems, I/O and descriptors, one after the other; in a short
# run a few in parallel.
packages=(stress-ng)
compare=tests
in_short=yes
# dup is left out: it calls clone with CLONE_VM and without CLONE_SETTLS. Both processes then share
# one lane, and now and then a request is counted as nested (docs/reference/losses.md).

stress() {
    local code=0
    mkdir "t-$1"
    timeout 60 stress-ng --temp-path "t-$1" "--$1" 1 --timeout 1s --oomable > /dev/null 2>> "output-$1" || code=$?
    case $code in
        0) echo "ok $1" ;;
        *) echo "exit code $code: $1" ;;
    esac
}

work() {
    local name
    if [ "$FOREIGN_SHORT" = yes ]; then
        for name in access aio dentry fallocate fcntl filename getdent hdd iomix lease lockofd open readahead rename revio seek \
            sendfile splice sync-file utime vm-splice xattr eventfd; do stress $name & done
        wait
        return
    fi
    # Without stressors that change the machine for others or need a device, and without dup.
    for name in $(for class in filesystem io pipe; do stress-ng --class "$class?" | sed 's/.*: //'; done | tr ' ' '\n' | sort -u |
        grep -vxE 'bind-mount|binderfs|rawdev|ioprio|dup') mmap mmapfork msync poll epoll sockfd socket sock mq inotify; do
        stress "$name"
    done
}
