//! Ways of recording that are measured inside this program.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the program")]

use miot_tracer::{Completion, begin, end, op};
use std::cell::{Cell, UnsafeCell};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs this number of operations on the calling thread.
pub(crate) type Operations = fn(u64);
/// Prepares a way.
pub(crate) type Ready = fn() -> Result<(), String>;

/// Returns the way of this name.
pub(crate) fn find(name: &str) -> Option<(Ready, Operations)> {
    Some(match name {
        "nothing" => (nothing_needed, nothing),
        "clock" => (nothing_needed, clock),
        "floor" => (nothing_needed, floor),
        "shared-ring" => (nothing_needed, shared_ring),
        // MIOT_DIR names the directory of a log-client, which is real or simulated by the driver.
        // Without a log-client, or with recording switched off, the same code measures the
        // remaining cost.
        "miot" => (recording, miot),
        "miot-idle" => (nothing_needed, miot),
        "miot-mixed" => (recording, miot_mixed),
        "miot-stamped" => (recording, miot_stamped),
        _ => return None,
    })
}

fn nothing_needed() -> Result<(), String> {
    Ok(())
}

fn recording() -> Result<(), String> {
    miot(1);
    if miot_tracer::active(op::posix::READ) {
        Ok(())
    } else {
        Err("no log-client at $MIOT_DIR records".into())
    }
}

/// The recorded request: sequential reads.
struct Request {
    offset: u64,
    length: u64,
}

fn requests(count: u64, mut each: impl FnMut(Request)) {
    for i in 0..count {
        // Each value separately: as a pair they would go through memory and stall.
        each(Request { offset: black_box(i * 4096), length: black_box(4096) });
    }
}

fn nothing(count: u64) {
    requests(count, |_| ());
}

fn clock(count: u64) {
    requests(count, |_| {
        let begin = ticks();
        black_box(ticks() - begin);
    });
}

const RING: usize = 32_768;

#[repr(C, align(64))]
struct Slot(UnsafeCell<[u64; 8]>);
// SAFETY: a private ring has one thread. In the shared ring each thread writes the slots that it
// has reserved. Two threads write one slot only if one is a whole round behind, which is a property
// of such rings.
unsafe impl Sync for Slot {}

fn ring() -> &'static [Slot] {
    Box::leak((0..RING).map(|_| Slot(UnsafeCell::new([1; 8]))).collect())
}

/// The private ring of a thread. A later thread reuses it.
struct Own {
    slots: &'static [Slot],
    tail: Cell<u64>,
}

static LEFT: Mutex<Vec<&'static [Slot]>> = Mutex::new(Vec::new());

impl Own {
    fn new() -> Own {
        let left = LEFT.lock().ok().and_then(|mut left| left.pop());
        Own { slots: left.unwrap_or_else(ring), tail: Cell::new(0) }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Ok(mut left) = LEFT.lock() {
            left.push(self.slots);
        }
    }
}

#[inline(always)]
fn event(begin: u64, end: u64, request: &Request, number: u64) -> [u64; 8] {
    [1 | 1 << 8 | number << 32, end, end - begin, 7, request.offset, request.length, request.length, number]
}

/// Makes eight separate stores. A store of an array would go through the stack.
#[inline(always)]
fn store(slot: &Slot, event: [u64; 8]) {
    let words = slot.0.get().cast::<u64>();
    for (at, value) in event.into_iter().enumerate() {
        // SAFETY: in bounds; see `Slot` for other writers.
        unsafe { words.add(at).write_volatile(value) };
    }
}

/// Two clock reads and a 64-byte store into a ring of the thread: the lower bound of any recording.
fn floor(count: u64) {
    thread_local! {
        static OWN: Own = Own::new();
    }
    OWN.with(|Own { slots, tail }| {
        requests(count, |request| {
            let begin = ticks();
            let end = ticks();
            let number = tail.get();
            let slot = &slots[number as usize & (RING - 1)];
            store(slot, event(begin, end, &request, number));
            tail.set(number + 1);
        });
    });
}

/// Like [`floor`] with one ring of all threads, whose slots are reserved by an atomic addition.
fn shared_ring(count: u64) {
    static SHARED: std::sync::LazyLock<&'static [Slot]> = std::sync::LazyLock::new(ring);
    #[repr(align(128))]
    struct Alone(AtomicU64);
    static TAIL: Alone = Alone(AtomicU64::new(0));
    let slots = *SHARED;
    requests(count, |request| {
        let begin = ticks();
        let end = ticks();
        let number = TAIL.0.fetch_add(1, Ordering::Relaxed);
        let slot = &slots[number as usize & (RING - 1)];
        store(slot, event(begin, end, &request, number));
    });
}

fn miot(count: u64) {
    requests(count, |request| {
        let begun = begin(op::posix::READ);
        if let Some(begun) = begun {
            let done = Completion {
                handle: 7,
                offset: request.offset,
                length: request.length,
                result: request.length as i64,
                flags: 0,
            };
            end(begun, done);
        }
    });
}

/// Requests with random block, size, file and direction.
fn miot_mixed(count: u64) {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64 ^ (&raw const count).addr() as u64;
    for _ in 0..count {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let read = seed & 3 != 0;
        if let Some(begun) = begin(if read { op::posix::PREAD } else { op::posix::PWRITE }) {
            let length = 4096 << (seed >> 8 & 3);
            let done = Completion {
                handle: 1 + (seed >> 16 & 15),
                offset: (seed >> 32 & 0xf_ffff) * 4096,
                length,
                result: length as i64,
                flags: 0,
            };
            end(begun, done);
        }
    }
}

/// The result is the completion time.
fn miot_stamped(count: u64) {
    for _ in 0..count {
        if let Some(begun) = begin(op::posix::FSYNC) {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let result = now.map_or(0, |now| now.as_nanos() as i64);
            end(begun, Completion { handle: 7, result, ..Completion::of(0) });
        }
    }
}

/// Reads the time stamp counter directly, so that the floor does not include the selection of a
/// clock.
#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the time stamp counter.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    miot_tracer::ticks()
}
