//! The Common Trace Format 1.8, which babeltrace2 and Trace Compass read.
//!
//! A CTF trace is a directory: `metadata`, text that describes every type of event, and streams of
//! packets of such events. Here an event represents a completed request, at the time of its
//! completion. Its name is `layer:operation`. Fields that the request does not have are omitted:
//! there is an event type for each combination of operation and fields that occurs.
//!
//! Events of a stream must be in order of time. Each node has a separate stream. Rows that arrive
//! after later ones (the trace marks them as late) are sorted into further streams of [`WAITING`]
//! bytes each, so that readers find all rows in order. Each packet records the number of events
//! that the tracer had lost up to the end of the packet.
//!
//! | module | role |
//! |---|---|
//! | `packet` | bytes of packets and of events |
//! | `metadata` | metadata in TSDL |

mod metadata;
mod packet;

use arrow_array::RecordBatch;
use arrow_array::types::{TimestampNanosecondType, UInt64Type};
use metadata::EventType;
use miot_trace_events::row::{self, Column, ColumnType, EventRow, Value};
use miot_trace_store::schema::{self, column, text};
use packet::Packet;
use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Size of the events of a packet in bytes.
const PACKET: usize = 256 << 10;

/// Maximum size, in bytes, of the waiting events of all nodes. Late events have the same limit in
/// addition.
const WAITING: usize = 64 << 20;

/// Columns in the context of every event.
const CONTEXT: [&str; 6] = ["node", "process", "pid", "tid", "comm", "stream"];

/// Columns without a field: the time and the name of the event contain them.
const IMPLIED: [&str; 3] = ["time", "layer", "op"];

/// Losses of a node that no packet has recorded yet: number by time.
type Losses = BTreeMap<u64, u64>;

/// Writes a trace.
#[derive(Debug)]
pub struct Ctf {
    dir: PathBuf,
    uuid: [u8; 16],
    context: Vec<&'static Column>,
    fields: Vec<&'static Column>,
    types: HashMap<String, HashMap<u64, u32>>,
    described: Vec<EventType>,
    nodes: HashMap<String, Node>,
    streams: u64,
    waiting: usize,
    waiting_late: usize,
}

#[derive(Debug, Default)]
struct Node {
    stream: Option<Stream>,
    /// Events that arrived after later ones: time and bytes.
    late: Vec<(u64, Vec<u8>)>,
    losses: Losses,
}

/// A stream file.
#[derive(Debug)]
struct Stream {
    number: u64,
    packets: u64,
    /// Time of the last event, or end of the last packet.
    last: u64,
    lost: u64,
    packet: Packet,
}

impl Ctf {
    /// Starts a trace in an empty directory. The UUID is derived from `identity`.
    #[must_use]
    pub fn new(dir: &Path, identity: &str) -> Ctf {
        let mut fields = row::columns_by_schema();
        fields.retain(|column| !CONTEXT.contains(&column.name) && !IMPLIED.contains(&column.name));
        Ctf {
            dir: dir.to_owned(),
            uuid: uuid(identity),
            context: CONTEXT.iter().filter_map(|name| Column::named(name)).collect(),
            fields,
            types: HashMap::new(),
            described: Vec::new(),
            nodes: HashMap::new(),
            streams: 0,
            waiting: 0,
            waiting_late: 0,
        }
    }

    /// Adds rows of the table `losses`. They must be added before the events.
    pub fn losses(&mut self, batch: &RecordBatch) {
        let columns = (
            column::<TimestampNanosecondType>(batch, "time"),
            text(batch, "node"),
            text(batch, "place"),
            column::<UInt64Type>(batch, "count"),
        );
        let (Some(times), Some(nodes), Some(places), Some(counts)) = columns else { return };
        for row in 0..batch.num_rows() {
            if schema::is_loss(places.value(row)) {
                let node = self.nodes.entry(nodes.value(row).to_owned()).or_default();
                let count = node.losses.entry(stamp(times.value(row))).or_default();
                *count = count.saturating_add(counts.value(row));
            }
        }
    }

    /// Adds events in the schema of `miot_trace_store::schema::rows`, in the order of the trace.
    ///
    /// # Errors
    /// Errors of writing; missing columns.
    pub fn add(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let columns = row::columns(batch)?;
        let mut event = Vec::new();
        let mut name = String::new();
        for i in 0..columns.rows() {
            let row = EventRow::of(&columns, i);
            name.clear();
            name.extend([row.layer, ":", row.op]);
            event.clear();
            packet::event_header(&mut event, 0, stamp(row.time));
            for column in &self.context {
                let value = column.value(&row).unwrap_or_else(|| zero(column.column_type));
                packet::field(&mut event, column.column_type, &value);
            }
            let mut present = 0;
            for (bit, column) in self.fields.iter().enumerate() {
                if let Some(value) = column.value(&row) {
                    packet::field(&mut event, column.column_type, &value);
                    present |= 1 << bit;
                }
            }
            if row.time < 0 {
                packet::field(&mut event, ColumnType::Time, &Value::Time(row.time));
                present |= metadata::BEFORE_1970;
            }
            let number = self.type_of(&name, present);
            packet::set_type(&mut event, number);
            self.put(row.node, stamp(row.time), &event)?;
        }
        Ok(())
    }

