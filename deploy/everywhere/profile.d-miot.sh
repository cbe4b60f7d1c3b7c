# /etc/profile.d/miot.sh: traces what is started from login shells. For sh, bash, ksh, zsh.
# To do without it: MIOT_TRACE=off in the environment, or a file ~/.miot-off. docs/guide/node-wide.md.

# $LIB is for the loader: it stands for lib/x86_64-linux-gnu, lib64 ... of the program's own kind.
miot_library='/usr/$LIB/miot/libmiot_posix.so'
for miot_folder in /usr/lib/miot /usr/lib/*/miot /usr/lib64/miot; do
    if [ -r "$miot_folder/libmiot_posix.so" ]; then
        miot_library=$miot_folder/libmiot_posix.so
        break
    fi
done
miot_library=${MIOT_LIBRARY:-$miot_library}

# Without a library every program would print an error; system users and those who do not want it are left alone.
if [ -r "$miot_library" ] && [ "${MIOT_TRACE:-on}" != off ] && [ ! -e "$HOME/.miot-off" ] &&
    [ "$(id -u)" -ge "${MIOT_MIN_UID:-1000}" ]; then
    case ":${LD_PRELOAD:-}:" in
    *libmiot_posix.so:*) ;;
    *) export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$miot_library" ;;
    esac
fi
unset miot_library miot_folder
