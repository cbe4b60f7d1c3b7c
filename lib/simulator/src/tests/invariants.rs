//! Invariants of any workload on any machine.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (0u64..3 * MS, 0u64..60, 0u64..5 * BLOCK, any::<bool>(), any::<bool>(), 0u32..3, 0u64..4096);
    proptest::collection::vec(one, 1..60).prop_map(|all| {
        let of = |(cpu, block, length, write, is_async, file, shift)| Request {
            cpu,
            offset: block * BLOCK + shift,
            length,
            file,
            write,
            is_async,
            sequential: false,
        };
        all.into_iter().map(of).collect()
    })
}

fn machine() -> impl Strategy<Value = Config> {
    let policy = prop_oneof![Just(Policy::Lru), Just(Policy::Fifo), Just(Policy::Clock), Just(Policy::TwoQ)];
    let cache = (0u64..40, policy, any::<bool>(), 0u64..20);
    let ways = (any::<bool>(), any::<bool>(), prop_oneof![Just(0), 1..20 * MS], 1u64..6);
    let times = (1u64..10 * MS, 0u64..50 * US, 0u64..50 * US, 0u64..50 * US, 1u32..4);
    let link = prop_oneof![Just(0), 1_000_000u64..1 << 32];
    let disk = (any::<bool>(), 1u32..4, 1u32..4, any::<bool>(), 0u64..10 * MS, link);
    (cache, ways, times, disk).prop_map(|(cache, ways, times, disk)| {
        let (blocks, policy, ssd, limit) = cache;
        let (read_ahead, write_behind, delay, transfer) = ways;
        let (quantum, switch, call, interrupt, processors) = times;
        let (queue, devices, channels, look, max_seek, link_rate) = disk;
        let base = plain();
        let limit = if policy == Policy::Lru { limit * BLOCK } else { 0 };
        Config {
            processors,
            quantum,
            switch,
            call,
            interrupt,
            cache: Cache { size: blocks * BLOCK, block: BLOCK, policy, limit },
            ssd: if ssd {
                Ssd { size: 2 * blocks * BLOCK, set_up: 10 * US, per_kib: US }
            } else {
                Ssd::default()
            },
            read_ahead,
            write_behind,
            delay,
            transfer: transfer * BLOCK,
            disk: Disk {
                queue,
                devices,
                channels,
                stripe: 2 * BLOCK,
                order: if look { Order::Look } else { Order::Fifo },
                max_seek,
                capacity: 1 << 20,
                link_rate: if queue { link_rate } else { 0 },
                ..base.disk
            },
        }
    })
}

