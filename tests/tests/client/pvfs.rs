//! The hook of PVFS clients, with a stub of their library that has the same symbols and signatures.

use miot_proto::event::flag;
use miot_tests::built::{built, root};
use miot_tests::node::Node;
use miot_tests::process::{Background, Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, command, events};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The hook, the stub, and a program that uses it.
struct Site {
    place: PathBuf,
    hook: PathBuf,
    program: PathBuf,
}

impl Site {
    fn new(name: &str) -> Site {
        let place = fresh(name);
        fs::create_dir(place.join("data")).unwrap();
        let (sources, hooks) = (root().join("tests/programs/pvfs"), root().join("tracer-client/hooks/pvfs"));
        let (hook, program) = (place.join("libmiot_pvfs.so"), place.join("client"));
        let mut build = Command::new(hooks.join("build.sh"));
        let _ = run(build.arg(built().library.join("libmiot.a")).arg(&hook)).success();
        let compile = |arguments: &[&str], source: &str, out: &Path| {
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-override-init", "-o"])
                .arg(out);
            cc.arg("-I").arg(&hooks).arg(sources.join(source)).args(arguments).arg("-pthread");
            let _ = run(&mut cc).success();
        };
        compile(&["-shared", "-fPIC"], "library.c", &place.join("libpvfs2.so"));
        let here = place.to_str().unwrap();
        compile(&[&format!("-L{here}"), "-lpvfs2", &format!("-Wl,-rpath,{here}")], "client.c", &program);
        Site { place, hook, program }
    }

    /// Sets the program's environment.
    fn steer(&self, command: &mut Command, mask: u64, debug: &str) {
        command
            .env("LD_PRELOAD", &self.hook)
            .env("PVFS_STANDIN_DIR", self.place.join("data"))
            .env("PVFS_STANDIN_LOG", self.place.join("log"))
            .env("PVFS_STANDIN_MASK", mask.to_string())
            .env("PVFS_STANDIN_LINES", "8,12")
            .env("MIOT_PVFS_DEBUG", debug);
    }

    fn words(&self, requests: u32) -> [std::ffi::OsString; 4] {
        let notes = self.place.join("notes").into_os_string();
        [self.program.clone().into_os_string(), notes, "4".into(), requests.to_string().into()]
    }

    /// Runs the program under `miot run` and returns its trace.
    fn traced(&self, mask: u64, debug: &str, requests: u32) -> Vec<PrintedEvent> {
        let trace = self.place.join("trace");
        let _ = fs::remove_dir_all(&trace);
        let mut miot = command(&self.place, &trace, &self.words(requests));
        self.steer(&mut miot, mask, debug);
        let _: Ended = run(&mut miot).success();
        assert_good(&trace);
        events(&trace)
    }

    /// Returns the lines that the program logged, in order.
    fn notes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.place.join("notes")).unwrap();
        let mut notes: Vec<String> = text.lines().map(str::to_owned).collect();
        notes.sort();
        notes
    }

    /// Returns the lines of the formatted log without their timestamps.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.place.join("log")).unwrap();
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| format!("{}{}", &line[..2], line[line.find("] ").unwrap()..].trim_end()))
            .collect();
        lines.sort();
        lines
    }
}

fn requests(rows: &[PrintedEvent]) -> Vec<String> {
    let number = |n: Option<i64>| n.map_or("-".to_owned(), |n| n.to_string());
    let of_client = rows.iter().filter(|row| row.layer == "client");
    let mut lines: Vec<String> = of_client
        .map(|row| format!("{} {} {} {}", row.op, number(row.offset), number(row.length), row.result))
        .collect();
    lines.sort();
    lines
}

