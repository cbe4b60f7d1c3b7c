//! Parents of POSIX requests in Darshan DXT text.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::op::Layer;
use miot_trace_events::{Event, EventNames, Events, Outermost};
use miot_trace_exchange::TraceBuilder;
use miot_trace_exchange::dxt::Import;
use miot_trace_exchange::import::OnError;
use miot_trace_store as store;

const HEADER: &str = "# exe: /x\n# uid: 1\n# start_time: 1700000000\n# nprocs: 2\n";

/// The events of a text, in the order of the trace.
fn imported(text: &str) -> Vec<Event> {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("trace");
    let mut builder = TraceBuilder::create(&dir).unwrap();
    let mut import = Import::new(&mut builder, OnError::Stop);
    for (number, line) in [HEADER, text].concat().lines().enumerate() {
        import.line("text", number as u64 + 1, line.as_bytes()).unwrap();
    }
    let _ = import.finish().unwrap();
    builder.finish(|_| {}).unwrap();
    let reader = store::Reader::open(&dir).unwrap();
    let (mut names, mut all) = (EventNames::default(), Vec::new());
    for batch in reader.events() {
        all.extend(Events::of(&batch.unwrap(), &mut names).unwrap());
    }
    all
}

fn record(file: &str, rank: u32, lines: &[&str]) -> String {
    let mut text = format!("# DXT, file_id: 7, file_name: {file}\n# DXT, rank: {rank}, hostname: n{rank}\n");
    lines.iter().for_each(|line| text += &format!(" {line}\n"));
    text
}

/// Offset of each POSIX request, and that of its parent.
fn parents(events: &[Event]) -> Vec<(i64, Option<i64>)> {
    let posix = events.iter().filter(|event| event.layer == Some(Layer::Posix));
    let parent = |event: &Event| {
        let number = event.enclosing?;
        let is_parent = |other: &&Event| {
            (other.process, other.stream, other.request) == (event.process, event.stream, number)
        };
        let parent = events.iter().find(is_parent).expect("a request of the same thread");
        assert_eq!((parent.layer, parent.file), (Some(Layer::MpiIo), event.file));
        assert!(parent.begin <= event.begin && event.end <= parent.end);
        Some(parent.offset.unwrap_or(-1))
    };
    let mut found: Vec<_> = posix.map(|event| (event.offset.unwrap(), parent(event))).collect();
    found.sort_unstable();
    found
}

/// Bytes of outermost requests.
fn bytes(events: &[Event]) -> u64 {
    let mut outermost = Outermost::default();
    events.iter().filter(|event| outermost.is(event)).map(Event::moved).sum()
}

#[test]
fn posix_requests_have_the_mpi_io_request_around_them_as_parent() {
    let text = [
        record(
            "/f",
            0,
            &[
                "X_POSIX 0 write 0 0    100 1.0001 1.0002",
                "X_POSIX 0 write 1 100  100 2.0000 2.0000",
                "X_POSIX 0 write 2 200  100 2.0000 2.0000",
                "X_POSIX 0 read  0 300  400 3.0001 3.0002",
                "X_POSIX 0 write 3 300  100 3.0003 3.0010",
                "X_POSIX 0 write 4 9000 100 9.0000 9.0001",
            ],
        ),
        record("/g", 0, &["X_POSIX 0 write 0 5000 10 1.0001 1.0002"]),
        record("/f", 1, &["X_POSIX 1 write 0 6000 10 1.0001 1.0002"]),
        record(
            "/f",
            0,
            &[
                // Two short requests with the same times; the bytes show which is whose.
                "X_MPIIO 0 write 0 0   100 1.0000 1.0003",
                "X_MPIIO 0 write 1 100 100 2.0000 2.0000",
                "X_MPIIO 0 write 2 200 100 2.0000 2.0000",
                "X_MPIIO 0 write 3 300 100 3.0000 3.0010",
                "X_MPIIO 0 read  0 8990 100 8.0000 9.5000",
            ],
        ),
    ]
    .concat();
    let events = imported(&text);
    let expected = [
        (0, Some(0)),
        (100, Some(100)),
        (200, Some(200)),
        // Data sieving reads more than is written.
        (300, Some(300)),
        (300, Some(300)),
        // Another file, another rank; nothing is written within a read.
        (5000, None),
        (6000, None),
        (9000, None),
    ];
    assert_eq!(parents(&events), expected);
    assert_eq!(bytes(&events), 5 * 100 + 10 + 10 + 100);
}

/// As Darshan 3.5 records: MPI-IO requests without offsets.
#[test]
fn requests_without_offsets_are_parents_by_time() {
    let text = [
        record(
            "/f",
            0,
            &["X_MPIIO 0 write 0 -1 100 1.0000 1.0003", "X_MPIIO 0 write 1 -1 100 2.0000 2.0003"],
        ),
        record(
            "/f",
            0,
            &[
                "X_POSIX 0 write 0 0   100 1.0001 1.0003",
                "X_POSIX 0 write 1 100 100 2.0000 2.0001",
                "X_POSIX 0 write 2 200 100 2.0002 2.0004",
            ],
        ),
    ]
    .concat();
    let events = imported(&text);
    assert_eq!(parents(&events), [(0, Some(-1)), (100, Some(-1)), (200, None)]);
    assert_eq!(bytes(&events), 300);
}
