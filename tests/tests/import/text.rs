//! Text as strace and darshan-dxt-parser document it, and damaged text.

use super::import;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{assert_good, events};
use std::fs;

fn imported(name: &str, text: &[u8]) -> (Vec<PrintedEvent>, String) {
    let place = fresh(&format!("import-text-{name}"));
    let (file, trace) = (place.join("input"), place.join("trace"));
    fs::write(&file, text).unwrap();
    let ended = import(&trace, &[&file]).success();
    assert_good(&trace);
    (events(&trace), ended.stdout)
}

fn data(rows: &[PrintedEvent]) -> Vec<String> {
    rows.iter()
        .filter(|row| row.length.is_some())
        .map(|row| {
            let path = row.path.as_deref().unwrap_or("-");
            let offset = row.offset.map_or("?".to_owned(), |offset| offset.to_string());
            format!("{} {} {path} {}@{offset} = {}", row.tid, row.op, row.length.unwrap(), row.result)
        })
        .collect()
}

/// Shared and separate positions; interrupted calls; threads, `fork`, `vfork`, `execve`, signals,
/// death.
#[test]
#[expect(clippy::too_many_lines, reason = "mostly the text that is imported")]
fn offsets_follow_descriptors_across_processes() {
    let text = br#"10 1700000000.000001 execve("/bin/p", ["p", "a b"], 0x7ffe /* 3 vars */) = 0 <0.000100>
10 1700000000.001000 openat(AT_FDCWD</work>, "f", O_RDWR|O_CREAT|O_TRUNC|O_CLOEXEC, 0644) = 3</work/f> <0.000010>
10 1700000000.002000 write(3</work/f>, "\1\x02\"),("..., 100) = 100 <0.000010>
10 1700000000.003000 dup(3</work/f>) = 4</work/f> <0.000001>
10 1700000000.004000 fcntl(3</work/f>, F_GETFL) = 0x8002 (flags O_RDWR|O_LARGEFILE) <0.000001>
10 1700000000.005000 lseek(4</work/f>, -90, SEEK_END) = 10 <0.000001>
10 1700000000.006000 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f27 <unfinished ...>
11 1700000000.006500 read(3</work/f>, "..."..., 5) = 5 <0.000010>
10 1700000000.006600 <... clone resumed>) = 11 <0.000500>
10 1700000000.007000 read(3</work/f>,  <unfinished ...>
11 1700000000.007100 lseek(3</work/f>, 0, SEEK_CUR) = 15 <0.000001>
10 1700000000.007200 <... read resumed>"x", 7) = 7 <0.000150>
11 1700000000.008000 close(3</work/f>) = 0 <0.000001>
11 1700000000.008100 +++ exited with 0 +++
10 1700000000.008200 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=11, si_uid=0} ---
10 1700000000.009000 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD, child_tid=0x7f, stack=0x7f, stack_size=0x7f}, 88) = 12 <0.000020>
12 1700000000.010000 openat(AT_FDCWD</work>, "log", O_WRONLY|O_APPEND|O_CREAT, 0644) = 5</work/log> <0.000010>
10 1700000000.011000 write(5</work/log>, "a", 1) = 1 <0.000010>
10 1700000000.012000 ftruncate(5</work/log>, 50) = 0 <0.000010>
12 1700000000.013000 write(5</work/log>, "ab", 2) = 2 <0.000010>
12 1700000000.014000 writev(5</work/log>, [{iov_base="iov_len=9", iov_len=3}, {iov_base="b", iov_len=4}], 2) = 7 <0.000010>
10 1700000000.015000 pipe2([6<pipe:[7]>, 7<pipe:[7]>], O_CLOEXEC) = 0 <0.000010>
10 1700000000.016000 write(7<pipe:[7]>, "x", 1) = 1 <0.000010>
10 1700000000.017000 pread64(3</work/f>, ""..., 9, 4294967296) = 0 <0.000010>
10 1700000000.018000 read(0</dev/pts/0<char 136:0>>, 0x7ffe, 10) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <0.100000>
10 1700000000.018100 --- SIGINT {si_signo=SIGINT, si_code=SI_KERNEL} ---
10 1700000000.019000 read(8</other>, "y", 3) = 3 <0.000010>
10 1700000000.020000 renameat2(AT_FDCWD</work>, "f", AT_FDCWD</work>, "g", RENAME_NOREPLACE) = 0 <0.000010>
10 1700000000.021000 read(3</work/g>, "y", 3) = 3 <0.000010>
10 1700000000.022000 vfork( <unfinished ...>
13 1700000000.022100 execve("/bin/q", ["q"], 0x7ffe /* 3 vars */ <unfinished ...>
10 1700000000.022200 <... vfork resumed>) = 13 <0.000190>
13 1700000000.022300 <... execve resumed>) = 0 <0.000150>
13 1700000000.023000 read(4</work/g>, "y", 3) = 3 <0.000010>
13 1700000000.024000 read(3</elsewhere>, "y", 2) = 2 <0.000010>
13 1700000000.025000 syscall_0x1b9(0x1, 0x2) = -1 ENOSYS (Function not implemented) <0.000001>
12 1700000000.026000 fsync(5</work/log> <unfinished ...>
13 1700000000.027000 write(4</work/g>, "y", 30 <unfinished ...>
12 1700000000.028000 <... fsync resumed>) = ? <unavailable>
13 1700000000.029000 +++ killed by SIGKILL (core dumped) +++
10 1700000000.030000 exit_group(0) = ?
12 1700000000.030100 +++ exited with 0 +++
10 1700000000.030200 +++ exited with 0 +++
"#;
    let (rows, told) = imported("offsets", text);
    assert_eq!(
        data(&rows),
        [
            "10 write /work/f 100@0 = 100",
            "11 read /work/f 5@10 = 5",
            "10 read /work/f 7@15 = 7",
            // Opened for appending to a file of unknown size. Afterwards the size is known.
            "10 write /work/log 1@? = 1",
            "10 ftruncate /work/log 50@? = 0",
            "12 write /work/log 2@50 = 2",
            "12 writev /work/log 7@52 = 7",
            "10 pread /work/f 9@4294967296 = 0",
            "10 read /other 3@? = 3",
            "10 read /work/f 3@22 = 3",
            // The position is shared with the parent. The descriptor with O_CLOEXEC is closed, and
            // 3 is another file.
            "13 read /work/f 3@25 = 3",
            "13 read /elsewhere 2@? = 2",
            "13 write /work/f 30@28 = -4",
        ]
    );
    let whose = |tid: u32| rows.iter().filter(|row| row.tid == tid).map(|row| row.pid).collect::<Vec<_>>();
    assert!(whose(12).iter().all(|pid| *pid == 10), "a thread of process 10");
    let read = rows.iter().find(|row| row.tid == 10 && row.length == Some(7)).unwrap();
    assert_eq!((read.time, read.duration), (1_700_000_000_007_150_000, 150_000));
    let interrupted: Vec<_> =
        rows.iter().filter(|row| row.flags & 8 != 0).map(|row| row.op.as_str()).collect();
    assert_eq!(interrupted, ["fsync", "write"]);
    let open = rows.iter().find(|row| row.op == "openat").unwrap();
    assert_eq!(open.arg, Some(0o2 | 0o100 | 0o1000 | 0o2_000_000 | 0o644 << 32));
    for said in ["1 syscall_0x1b9", "1 requests on pipes", "1 calls that a signal interrupted"] {
        assert!(told.contains(said), "{told}");
    }
    let interactive = b"1700000000.000001 openat(AT_FDCWD</w>, \"f\", O_RDONLY) = 3</w/f> <0.000010>\n\
        1700000000.000002 wait4(20810, strace: Process 20810 attached\n <unfinished ...>\n\
        [pid 20810] 1700000000.000003 read(3</w/f>, \"x\", 1) = 1 <0.000001>\n\
        [pid     7] 1700000000.000004 <... wait4 resumed>NULL, 0, NULL) = 20810 <0.000001>\n";
    let (rows, _) = imported("terminal", interactive);
    assert!(data(&rows).iter().any(|row| row.starts_with("20810 read /w/f 1@")), "{:?}", data(&rows));
}

