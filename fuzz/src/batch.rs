//! The columns of a batch.
//!
//! The first byte selects whether the rest is a compressed batch as on the wire, or an uncompressed
//! one that the target compresses: a mutation usually breaks LZ4. A batch that decodes must encode
//! to bytes that decode to the same batch.

use crate::Seed;
use miot_proto::batch::{BatchDecoder, Columns, MAX_ROWS, MAX_TEXT};
use miot_proto::event::{Event, Ext};
use miot_proto::op::posix;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let decoded = if mode & 1 == 0 { Columns::decode(bytes) } else { Columns::decode(&pack(bytes)) };
    let Ok(columns) = decoded else { return };
    let lengths = [
        columns.op.len(),
        columns.flags.len(),
        columns.request.len(),
        columns.enclosing.len(),
        columns.attempt.len(),
        columns.time.len(),
        columns.duration.len(),
        columns.handle.len(),
        columns.offset.len(),
        columns.length.len(),
        columns.result.len(),
    ];
    assert!(lengths.iter().all(|length| *length == columns.len()), "columns have equal lengths: {lengths:?}");
    assert!(columns.len() <= MAX_ROWS && columns.text.len() <= MAX_TEXT);
    let mut text = 0;
    for ext in &columns.ext {
        let (path1, path2) = columns.paths(ext);
        assert_eq!((path1.len(), path2.len()), (usize::from(ext.len1), usize::from(ext.len2)));
        assert_eq!(ext.text as usize, text, "paths are contiguous");
        assert!((ext.row as usize) < columns.len());
        text += path1.len() + path2.len();
    }
    assert_eq!(text, columns.text.len());
    let (mut scratch, mut again) = (Vec::new(), Vec::new());
    columns.encode(&mut scratch, &mut again);
    // The memory of any earlier batch does not matter.
    let (mut decoder, mut used) = (BatchDecoder::default(), columns.clone());
    let _ = decoder.decode(bytes, &mut used);
    assert_eq!(decoder.decode(&again, &mut used), Ok(()), "a decoded batch is encoded");
    assert_eq!(used, columns, "a decoded batch round-trips");
}

/// Compresses like `Columns::encode`, but into literals only.
fn pack(plain: &[u8]) -> Vec<u8> {
    let mut packed = (plain.len() as u32).to_le_bytes().to_vec();
    packed.push(plain.len().min(15) as u8 * 16);
    if let Some(mut more) = plain.len().checked_sub(15) {
        while more >= 255 {
            packed.push(255);
            more -= 255;
        }
        packed.push(more as u8);
    }
    packed.extend_from_slice(plain);
    packed
}

/// Returns small batches, compressed and uncompressed.
pub fn seeds() -> Vec<Seed> {
    let (mut packed, mut plain) = (vec![0], Vec::new());
    sample().encode(&mut plain, &mut packed);
    let size = packed.get(1..5).map_or(0, |size| size.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)));
    let plain = [&[1], plain.get(..size).unwrap_or_default()].concat();
    vec![("packed", packed), ("plain", plain), ("empty", vec![1, 0, 0])]
}

pub(crate) fn sample() -> Columns {
    let mut columns = Columns::default();
    for i in 0..6u64 {
        let event = Event {
            op: posix::READ,
            request: i as u32 * 2 + 5,
            enclosing: u32::from(i == 3) * 4,
            end: 0,
            duration: 0,
            flags: 1 << (i * 2),
            handle: 3 + i % 2,
            offset: i * 4096,
            length: 4096,
            result: if i == 4 { -5 } else { 4096 },
        };
        let ext = Ext {
            handle2: Some(7),
            cpu_time: (i == 2).then_some(99),
            path1: b"/a/b",
            path2: b"c",
            ..Ext::default()
        };
        columns.push(
            1,
            i + i / 3,
            1_700_000_000_000_000_000 + i as i64 * 1000,
            800,
            &event,
            (i % 2 == 0).then_some(&ext),
        );
    }
    columns
}
