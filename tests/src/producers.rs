//! Producers that start, end and are killed. The caller gives their number; the rest is random.

use crate::judge::{Asked, Producer};
use crate::namespaces::Namespaces;
use crate::process::{signal, wait};
use crate::random::Random;
use crate::victim::{LIVES, WORDS};
use miot_proto::control::DIR_ENV;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a producer records.
#[derive(Clone, Copy, Debug)]
pub struct ProducerLoad {
    /// Threads at a time.
    pub threads: u64,
    /// Requests of a thread, after which another takes its place.
    pub requests: u64,
    /// It says after so many requests how many it has made.
    pub stride: u64,
    /// Microseconds of sleep after a hundred requests.
    pub pause: u64,
    /// Different paths, see [`path`](crate::victim::path).
    pub paths: u64,
}

impl ProducerLoad {
    /// Some go as fast as they can, some end by themselves.
    #[must_use]
    pub fn any(random: &mut Random) -> ProducerLoad {
        let pause = [0, 5000, 10_000, 20_000][random.below(4) as usize];
        let (threads, stride) = (1 + random.below(4), [1, 1, 16][random.below(3) as usize]);
        let requests = match random.below(12) {
            0 => 1 + random.below(5),
            _ => 1 + random.below(1000),
        };
        ProducerLoad { threads, requests, stride, pause, paths: 0 }
    }
}

#[derive(Debug)]
struct Member {
    child: Child,
    number: u64,
    producer: Producer,
    until: Instant,
}

/// The producers of one node that live, and what those that ended have committed.
#[derive(Debug)]
pub struct Producers {
    /// The program `victim`.
    program: PathBuf,
    /// Where it runs; `None`: here.
    pub namespaces: Option<Arc<Namespaces>>,
    node: String,
    dir: PathBuf,
    progress: PathBuf,
    members: Vec<Member>,
    /// Killed so far.
    pub killed: u64,
    /// Ended by themselves.
    pub ended: u64,
}

impl Producers {
    /// Nobody yet. `dir` is the node's MIOT directory; what producers say of themselves is kept
    /// below `place`.
    ///
    /// # Panics
    /// If that folder cannot be made.
    #[must_use]
    pub fn new(program: &Path, node: &str, dir: &Path, place: &Path) -> Producers {
        let progress = place.join(format!("progress-{node}"));
        fs::create_dir_all(&progress).unwrap_or_else(|e| panic!("{}: {e}", progress.display()));
        let (program, node, dir) = (program.into(), node.to_owned(), dir.to_owned());
        Producers { program, namespaces: None, node, dir, progress, members: Vec::new(), killed: 0, ended: 0 }
    }

    /// How many live.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True if none lives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a producer that is killed after `life`. Its number must not have been used.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn add(&mut self, number: u64, load: ProducerLoad, life: Duration) {
        let file = self.progress.join(number.to_string());
        let length = LIVES * WORDS as u64 * 8;
        let made = fs::File::create(&file).and_then(|file| file.set_len(length));
        made.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let ProducerLoad { threads, requests, stride, pause, paths } = load;
        let words = [number, threads, requests, stride, pause, paths].map(|word| word.to_string());
        let mut command = Command::new(&self.program);
        command.env(DIR_ENV, &self.dir).args(words).arg(&file);
        if let Some(namespaces) = &self.namespaces {
            command = namespaces.inside(&command);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.program.display()));
        let producer = Producer { node: self.node.clone(), pid: child.id(), stride, paths };
        self.members.push(Member { child, number, producer, until: Instant::now() + life });
    }

    /// Kills those whose time has come, and takes the account of all that have ended.
    ///
    /// # Panics
    /// If one ended otherwise.
    pub fn kill_due(&mut self, asked: &mut Asked) {
        let now = Instant::now();
        for mut member in std::mem::take(&mut self.members) {
            match member.child.try_wait() {
                Ok(Some(status)) => {
                    assert!(status.success(), "a producer ended by itself: {status}");
                    self.ended += 1;
                }
                _ if now < member.until => {
                    self.members.push(member);
                    continue;
                }
                _ => {
                    signal(&member.child, Signal::KILL);
                    let ended = wait(&mut member.child, Duration::from_secs(60));
                    assert!(ended.is_some(), "what was killed does not end");
                    self.killed += 1;
                }
            }
            let file = self.progress.join(member.number.to_string());
            let harvest = asked.harvest(member.number, member.producer, &file);
            harvest.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
    }

    /// Kills all.
    pub fn clear(&mut self, asked: &mut Asked) {
        let now = Instant::now();
        self.members.iter_mut().for_each(|member| member.until = now);
        self.kill_due(asked);
    }
}

impl Drop for Producers {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
