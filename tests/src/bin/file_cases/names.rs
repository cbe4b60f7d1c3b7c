//! Cases for names: links, directories, renames and removed files.

use crate::steps::*;
use crate::{Case, Steps};
use rustix::fs::{OFlags, RenameFlags, SeekFrom};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("link_makes_another_name", |d, _| {
        let (one, two) = (d.join("one"), d.join("two"));
        make(&one, "content");
        let linked = said(rustix::fs::link(&one, &two));
        let same = fs::metadata(&one).map(|m| m.ino()).ok() == fs::metadata(&two).map(|m| m.ino()).ok();
        let _ = chmod(&two, 0o600);
        vec![linked, same.to_string(), shown(&one), said(rustix::fs::unlink(&one)), shown(&two), text(&two)]
    }),
    ("link_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("dir"), 0o755);
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        vec![
            said(rustix::fs::link(d.join("f"), d.join("f"))),
            said(rustix::fs::link(d.join("dir"), d.join("new"))),
            said(rustix::fs::link(d.join("none"), d.join("new"))),
            said(rustix::fs::link(d.join("f"), d.join("f/x"))),
            said(rustix::fs::link(d.join("f"), d.join("none/x"))),
            said(rustix::fs::link(d.join("f"), d.join(long(256)))),
            said(rustix::fs::link(d.join("f"), d.join("loop/x"))),
            said(rustix::fs::link(d.join("f"), p.join("theirs/new"))),
            said(rustix::fs::link(p.join("closed/open"), d.join("new"))),
            said(rustix::fs::link(p.join("theirs/suid"), d.join("suid"))),
            said(rustix::fs::link(p.join("sticky/shut"), d.join("shut"))),
        ]
    }),
    ("link_to_a_symbolic_link", |d, _| {
        let _ = rustix::fs::symlink("nowhere", d.join("l"));
        let linked = said(rustix::fs::link(d.join("l"), d.join("m")));
        vec![linked, shown(&d.join("m")), shown(&d.join("l"))]
    }),
    ("mkdir_and_the_mask", |d, _| {
        let mut seen = Steps::new();
        for (name, mask, bits) in
            [("a", 0o22, 0o777), ("b", 0, 0o777), ("c", 0o77, 0o755), ("d", 0o777, 0o777), ("e", 0, 0o1777)]
        {
            let was = rustix::process::umask(mode(mask));
            seen.push(said(mkdir(d.join(name), bits)));
            rustix::process::umask(was);
            seen.push(shown(&d.join(name)));
        }
        seen.push(shown(d));
        seen
    }),
    ("mkdir_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = rustix::fs::symlink("dangling", d.join("l"));
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        vec![
            said(mkdir(d.join("f"), 0o755)),
            said(mkdir(d.join("l"), 0o755)),
            said(mkdir(d.join("f/x"), 0o755)),
            said(mkdir(d.join("none/x"), 0o755)),
            said(mkdir(d.join(long(255)), 0o755)),
            said(mkdir(d.join(long(256)), 0o755)),
            said(mkdir(deep(d, 4096), 0o755)),
            said(mkdir(d.join("loop/x"), 0o755)),
            said(mkdir(p.join("theirs/x"), 0o755)),
            said(mkdir(p.join("closed/x"), 0o755)),
        ]
    }),
    ("rename_replaces", |d, _| {
        let (a, b) = (d.join("a"), d.join("b"));
        make(&a, "a");
        let kept = make(&b, "b");
        let done = rename(&a, &b, RenameFlags::empty());
        let mut buffer = [0; 4];
        let still = value(rustix::io::pread(&kept, &mut buffer, 0));
        let links = rustix::fs::fstat(&kept).map(|s| s.st_nlink).unwrap_or(9);
        vec![done, text(&b), shown(&a), still, links.to_string()]
    }),
    ("rename_flags", |d, _| {
        let (a, b, c) = (d.join("a"), d.join("b"), d.join("c"));
        make(&a, "a");
        let _ = mkdir(&b, 0o755);
        make(b.join("in"), "inside");
        vec![
            rename(&a, &b, RenameFlags::NOREPLACE),
            rename(&a, &c, RenameFlags::NOREPLACE),
            rename(&c, &b, RenameFlags::EXCHANGE),
            text(&b),
            text(&c.join("in")),
            rename(&b, &d.join("none"), RenameFlags::EXCHANGE),
            rename(&b, &c, RenameFlags::EXCHANGE | RenameFlags::NOREPLACE),
            names(d),
        ]
    }),
    ("rename_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("dir"), 0o755);
        let _ = mkdir(d.join("full"), 0o755);
        make(d.join("full/f"), "x");
        let _ = rustix::fs::symlink("loop", d.join("loop"));
        [
            (d.join("none"), d.join("new")),
            (d.join("f"), d.join("dir")),
            (d.join("dir"), d.join("f")),
            (d.join("dir"), d.join("full")),
            (d.join("full"), d.join("full/in")),
            (d.join("full/f/x"), d.join("new")),
            (d.join("f"), d.join(long(256))),
            (d.join("f"), d.join("loop/x")),
            (d.join("f"), d.join("none/x")),
            (d.join("f"), p.join("theirs/x")),
            (p.join("theirs/open"), d.join("x")),
            (p.join("sticky/open"), d.join("y")),
            (d.join("dir/."), d.join("z")),
            (d.join("f"), d.join("f")),
        ]
        .iter()
        .map(|(from, to)| {
            let seen = rename(from, to, RenameFlags::empty());
            if seen == "ok" && (from.starts_with(p) || to.starts_with(p)) {
                rename(to, from, RenameFlags::empty());
            }
            seen
        })
        .collect()
    }),
    ("rename_of_a_directory_moves_what_is_below", |d, _| {
        let _ = (mkdir(d.join("a"), 0o755), mkdir(d.join("a/b"), 0o755), mkdir(d.join("c"), 0o755));
        let open_file = make(d.join("a/b/f"), "deep");
        let done = rename(&d.join("a"), &d.join("c/a"), RenameFlags::empty());
        let _ = rustix::io::write(&open_file, b"er");
        vec![done, text(&d.join("c/a/b/f")), shown(&d.join("a/b/f")), shown(d), shown(&d.join("c"))]
    }),
    ("rmdir_errors", |d, p| {
        make(d.join("f"), "x");
        let _ = mkdir(d.join("full"), 0o755);
        make(d.join("full/f"), "x");
        let _ = mkdir(d.join("empty"), 0o755);
        let _ = rustix::fs::symlink("empty", d.join("l"));
        [
            d.join("full"),
            d.join("f"),
            d.join("none"),
            d.join("l"),
            d.join("f/x"),
            d.join("empty/."),
            d.join("full/.."),
            d.join(long(256)),
            p.join("theirs"),
            d.join("empty"),
            d.join("empty"),
        ]
        .iter()
        .map(|path| said(rustix::fs::rmdir(path)))
        .chain([shown(d)])
        .collect()
    }),
    ("a_directory_that_is_gone_is_still_open", |d, _| {
        let path = d.join("dir");
        let _ = mkdir(&path, 0o755);
        let fd = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("a directory");
        let gone = said(rustix::fs::rmdir(&path));
        let made = said(rustix::fs::openat(&fd, "x", OFlags::CREATE | OFlags::RDWR, mode(0o644)));
        vec![gone, made, value(rustix::fs::fstat(&fd).map(|s| s.st_nlink))]
    }),
    ("symlink_and_readlink", |d, p| {
        let target = long(4095);
        vec![
            said(rustix::fs::symlink("target/not there", d.join("l"))),
            shown(&d.join("l")),
            fs::read_link(d.join("l")).map_or("no".into(), |t| t.display().to_string()),
            said(rustix::fs::symlink(&*target, d.join("long"))),
            shown(&d.join("long")),
            said(rustix::fs::symlink(&*long(4096), d.join("longer"))),
            said(rustix::fs::symlink("x", d.join("l"))),
            said(rustix::fs::symlink("", d.join("m"))),
            said(rustix::fs::symlink("x", d.join("none/m"))),
            said(rustix::fs::symlink("x", d.join(long(256)))),
            said(rustix::fs::symlink("x", p.join("theirs/m"))),
            said(rustix::fs::readlink(d, Vec::new())),
            said(chmod(d.join("l"), 0o600)),
        ]
    }),
    ("unlink_errors", |d, p| {
        let _ = mkdir(d.join("dir"), 0o755);
        make(d.join("f"), "x");
        let _ = rustix::fs::symlink("f", d.join("l"));
        [
            d.join("dir"),
            d.join("none"),
            d.join("f/x"),
            d.join(long(256)),
            p.join("theirs/none"),
            p.join("closed/none"),
            d.join("l"),
            d.join("f"),
            d.join("f"),
        ]
        .iter()
        .map(|path| said(rustix::fs::unlink(path)))
        .collect()
    }),
    ("unlink_of_others_files", |_, p| {
        // Restore them for the next user who runs the cases.
        ["theirs/read", "sticky/read"]
            .iter()
            .map(|name| {
                let (path, kept) = (p.join(name), p.join(format!("{name}.kept")));
                let _ = rustix::fs::link(&path, &kept);
                let seen = said(rustix::fs::unlink(&path));
                let _ = rustix::fs::rename(&kept, &path);
                seen
            })
            .collect()
    }),
    ("a_file_that_is_gone_is_still_open", |d, _| {
        let path = d.join("f");
        let fd = make(&path, "before");
        let gone = said(rustix::fs::unlink(&path));
        let _ = rustix::io::write(&fd, b" and after");
        let mut buffer = [0; 32];
        let read = rustix::io::pread(&fd, &mut buffer, 0).unwrap_or(0);
        let stat = rustix::fs::fstat(&fd).expect("an open file");
        vec![
            gone,
            format!("{:?}", String::from_utf8_lossy(&buffer[..read])),
            format!("{}:{}", stat.st_nlink, stat.st_size),
            said(rustix::fs::ftruncate(&fd, 2)),
            said(rustix::fs::fchmod(&fd, mode(0o600))),
            shown(&path),
        ]
    }),
    ("many_entries_are_all_listed_once", |d, _| {
        for n in 0..3000 {
            drop(open(d.join(format!("a name of some length {n}")), OFlags::CREATE | OFlags::WRONLY, 0o644));
        }
        let listed = names(d);
        let hash = listed.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let numbers = fs::read_dir(d).map_or(0, |entries| {
            use std::os::unix::fs::DirEntryExt as _;
            entries.flatten().filter(|e| e.metadata().is_ok_and(|m| m.ino() == e.ino())).count()
        });
        for n in (0..3000).step_by(2) {
            let _ = fs::remove_file(d.join(format!("a name of some length {n}")));
        }
        vec![
            listed.split(',').count().to_string(),
            hash.to_string(),
            numbers.to_string(),
            names(d).split(',').count().to_string(),
        ]
    }),
    ("a_directory_can_be_read_again_from_any_entry", |d, _| {
        for n in 0..300 {
            drop(open(d.join(format!("{n}")), OFlags::CREATE | OFlags::WRONLY, 0o644));
        }
        let directory = open(d, OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("a directory");
        let read = |from: u64| -> Vec<(String, u64)> {
            let _ = rustix::fs::seek(&directory, SeekFrom::Start(from));
            let mut buffer = vec![std::mem::MaybeUninit::uninit(); 4096];
            let mut raw = rustix::fs::RawDir::new(&directory, &mut buffer);
            let mut out = Vec::new();
            while let Some(Ok(entry)) = raw.next() {
                out.push((entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie()));
            }
            out
        };
        let all = read(0);
        // The position after the hundredth entry yields the remaining entries.
        let rest = read(all[99].1);
        vec![all.len().to_string(), (rest == all[100..]).to_string(), (read(0) == all).to_string()]
    }),
    ("names_are_bytes", |d, _| {
        let odd = [b"\xff\xfe".as_slice(), b"new\nline", b" ", b"a\\b", "ä".as_bytes(), b"-rf", b"...", b"#"];
        let made: Vec<String> = odd
            .iter()
            .map(|name| said(open(d.join(OsStr::from_bytes(name)), OFlags::CREATE | OFlags::WRONLY, 0o644)))
            .collect();
        let mut found: Vec<Vec<u8>> = fs::read_dir(d)
            .expect("a directory")
            .flatten()
            .map(|e| e.file_name().as_bytes().to_vec())
            .collect();
        found.sort();
        vec![made.join(""), format!("{found:?}")]
    }),
];
