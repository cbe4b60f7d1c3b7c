//! Producers that start, end and are killed. The caller chooses their number; the rest is random.

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

/// Load of a producer.
#[derive(Clone, Copy, Debug)]
pub struct ProducerLoad {
    /// Number of threads that run at a time.
    pub threads: u64,
    /// Number of requests of a thread, after which another thread replaces it.
    pub requests: u64,
    /// Number of requests after which a thread reports its count.
    pub stride: u64,
    /// Sleep after each hundred requests, microseconds.
    pub pause: u64,
    /// Number of different paths, see [`path`](crate::victim::path).
    pub paths: u64,
}

impl ProducerLoad {
    /// Returns a random load. Some loads have no pause, and some producers end by themselves.
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

/// Running producers of one node, and the requests that finished ones have committed.
#[derive(Debug)]
pub struct Producers {
    /// The program `victim`.
    program: PathBuf,
    /// Namespaces in which producers run. `None`: those of the test.
    pub namespaces: Option<Arc<Namespaces>>,
    node: String,
    dir: PathBuf,
    progress: PathBuf,
    members: Vec<Member>,
    /// Number of producers killed so far.
    pub killed: u64,
    /// Number of producers that ended by themselves.
    pub ended: u64,
}

impl Producers {
    /// Creates an empty set. `dir` is the node's MIOT directory. The progress files of producers
    /// are kept below `place`.
    ///
    /// # Panics
    /// If that folder cannot be created.
    #[must_use]
    pub fn new(program: &Path, node: &str, dir: &Path, place: &Path) -> Producers {
        let progress = place.join(format!("progress-{node}"));
        fs::create_dir_all(&progress).unwrap_or_else(|e| panic!("{}: {e}", progress.display()));
        let (program, node, dir) = (program.into(), node.to_owned(), dir.to_owned());
        Producers { program, namespaces: None, node, dir, progress, members: Vec::new(), killed: 0, ended: 0 }
    }

    /// Number of running producers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True if none is running.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a producer that is killed after `life`. Its number must be unused.
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

    /// Kills producers whose time is up, and reads the counts of all that have ended.
    ///
    /// # Panics
    /// If one ended in another way.
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

    /// Kills all producers.
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
