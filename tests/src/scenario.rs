//! Deterministic runs of real programs. Each run has a new directory, so that two runs see the same
//! paths, sizes and contents.

use crate::process::{Ended, run};
use crate::test_dir::fresh;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program and the files it works on.
pub struct Scenario {
    /// Name of the scenario and of its directory.
    pub name: &'static str,
    /// Fills the empty working directory.
    pub prepare: fn(&Path),
    /// The command line.
    pub command: &'static [&'static str],
    /// Threads compete for descriptors, so their numbers differ from run to run.
    pub races: bool,
    /// Uses `getc_unlocked` and similar macros, which are not calls.
    pub inline_characters: bool,
    /// Files that the program checks at irregular times.
    pub now_and_then: &'static [&'static str],
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.command.join(" "))
    }
}

/// Directories of a scenario and of its results.
#[derive(Debug)]
pub struct ScenarioDirs {
    /// Working directory of the program.
    pub work: PathBuf,
    /// Directory beside it for traces and the output of strace.
    pub evidence: PathBuf,
}

impl ScenarioDirs {
    /// Creates empty directories of this name.
    ///
    /// # Panics
    /// If they cannot be created.
    #[must_use]
    pub fn new(name: &str) -> ScenarioDirs {
        let top = fresh(name);
        let place = ScenarioDirs { work: top.join("work"), evidence: top.join("evidence") };
        fs::create_dir_all(&place.work).unwrap_or_else(|e| panic!("{}: {e}", place.work.display()));
        fs::create_dir_all(&place.evidence).unwrap_or_else(|e| panic!("{}: {e}", place.evidence.display()));
        place
    }

    /// Empties the working directory and prepares it.
    ///
    /// # Panics
    /// If that fails.
    pub fn prepare(&self, scenario: &Scenario) {
        fs::remove_dir_all(&self.work)
            .and_then(|()| fs::create_dir(&self.work))
            .unwrap_or_else(|e| panic!("{e}"));
        (scenario.prepare)(&self.work);
    }

    /// Runs `wrapper… COMMAND` in the working directory, with the same small environment every
    /// time. The program's output goes to a file beside the working directory, or is discarded.
    #[must_use]
    pub fn run(&self, scenario: &Scenario, wrapper: &[OsString]) -> Ended {
        let mut words = wrapper.iter().cloned().chain(scenario.command.iter().map(OsString::from));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&self.work).env_clear().envs(environment(&self.work));
        run(&mut command)
    }

    /// Lists the working directory, including links and folders.
    #[must_use]
    pub fn contents(&self) -> HashMap<PathBuf, fs::Metadata> {
        let mut contents = HashMap::new();
        let mut folders = vec![self.work.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if let Ok(metadata) = entry.metadata() {
                    if metadata.is_dir() {
                        folders.push(entry.path());
                    }
                    contents.insert(entry.path(), metadata);
                }
            }
        }
        contents
    }

    /// Restores the working directory: files that a run added are removed. Unchanged files stay in
    /// place, so that programs that sort by inode number (`cp`) use the same order again. If a run
    /// changed files, everything is prepared again.
    pub fn restore(&self, scenario: &Scenario, before: &HashMap<PathBuf, fs::Metadata>) {
        let after = self.contents();
        let mut added: Vec<&PathBuf> = after.keys().filter(|path| !before.contains_key(*path)).collect();
        // Remove the contents before the folder.
        added.sort_by(|a, b| b.cmp(a));
        for path in added {
            let _ = if after[path].is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
        let same = |a: &fs::Metadata, b: &fs::Metadata| {
            a.ino() == b.ino()
                && (a.is_dir()
                    || (a.len(), a.mtime(), a.mtime_nsec()) == (b.len(), b.mtime(), b.mtime_nsec()))
        };
        let intact = before.iter().all(|(path, was)| after.get(path).is_some_and(|is| same(was, is)));
        if !intact {
            self.prepare(scenario);
        }
    }
}

/// Environment of the programs. It is independent of the caller's environment.
pub fn environment(home: &Path) -> Vec<(OsString, OsString)> {
    let fixed = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LC_ALL", "C"),
        ("TZ", "UTC"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@example.org"),
        ("GIT_COMMITTER_NAME", "c"),
        ("GIT_COMMITTER_EMAIL", "c@example.org"),
        ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
        ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
    ];
    let mut all: Vec<(OsString, OsString)> = fixed.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    all.push(("HOME".into(), home.into()));
    all
}

/// Returns bytes that are the same in every run and hardly compressible.
#[must_use]
pub fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn put(dir: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = dir.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).unwrap_or_else(|e| panic!("{}: {e}", parent.display()));
    }
    fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn one_file(dir: &Path) {
    put(dir, "input", bytes(300_000));
}

fn tree(dir: &Path) {
    for folder in ["tree", "tree/a", "tree/a/deep/er", "tree/b"] {
        for i in 0..5usize {
            put(dir, &format!("{folder}/file{i}"), bytes(i * 7919));
        }
    }
    put(dir, "tree/name with space \u{e9}", b"x");
    std::os::unix::fs::symlink("a/file1", dir.join("tree/link")).unwrap_or_else(|e| panic!("{e}"));
}

fn database(dir: &Path) {
    let mut sql = String::from("create table t(a integer primary key, b text);\n");
    for journal in ["delete", "wal"] {
        sql += &format!("pragma journal_mode={journal};\nbegin;\n");
        for i in 0..300 {
            sql += &format!("insert into t(b) values('{journal} {i} {}');\n", "x".repeat(i % 97));
        }
        sql += "commit;\nbegin;\nupdate t set b = b || '!' where a % 3 = 0;\ncommit;\nbegin;\ndelete from t where a % 7 = 0;\nrollback;\n";
    }
    put(dir, "load.sql", sql + "select count(*), sum(length(b)) from t;\n");
}