#[test]
fn damaged_lines_are_reported_or_refused() {
    let place = fresh("import-damaged");
    let (file, trace) = (place.join("log"), place.join("trace"));
    let good = "7 1700000000.000001 openat(AT_FDCWD</w>, \"f\", O_RDONLY) = 3</w/f> <0.000010>\n";
    let text = format!(
        "{good}7 1700000000.1 read(3</w/f>, \"x\n\u{1b}[2Jnonsense\n\n7 1700000000.000003 close(3</w/f>) = 0 <0.1>\n"
    );
    fs::write(&file, text).unwrap();
    let ended = import(&trace, &[&file]).success();
    assert!(ended.stdout.starts_with("2 requests of 1 process"), "{}", ended.stdout);
    assert!(ended.stdout.contains("2 of 5 lines could not be parsed"), "{}", ended.stdout);
    assert!(ended.stdout.contains("log, line 2: arguments without an end"), "{}", ended.stdout);
    assert!(!ended.stdout.contains('\u{1b}'));
    assert_eq!(events(&trace).len(), 2);

    let refused = |arguments: &[&str], says: &str| {
        let trace = place.join("other");
        let ended = import(&trace, arguments);
        assert_eq!(ended.code(), 1, "{}", ended.stdout);
        assert!(ended.stderr.contains(says), "{says}: {}", ended.stderr);
        assert!(!trace.exists(), "no file remains");
    };
    let path = file.to_str().unwrap();
    refused(&[path, "--on-error", "stop"], "log, line 2: arguments without an end");
    refused(&["/nowhere/log"], "cannot read /nowhere/log");
    refused(&[place.to_str().unwrap()], "is a directory: name its files");
    fs::write(&file, "what is this\n").unwrap();
    refused(&[path], "name it with --format");
    for day in ["12:34:56.000001", "12:34:56", "     0.000012"] {
        fs::write(&file, good.replace("1700000000.000001", day)).unwrap();
        refused(&[path, "--format", "strace", "--on-error", "stop"], "strace -f -ttt -T -y");
        refused(&[path, "--format", "strace"], "no event could be imported");
    }
    let ended = import(&trace, &[path, "--format", "strace"]);
    assert!(ended.stderr.contains("is not empty"), "{}", ended.stderr);
    assert_eq!(events(&trace).len(), 2, "the existing trace is unchanged");
}

