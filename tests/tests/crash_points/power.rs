//! The machine loses power: data that was not synced may be there, in part, or not at all.
//!
//! strace records every call of a server that changes a file, with its bytes, and every
//! acknowledgment that it sends. From that record the test builds the directory as a file system
//! may show it after a power loss at any line. Each file has the contents of its last sync, with
//! any part of the later writes. Each folder has the names of its last sync, with the first few of
//! the later changes. All batches that were acknowledged before that line must be in the trace.

use super::{go_on, judge, number, peer, place, server};
use crate::peer::Plan;
use miot_proto::wire::{FRAME_HEADER, MAX_FRAME, Message, frame_header};
use miot_tests::built::built;
use miot_tests::daemons::free_port;
use miot_tests::process::{Background, until};
use miot_tests::random::Random;
use miot_tests::strace::parse::{Call, descriptor, integer, parse, string};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of power losses tried on every change.
const CUTS: usize = 14;
const BATCHES: usize = 24;
/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;
const O_CREAT: i64 = 0o100;
const O_TRUNC: i64 = 0o1000;

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Clone, Debug)]
enum Name {
    /// A file (by its number) or a folder has this name from now on.
    Put(PathBuf, Option<usize>),
    Move(PathBuf, PathBuf),
    Gone(PathBuf),
}

/// The durable state, and the changes that may be durable, each with its line.
#[derive(Clone, Debug)]
struct Store<D, C> {
    durable: D,
    since: Vec<(usize, C)>,
}

impl<D: Default, C> Default for Store<D, C> {
    fn default() -> Self {
        Store { durable: D::default(), since: Vec::new() }
    }
}

impl<D, C: Clone> Store<D, C> {
    /// Makes all changes up to a line durable.
    fn sync(&mut self, line: usize, apply: impl Fn(&mut D, &C)) {
        let later = self.since.iter().position(|(at, _)| *at > line).unwrap_or(self.since.len());
        for (_, change) in self.since.drain(..later) {
            apply(&mut self.durable, &change);
        }
    }
}

type Names = BTreeMap<PathBuf, Option<usize>>;

/// The file system below the directory of the test.
#[derive(Clone, Debug, Default)]
struct Disk {
    files: Vec<Store<Vec<u8>, Change>>,
    /// Length of each file as the server sees it.
    lengths: Vec<usize>,
    folders: HashMap<PathBuf, Store<Names, Name>>,
    /// Names as the server sees them.
    names: HashMap<PathBuf, usize>,
}

fn write(file: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, bytes) => {
            file.resize(file.len().max(at + bytes.len()), 0);
            file[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        Change::Length(length) => file.resize(*length, 0),
    }
}

fn rename(names: &mut Names, change: &Name) {
    match change {
        Name::Put(path, file) => drop(names.insert(path.clone(), *file)),
        Name::Move(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Name::Gone(path) => drop(names.remove(path)),
    }
}

impl Disk {
    fn folder(&mut self, path: &Path) -> &mut Store<Names, Name> {
        self.folders.entry(path.parent().unwrap().to_owned()).or_default()
    }

    /// Applies one call that has returned.
    fn take(&mut self, call: &Call) {
        let text = |index: usize| PathBuf::from(OsStr::from_bytes(&string(&call.args[index]).unwrap()));
        let of_descriptor = || {
            let path = descriptor(&call.args[0]).unwrap().1;
            PathBuf::from(OsStr::from_bytes(&path))
        };
        let line = call.line;
        match call.name.as_str() {
            "openat" => {
                let (path, flags) = (text(1), integer(&call.args[2]).unwrap());
                match self.names.get(&path) {
                    None if flags & O_CREAT != 0 => {
                        let file = self.files.len();
                        self.files.push(Store::default());
                        self.lengths.push(0);
                        self.names.insert(path.clone(), file);
                        self.folder(&path).since.push((line, Name::Put(path.clone(), Some(file))));
                    }
                    Some(file) if flags & O_TRUNC != 0 => {
                        self.lengths[*file] = 0;
                        self.files[*file].since.push((line, Change::Length(0)));
                    }
                    _ => {}
                }
            }
            "write" | "pwrite64" => {
                let Some(file) = self.names.get(&of_descriptor()).copied() else { return };
                let bytes = string(&call.args[1]).unwrap()[..call.result as usize].to_vec();
                let at = if call.name == "write" {
                    self.lengths[file]
                } else {
                    integer(&call.args[3]).unwrap() as usize
                };
                self.lengths[file] = self.lengths[file].max(at + bytes.len());
                self.files[file].since.push((line, Change::Write(at, bytes)));
            }
            "ftruncate" => {
                let Some(file) = self.names.get(&of_descriptor()).copied() else { return };
                let length = integer(&call.args[1]).unwrap() as usize;
                self.lengths[file] = length;
                self.files[file].since.push((line, Change::Length(length)));
            }
            "fsync" | "fdatasync" => {
                let path = of_descriptor();
                match self.names.get(&path).copied() {
                    Some(file) => self.files[file].sync(call.began, write),
                    None => self.folders.entry(path).or_default().sync(call.began, rename),
                }
            }
            "mkdir" => {
                let path = text(0);
                self.folder(&path).since.push((line, Name::Put(path.clone(), None)));
            }
            "rename" => {
                let (from, to) = (text(0), text(1));
                if let Some(file) = self.names.remove(&from) {
                    self.names.insert(to.clone(), file);
                }
                self.folder(&to).since.push((line, Name::Move(from, to.clone())));
            }
            "unlink" => {
                let path = text(0);
                self.names.remove(&path);
                self.folder(&path).since.push((line, Name::Gone(path.clone())));
            }
            other => panic!("{other} changes a file, and the model does not support it"),
        }
    }

    /// Writes a possible remainder of `root` below `to`.
    fn lose_power(&self, root: &Path, to: &Path, random: &mut Random) {
        // Only durable data, everything, or any part of it.
        let kind = random.below(4);
        let mut some = |of: usize| match kind {
            0 => 0,
            1 => of,
            _ => random.place(of + 1),
        };
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            let shown = to.join(folder.strip_prefix(root).unwrap());
            fs::create_dir_all(&shown).unwrap();
            let Some(store) = self.folders.get(&folder) else { continue };
            let mut names = store.durable.clone();
            let first = some(store.since.len());
            store.since[..first].iter().for_each(|(_, change)| rename(&mut names, change));
            for (path, file) in names {
                let Some(file) = file else {
                    folders.push(path);
                    continue;
                };
                let store = &self.files[file];
                let mut bytes = store.durable.clone();
                for (_, change) in &store.since {
                    match change {
                        Change::Write(at, written) => {
                            // Any subset of its sectors.
                            for (index, sector) in written.chunks(SECTOR).enumerate() {
                                if some(1) == 1 {
                                    write(&mut bytes, &Change::Write(at + index * SECTOR, sector.to_vec()));
                                }
                            }
                        }
                        change => {
                            if some(1) == 1 {
                                write(&mut bytes, change);
                            }
                        }
                    }
                }
                fs::write(shown.join(path.file_name().unwrap()), bytes).unwrap();
            }
        }
    }
}