fn repository(dir: &Path) {
    tree(dir);
    let steps: [&[&str]; 4] = [
        &["init", "-q", "-b", "main", "origin"],
        &["-C", "origin", "add", "."],
        &["-C", "origin", "commit", "-q", "-m", "one"],
        &["-C", "origin", "repack", "-q", "-a", "-d"],
    ];
    for (i, step) in steps.iter().enumerate() {
        if i == 1 {
            fs::rename(dir.join("tree"), dir.join("origin/tree")).unwrap_or_else(|e| panic!("{e}"));
        }
        let mut git = Command::new("git");
        let _ = run(git.args(*step).current_dir(dir).env_clear().envs(environment(dir))).success();
    }
}

fn script(dir: &Path) {
    put(dir, "input", bytes(100_000));
    put(dir, "program.py", include_str!("../programs/program.py"));
}

fn nothing(_: &Path) {}

const FIO: [&str; 12] = [
    "fio",
    "--name=job",
    "--ioengine=psync",
    "--numjobs=4",
    "--size=256k",
    "--bs=4k",
    "--randseed=7",
    "--filename_format=data.$jobnum",
    "--fallocate=none",
    "--disk_util=0",
    "--output=/dev/null",
    "--eta=never",
];

/// fio checks this file at irregular times for a requested status report.
const FIO_LOOKS: &[&str] = &["/tmp/fio-dump-status"];

macro_rules! fio {
    ($($more:literal),*) => {
        &[
            FIO[0], FIO[1], FIO[2], FIO[3], FIO[4], FIO[5], FIO[6], FIO[7], FIO[8], FIO[9], FIO[10], FIO[11], $($more),*
        ]
    };
}

/// Programs of the scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "dd",
        prepare: one_file,
        command: &["dd", "if=input", "of=output", "bs=4096", "count=60", "skip=2", "seek=3", "conv=fsync"],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "dd-append",
        prepare: |dir| {
            one_file(dir);
            put(dir, "output", b"already here");
        },
        command: &[
            "dd",
            "if=input",
            "of=output",
            "bs=1000",
            "count=50",
            "oflag=append",
            "conv=notrunc,fdatasync",
        ],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "tar-create",
        prepare: tree,
        command: &["tar", "-cf", "tree.tar", "tree"],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "tar-extract",
        prepare: |dir| {
            tree(dir);
            let _ = run(Command::new("tar").args(["-cf", "tree.tar", "tree"]).current_dir(dir)).success();
            fs::create_dir(dir.join("out")).unwrap_or_else(|e| panic!("{e}"));
        },
        command: &["tar", "-xf", "tree.tar", "-C", "out"],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "cp",
        prepare: tree,
        command: &["cp", "-r", "tree", "copy"],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "sqlite3",
        prepare: database,
        command: &["sqlite3", "test.db", ".read load.sql"],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "git-clone",
        prepare: repository,
        command: &["git", "clone", "-q", "origin", "clone"],
        races: false,
        inline_characters: false,
        now_and_then: &[],
    },
    Scenario {
        name: "python3",
        prepare: script,
        command: &["/usr/bin/python3", "-I", "-B", "program.py"],
        races: true,
        inline_characters: true,
        now_and_then: &[],
    },
    Scenario {
        name: "shell",
        prepare: tree,
        command: &[
            "sh",
            "-c",
            "cat tree/file1 > all; (cat tree/file2 >> all) & wait; ls -l tree | wc -l > count; rm -r tree",
        ],
        races: false,
        inline_characters: true,
        now_and_then: &[],
    },
    Scenario {
        name: "fio-processes",
        prepare: nothing,
        command: fio!("--rw=randrw"),
        races: true,
        inline_characters: false,
        now_and_then: FIO_LOOKS,
    },
    Scenario {
        name: "fio-threads",
        prepare: nothing,
        command: fio!("--rw=randrw", "--thread"),
        races: true,
        inline_characters: false,
        now_and_then: FIO_LOOKS,
    },
    Scenario {
        name: "fio-sequential",
        prepare: nothing,
        command: fio!("--rw=write", "--fsync=16", "--thread"),
        races: true,
        inline_characters: false,
        now_and_then: FIO_LOOKS,
    },
];

/// Returns the scenario of this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn scenario(name: &str) -> &'static Scenario {
    SCENARIOS.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no scenario {name}"))
}

/// Removes the randomly chosen parts of a path.
#[must_use]
pub fn steady_name(path: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(path);
    let mut parts: Vec<String> = text.split('/').map(str::to_owned).collect();
    let in_git = parts.iter().rev().nth(1).is_some_and(|p| p == ".git");
    if let Some(name) = parts.last_mut() {
        let random = |head: &str| name.starts_with(head) && name.len() == head.len() + 6;
        let heads = ["tmp_obj_", "tmp_pack_", "tmp_idx_", "tmp_rev_", "incoming-"];
        if let Some(head) = heads.iter().find(|head| random(head)) {
            *name = format!("{head}XXXXXX");
        } else if in_git && name.len() == 7 && name.starts_with('t') {
            *name = "tXXXXXX".to_owned();
        }
    }
    // Names of Python's multiprocessing.
    for name in &mut parts {
        if name.starts_with("pymp-") || name.starts_with("sem.mp-") || name.starts_with("mp-") {
            let head = name.find("mp-").map_or(0, |at| at + 3);
            name.replace_range(head.., "X");
        }
    }
    parts.join("/").into_bytes()
}
