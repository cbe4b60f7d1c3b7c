//! Generates the requests of a model from its parameters.

use super::model::{Kind, Model, Order};
use crate::{Request, Workload};

/// Requests of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Requests in order.
    pub requests: Vec<Request>,
    /// Processor time after the start of the last request, nanoseconds.
    pub rest: u64,
    /// Names of the files, by number.
    pub files: Vec<String>,
    /// Iterations of the algorithm.
    pub cycles: u64,
}

impl Generated {
    /// Returns the requests as a workload of one program.
    #[must_use]
    pub fn workload(self, name: &str) -> Workload {
        Workload::of(name, self.requests, self.rest)
    }
}

/// Generates the requests of a model, only those of the first `seconds` of processor time if given.
/// `seed` determines the variation of computation between requests (10 % to either side) and the
/// choice of blocks of sparse matrices.
#[must_use]
pub fn generate(model: &Model, seconds: Option<f64>, seed: u64) -> Generated {
    let mut plan = Plan::of(model, seed);
    let until = seconds.map_or(model.cpu, |seconds| ((seconds * 1e9) as u64).min(model.cpu));
    let mut made = Generated {
        requests: Vec::with_capacity(model.requests as usize),
        rest: 0,
        files: plan.files.iter().map(|file| file.name.clone()).collect(),
        cycles: plan.cycles,
    };
    let mut cpu = 0;
    while let Some(mut request) = plan.next() {
        if cpu + request.cpu > until && seconds.is_some() {
            break;
        }
        // The variation before the last request has not been compensated.
        request.cpu = request.cpu.min(until - cpu);
        cpu += request.cpu;
        made.requests.push(request);
    }
    made.rest = until - cpu;
    made
}

/// A file, with the positions of its next read and write.
#[derive(Clone, Debug)]
struct File {
    name: String,
    size: u64,
    next: [u64; 2],
}

const READ: usize = 0;
const WRITE: usize = 1;

/// Parameters derived from a model.
struct Plan {
    model: Model,
    /// Size of a read and of a write.
    sizes: [u64; 2],
    /// Number of reads and writes of the whole run.
    counts: [u64; 2],
    cycles: u64,
    files: Vec<File>,
    /// File of the next read and of the next write.
    turn: [usize; 2],
    /// Number of reads and writes made.
    done: [u64; 2],
    cycle: u64,
    random: Random,
    /// Sum of the variations of computation so far, nanoseconds.
    debt: i64,
}

impl Plan {
    fn of(model: &Model, seed: u64) -> Plan {
        let share = |values: [f64; 2]| values[WRITE] / (values[READ] + values[WRITE]);
        let writes = (model.requests as f64 * share(model.per_second)).round() as u64;
        let counts = [model.requests - writes, writes];
        let written = model.moved as f64 * share(model.rates);
        let bytes = [model.moved as f64 - written, written];
        // Multiples of a Cray word.
        let sizes = [READ, WRITE].map(|way| (bytes[way] / counts[way] as f64 / 8.0).round() as u64 * 8);
        let cycles = match model.kind {
            Kind::Staging => (written / model.data as f64).round().max(1.0) as u64,
            Kind::Required => 1,
        };
        let files = match model.kind {
            Kind::Required => {
                let input = counts[READ] * sizes[READ];
                let output = round_to(model.data.saturating_sub(input), sizes[WRITE]);
                vec![file("input", input), file("output", output)]
            }
            Kind::Staging => {
                let unit = if model.order == Order::Sparse { sizes[READ] } else { sizes[WRITE] };
                let size = round_to(model.data / u64::from(model.files), unit);
                (1..=model.files).map(|nth| file(&format!("data{nth}"), size)).collect()
            }
        };
        Plan {
            model: *model,
            sizes,
            counts,
            cycles,
            files,
            turn: [0, 0],
            done: [0, 0],
            cycle: 0,
            random: Random(seed),
            debt: 0,
        }
    }

    /// Returns the number of requests in one direction that are done when a cycle ends.
    fn until(&self, way: usize, cycle: u64) -> u64 {
        (u128::from(self.counts[way]) * u128::from(cycle) / u128::from(self.cycles)) as u64
    }

