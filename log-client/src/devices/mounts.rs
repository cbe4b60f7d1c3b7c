//! Mounted file systems, see proc_pid_mountinfo(5).

use super::{lines, words};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Minor device number that `stat` returns for its files.
    pub(super) minor: u32,
    pub(crate) kind: Vec<u8>,
    pub(super) source: Vec<u8>,
    pub(crate) place: Vec<u8>,
}

/// Each file system once, at its first mount point.
pub(super) fn parse(text: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for mount in all(text) {
        if !mounts.iter().any(|known| (known.minor, &known.kind) == (mount.minor, &mount.kind)) {
            mounts.push(mount);
        }
    }
    mounts
}

/// All mounts of a `mountinfo`.
pub(crate) fn all(text: &[u8]) -> impl Iterator<Item = Mount> {
    lines(text).filter_map(|line| {
        let words: Vec<&[u8]> = words(line).collect();
        let dash = words.iter().position(|word| *word == b"-")?;
        let (device, place) = (words.get(2)?, words.get(4)?);
        let (kind, source) = (words.get(dash + 1)?, words.get(dash + 2)?);
        let minor = super::number(device.split(|byte| *byte == b':').nth(1)?)?.try_into().ok()?;
        Some(Mount { minor, kind: kind.to_vec(), source: unescape(source), place: unescape(place) })
    })
}

/// Decodes names: the kernel writes spaces, tabs, newlines and backslashes as `\040` and so on.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\');
        let byte = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[3..] } else { more };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_parsed_once_with_escaped_names() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
            40 35 0:45 / /mnt/my\\040data rw shared:7 - fuse.glusterfs g1:/vol rw,user_id=0\n\
            41 35 0:45 / /again rw - fuse.glusterfs g1:/vol rw\nnonsense\n";
        let found = parse(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[1].minor, &found[1].kind[..]), (45, &b"fuse.glusterfs"[..]));
        assert_eq!((&found[1].source[..], &found[1].place[..]), (&b"g1:/vol"[..], &b"/mnt/my data"[..]));
        assert_eq!(unescape(b"a\\134b\\0"), b"a\\b\\0");
    }
}
