//! Requests that a preloaded library cannot record appear in the layer `fuse`, with the thread that
//! made them.

use crate::mounted::MountDirs;
use miot_tests::built::built;
use miot_tests::process::{Ended, run};
use miot_tests::tmpfs::UNMOUNT;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events, traced};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs a script with the directory mounted, under `miot run`. Returns its output and the events of
/// FUSE.
fn recorded(place: &MountDirs, options: &str, script: &str) -> (Ended, Vec<PrintedEvent>) {
    let trace = place.dir.join("trace");
    let _ = fs::remove_dir_all(&trace);
    let fuse = built().folder.join("miot-fuse");
    let script = format!("{} --allow-other {options} source mount\n{script}\n{UNMOUNT}", fuse.display());
    let ended = traced(&place.dir, &trace, &["sh", "-ec", &script]).success();
    assert_good(&trace);
    let rows = events(&trace).into_iter().filter(|row| row.layer == "fuse").collect();
    (ended, rows)
}

fn compiled(place: &MountDirs, source: &str, flags: &[&str]) -> String {
    let (code, program) = (place.dir.join("program.c"), place.dir.join("program"));
    fs::write(&code, source).unwrap();
    let _ = run(Command::new("cc").args(flags).arg("-o").arg(&program).arg(&code)).success();
    program.display().to_string()
}

/// Bytes of an operation on a file, and the threads that requested them.
fn moved(rows: &[PrintedEvent], op: &str, path: &Path) -> (i64, Vec<Option<u32>>) {
    let rows = rows.iter().filter(|row| row.op == op && row.path.as_deref() == path.to_str());
    let (mut bytes, mut threads) = (0, Vec::new());
    for row in rows {
        bytes += row.result;
        threads.push(row.caller_tid);
    }
    threads.sort_unstable();
    threads.dedup();
    (bytes, threads)
}

const STATIC: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
#include <sys/syscall.h>
static void *half(void *path)
{
    char data[10000];
    memset(data, 's', sizeof data);
    int fd = open(path, O_RDWR);
    for (int i = 0; i < 10; i++)
        if (pwrite(fd, data, sizeof data, 500000 + i * 10000) != sizeof data) return "write";
    printf("thread %ld\n", syscall(SYS_gettid));
    close(fd);
    return 0;
}
int main(int argc, char **argv)
{
    char data[4096];
    memset(data, 'm', sizeof data);
    int fd = open(argv[1], O_CREAT | O_RDWR, 0644);
    for (int i = 0; i < 100; i++)
        if (pwrite(fd, data, sizeof data, i * 4096L) != sizeof data) return 1;
    pthread_t other;
    void *failed;
    if (pthread_create(&other, 0, half, argv[1]) || pthread_join(other, &failed) || failed) return 2;
    if (pread(fd, data, 100, 1000) != 100) return 3;
    close(fd);
    printf("main %ld\n", syscall(SYS_gettid));
    fflush(stdout);
    return 0;
}
"#;

