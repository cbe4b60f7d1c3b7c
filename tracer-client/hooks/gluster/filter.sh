#!/bin/sh
# Adds the translator debug/miot to the top of the client graphs of the GlusterFS volumes that enable it:
#   gluster volume set VOLUME user.miot all          or data, meta, none (present, but records nothing)
#   gluster volume set VOLUME user.miot-paths off
#   gluster volume set VOLUME user.miot off          removes it
# Enter each command twice, because glusterd generates the volume files before it stores the options.
#
# Install this script, executable, in /usr/lib/x86_64-linux-gnu/glusterfs/VERSION/filter/ on every
# server. glusterd runs it for every volume file that it generates, with the file's name as argument.
# After any error the file is unchanged.
set -u

file=${1:-}
case $file in
    */vols/*-fuse.vol) ;; # volume files of mounts and of libgfapi
    *) exit 0 ;;
esac
case $file in *gfproxy*) exit 0 ;; esac
info=${file%/*}/info
option() { sed -n "s/^user\.$1=//p" "$info" 2> /dev/null | head -n 1; }

record=$(option miot)
case $record in
    all | data | meta | none) ;;
    '' | off) exit 0 ;;
    *) echo "miot: user.miot is '$record': expected all, data, meta, none or off" >&2 && exit 0 ;;
esac
case $(option miot-paths) in off | no | false | 0 | disable) paths=off ;; *) paths=on ;; esac

# The last volume of the file is the top of the graph.
top=$(sed -n 's/^volume //p' "$file" | tail -n 1)
[ -n "$top" ] || exit 0
case $top in *-miot) exit 0 ;; esac # already added

new=$file.miot
trap 'rm -f "$new"' EXIT
cp -p "$file" "$new" && cat >> "$new" << END && mv "$new" "$file"

volume $top-miot
    type debug/miot
    option record $record
    option paths $paths
    subvolumes $top
end-volume
END
exit 0
