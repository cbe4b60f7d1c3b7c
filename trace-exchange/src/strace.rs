//! What `strace -f -ttt -T` prints.
