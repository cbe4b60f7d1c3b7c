//! Fuzz targets of MIOT, as functions of bytes, and their seeds.
//!
//! | target | meaning of the bytes |
//! |---|---|
//! | [`lane`] | operations of threads on their lanes, and sweeps of a correct consumer |
//! | [`segment`] | writes of a hostile or faulty producer to its segment between sweeps |
//! | [`wire`] | frames and messages |
//! | [`batch`] | columns of a batch, compressed or uncompressed |
//! | [`trace`] | bytes after the complete messages of a live stream |
//! | [`miller`] | a trace in Miller's format |
//! | [`control`] | words of a control page |
//! | [`session`] | messages of hostile peers to a log-server that also serves an honest node |
//! | [`import`] | text that `miot import` reads: targets `strace` and `dxt` |
//! | [`spool`] | runs of log-clients, and damage to their spool files |
//!
//! A target must return for all bytes; its module lists its other checks. `tests/fuzz.sh` builds
//! and runs the targets; `targets/` contains their entry points for libFuzzer.

pub mod batch;
pub mod control;
pub mod import;
mod input;
pub mod lane;
pub mod miller;
mod scratch;
pub mod segment;
pub mod session;
pub mod spool;
pub mod trace;
pub mod wire;

/// Seed: a file name and the bytes.
pub type Seed = (&'static str, Vec<u8>);

/// Name of a target, its seeds, and the function that runs it.
pub type Target = (&'static str, fn() -> Vec<Seed>, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("batch", batch::seeds, batch::run),
    ("control", control::seeds, control::run),
    ("dxt", import::dxt_seeds, import::dxt),
    ("lane", lane::seeds, lane::run),
    ("miller", miller::seeds, miller::run),
    ("segment", segment::seeds, segment::run),
    ("session", session::seeds, session::run),
    ("spool", spool::seeds, spool::run),
    ("strace", import::strace_seeds, import::strace),
    ("trace", trace::seeds, trace::run),
    ("wire", wire::seeds, wire::run),
];

#[cfg(test)]
mod tests {
    #[test]
    fn all_seeds_pass() {
        for (target, seeds, run) in super::TARGETS {
            for (name, bytes) in seeds() {
                println!("{target}: {name}");
                run(&bytes);
            }
        }
    }
}
