#!/bin/sh
# The compiler as cargo calls it for tests/fuzz.sh: counts what is covered in our own crates, and only there.
case " $* " in
*" --crate-name miot_"*) exec "$@" $MIOT_COVERAGE ;;
*) exec "$@" ;;
esac