/// Returns the calls of a server that has received a whole plan.
fn record(place: &Path, plan: &Plan) -> Vec<Call> {
    let (trace, log) = (place.join("trace"), place.join("strace.out"));
    let mut strace = Command::new("strace");
    strace
        .args(["-D", "-f", "-y", "-xx", "-X", "raw", "-s", "100000000", "-e", "signal=none", "-o"])
        .arg(&log);
    strace.args([
        "-e",
        "trace=openat,write,pwrite64,writev,pwritev,ftruncate,fallocate,fsync,fdatasync,mkdir,mkdirat,\
        rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,sendto,exit_group",
    ]);
    strace.arg(&built().log_server);
    let port = free_port();
    let mut running = Background::start(&mut server(strace, port, &trace));
    let acked = peer::run(plan, 0, port, || running.running());
    assert_eq!(acked, plan.batches.len(), "{}", running.printed());
    running.end();
    let mut text = String::new();
    until("strace has written everything", || {
        text = fs::read_to_string(&log).unwrap();
        text.lines().last().is_some_and(|line| line.contains("+++ exited"))
    });
    parse(&text).unwrap()
}

/// Returns the lines on which acknowledgments were sent, and the batch that each acknowledged.
fn acknowledgements(calls: &[Call]) -> Vec<(usize, usize)> {
    let mut acks = Vec::new();
    for call in calls.iter().filter(|call| call.name == "sendto" && call.result > 0) {
        let bytes = string(&call.args[1]).unwrap();
        let mut rest = &bytes[..];
        while rest.len() >= FRAME_HEADER {
            let header = rest[..FRAME_HEADER].try_into().unwrap();
            let (length, crc) = frame_header(header, MAX_FRAME).unwrap();
            let payload = &rest[FRAME_HEADER..FRAME_HEADER + length];
            if let Message::Ack { through } = Message::from_payload(payload, crc).unwrap() {
                acks.push((call.began, through as usize));
            }
            rest = &rest[FRAME_HEADER + length..];
        }
    }
    acks
}

#[test]
fn power_loss_loses_no_acknowledged_batch() {
    let mut random = Random::new("power loss");
    let place = place("power");
    let plan = Plan::new(BATCHES);
    let calls = record(&place, &plan);
    let acks = acknowledgements(&calls);
    assert_eq!(acks.iter().map(|(_, through)| *through).max(), Some(BATCHES));
    // Calls that change files below this directory.
    let here = |call: &&Call| {
        let said = call.args.iter().take(3).any(|arg| {
            let path = string(arg).or_else(|| descriptor(arg).map(|(_, path)| path));
            path.is_some_and(|path| Path::new(OsStr::from_bytes(&path)).starts_with(&place))
        });
        call.result >= 0 && call.name != "sendto" && said
    };
    let changes: Vec<&Call> = calls.iter().filter(here).collect();
    eprintln!("{} calls that change files, {} acknowledgements", changes.len(), acks.len());
    let wanted = number("MIOT_POWER_CUTS", CUTS).min(changes.len());
    let mut cuts: Vec<usize> = (0..wanted).map(|_| random.place(changes.len())).collect();
    cuts.sort_unstable();
    let (mut disk, mut done) = (Disk::default(), 0);
    for cut in cuts {
        changes[done..=cut].iter().for_each(|call| disk.take(call));
        done = cut + 1;
        let line = changes[cut].line;
        let sent = acks.iter().filter(|(began, _)| *began <= line);
        let acked = sent.map(|(_, through)| *through).max().unwrap_or(0);
        let state = place.join("state");
        let _ = fs::remove_dir_all(&state);
        disk.lose_power(&place, &state, &mut random);
        let what = format!("power lost after line {line} ({}), {acked} acknowledged", changes[cut].name);
        judge(&state.join("trace"), &plan, acked, &what);
        go_on(&state.join("trace"), &plan, acked, &what);
    }
}