/// The format of darshan-dxt-logutils.c.
#[test]
fn darshan_text_of_both_layers_is_imported() {
    let text = b"# darshan log version: 3.21\n# compression method: ZLIB\n# exe: /home/u/ior -a MPIIO\n# uid: 1000\n\
# jobid: 42\n# start_time: 1700000000\n# start_time_asci: Tue Nov 14 22:13:20 2023\n# nprocs: 2\n# run time: 3.5\n\
# mounted file systems (mount point and fs type)\n# mount entry:\t/data\tlustre\n\n\
# DXT, file_id: 14388265063268455899, file_name: /data/a b\n# DXT, rank: 0, hostname: n17\n\
# DXT, write_count: 2, read_count: 1\n# DXT, mnt_pt: /data, fs_type: lustre\n\
# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s) [OST]\n\
 X_POSIX       0  write        0               0       262144      0.0029      0.0032  [  3]  [  4]\n\
 X_POSIX       0  write        1          262144            5      0.0040      0.0041\n\
 X_POSIX       0   read        0               0          100      1.0000      1.5000\n\n\
# DXT, file_id: 14388265063268455899, file_name: /data/a b\n# DXT, rank: 1, hostname: n18\n\
# DXT, write_count: 0, read_count: 2\n\
 X_MPIIO       1   read        0              -1          7     0.0030     0.0031\n\
 X_MPIIO       1   read        x              0          7     0.0030\n";
    let (rows, told) = imported("dxt", text);
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let begin = row.time - row.duration - 1_700_000_000_000_000_000;
            format!(
                "{} {} {} {} {:?} {:?} {begin} {}",
                row.node, row.pid, row.layer, row.op, row.offset, row.length, row.duration
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            "n18 1 mpi-io read_at None Some(7) 3000000 100000",
            "n17 0 posix pwrite Some(0) Some(262144) 2900000 300000",
            "n17 0 posix pwrite Some(262144) Some(5) 4000000 100000",
            "n17 0 posix pread Some(0) Some(100) 1000000000 500000000",
        ]
    );
    assert!(told.contains("1 of 26 lines could not be parsed") && told.contains("line 26:"), "{told}");
    assert!(told.contains("1 records with another number of requests than they say"), "{told}");
}

