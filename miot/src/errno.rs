//! Names of error numbers, as manual pages and strace have them.

/// The symbolic name of a positive error number; `None` for those that I/O calls do not give.
pub(crate) fn name(number: i64) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident)*) => {
            match i32::try_from(number).ok()? {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        };
    }
    names! {
        EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV ENODEV
        ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE
        EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EOVERFLOW EILSEQ EOPNOTSUPP ESTALE EDQUOT
        ECANCELED ETIMEDOUT ECONNRESET ENOTCONN EREMOTEIO ECHILD ESRCH ENOEXEC
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_those_of_the_manual() {
        assert_eq!(super::name(2), Some("ENOENT"));
        assert_eq!(super::name(0), None);
        assert_eq!(super::name(i64::MAX), None);
    }
}
