//! Cases with results computed by hand.

use super::*;
use crate::presets;

/// Without a cache a program computes, and waits for each request until the disk has served it.
#[test]
fn without_a_cache_time_is_the_sum_of_service_times() {
    let requests: Vec<_> = (0..100).map(|n| request(n * 1000, n % 3 == 0, n * 77_777, 1 + n * 501)).collect();
    let computing: u64 = requests.iter().map(|r| r.cpu).sum();
    let serving: u64 = requests.iter().map(|r| service(r.length)).sum();
    let config = Config { call: 7 * US, interrupt: 3 * US, ..plain() };
    let outcome = run(&config, &Workload::of("p", requests, 555));
    // The interrupt is served before the program continues.
    assert_eq!(outcome.elapsed, computing + 555 + serving + 100 * (7 + 3) * US);
    assert_eq!(outcome.run(), computing + 555);
    assert_eq!(outcome.overhead(), 100 * 10 * US);
    assert_eq!(outcome.idle(), serving);
    assert_eq!((outcome.disk.reads, outcome.disk.writes), (66, 34));
    assert_eq!(outcome.disk.busy, serving);
}

/// A cache that holds everything misses each block once, however often and in whatever order it is
/// read.
#[test]
fn infinite_cache_has_only_compulsory_misses() {
    let blocks = 500;
    let requests: Vec<_> = (0..4000u64).map(|n| request(10, false, n * n % blocks * BLOCK, BLOCK)).collect();
    let distinct: std::collections::HashSet<_> = requests.iter().map(|r| r.offset).collect();
    let config = Config { cache: Cache { size: blocks * BLOCK, ..plain().cache }, ..plain() };
    for policy in [Policy::Lru, Policy::Fifo, Policy::Clock, Policy::TwoQ] {
        let config = Config { cache: Cache { policy, ..config.cache.clone() }, ..config.clone() };
        let outcome = run(&config, &Workload::of("p", requests.clone(), 0));
        assert_eq!(outcome.cache.misses, distinct.len() as u64, "{policy:?}");
        assert_eq!(outcome.cache.memory_hits, 4000 - distinct.len() as u64);
        assert_eq!(outcome.elapsed, 4000 * 10 + distinct.len() as u64 * service(BLOCK));
    }
}

/// One process writes a block every `think`; a disk with a queue takes `service` for each. The
/// process does not wait while the cache has space. From then on the disk determines the rate.
#[test]
fn write_behind_is_a_queue() {
    let (frames, count) = (50, 200);
    let requests: Vec<_> = (0..count).map(|n| request(MS, true, n * 10 * BLOCK, BLOCK)).collect();
    let cache = Cache { size: frames * BLOCK, ..plain().cache };
    let disk = Disk { queue: true, ..plain().disk };
    let slow = Config { cache, disk, write_behind: true, ..plain() };
    let outcome = run(&slow, &Workload::of("p", requests.clone(), 0));
    let served = service(BLOCK);
    // The disk begins with the first block, at 1 ms, and is busy from then on. Request k (from 0)
    // finds a free block as soon as block k - 50 is on disk, at 1 ms + (k - 49) * served, if that
    // is later than its own time.
    let mut time = 0;
    for k in 0..count {
        time += MS;
        if k >= frames {
            time = time.max(MS + (k - frames + 1) * served);
        }
    }
    assert_eq!(outcome.elapsed, time);
    assert_eq!(outcome.drained, MS + count * served);
    assert_eq!(outcome.idle(), time - count * MS);
    assert_eq!(outcome.processes[0].waits, 0);
    assert!(outcome.processes[0].room_waits > 100);
    // Four such disks take 0.51 ms per block: the process never waits.
    let disk = Disk { devices: 4, stripe: 10 * BLOCK, ..slow.disk.clone() };
    let outcome = run(&Config { disk, ..slow }, &Workload::of("p", requests, 0));
    assert_eq!(outcome.elapsed, count * MS);
    assert_eq!(outcome.idle(), 0);
}

/// Read-ahead takes place while the program computes.
#[test]
fn read_ahead_overlaps_computing() {
    let requests: Vec<_> = (0..20).map(|n| request(10 * MS, false, n * 16 * BLOCK, 16 * BLOCK)).collect();
    let cache = Cache { size: 1 << 20, ..plain().cache };
    let config = Config { cache, read_ahead: true, ..plain() };
    let outcome = run(&config, &Workload::of("p", requests.clone(), 0));
    // The process waits for the first two: sequential access is detected with the second.
    assert_eq!(outcome.elapsed, 200 * MS + 2 * service(16 * BLOCK));
    assert_eq!((outcome.cache.misses, outcome.cache.memory_hits), (32, 18 * 16));
    assert_eq!((outcome.cache.read_ahead, outcome.cache.read_ahead_used), (18 * 16, 18 * 16));
    // Without computation, each request is waited for: a disk with a queue is busy all the time,
    // and no longer.
    let hasty = requests.into_iter().map(|r| Request { cpu: 0, ..r }).collect();
    let config = Config { disk: Disk { queue: true, ..plain().disk }, ..config };
    let outcome = run(&config, &Workload::of("p", hasty, 0));
    assert_eq!(outcome.elapsed, 20 * service(16 * BLOCK));
    assert_eq!(outcome.cache.late_hits, 18 * 16);
}

