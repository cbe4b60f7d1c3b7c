//! Text that `miot import` reads: output of strace and darshan-dxt-parser.
//!
//! For all bytes, an import ends, its trace is valid, and its report counts every line.

use crate::Seed;
use crate::scratch::Scratch;
use miot_trace_exchange::import::OnError;
use miot_trace_exchange::{TraceBuilder, dxt, strace};
use miot_trace_store::{Reader, fsck};

/// Runs the target `strace`. If the first byte is odd, the lines belong to several threads, as with
/// `-ff`.
pub fn strace(bytes: &[u8]) {
    let Some((mode, text)) = bytes.split_first() else { return };
    checked(|builder| {
        let mut import = strace::Import::new(builder, "n", OnError::Skip);
        let mut lines = 0;
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let tid = (mode & 1 == 1).then_some(number as u32 % 3 + 1);
            if import.line("fuzz", tid, number as u64, line).is_err() {
                panic!("invalid lines are skipped");
            }
            lines += 1;
        }
        let Ok(report) = import.finish() else { panic!("an import finishes") };
        assert_eq!(report.lines, lines);
    });
}

/// Runs the target `dxt`.
pub fn dxt(text: &[u8]) {
    checked(|builder| {
        let mut import = dxt::Import::new(builder, OnError::Skip);
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if import.line("fuzz", number as u64, line).is_err() {
                panic!("invalid lines are skipped");
            }
        }
        assert!(import.finish().is_ok(), "an import finishes");
    });
}

/// Runs an import into a new trace and checks the trace.
fn checked(import: impl FnOnce(&mut TraceBuilder)) {
    let scratch = Scratch::new("import");
    let dir = scratch.path();
    let Ok(mut builder) = TraceBuilder::create(dir) else {
        panic!("no trace can be created in {}", dir.display())
    };
    import(&mut builder);
    let events = builder.events();
    let Ok(summary) = builder.finish(|_| ()) else { panic!("the trace cannot be finished") };
    assert_eq!(summary.events, events);
    let report = fsck::check(dir);
    assert!(report.is_good(), "{report}");
    let Ok(reader) = Reader::open(dir) else { panic!("the trace cannot be read") };
    let rows = reader.events().map(|batch| batch.map_or(0, |batch| batch.num_rows() as u64));
    assert_eq!(rows.sum::<u64>(), events);
}

const STRACE: &str = r#"1 1700000000.000001 execve("/bin/p", ["p", "a b"], 0x7ffe /* 3 vars */) = 0 <0.000100>
1 1700000000.001000 openat(AT_FDCWD</w>, "f\n\377\x41", O_RDWR|O_CREAT|O_APPEND, 0644) = 3</w/f> <0.000010>
1 1700000000.002000 write(3</w/f>, "\1\x02\"),("..., 100) = 100 <0.000010>
1 1700000000.003000 lseek(3</w/f>, -90, SEEK_END) = 10 <0.000001>
1 1700000000.004000 clone(child_stack=NULL, flags=CLONE_FILES|SIGCHLD <unfinished ...>
2 1700000000.005000 readv(3</w/f>, [{iov_base="x", iov_len=5}], 1) = 5 <0.000010>
1 1700000000.006000 <... clone resumed>) = 2 <0.000500>
2 1700000000.007000 copy_file_range(3</w/f>, [5 => 10], 3</w/f>, NULL, 4, 0) = 4 <0.1>
2 1700000000.008000 mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3</w/f>, 0) = 0x7f0000000000 <0.1>
2 1700000000.009000 munmap(0x7f0000000000, 4096) = 0 <0.1>
2 1700000000.010000 dup2(3</w/f>, 4) = 4</w/f> <0.1>
2 1700000000.011000 fstat(4</w/f>, {st_mode=S_IFREG|0644, st_size=5, ...}) = 0 <0.1>
2 1700000000.012000 pipe2([5<pipe:[7]>, 6<pipe:[7]>], O_CLOEXEC) = 0 <0.1>
2 1700000000.013000 read(5<pipe:[7]>, "", 1 <unfinished ...>
2 1700000000.014000 +++ killed by SIGKILL (core dumped) +++
1 1700000000.015000 --- SIGCHLD {si_signo=SIGCHLD} ---
1 1700000000.016000 +++ superseded by execve in pid 9 +++
[pid     7] 1700000000.017000 rename("a", "b") = -1 ENOENT (No such file or directory) <0.1>
1 1700000000.018000 wait4(20810, strace: Process 20810 attached
 <unfinished ...>
"#;

const DXT: &str = "# darshan log version: 3.21\n# exe: /home/u/ior -a\n# uid: 1000\n# jobid: 42\n# start_time: 1700000000\n# nprocs: 2\n
# DXT, file_id: 14388265063268455899, file_name: /data/a b\n# DXT, rank: 0, hostname: n17\n# DXT, write_count: 2, read_count: 1\n
 X_POSIX       0  write        0               0       262144      0.0029      0.0032  [  3]\n
 X_MPIIO       0   read        0              -1          100      1.0000      1.5000\n";

/// Returns all kinds of lines of strace that the documentation shows.
pub fn strace_seeds() -> Vec<Seed> {
    let with = |mode: u8| [&[mode], STRACE.as_bytes()].concat();
    vec![("one", with(0)), ("threads", with(1))]
}

/// Returns all kinds of lines of darshan-dxt-parser that the documentation shows.
pub fn dxt_seeds() -> Vec<Seed> {
    vec![("both", DXT.as_bytes().to_vec())]
}