/// Darshan 3.5 has no offsets of MPI-IO requests, so the phases are those of the POSIX layer.
#[test]
fn phases_of_darshan_text_without_mpi_io_offsets() {
    let mut text = String::from(
        "# darshan log version: 3.41\n# exe: /home/u/solver\n# uid: 1000\n# jobid: 42\n# start_time: 1700000000\n# nprocs: 2\n\n",
    );
    for rank in 0..2 {
        for (module, has_offset) in [("X_MPIIO", false), ("X_POSIX", true)] {
            text += &format!("# DXT, file_id: 7, file_name: /data/out\n# DXT, rank: {rank}, hostname: n17\n");
            text += "# DXT, write_count: 4, read_count: 0\n";
            for segment in 0..4 {
                let offset = if has_offset { (2 * segment + rank) * 4096 } else { -1 };
                let begin = 1.0 + f64::from(segment);
                text += &format!(
                    " {module} {rank} write {segment} {offset} 4096 {begin:.4} {:.4}\n",
                    begin + 0.5
                );
            }
        }
    }
    let place = fresh("import-dxt-phases");
    let (path, trace) = (place.join("dxt.txt"), place.join("trace"));
    fs::write(&path, text).unwrap();
    let _ = import(&trace, &[path.as_os_str()]).success();
    let phases = |options: &[&str]| {
        let mut command = std::process::Command::new(&miot_tests::built::built().miot);
        command.arg("phases").arg(&trace).args(options).args(["--format", "json"]);
        let out = miot_tests::process::run(&mut command).success().stdout;
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let by_default = phases(&[]);
    assert_eq!(by_default["layer"], "posix", "{by_default:#}");
    assert_eq!(by_default, phases(&["--layer", "posix"]));
    assert_eq!(phases(&["--layer", "mpi-io"])["layer"], "mpi-io");
}

/// The POSIX requests of MPI-IO requests write no byte again.
#[test]
fn bytes_of_both_layers_of_darshan_text_count_once() {
    const MIB: u64 = 1 << 20;
    let mut text =
        String::from("# exe: /home/u/solver\n# uid: 1000\n# start_time: 1700000000\n# nprocs: 1\n");
    for (module, late) in [("X_POSIX", 0.1), ("X_MPIIO", 0.0)] {
        text += "# DXT, file_id: 7, file_name: /data/out\n# DXT, rank: 0, hostname: n17\n";
        for segment in 0..32 {
            let (begin, end) = (segment as f64 + late, segment as f64 + 0.9 - late);
            let offset = segment * MIB;
            text += &format!(" {module} 0 write {segment} {offset} {MIB} {begin:.4} {end:.4}\n");
        }
    }
    let place = fresh("import-dxt-once");
    let (path, trace) = (place.join("dxt.txt"), place.join("trace"));
    fs::write(&path, text).unwrap();
    let _ = import(&trace, &[path.as_os_str()]).success();
    assert_good(&trace);
    let stat = |options: &[&str]| {
        let mut command = std::process::Command::new(&miot_tests::built::built().miot);
        command.arg("stat").arg(&trace).args(options).args(["--format", "json"]);
        let out = miot_tests::process::run(&mut command).success().stdout;
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    assert_eq!(stat(&[])["totals"]["bytes_written"], 32 * MIB);
    let findings = stat(&["--show", "findings"]);
    assert!(!findings.to_string().contains("overwrites"), "{findings:#}");
}

/// More files of threads than may be open at a time.
#[test]
fn two_thousand_files_of_threads_are_imported() {
    let place = fresh("import-many");
    let trace = place.join("trace");
    for tid in 1..=2000 {
        let clone = format!(
            "1700000000.{tid:06} clone(child_stack=NULL, flags=CLONE_FILES|SIGCHLD) = {} <0.000001>\n",
            tid + 1
        );
        let open = "1700000000.000000 openat(AT_FDCWD</w>, \"f\", O_WRONLY|O_CREAT|O_TRUNC, 0600) = 3</w/f> <0.000000>\n";
        let write = format!("1700000001.{tid:06} write(3</w/f>, \"x\"..., {tid}) = {tid} <0.000001>\n");
        let text = format!("{}{clone}{write}", if tid == 1 { open } else { "" });
        fs::write(place.join(format!("log.{tid}")), text).unwrap();
    }
    let files = (1..=2000).map(|tid| place.join(format!("log.{tid}")).into_os_string()).collect::<Vec<_>>();
    let miot = miot_tests::built::built().miot.clone();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -n 300; exec \"$@\"", "sh"])
        .arg(miot)
        .args(["import", "-o"])
        .arg(&trace)
        .args(files);
    let _ = miot_tests::process::run(&mut command).success();
    assert_good(&trace);
    // One position for all: each write starts at the end of the previous one.
    let writes: Vec<_> = events(&trace).into_iter().filter(|row| row.op == "write").collect();
    assert_eq!(writes.len(), 2000);
    for (row, tid) in writes.iter().zip(1..) {
        assert_eq!((row.tid, row.offset), (tid, Some(i64::from(tid) * i64::from(tid - 1) / 2)), "{row:?}");
    }
}