/// Two programs whose computation time equals their waiting time keep one processor busy.
#[test]
fn two_processes_share_a_processor() {
    let served = service(BLOCK);
    let requests: Vec<_> = (0..100).map(|n| request(served, false, n * 7 * BLOCK, BLOCK)).collect();
    let one = Workload::of("p", requests, 0);
    let alone = run(&plain(), &one);
    assert_eq!((alone.elapsed, alone.idle()), (200 * served, 100 * served));
    let both = run(&plain(), &one.copies(2));
    assert_eq!((both.elapsed, both.idle()), (201 * served, served));
    // On two processors each program runs as if alone.
    let two = run(&Config { processors: 2, ..plain() }, &one.copies(2));
    assert_eq!((two.elapsed, two.idle()), (200 * served, 200 * served));
}

/// Programs that only compute take turns of one quantum.
#[test]
fn turns_last_one_quantum() {
    let one = Workload::of("p", Vec::new(), 250 * MS);
    let config = Config { switch: 10 * US, ..plain() };
    let outcome = run(&config, &one.copies(2));
    // Turns: 1, 2, 1, 2, 1, 2, with a switch between.
    assert_eq!(outcome.elapsed, 500 * MS + 5 * 10 * US);
    assert_eq!(outcome.processors[0].switches, 5);
    assert_eq!(outcome.processes[0].ended, 450 * MS + 4 * 10 * US);
}

/// A program waits for asynchronous requests only at its end.
#[test]
fn asynchronous_requests_do_not_block() {
    let ahead = |n| Request { is_async: true, ..request(MS, n % 2 == 0, n * BLOCK, BLOCK) };
    let requests: Vec<_> = (0..10).map(ahead).collect();
    let outcome = run(&plain(), &Workload::of("p", requests, 0));
    assert_eq!(outcome.elapsed, 10 * MS + service(BLOCK));
    assert_eq!(outcome.idle(), service(BLOCK));
}

/// A hit in the SSD costs set-up and 1 us per KB of processor time.
#[test]
fn ssd_costs_processor_time() {
    let requests: Vec<_> = (0..10).map(|n| request(MS, false, n % 2 * 16 * BLOCK, 16 * BLOCK)).collect();
    let ssd = Ssd { size: 1 << 20, set_up: 30 * US, per_kib: US };
    let config = Config { ssd, ..plain() };
    let outcome = run(&config, &Workload::of("p", requests, 0));
    let moved = 30 * US + 64 * US;
    // Two requests are read from disk; their bytes are moved through the SSD meanwhile.
    assert_eq!(outcome.elapsed, 10 * MS + 2 * service(16 * BLOCK) + 8 * moved);
    assert_eq!(outcome.overhead(), 10 * moved);
    assert_eq!((outcome.cache.ssd_hits, outcome.cache.misses), (8 * 16, 2 * 16));
    // A main-memory cache in front of the SSD serves the blocks that it holds.
    let cache = Cache { size: 20 * BLOCK, ..plain().cache };
    let requests: Vec<_> = [0, 0, 32, 0].map(|n| request(MS, false, n * BLOCK, 16 * BLOCK)).into();
    let outcome = run(&Config { cache, ..config }, &Workload::of("p", requests, 0));
    assert_eq!((outcome.cache.memory_hits, outcome.cache.ssd_hits), (16, 16));
}

/// Dirty blocks wait for their delay. A block that is written again meanwhile is written to disk
/// once.
#[test]
fn delayed_writes_merge_rewrites() {
    let requests: Vec<_> = (0..100).map(|n| request(MS, true, n % 4 * BLOCK, BLOCK)).collect();
    let cache = Cache { size: 1 << 20, ..plain().cache };
    let behind = Config { cache, write_behind: true, ..plain() };
    let of = |delay| run(&Config { delay, ..behind.clone() }, &Workload::of("p", requests.clone(), 0));
    assert_eq!(of(0).disk.bytes_written, 100 * BLOCK);
    // All four blocks in one transfer, twice: at 51 ms for the writes since 1 ms, and later for the
    // rest.
    let delayed = of(50 * MS);
    assert_eq!((delayed.disk.writes, delayed.disk.bytes_written), (2, 8 * BLOCK));
    assert_eq!(delayed.elapsed, 100 * MS);
    assert_eq!(delayed.idle(), 0);
}