fn workload() -> impl Strategy<Value = Workload> {
    proptest::collection::vec((requests(), 0u64..5 * MS, 0u64..3 * MS), 1..5).prop_map(|programs| {
        let mut all = Workload::default();
        for (requests, start, rest) in programs {
            let mut one = Workload::of("p", requests, rest);
            one.programs[0].start = start;
            all.add(one);
        }
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 600 }))]

    /// No time is lost or counted twice, each program does all its computation, each request is
    /// counted once.
    #[test]
    fn time_is_conserved(config in machine(), workload in workload()) {
        let outcome = run(&config, &workload);
        for processor in &outcome.processors {
            prop_assert_eq!(processor.run + processor.overhead + processor.idle, outcome.elapsed);
        }
        for (process, program) in outcome.processes.iter().zip(&workload.programs) {
            let all = process.run + process.overhead + process.ready + process.blocked;
            prop_assert_eq!(all, process.ended - process.started);
            prop_assert_eq!(process.run, program.cpu());
            prop_assert_eq!(process.reads + process.writes, program.requests.len() as u64);
            let bytes = program.requests.iter().map(|request| request.length).sum::<u64>();
            prop_assert_eq!(process.bytes_read + process.bytes_written, bytes);
            let waits = process.overhead >= config.call * program.requests.len() as u64;
            prop_assert!(waits);
        }
        prop_assert_eq!(outcome.run(), workload.programs.iter().map(|program| program.cpu()).sum::<u64>());
        prop_assert_eq!(outcome.elapsed, outcome.processes.iter().map(|process| process.ended).max().unwrap());
        prop_assert!(outcome.drained >= outcome.elapsed);
        let sum = |of: fn(&crate::rates::Point) -> u64| outcome.rates.points.iter().map(of).sum::<u64>();
        prop_assert_eq!(sum(|point| point.disk_read), outcome.disk.bytes_read);
        prop_assert_eq!(sum(|point| point.disk_written), outcome.disk.bytes_written);
        let cache = outcome.cache;
        prop_assert_eq!(cache.read, cache.memory_hits + cache.ssd_hits + cache.late_hits + cache.misses);
        prop_assert!(cache.read_ahead_used <= cache.read_ahead);
    }

    /// Two runs of one simulation have the same outcome.
    #[test]
    fn a_simulation_is_deterministic(config in machine(), workload in workload()) {
        prop_assert_eq!(run(&config, &workload), run(&config, &workload));
    }

    /// All written data reaches the disk.
    #[test]
    fn all_written_data_reaches_the_disk(config in machine(), workload in workload()) {
        let outcome = run(&config, &workload);
        let mut blocks = std::collections::HashSet::new();
        for program in &workload.programs {
            for request in program.requests.iter().filter(|request| request.write && request.length > 0) {
                let file = request.file + program.first_file;
                blocks.extend((request.offset / BLOCK..=(request.end() - 1) / BLOCK).map(|block| (file, block)));
            }
        }
        if config.cache.size > 0 || config.ssd.size > 0 {
            prop_assert!(outcome.disk.bytes_written >= blocks.len() as u64 * BLOCK
                || workload.programs.iter().any(|p| p.requests.iter().any(|r| r.is_async)));
        } else {
            let bytes = outcome.processes.iter().map(|process| process.bytes_written).sum::<u64>();
            prop_assert_eq!(outcome.disk.bytes_written, bytes);
        }
    }

    /// For the same reference string a larger LRU cache holds all blocks that a smaller one holds
    /// (Mattson et al. 1970).
    #[test]
    fn a_larger_lru_cache_never_misses_more(requests in requests(), size in 1u64..60, more in 0u64..60) {
        let requests: Vec<_> = requests.into_iter().map(|r| Request { is_async: false, ..r }).collect();
        let workload = Workload::of("p", requests, 0);
        let misses = |blocks: u64| {
            let config = Config { cache: Cache { size: blocks * BLOCK, ..plain().cache }, ..plain() };
            run(&config, &workload).cache.misses
        };
        prop_assert!(misses(size + more) <= misses(size));
    }

    /// Compares LRU, FIFO and CLOCK with a model that searches plain lists.
    #[test]
    fn policies_match_a_plain_model(references in proptest::collection::vec(0u64..30, 1..300), size in 1usize..25) {
        let requests = references.iter().map(|block| request(0, false, block * BLOCK, BLOCK)).collect();
        let workload = Workload::of("p", requests, 0);
        for policy in [Policy::Lru, Policy::Fifo, Policy::Clock] {
            let cache = Cache { size: size as u64 * BLOCK, policy, ..plain().cache };
            let misses = run(&Config { cache, ..plain() }, &workload).cache.misses;
            prop_assert_eq!(misses, simple(policy, &references, size), "{:?}", policy);
        }
    }
}

/// Counts misses of a plain list in order of age. The flag is CLOCK's use bit.
fn simple(policy: Policy, references: &[u64], size: usize) -> u64 {
    let mut held: VecDeque<(u64, bool)> = VecDeque::new();
    let mut misses = 0;
    for block in references {
        if let Some(at) = held.iter().position(|(held, _)| held == block) {
            match policy {
                Policy::Lru => {
                    let entry = held.remove(at).unwrap();
                    held.push_back(entry);
                }
                Policy::Clock => held[at].1 = true,
                _ => {}
            }
            continue;
        }
        misses += 1;
        while held.len() >= size {
            let (oldest, used) = held.pop_front().unwrap();
            if used {
                held.push_back((oldest, false));
            }
        }
        held.push_back((*block, false));
    }
    misses
}