fn messages(rows: &[PrintedEvent]) -> Vec<String> {
    let of_log = rows.iter().filter(|row| row.op == "debug");
    let mut lines: Vec<String> = of_log
        .map(|row| {
            format!("[{}] {}", char::from((row.flags >> 8) as u8), row.message.as_deref().unwrap().trim_end())
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn each_request_of_the_library_is_recorded_once() {
    let site = Site::new("client-pvfs");
    let rows = site.traced(0, "record", 5000);
    let expected = site.notes();
    assert!(expected.len() > 5100, "{}", expected.len());
    assert_eq!(requests(&rows), expected);

    // Files by file system, handle and name. Lookups and creations have a parent and a name.
    let of = |op: &str| rows.iter().filter(|row| row.layer == "client" && row.op == op).collect::<Vec<_>>();
    let path = |row: &PrintedEvent| row.path.clone().unwrap_or_default();
    assert!(of("write").iter().filter(|row| row.result > 0).all(|row| {
        let path = path(row);
        path.starts_with("pvfs2:9:10485") && path[..path.len() - 1].ends_with(":f")
    }));
    assert!(
        of("read").iter().any(|row| path(row) == "pvfs2:9:4711" && row.result == -i64::from(libc::EINVAL))
    );
    let created = of("create");
    assert!(created.iter().any(|row| {
        path(row) == "pvfs2:9:1048576/f1"
            && row.path2.as_deref() == Some("pvfs2:9:1048578:f1")
            && row.result == 0
    }));
    assert!(
        created.iter().any(|row| path(row) == "pvfs2:9:1048576/f1" && row.result == -i64::from(libc::EEXIST))
    );
    // As everywhere, the target of the link comes first and the link itself second.
    let [symlink] = of("symlink")[..] else { panic!("one symlink") };
    assert_eq!((path(symlink).as_str(), symlink.path2.as_deref()), ("f0", Some("pvfs2:9:1048576/l")));
    let [rename] = of("rename")[..] else { panic!("one rename") };
    assert_eq!(
        (path(rename).as_str(), rename.path2.as_deref()),
        ("pvfs2:9:1048576/f3", Some("pvfs2:9:1048576/renamed"))
    );
    assert!(of("setxattr").iter().all(|row| row.path2.as_deref() == Some("user.colour")));
    // Posted in one call and completed in another, by another thread, after a delay.
    let (posted, at_once): (Vec<&PrintedEvent>, Vec<&PrintedEvent>) =
        rows.iter().filter(|row| row.layer == "client").partition(|row| row.flags & 4 != 0);
    assert!(posted.len() > 5000 && at_once.len() > 40);
    // Without a mask the library logs nothing. The program's own messages are recorded.
    assert_eq!(messages(&rows), ["[E] the program says so: -3 of 99.50 %"]);
}

#[test]
fn raw_log_equals_the_formatted_one() {
    let site = Site::new("client-pvfs-log");
    let rows = site.traced(u64::MAX, "both", 1000);
    assert_eq!(requests(&rows), site.notes());
    let (formatted, raw) = (site.log(), messages(&rows));
    assert!(formatted.len() > 10_000, "{}", formatted.len());
    assert!(formatted == raw, "{:?}", formatted.iter().zip(&raw).find(|(a, b)| a != b));

    // Recorded, and therefore not formatted.
    let rows = site.traced(u64::MAX, "record", 100);
    assert!(messages(&rows).len() > 1000);
    assert_eq!(site.log(), [""; 0]);

    // Passed on, as without the hook.
    let rows = site.traced(u64::MAX, "pass", 100);
    assert_eq!(messages(&rows), [""; 0]);
    assert!(site.log().len() > 1000);

    // Without recording, all messages go to the formatted log.
    let words = site.words(100);
    let mut alone = Command::new(&words[0]);
    site.steer(&mut alone, u64::MAX, "record");
    let _ = run(alone.args(&words[1..]).env("MIOT_DIR", site.place.join("none"))).success();
    assert!(site.log().len() > 1000);
}

#[test]
fn hanging_request_is_shown_and_becomes_an_event_when_killed() {
    let site = Site::new("client-pvfs-hangs");
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&site.place, shared.path());
    let hangs = site.place.join("hangs");
    fs::write(&hangs, "").unwrap();
    let words = site.words(10);
    let mut program = Command::new(&words[0]);
    site.steer(&mut program, 0, "record");
    program.args(&words[1..]).env("MIOT_DIR", &node.dir).env("PVFS_STANDIN_HANGS", &hangs);
    let program = Background::start(&mut program);
    let mut shown = None;
    until("the write is shown in flight", || {
        shown = node.in_flight(&[]).into_iter().find(|row| row["op"] == "write" && row["layer"] == "client");
        shown.is_some()
    });
    let shown = shown.unwrap();
    assert_eq!((&shown["offset"], &shown["length"]), (&8192.into(), &4096.into()), "{shown}");
    let object = "pvfs2:9:1048577:f0";
    // The name is taken from the handle in the trace, because it is not a file of this node.
    assert!(shown["handle"].as_u64().is_some_and(|handle| handle != 0), "{shown}");
    let pid = program.id();
    let _ = program.stop(Signal::KILL);
    let cut_off = |row: &&PrintedEvent| row.pid == pid && row.flags & u64::from(flag::INTERRUPTED) != 0;
    until("it is in the trace", || node.so_far().iter().any(|row| cut_off(&row)));
    let rows = node.end();
    let [row] = rows.iter().filter(cut_off).collect::<Vec<_>>()[..] else { panic!("one is cut off") };
    assert_eq!((row.op.as_str(), row.offset, row.length), ("write", Some(8192), Some(4096)));
    assert_eq!((row.path.as_deref(), row.result), (Some(object), -i64::from(libc::EINTR)));
}