    fn next(&mut self) -> Option<Request> {
        let begins = (self.done[READ], self.done[WRITE])
            == (self.until(READ, self.cycle), self.until(WRITE, self.cycle));
        if begins {
            if self.cycle == self.cycles {
                return None;
            }
            self.cycle += 1;
            if self.model.kind == Kind::Staging {
                self.turn = [0, 0];
                self.files.iter_mut().for_each(|file| file.next = [0, 0]);
            }
        }
        let way = self.way();
        let cpu = self.cpu(begins, way);
        let (file, offset) = self.place(way);
        self.done[way] += 1;
        Some(Request {
            cpu,
            offset,
            length: self.sizes[way],
            file: file as u32,
            write: way == WRITE,
            is_async: self.model.is_async,
            sequential: false,
        })
    }

    /// Returns the direction of the next request. Reads and writes alternate so that both complete
    /// at the end of the cycle; a program with required I/O only reads first and writes last.
    fn way(&self) -> usize {
        let [reads, writes] = [READ, WRITE].map(|way| {
            let (from, to) = (self.until(way, self.cycle - 1), self.until(way, self.cycle));
            (self.done[way] - from, to - from)
        });
        let is_write = match self.model.kind {
            Kind::Required => reads.0 == reads.1,
            // The next request has the direction that is further behind; reads are preferred.
            Kind::Staging => (reads.0 + 1) * writes.1 > (writes.0 + 1) * reads.1,
        };
        if reads.0 == reads.1 {
            WRITE
        } else if writes.0 == writes.1 {
            READ
        } else {
            usize::from(is_write)
        }
    }

    /// Returns the processor time before a request. The requests of a cycle are made at the rate of
    /// the burst. The rest of the cycle is computed before them, or, in a program with required I/O
    /// only, between its reads and its writes.
    fn cpu(&mut self, begins: bool, way: usize) -> u64 {
        let Model { cpu, moved, burst, kind, .. } = self.model;
        let in_burst = (moved as f64 / burst * 1e9).min(cpu as f64);
        let requests = self.counts[READ] + self.counts[WRITE];
        let each = in_burst / requests as f64;
        let pause = match kind {
            Kind::Staging if begins => (cpu as f64 - in_burst) / self.cycles as f64,
            Kind::Required if way == WRITE && self.done[WRITE] == 0 => cpu as f64 - in_burst,
            _ => 0.0,
        };
        let varied = each * (0.9 + 0.2 * self.random.unit());
        // Compensate the variation, so that a run takes its specified processor time.
        let wanted = varied + pause - self.debt as f64;
        let given = wanted.max(0.0).round();
        self.debt += (given - each - pause).round() as i64;
        given as u64
    }

    fn place(&mut self, way: usize) -> (usize, u64) {
        let size = self.sizes[way];
        let nth = match self.model.kind {
            Kind::Required => way,
            Kind::Staging => self.turn[way],
        };
        let many = self.files.len();
        // Sparse blocks have the size of a read, even if only part of a block is written.
        let step = if self.model.order == Order::Sparse { self.sizes[READ] } else { size };
        let file = &mut self.files[nth];
        let offset = file.next[way];
        let mut next = offset + step;
        if self.model.order == Order::Sparse {
            while self.random.unit() < 0.5 {
                next += step;
            }
        }
        let ends = next + size > file.size;
        file.next[way] = if ends { 0 } else { next };
        if self.model.kind == Kind::Staging && (ends || self.model.order == Order::Interleaved) {
            self.turn[way] = (nth + 1) % many;
        }
        (nth, offset)
    }
}

fn file(name: &str, size: u64) -> File {
    File { name: name.to_owned(), size, next: [0, 0] }
}

fn round_to(size: u64, unit: u64) -> u64 {
    ((size + unit / 2) / unit).max(1) * unit
}

/// SplitMix64 (Steele, Lea and Flood 2014): sufficient for the variation, and the same on all
/// platforms.
struct Random(u64);

impl Random {
    /// Returns a number in [0, 1).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
