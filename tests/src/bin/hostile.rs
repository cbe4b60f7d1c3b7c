//! A process that damages its own segments: `hostile HOW NUMBER [PID NONCE]`. It runs until it is
//! killed, and prints a line when its files exist. NUMBER is the random seed unless noted.
//!
//! | how | what it does |
//! |---|---|
//! | `scribble` | records valid events in four threads and overwrites random words of its segment |
//! | `resize` | shortens and lengthens a segment continuously, once it is being read |
//! | `flood` | presents a thousand lanes that appear full, continuously |
//! | `churn` | creates segments with few or no records, and leaves them |
//! | `forge` | creates a valid segment with NUMBER records that claims to belong to process PID |
//! | `freeze` | NUMBER times, stops between the completion time and the commit of a record |

use miot_proto::control::DIR_ENV;
use miot_proto::event::SLOT_BYTES;
use miot_proto::segment::{
    HEADER_BYTES, LANE_BYTES, MAX_LANE_SLOTS, MAX_LANES, SLOTS_OFFSET, header, lane as at,
};
use miot_tests::forged::{Forged, ticks};
use miot_tests::random::Random;
use miot_tracer::{Completion, begin, end, op, open};
use rustix::process::{Signal, getpid, kill_process};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(1);
    let dir = PathBuf::from(std::env::var_os(DIR_ENV).unwrap_or_default());
    let mut random = Random::of(number(1));
    match words.first().map(String::as_str) {
        Some("scribble") => scribble(&dir, &mut random),
        Some("resize") => resize(&dir, &mut random),
        Some("flood") => flood(&dir, &mut random),
        Some("churn") => churn(&dir, &mut random),
        Some("freeze") => freeze(&dir, number(1) as u32),
        Some("forge") => forge(&dir, number(1) as u32, number(2) as u32, number(3)),
        _ => Err(io::Error::other(
            "usage: hostile scribble|resize|flood|churn|freeze|forge NUMBER [PID NONCE]",
        )),
    }
}

/// Returns a word that is likely to cause trouble.
fn bad(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.below(1024),
        1 => u64::MAX - random.below(4),
        2 => 1 << random.below(64),
        3 => random.below(8) << 32 | random.below(5),
        4 => SLOTS_OFFSET as u64 + random.below(1 << 20),
        _ => random.number(),
    }
}

fn scribble(dir: &Path, random: &mut Random) -> io::Result<()> {
    for _ in 0..4 {
        std::thread::spawn(|| {
            let handle = open(b"/hostile");
            loop {
                if let Some(begun) = begin(op::client::READ) {
                    end(begun, Completion { handle, ..Completion::of(1) });
                }
                // Pause, so that no lane is claimed with overwritten geometry: that would end this
                // process.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
    let own = format!("{}-", std::process::id());
    let path = loop {
        let entries = std::fs::read_dir(dir)?.filter_map(Result::ok);
        let mut names = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own));
        if let Some(entry) = names.next() {
            break entry.path();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let file = File::options().read(true).write(true).open(path)?;
    let word = |place: usize| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, place as u64).map(|()| u64::from_le_bytes(bytes))
    };
    // Wait until each thread has a lane and the reader has accepted all of them.
    while word(header::LANES)? < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for lane in 0..4 {
        while word(HEADER_BYTES + lane * LANE_BYTES + at::HEAD)? == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("scribbling");
    loop {
        for _ in 0..=random.below(64) {
            let lane = (HEADER_BYTES + random.below(6) as usize * LANE_BYTES) as u64;
            let words =
                [at::TAIL, at::OLDEST, at::STATE, at::IN_FLIGHT, at::ENCLOSING, at::ATTEMPTS, at::HEAD];
            let place = match random.below(8) {
                0 => random.below(16) * 8,
                1 => random.below(HEADER_BYTES as u64 / 8) * 8,
                2 => lane + random.below(LANE_BYTES as u64 / 8) * 8,
                3..6 => lane + words[random.place(words.len())] as u64,
                _ => SLOTS_OFFSET as u64 + random.below(4 * 512 * 8) * 8,
            };
            file.write_all_at(&bad(random).to_le_bytes(), place)?;
        }
        // One time in four, make a lane valid again.
        if random.below(4) == 0 {
            file.write_all_at(&4u64.to_le_bytes(), header::LANES as u64)?;
            file.write_all_at(&0u64.to_le_bytes(), header::CLOSED as u64)?;
        }
        std::thread::sleep(Duration::from_micros(random.below(500)));
    }
}

fn resize(dir: &Path, random: &mut Random) -> io::Result<()> {
    loop {
        let mut forged = Forged::new(dir, std::process::id(), random.number())?;
        let lane = forged.lane(512)?;
        for number in 0..5 {
            forged.commit(lane, number, ticks(), b"/resized")?;
        }
        println!("resizing");
        while forged.get_lane(lane, at::HEAD)? == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..500 {
            std::thread::sleep(Duration::from_micros(random.below(2000)));
            forged.resize(match random.below(4) {
                0 => 0,
                1 => random.below(SLOTS_OFFSET as u64),
                2 => SLOTS_OFFSET as u64 + random.below(512 * SLOT_BYTES as u64),
                _ => 1 << (30 + random.below(12)),
            })?;
        }
    }
}

fn flood(dir: &Path, random: &mut Random) -> io::Result<()> {
    let mut forged = Forged::new(dir, std::process::id(), random.number())?;
    forged.resize(SLOTS_OFFSET as u64 + MAX_LANE_SLOTS * SLOT_BYTES as u64)?;
    for _ in 0..MAX_LANES {
        forged.lane_at(SLOTS_OFFSET as u64, MAX_LANE_SLOTS)?;
    }
    println!("flooding");
    loop {
        for lane in 0..MAX_LANES {
            let head = forged.get_lane(lane, at::HEAD)?;
            forged.set_lane(lane, at::TAIL, (head + MAX_LANE_SLOTS) << 1)?;
        }
    }
}

fn churn(dir: &Path, random: &mut Random) -> io::Result<()> {
    println!("churning");
    loop {
        let nonce = random.number();
        let pid = [std::process::id(), 1, 4_000_000][random.below(3) as usize];
        let mut forged = Forged::new(dir, pid, nonce)?;
        if random.below(2) == 0 {
            let lane = forged.lane(256)?;
            forged.mark(lane)?;
            forged.set(random.below(16) * 8, bad(random))?;
        } else {
            forged.resize(random.below(HEADER_BYTES as u64))?;
        }
        if random.below(2) == 0 {
            // The log-client may have removed the file already.
            let _ = std::fs::remove_file(forged.path());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn forge(dir: &Path, records: u32, pid: u32, nonce: u64) -> io::Result<()> {
    let mut forged = Forged::new(dir, pid, nonce)?;
    let lane = forged.lane(u64::from(records).next_power_of_two().max(256))?;
    for number in 0..records {
        forged.commit(lane, number, ticks(), if number == 0 { b"/forged" } else { b"" })?;
    }
    println!("forged");
    loop {
        std::thread::park();
    }
}

fn freeze(dir: &Path, times: u32) -> io::Result<()> {
    let mut forged = Forged::new(dir, std::process::id(), u64::from(std::process::id()))?;
    let lane = forged.lane(256)?;
    for number in 0..times {
        forged.mark(lane)?;
        let end = ticks();
        println!("frozen");
        kill_process(getpid(), Signal::STOP)?;
        forged.commit(lane, number, end, if number == 0 { b"/frozen" } else { b"" })?;
    }
    Ok(())
}
