//! Dropping the oldest events in favor of the newest, at random times.

use super::server::Server;
use super::{files, open, process, process_end, stream_of, write};
use crate::spool::condense;
use crate::testing::samples;
use fastrand::Rng;
use miot_proto::batch::Columns;
use miot_proto::wire::Message;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;

/// Random steps: streams start, record, lose events in their lanes and end; a connection sends
/// messages, breaks, or its server acknowledges; the oldest file is condensed repeatedly;
/// log-clients are killed, also while condensing. At the end each attempt arrived, or was given up,
/// or was lost in its lane.
#[test]
fn given_up_events_are_reported_exactly() {
    let seed: u64 = std::env::var("MIOT_SEED").map_or(7, |seed| seed.parse().unwrap());
    for round in 0..60u64 {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(round));
        eprintln!("MIOT_SEED={seed}, round {round}");
        given_up_at_random(&mut random);
    }
}

#[expect(clippy::too_many_lines, reason = "one scenario from start to end")]
fn given_up_at_random(random: &mut Rng) {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut reader, _) = open(dir.path());
    let mut server = Server::default();
    let mut known = HashMap::new();
    // Next attempt number, and number of recorded events.
    let mut streams: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut open_streams: Vec<u32> = Vec::new();
    // Stream numbers by lane in the current log-client.
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    let mut next_number = 0;
    write(&mut writer, [process()]);
    for _ in 0..random.u64(..150) {
        match random.u64(..14) {
            0 | 1 => {
                let lane = streams.len() as u32;
                write(&mut writer, [stream_of(next_number, lane)]);
                numbers.insert(lane, next_number);
                next_number += 1;
                streams.insert(lane, (0, 0));
                open_streams.push(lane);
            }
            2..=6 if !open_streams.is_empty() => {
                let number = open_streams[random.u64(..open_streams.len() as u64) as usize];
                let (next, count) = streams.get_mut(&number).unwrap();
                let after = *next;
                let mut columns = Columns::default();
                for _ in 0..=random.u64(..5) {
                    // Some are lost in the lane.
                    *next += if random.u64(..4) == 0 { random.u64(..3) } else { 0 };
                    columns.push(1, *next, *next as i64, 1, &samples::read(*next), None);
                    *next += 1;
                    *count += 1;
                }
                let (stream, columns) = (numbers[&number], samples::packed(&columns));
                write(&mut writer, [Message::Batch { seq: 0, stream, after, columns }]);
            }
            7 if !open_streams.is_empty() => {
                let number = open_streams.swap_remove(random.u64(..open_streams.len() as u64) as usize);
                let after = streams[&number].0;
                let end = samples::stream_end(numbers[&number], after + 2, after);
                write(&mut writer, [Message::StreamEnd { seq: 0, end }]);
            }
            8 | 9 => {
                // Some messages are sent; they arrive, or the connection breaks before.
                let mut bytes = Vec::new();
                if random.u64(..3) == 0 || known.is_empty() {
                    known.clear();
                    reader.restart(server.through, &mut bytes);
                }
                reader.take(&mut bytes, random.u64(..2000) as usize);
                if random.u64(..4) == 0 {
                    known.clear();
                } else {
                    server.take(&bytes, &mut known);
                }
            }
            10 => reader.spool().acknowledge(server.through),
            11 => {
                // Another file from the next message on.
                reader.spool().roll.store(true, Relaxed);
            }
            12 => {
                let oldest = files(dir.path())[0].clone();
                let bytes = std::fs::read(&oldest).unwrap();
                let was_condensed = reader.spool().state().files[0].condensed;
                let done = reader.spool().condense().unwrap();
                if done && random.u64(..3) == 0 {
                    // Killed before the old file was removed, or while the next one was made.
                    let through = server.through;
                    drop((writer, reader));
                    if was_condensed {
                        std::fs::write(&oldest, &bytes).unwrap();
                    }
                    std::fs::write(dir.path().join(condense::UNFINISHED), &bytes[..bytes.len() / 2]).unwrap();
                    let recovered;
                    (writer, reader, recovered) = open(dir.path());
                    assert!(recovered.intact);
                    known.clear();
                    reader.restart(through, &mut Vec::new());
                    // Its successor finds the same process and lanes.
                    next_number = next_number.max(recovered.next_stream);
                    write(&mut writer, [process()]);
                    for lane in &open_streams {
                        write(&mut writer, [stream_of(next_number, *lane)]);
                        numbers.insert(*lane, next_number);
                        next_number += 1;
                    }
                }
            }
            _ => {}
        }
    }
    // Open streams stay open: the next log-client continues them.
    write(&mut writer, [process_end()]);
    let mut bytes = Vec::new();
    reader.restart(server.through, &mut bytes);
    reader.take(&mut bytes, usize::MAX);
    server.take(&bytes, &mut HashMap::new());
    reader.spool().acknowledge(server.through);
    writer.end();
    assert!(reader.spool().is_done() && server.gone);
    assert!(server.missed.is_empty(), "{:?}", server.missed);
    for (number, (next, count)) in &streams {
        let came = server.came.remove(number).unwrap_or_default();
        let lost = server.lost.remove(number).unwrap_or_default();
        assert!(came.is_disjoint(&lost));
        assert_eq!(came.len() as u64 + lost.len() as u64, *count, "stream {number}: {came:?} {lost:?}");
        assert_eq!(server.next.get(number).copied().unwrap_or(0), *next);
        assert_eq!(server.ended.get(number).copied(), (!open_streams.contains(number)).then_some(next + 2));
    }
}
