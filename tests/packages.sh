# Functions for Debian packages, sourced by setup scripts, which define `say`.

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo > /dev/null; then sudo -n "$@"
    else
        say "need root to run: $*; become root or install sudo" >&2
        return 1
    fi
}

# Prints those of the named packages that are not installed, one per line.
missing() {
    local package
    for package; do
        dpkg-query -W -f '${Status}\n' "$package" 2> /dev/null | grep -q '^install ok installed' || echo "$package"
    done
}

update() { as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq; }

install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

# Stops services of packages that were just installed, because tests start their own.
stop_services() {
    [ -d /run/systemd/system ] || return 0
    local package service
    for package; do
        case "$package" in
            prometheus | postgresql | redis-server) service=$package ;;
            glusterfs-server) service=glusterd ;;
            nginx-light) service=nginx ;;
            openssh-server) service=ssh ;;
            chrony | vsftpd) service=$package ;;
            *) continue ;;
        esac
        as_root systemctl disable --quiet --now "$service"
    done
}
