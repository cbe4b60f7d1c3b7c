//! Cases for owners, permissions, times and extended attributes.

use crate::steps::*;
use crate::{Case, GROUP, OTHER, Steps};
use rustix::fs::{Access, AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("chmod_sets_all_twelve_bits", |d, _| {
        let path = d.join("f");
        make(&path, "x");
        [0o0, 0o777, 0o644, 0o1644, 0o2755, 0o4755, 0o7777]
            .iter()
            .map(|m| said(chmod(&path, *m)) + &shown(&path))
            .collect()
    }),
    ("chmod_errors", |d, p| {
        make(d.join("f"), "x");
        vec![
            said(chmod(d.join("none"), 0o600)),
            said(chmod(d.join("f/x"), 0o600)),
            said(chmod(d.join(long(256)), 0o600)),
            said(chmod(deep(d, 4096), 0o600)),
            said(chmod(p.join("theirs/open"), 0o600)),
            said(chmod(p.join("closed/open"), 0o600)),
        ]
    }),
    ("chmod_of_a_directory_takes_access_away", |d, _| {
        let inner = d.join("dir");
        let made = mkdir(&inner, 0o700);
        make(inner.join("f"), "x");
        let closed = chmod(&inner, 0);
        let seen = vec![said(made), said(closed), text(&inner.join("f")), names(&inner)];
        let _ = chmod(&inner, 0o700);
        seen
    }),
    ("chown_to_others", |d, p| {
        let path = d.join("f");
        make(&path, "x");
        let link = d.join("l");
        let _ = rustix::fs::symlink("f", &link);
        let _ = chmod(&path, 0o6755);
        let (uid, gid) = me();
        vec![
            said(own(&path, None, Some(gid))),
            shown(&path),
            said(own(&path, Some(OTHER), None)),
            shown(&path),
            said(own(&path, Some(uid), Some(GROUP))),
            shown(&path),
            said(own(&link, Some(OTHER), Some(OTHER))),
            shown(&link),
            said(own(p.join("theirs/open"), Some(uid), None)),
            said(own(d.join("none"), Some(uid), None)),
            said(own(d.join("f/x"), Some(uid), None)),
        ]
    }),
    ("in_a_directory_of_a_group", |_, p| {
        // Writable because of a supplementary group, which the new file gets.
        let (uid, _) = me();
        let (dir, file, bits) = (
            p.join(format!("group/dir{uid}")),
            p.join(format!("group/file{uid}")),
            p.join(format!("group/bits{uid}")),
        );
        let seen = vec![
            said(mkdir(&dir, 0o755)),
            shown(&dir),
            said(open(&file, OFlags::CREATE | OFlags::RDWR, 0o644)),
            shown(&file),
            said(open(&bits, OFlags::CREATE | OFlags::RDWR, 0o2770)),
            shown(&bits),
            said(chmod(&file, 0o2770)),
            shown(&file),
        ];
        let _ = (fs::remove_dir(&dir), fs::remove_file(&file), fs::remove_file(&bits));
        seen
    }),
    ("utimensat_sets_nanoseconds", |d, p| {
        let path = d.join("f");
        make(&path, "x");
        let _ = rustix::fs::symlink("f", d.join("l"));
        let set = |path: &Path, a: (i64, i64), m: (i64, i64), flags| {
            let times = Timestamps {
                last_access: Timespec { tv_sec: a.0, tv_nsec: a.1 },
                last_modification: Timespec { tv_sec: m.0, tv_nsec: m.1 },
            };
            let result = said(rustix::fs::utimensat(CWD, path, &times, flags));
            let times = fs::symlink_metadata(path)
                .map(|m| format!("{}.{:09}/{}.{:09}", m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec()));
            format!("{result}:{}", times.unwrap_or_default())
        };
        let follow = AtFlags::empty();
        vec![
            set(&path, (1, 2), (3, 4), follow),
            set(&path, (0, UTIME_OMIT), (1_900_000_000, 999_999_999), follow),
            set(&path, (-2, 800_000_000), (0, UTIME_OMIT), follow),
            set(&path, (-1, 1), (-10, 0), follow),
            set(&path, (4_000_000_000, 5), (8_000_000_000, 6), follow),
            set(&d.join("l"), (7, 8), (9, 10), AtFlags::SYMLINK_NOFOLLOW),
            set(d, (11, 12), (13, 14), follow),
            set(&path, (0, 1_000_000_000), (0, 0), follow),
            set(&d.join("none"), (0, 0), (0, 0), follow),
            set(&d.join("f/x"), (0, 0), (0, 0), follow),
            said(rustix::fs::utimensat(CWD, p.join("theirs/read"), &now(), follow)),
            said(rustix::fs::utimensat(CWD, p.join("theirs/open"), &now(), follow)),
            // A user with write permission may set the current time, but no other.
            set(&p.join("closed/open"), (1, 0), (1, 0), follow)
                .split(':')
                .next()
                .unwrap_or_default()
                .to_owned(),
        ]
    }),
    ("times_move_by_themselves", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "x");
        let old = Timestamps {
            last_access: Timespec { tv_sec: 1000, tv_nsec: 0 },
            last_modification: Timespec { tv_sec: 1000, tv_nsec: 0 },
        };
        let _ = rustix::fs::utimensat(CWD, &path, &old, AtFlags::empty());
        let _ = rustix::fs::utimensat(CWD, d, &old, AtFlags::empty());
        let moved =
            |path: &Path| fs::metadata(path).map(|m| (m.mtime() != 1000).to_string()).unwrap_or_default();
        let before = moved(&path);
        let _ = rustix::io::write(&fd, b"y");
        let written = moved(&path);
        let directory = moved(d);
        make(d.join("g"), "");
        vec![before, written, directory, moved(d)]
    }),
    ("extended_attributes", |d, p| {
        let path = d.join("f");
        make(&path, "x");
        let (create, replace, any) = (XattrFlags::CREATE, XattrFlags::REPLACE, XattrFlags::empty());
        let mut buffer = [0; 64];
        let _ = rustix::fs::symlink("f", d.join("l"));
        vec![
            said(rustix::fs::setxattr(&path, "user.a", b"one", create)),
            said(rustix::fs::setxattr(&path, "user.a", b"two", create)),
            said(rustix::fs::setxattr(&path, "user.b", b"two", replace)),
            said(rustix::fs::setxattr(&path, "user.a", b"three", replace)),
            value(rustix::fs::getxattr(&path, "user.a", &mut buffer)),
            String::from_utf8_lossy(&buffer[..5]).into_owned(),
            said(rustix::fs::getxattr(&path, "user.a", &mut buffer[..2])),
            value(rustix::fs::getxattr(&path, "user.a", &mut buffer[..0])),
            said(rustix::fs::getxattr(&path, "user.none", &mut buffer)),
            said(rustix::fs::setxattr(&path, "user.empty", b"", any)),
            value(rustix::fs::getxattr(&path, "user.empty", &mut buffer)),
            list(&path),
            said(rustix::fs::listxattr(&path, &mut buffer[..2])),
            said(rustix::fs::removexattr(&path, "user.a")),
            said(rustix::fs::removexattr(&path, "user.a")),
            list(&path),
            said(rustix::fs::setxattr(&path, "nonsense", b"", any)),
            said(rustix::fs::setxattr(&path, "trusted.t", b"1", any)),
            said(rustix::fs::setxattr(&*path, &*format!("user.{}", long(300)), b"1", any)),
            said(rustix::fs::lsetxattr(d.join("l"), "user.l", b"1", any)),
            said(rustix::fs::setxattr(p.join("theirs/read"), "user.x", b"1", any)),
            said(rustix::fs::getxattr(p.join("theirs/shut"), "user.x", &mut buffer)),
            said(rustix::fs::setxattr(d.join("none"), "user.x", b"1", any)),
        ]
    }),
    ("access_control_lists", |d, _| {
        let _ = mkdir(d.join("dir"), 0o755);
        // u::rwx, g::r-x, g:4242:rwx, m::rwx, o::---
        let acl: Vec<u8> = [
            (1u16, 7u16, u32::MAX),
            (4, 5, u32::MAX),
            (8, 7, GROUP),
            (0x10, 7, u32::MAX),
            (0x20, 0, u32::MAX),
        ]
        .iter()
        .fold(2u32.to_le_bytes().to_vec(), |mut out, (tag, bits, id)| {
            out.extend(tag.to_le_bytes());
            out.extend(bits.to_le_bytes());
            out.extend(id.to_le_bytes());
            out
        });
        let set = |name: &str| said(rustix::fs::setxattr(d.join("dir"), name, &acl, XattrFlags::empty()));
        let was = rustix::process::umask(mode(0o77));
        let seen = vec![
            set("system.posix_acl_access"),
            set("system.posix_acl_default"),
            shown(&d.join("dir")),
            said(mkdir(d.join("dir/sub"), 0o777)),
            shown(&d.join("dir/sub")),
            said(open(d.join("dir/f"), OFlags::CREATE | OFlags::RDWR, 0o666)),
            shown(&d.join("dir/f")),
            list(&d.join("dir/f")),
            said(chmod(d.join("dir"), 0o700)),
            shown(&d.join("dir")),
        ];
        rustix::process::umask(was);
        seen
    }),
    ("set_user_id_is_lost_by_who_may_not_keep_it", |d, p| {
        let mut seen = Steps::new();
        let (uid, _) = me();
        // Always the same file, which root has prepared.
        for how in 0..5 {
            let path = if uid == 0 || how > 3 { d.join(format!("own{how}")) } else { p.join("theirs/suid") };
            if uid == 0 || how > 3 {
                make(&path, "content");
                let _ = chmod(&path, 0o6777);
            }
            let done = match how {
                0 => open(&path, OFlags::RDWR, 0).map(|fd| {
                    let _ = rustix::io::pwrite(fd, b"", 0);
                }),
                1 => open(&path, OFlags::RDWR, 0).and_then(|fd| rustix::io::pwrite(fd, b"c", 0).map(drop)),
                2 => open(&path, OFlags::RDWR, 0).and_then(|fd| rustix::fs::ftruncate(fd, 7)),
                3 => open(&path, OFlags::RDWR | OFlags::TRUNC, 0).map(drop),
                _ => own(&path, None, Some(me().1)),
            };
            seen.extend([said(done), shown(&path)]);
        }
        seen
    }),
    ("access_asks_for_the_real_user", |d, p| {
        make(d.join("f"), "x");
        let _ = chmod(d.join("f"), 0o444);
        [
            (d.join("f"), Access::WRITE_OK),
            (d.join("f"), Access::EXEC_OK),
            (d.join("f"), Access::READ_OK),
            (p.join("theirs/shut"), Access::READ_OK),
            (p.join("theirs/run"), Access::EXEC_OK),
            (p.join("closed/read"), Access::EXISTS),
            (d.join("none"), Access::EXISTS),
        ]
        .iter()
        .map(|(path, what)| said(rustix::fs::access(path, *what)))
        .collect()
    }),
];
