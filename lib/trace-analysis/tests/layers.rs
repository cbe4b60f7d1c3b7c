//! Comparison of layers, for a trace with known rows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_trace_analysis::{LayerRow, Layers};
use miot_trace_events::testing::{EventValues, batch, row};

fn layers(batches: &[&[EventValues]]) -> Vec<LayerRow> {
    let mut layers = Layers::default();
    batches.iter().for_each(|rows| layers.add(&batch(rows)));
    layers.finish()
}

/// A write of 100 bytes by data sieving: 4096 bytes are read and written back. A file-system client
/// writes them in two requests. In addition there is a read without a parent.
#[test]
fn a_sieved_write_is_amplified() {
    let mpi =
        EventValues { layer: "mpi-io", request: 1, length: Some(100), ..row("write_at", 1, 100, 1000, 1000) };
    let posix = |op, request, begin| EventValues {
        request,
        enclosing: Some(1),
        length: Some(4096),
        ..row(op, 1, 4096, begin, 200)
    };
    let client = |begin| EventValues {
        layer: "client",
        process: 2,
        tid: 70,
        caller: Some(10),
        length: Some(2048),
        ..row("write", 1, 2048, begin, 50)
    };
    let alone = EventValues { request: 9, length: Some(10), ..row("read", 1, 5, 3000, 10) };
    let found = layers(&[
        &[posix("pread", 2, 1100), client(1410), client(1480)],
        &[posix("pwrite", 3, 1400), mpi, alone],
    ]);
    let shown: Vec<_> = found
        .iter()
        .map(|r| {
            let bytes = (r.read_asked, r.read_moved, r.write_asked, r.write_moved);
            (r.layer.as_str(), r.above.as_deref(), r.calls, bytes, r.time)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("mpi-io", None, 1, (0, 0, 100, 100), 1000),
            ("posix", None, 1, (10, 5, 0, 0), 10),
            ("posix", Some("mpi-io"), 2, (4096, 4096, 4096, 4096), 400),
            ("client", Some("posix"), 2, (0, 0, 4096, 4096), 100),
        ]
    );
    let ratios: Vec<_> =
        found.iter().map(|r| (r.calls_per_call, r.read_amplification, r.write_amplification)).collect();
    assert_eq!(
        ratios,
        [
            (None, None, None),
            (None, None, None),
            (Some(2.0), None, Some(40.96)),
            (Some(2.0 / 3.0), Some(0.0), Some(1.0)),
        ]
    );
}
