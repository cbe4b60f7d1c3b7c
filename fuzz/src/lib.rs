//! The fuzz targets of MIOT, as functions of bytes, and the seeds they start from.
//!
//! | target | what the bytes are |
//! |---|---|
//! | [`lane`] | what threads do with their lanes, and when a sound consumer reads |
//! | [`segment`] | what a hostile or broken producer does to its segment between sweeps |
//! | [`wire`] | frames and messages |
//! | [`batch`] | the columns of a batch, packed or plain |
//! | [`trace`] | what follows the whole messages of a live stream |
//! | [`miller`] | a trace in Miller's format |
//! | [`control`] | the words of a control page |
//! | [`session`] | what hostile peers say to a log-server, beside an honest node |
//! | [`import`] | text that `miot import` reads: targets `strace` and `dxt` |
//! | [`spool`] | lives of log-clients, and what happens to the files of their spool |
//!
//! A target must return for all bytes; what it checks beside that stands with it. `tests/fuzz.sh` builds and runs
//! them; `targets/` is how libFuzzer gets at them.

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

/// Bytes to start from: a file name and its contents.
pub type Seed = (&'static str, Vec<u8>);

/// A target's name, its seeds, and what runs them.
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