#[test]
fn static_program_is_recorded_with_its_threads() {
    let place = MountDirs::new("fuse-static");
    let program = compiled(&place, STATIC, &["-static", "-pthread"]);
    let (ended, rows) = recorded(&place, "--cache none", &format!("{program} mount/file"));
    let said = |word: &str| -> u32 {
        let line = ended.stdout.lines().find(|line| line.starts_with(word)).expect("said by the program");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (main, thread) = (said("main"), said("thread"));
    let file = place.mount.join("file");
    let by = |tid: u32, op: &str| -> Vec<&PrintedEvent> {
        rows.iter()
            .filter(|r| r.op == op && r.caller_tid == Some(tid) && r.path.as_deref() == file.to_str())
            .collect()
    };
    let writes: Vec<_> = by(main, "write").iter().map(|r| (r.offset, r.length, r.result)).collect();
    let expected: Vec<_> = (0..100).map(|i| (Some(i * 4096), Some(4096), 4096)).collect();
    assert_eq!(writes, expected);
    let writes: Vec<_> = by(thread, "write").iter().map(|r| (r.offset, r.result)).collect();
    let expected: Vec<_> = (0..10).map(|i| (Some(500_000 + i * 10_000), 10_000)).collect();
    assert_eq!(writes, expected);
    let reads: Vec<_> = by(main, "read").iter().map(|r| (r.offset, r.length, r.result)).collect();
    assert_eq!(reads, [(Some(1000), Some(100), 100)]);
    assert_eq!((by(main, "create").len(), by(thread, "open").len()), (1, 1));
    // Each open has one handle.
    let handles =
        |tid| by(tid, "write").iter().map(|r| r.handle).collect::<std::collections::HashSet<_>>().len();
    assert_eq!((handles(main), handles(thread)), (1, 1));
    assert!(by(main, "write")[0].handle != by(thread, "write")[0].handle);
    assert!(rows.iter().all(|row| row.caller_uid.is_none_or(|uid| uid == 0)));
}

const MAPPED: &str = r#"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    long size = 3 << 20;
    int fd = open(argv[1], O_CREAT | O_RDWR, 0644);
    if (ftruncate(fd, size)) return 1;
    char *map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 2;
    memset(map, 'w', size);
    if (msync(map, size, MS_SYNC)) return 3;
    munmap(map, size);
    close(fd);
    return 0;
}
"#;

#[test]
fn writer_of_a_mapping_is_recorded() {
    let place = MountDirs::new("fuse-mapped");
    let program = compiled(&place, MAPPED, &[]);
    for cache in ["auto", "none"] {
        let (_, rows) = recorded(&place, &format!("--cache {cache}"), &format!("{program} mount/{cache}"));
        let (bytes, threads) = moved(&rows, "write", &place.mount.join(cache));
        // The kernel writes pages on behalf of no thread, each once.
        assert_eq!((bytes, threads), (3 << 20, vec![None]), "cache {cache}");
        let truncated: Vec<_> =
            rows.iter().filter(|row| row.op == "truncate").map(|row| row.length).collect();
        assert_eq!(truncated, [Some(3 << 20)]);
    }
}

#[test]
fn io_uring_is_recorded() {
    let place = MountDirs::new("fuse-uring");
    let probe = run(Command::new("fio").current_dir(&place.dir).args([
        "--name=probe",
        "--ioengine=io_uring",
        "--size=4k",
        "--rw=write",
        "--output=probe.log",
    ]));
    if probe.code() != 0 {
        println!(
            "NOT TESTED HERE: this kernel does not let io_uring be used: {}{}",
            probe.stdout, probe.stderr
        );
        return;
    }
    let script = "fio --directory=mount --name=job --ioengine=io_uring --iodepth=8 --rw=randwrite --bs=16k --size=8m \
                  --fallocate=none --output-format=json --output=fio.json > /dev/null";
    let (_, rows) = recorded(&place, "--cache none", script);
    let fio: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(place.dir.join("fio.json")).unwrap()).unwrap();
    let bytes = fio["jobs"][0]["write"]["io_bytes"].as_i64().unwrap();
    let (seen, threads) = moved(&rows, "write", &place.mount.join("job.0.0"));
    assert_eq!((seen, bytes), (8 << 20, 8 << 20));
    assert!(threads.iter().all(Option::is_some), "{threads:?}");
    let offsets: std::collections::HashSet<_> =
        rows.iter().filter(|row| row.op == "write").map(|row| row.offset).collect();
    assert_eq!(offsets.len(), 512, "each block once");
}