    /// Returns the number of the event type with this name and these fields.
    fn type_of(&mut self, name: &str, present: u64) -> u32 {
        if let Some(number) = self.types.get(name).and_then(|types| types.get(&present)) {
            return *number;
        }
        let number = self.described.len() as u32;
        self.described.push(EventType { name: name.to_owned(), present });
        self.types.entry(name.to_owned()).or_default().insert(present, number);
        number
    }

    fn put(&mut self, node: &str, time: u64, event: &[u8]) -> io::Result<()> {
        if !self.nodes.contains_key(node) {
            self.nodes.insert(node.to_owned(), Node::default());
        }
        let Some(of) = self.nodes.get_mut(node) else { return Ok(()) };
        let stream = of.stream.get_or_insert_with(|| Stream::new(&mut self.streams));
        if time < stream.last {
            of.late.push((time, event.to_vec()));
            self.waiting_late += event.len();
            if self.waiting_late > WAITING {
                self.write_late()?;
            }
            return Ok(());
        }
        stream.last = time;
        stream.packet.push(time, event);
        self.waiting += event.len();
        if stream.packet.len() >= PACKET {
            self.waiting -= stream.packet.len();
            stream.write(&self.dir, &self.uuid, &mut of.losses)?;
        } else if self.waiting > WAITING {
            self.waiting = 0;
            for node in self.nodes.values_mut() {
                if let Some(stream) = node.stream.as_mut().filter(|stream| stream.packet.len() > 0) {
                    stream.write(&self.dir, &self.uuid, &mut node.losses)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the late events, one stream per node.
    fn write_late(&mut self) -> io::Result<()> {
        self.waiting_late = 0;
        for node in self.nodes.values_mut().filter(|node| !node.late.is_empty()) {
            let mut events = std::mem::take(&mut node.late);
            events.sort_by_key(|(time, _)| *time);
            let mut stream = Stream::new(&mut self.streams);
            for (time, event) in events {
                stream.packet.push(time, &event);
                if stream.packet.len() >= PACKET {
                    stream.write(&self.dir, &self.uuid, &mut Losses::new())?;
                }
            }
            if stream.packet.len() > 0 {
                stream.write(&self.dir, &self.uuid, &mut Losses::new())?;
            }
        }
        Ok(())
    }

    /// Writes the remaining events and the metadata. `tracer` is the name and version of the
    /// recording tracer, as the trace states them.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self, tracer: &str) -> io::Result<()> {
        self.write_late()?;
        for node in self.nodes.values_mut() {
            if let Some((time, _)) = node.losses.last_key_value() {
                let stream = node.stream.get_or_insert_with(|| Stream::new(&mut self.streams));
                stream.last = stream.last.max(*time);
            }
            if let Some(stream) = &mut node.stream
                && (stream.packet.len() > 0 || !node.losses.is_empty())
            {
                stream.packet.end_at(stream.last);
                stream.write(&self.dir, &self.uuid, &mut node.losses)?;
            }
        }
        let path = self.dir.join("metadata");
        let text = metadata::text(&self.uuid, tracer, &self.context, &self.fields, &self.described);
        std::fs::write(&path, text).map_err(|error| named(error, &path))
    }
}

impl Stream {
    fn new(streams: &mut u64) -> Stream {
        *streams += 1;
        Stream { number: *streams - 1, packets: 0, last: 0, lost: 0, packet: Packet::default() }
    }

    /// Writes the packet, with the losses up to its end, and starts the next one.
    fn write(&mut self, dir: &Path, uuid: &[u8; 16], losses: &mut Losses) -> io::Result<()> {
        let end = self.packet.end();
        let later = losses.split_off(&end.saturating_add(1));
        let lost = std::mem::replace(losses, later);
        self.lost = lost.values().fold(self.lost, |sum, count| sum.saturating_add(*count));
        let path = dir.join(format!("stream_{}", self.number));
        let begin = self.packet.begin();
        let mut header = packet::Header { uuid, stream: self.number, number: self.packets, lost: self.lost };
        let written = OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| {
            if self.packets == 0 && self.lost > 0 {
                // Readers do not know when the losses of a first packet began, so an empty packet
                // precedes it.
                let none = packet::Header { lost: 0, ..header };
                file.write_all(Packet::empty(begin).close(&none))?;
                header.number += 1;
            }
            file.write_all(self.packet.close(&header))
        });
        written.map_err(|error| named(error, &path))?;
        self.packets = header.number;
        self.packet.clear();
        self.packets += 1;
        Ok(())
    }
}

/// Returns nanoseconds since 1970 as a clock value. Clocks do not go below 0.
fn stamp(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}

fn zero(column_type: ColumnType) -> Value<'static> {
    match column_type {
        ColumnType::Time => Value::Time(0),
        ColumnType::Signed => Value::Signed(0),
        ColumnType::Unsigned(_) => Value::Unsigned(0),
        ColumnType::Text => Value::Text("".into()),
    }
}

/// Returns 128 bits that depend only on the text.
fn uuid(identity: &str) -> [u8; 16] {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, identity).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    let mut bytes = (half(0) << 64 | half(1)).to_be_bytes();
    // Version and variant of RFC 9562: custom (version 8).
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn named(error: io::Error, path: &Path) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space there, or choose another directory"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot write {}: {error}{hint}", path.display()))
}