/// The arm serves the nearest request in its direction first.
#[test]
fn an_elevator_seeks_less() {
    let mut workload = Workload::default();
    for n in 0..16u64 {
        let at = n * 7 % 16 * (40 << 20);
        workload.add(Workload::of("p", vec![request(0, false, at, BLOCK)], 0));
    }
    // All programs use one file.
    workload.files = vec![1 << 30];
    workload.programs.iter_mut().for_each(|program| program.first_file = 0);
    let disk = Disk { queue: true, max_seek: 20 * MS, ..plain().disk };
    let of = |order| run(&Config { disk: Disk { order, ..disk.clone() }, ..plain() }, &workload);
    let (fifo, look) = (of(Order::Fifo), of(Order::Look));
    assert!(look.elapsed * 3 < fifo.elapsed * 2, "{} and {}", look.elapsed, fifo.elapsed);
    assert_eq!(fifo.disk.longest_queue, 15);
}

/// Requests on the channels of one device overlap except for their bytes.
#[test]
fn channels_overlap_latencies() {
    let mut workload = Workload::default();
    for _ in 0..8 {
        workload.add(Workload::of("p", vec![request(0, false, 0, MS)], 0));
    }
    let of = |channels| {
        let disk = Disk { queue: true, channels, ..plain().disk };
        run(&Config { disk, ..plain() }, &workload).elapsed
    };
    assert_eq!(of(1), 8 * 3 * MS);
    // The bus moves 1 ms for each. Two at a time: 3, 4, then each pair waits for the channels that
    // are free at 3 and 4 …
    assert_eq!(of(8), 2 * MS + 8 * MS);
    assert_eq!(of(2), 12 * MS + MS);
}

/// Four devices at 1 GB/s behind a link: a link of 2 GB/s limits them to half, a link of 8 GB/s
/// does not.
#[test]
fn a_link_is_shared_by_the_devices() {
    let one = Workload::of("p", vec![request(0, false, 0, 4 * MS)], 0);
    let of = |link_rate| {
        let disk = Disk { queue: true, devices: 4, stripe: MS, link_rate, ..plain().disk };
        run(&Config { disk, ..plain() }, &one).elapsed
    };
    let devices = 2 * MS + MS;
    assert_eq!(of(0), devices);
    // All devices finish at once: the first part used the link while its device read it, the others
    // follow one after the other.
    assert_eq!(of(2_000_000_000), devices + 3 * MS / 2);
    assert_eq!(of(8_000_000_000), devices + 3 * MS / 8);
}

/// An impossible parameter is reported with its name.
#[test]
fn impossible_parameters_are_reported() {
    type Change = fn(&mut Config);
    let cases: [(&str, Change); 10] = [
        ("processors", |c| c.processors = 0),
        ("one block", |c| c.cache.size = 100),
        ("power of two", |c| c.cache.block = 5000),
        ("quantum", |c| c.quantum = 0),
        ("cache.limit", |c| c.cache.limit = 1),
        ("policy lru", |c| (c.cache.limit, c.cache.policy) = (1 << 20, Policy::Clock)),
        ("min_seek", |c| (c.disk.min_seek, c.disk.max_seek) = (2, 1)),
        ("larger blocks", |c| (c.cache.size, c.cache.block) = (1 << 50, 512)),
        ("disk.devices", |c| c.disk.devices = 0),
        ("disk.queue", |c| c.disk.link_rate = 1),
    ];
    for (word, change) in cases {
        let mut config = plain();
        change(&mut config);
        let error = simulate(&config, &Workload::default()).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
    for (name, _) in presets::ALL {
        presets::named(name).unwrap().check().unwrap();
    }
}

/// The largest permitted sizes and times are simulated or refused.
#[test]
fn extreme_values_do_not_overflow() {
    let far = request(1 << 60, true, 1 << 61, 1 << 36);
    let requests = vec![far, Request { write: false, ..far }];
    let cache = Cache { size: 64 << 20, block: 1 << 20, ..plain().cache };
    let config = Config { cache, ..plain() };
    let outcome = run(&config, &Workload::of("p", requests.clone(), 0));
    assert!(outcome.elapsed > 1 << 61);
    for (rest, rate) in [(u64::MAX, 1_000_000), (0, 1)] {
        let disk = Disk { read_rate: rate, write_rate: rate, queue: true, ..plain().disk };
        let config = Config { disk, ..config.clone() };
        let error = simulate(&config, &Workload::of("p", requests.clone(), rest)).unwrap_err();
        assert!(error.to_string().contains("years"), "{error}");
    }
    let nothing = run(&plain(), &Workload::default());
    assert_eq!((nothing.elapsed, nothing.utilisation()), (0, 1.0));
}