#[test]
fn names_are_below_the_mount_and_follow_renames() {
    let place = MountDirs::new("fuse-names");
    let script = "mkdir -p mount/a/b; echo 1 > mount/a/b/f; mv mount/a mount/c; cat mount/c/b/f > /dev/null
                  ln -s nowhere mount/l; ln mount/c/b/f mount/hard; chmod 600 mount/hard; ls mount/c > /dev/null
                  rm mount/hard; rmdir mount/none 2> /dev/null || true";
    let (_, rows) = recorded(&place, "--cache none", script);
    let mount = place.mount.display().to_string();
    let find = |op: &str, path: &str, path2: Option<&str>| {
        let (path, path2) = (format!("{mount}/{path}"), path2.map(|p| format!("{mount}/{p}")));
        rows.iter()
            .find(|r| r.op == op && r.path.as_ref() == Some(&path) && (path2.is_none() || r.path2 == path2))
    };
    for (op, path, path2) in [
        ("mkdir", "a", None),
        ("mkdir", "a/b", None),
        ("create", "a/b/f", None),
        ("write", "a/b/f", None),
        ("rename", "a", Some("c")),
        ("open", "c/b/f", None),
        ("read", "c/b/f", None),
        ("link", "c/b/f", Some("hard")),
        ("setattr", "hard", None),
        ("opendir", "c", None),
        ("readdir", "c", None),
        ("unlink", "hard", None),
    ] {
        let row = find(op, path, path2).unwrap_or_else(|| panic!("no {op} of {path} in {rows:#?}"));
        assert!(row.result >= 0 && row.caller_tid.is_some(), "{row:?}");
    }
    let link = rows.iter().find(|r| r.op == "symlink").unwrap();
    assert_eq!(
        (link.path.as_deref(), link.path2.as_deref()),
        (Some("nowhere"), Some(&*format!("{mount}/l")))
    );
    let refused = find("lookup", "none", None).unwrap();
    assert_eq!(refused.result, -2);
}

#[test]
fn attr_timeout_saves_only_requests_for_attributes() {
    let place = MountDirs::new("fuse-attr-timeout");
    // A change of the mode through the mount applies at once, although attributes are cached.
    let script = "echo data > mount/file
                  for i in 1 2 3 4 5 6 7 8 9 10; do stat mount/file > /dev/null; cat mount/file > /dev/null; done
                  chmod 600 mount/file
                  user='setpriv --reuid 65534 --regid 65534 --clear-groups'
                  if $user cat mount/file 2> /dev/null; then echo readable; fi
                  chmod 644 mount/file; $user cat mount/file";
    let count = |options: &str| {
        let (ended, rows) = recorded(&place, options, script);
        assert_eq!(ended.stdout, "data\n", "{options}");
        let file = place.mount.join("file");
        let of_file =
            |op: &str| rows.iter().filter(|row| row.op == op && row.path.as_deref() == file.to_str()).count();
        fs::remove_file(place.source.join("file")).unwrap();
        ["lookup", "open", "read", "write", "setattr", "getattr"].map(of_file)
    };
    let strict = count("--cache none");
    let cached = count("--cache none --attr-timeout 60");
    assert_eq!(strict[..5], cached[..5], "{strict:?} {cached:?}");
    assert!(strict[5] >= 20 && cached[5] <= 2, "{strict:?} {cached:?}");
}

#[test]
fn posix_call_is_the_parent_of_the_fuse_request() {
    let place = MountDirs::new("fuse-linked");
    let script = "dd if=/dev/zero of=mount/file bs=64k count=20 status=none";
    let trace = place.dir.join("trace");
    let (_, fuse) = recorded(&place, "--cache none", script);
    let posix: Vec<PrintedEvent> = events(&trace)
        .into_iter()
        .filter(|r| {
            r.layer == "posix" && r.op == "write" && r.path.as_deref() == place.mount.join("file").to_str()
        })
        .collect();
    let writes: Vec<&PrintedEvent> = fuse.iter().filter(|r| r.op == "write").collect();
    assert_eq!((posix.len(), writes.len()), (20, 20));
    for (call, request) in posix.iter().zip(writes) {
        assert_eq!(
            (Some(call.tid), call.offset, call.result),
            (request.caller_tid, request.offset, request.result)
        );
        let (begin, inner) = (call.time - call.duration, request.time - request.duration);
        assert!(begin <= inner && request.time <= call.time, "{call:?}\n{request:?}");
    }
}
