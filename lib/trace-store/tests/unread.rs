//! Bits flip, files are truncated or removed: a reader returns true rows only, and reports when
//! some are missing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use common::*;
use miot_trace_store::{Error, Follow, Options, Reader, Select, Table, UnreadLog, Writer, follow};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Pseudo-random numbers. The seed is printed; MIOT_SEED sets it.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let given = std::env::var("MIOT_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
        eprintln!("MIOT_SEED={seed}");
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n as u64) as usize
    }
}

/// Writes two sealed parts and a live one of three messages, with side tables in each.
fn trace(dir: &Path) {
    let mut writer = Writer::create(dir, Options::default()).unwrap();
    sides(&mut writer);
    for part in 0..2 {
        writer.append(Table::Files, &files(&[(part + 2, None)])).unwrap();
        writer.append(Table::Events, &events(&turn(part * 60, part * 60 + 60))).unwrap();
        writer.seal().unwrap();
    }
    while dir.join("live").read_dir().unwrap().next().is_some() {
        std::thread::yield_now();
    }
    writer.append(Table::Files, &files(&[(5, None)])).unwrap();
    for message in 0..3 {
        writer.append(Table::Events, &events(&turn(120 + message * 6, 126 + message * 6))).unwrap();
        writer.commit().unwrap();
    }
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { out.extend(all_files(&path)) } else { out.push(path) }
    }
    out.sort();
    out
}

fn lines(batch: &RecordBatch) -> Vec<String> {
    (0..batch.num_rows())
        .map(|row| {
            let cells = batch.columns().iter().map(|column| {
                if column.is_null(row) {
                    return "-".to_owned();
                }
                match column.data_type() {
                    DataType::Timestamp(..) => {
                        column.as_primitive::<TimestampNanosecondType>().value(row).to_string()
                    }
                    DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
                    DataType::Int32 => column.as_primitive::<Int32Type>().value(row).to_string(),
                    DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
                    DataType::Binary => format!("{:?}", column.as_binary::<i32>().value(row)),
                    _ => {
                        let names = column.as_any_dictionary();
                        let key = names.normalized_keys()[row];
                        names.values().as_string::<i32>().value(key).to_owned()
                    }
                }
            });
            cells.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Result of one way of reading.
struct Given {
    way: String,
    lines: Vec<String>,
    /// It reported damage.
    has_reported: bool,
}

fn given(
    way: &str,
    opened: Result<UnreadLog, Error>,
    batches: impl IntoIterator<Item = Result<RecordBatch, Error>>,
) -> Given {
    let (mut all, mut failed) = (Vec::new(), opened.is_err());
    for batch in batches {
        match batch {
            Ok(batch) => all.extend(lines(&batch)),
            Err(_) => failed = true,
        }
    }
    let has_reported = failed || opened.is_ok_and(|notes| !notes.is_empty());
    Given { way: way.to_owned(), lines: all, has_reported }
}

/// Reads a trace in every way that commands use.
fn read(dir: &Path) -> Vec<Given> {
    let mut all = Vec::new();
    match Reader::tolerant(dir) {
        Ok(reader) => {
            let rows: Vec<_> = match reader.rows() {
                Ok(rows) => rows.collect(),
                Err(error) => vec![Err(error)],
            };
            all.push(given("rows", Ok(reader.unread()), rows));
        }
        Err(error) => all.push(given("rows", Err(error), [])),
    }
    let selected = [Select::all(), Select::columns(&["stream", "seq"]).between(1_000_300..1_000_900)];
    for (number, select) in selected.iter().enumerate() {
        let reader = Reader::tolerant(dir);
        let batches: Vec<_> = match reader.as_ref().map(|reader| reader.scan(select)) {
            Ok(Ok(scan)) => scan.collect(),
            Ok(Err(error)) => vec![Err(error)],
            Err(_) => Vec::new(),
        };
        all.push(given(&format!("scan {number}"), reader.map(|reader| reader.unread()), batches));
    }
    for table in Table::SIDE {
        let reader = Reader::tolerant(dir);
        let batches: Vec<_> =
            reader.as_ref().map_or_else(|_| Vec::new(), |reader| reader.batches(table).collect());
        all.push(given(table.name(), reader.map(|reader| reader.unread()), batches));
    }
    let follow = Follow::tolerant(dir, follow::FollowFrom::Start);
    let mut batches = Vec::new();
    let notes = follow.map(|mut follow| {
        loop {
            match follow.poll() {
                Ok(polled) if polled.is_empty() => break follow.unread(),
                Ok(polled) => batches.extend(polled.into_iter().map(Ok)),
                Err(error) => {
                    batches.push(Err(error));
                    break follow.unread();
                }
            }
        }
    });
    all.push(given("follow", notes, batches));
    all
}

/// Asserts that each way returns the true rows, or reports that some or their names are missing.
#[track_caller]
fn judge(truth: &[Given], found: &[Given], what: &str) {
    for (truth, found) in truth.iter().zip(found) {
        assert_eq!(truth.way, found.way);
        if found.lines == truth.lines {
            continue;
        }
        assert!(found.has_reported, "{what}: {} does not report missing rows", found.way);
        // Without the names, which may be unreadable.
        let has_names = ["rows", "follow"].contains(&found.way.as_str());
        let bare = |line: &String| match has_names {
            true => line.split(' ').take(29).collect::<Vec<_>>().join(" "),
            false => line.clone(),
        };
        let known: BTreeSet<String> = truth.lines.iter().map(bare).collect();
        for line in found.lines.iter().map(bare) {
            assert!(known.contains(&line), "{what}: {} returns a wrong row: {line}", found.way);
        }
        let distinct: BTreeSet<String> = found.lines.iter().map(bare).collect();
        assert_eq!(distinct.len(), found.lines.len().min(known.len()), "{what}: {} repeats rows", found.way);
    }
}

#[test]
fn readers_return_true_rows_and_log_the_rest() {
    let mut random = Random::new();
    let temp = tempfile::tempdir().unwrap();
    let (good, dir) = (temp.path().join("good"), temp.path().join("trace"));
    trace(&good);
    let truth = read(&good);
    assert!(truth.iter().all(|given| !given.has_reported));
    assert_eq!(truth[0].lines.len(), 138);
    let rounds: usize = std::env::var("MIOT_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap());
    for file in all_files(&good) {
        let file = file.strip_prefix(&good).unwrap();
        let bytes = std::fs::read(good.join(file)).unwrap();
        let is_live = file.starts_with("live");
        for round in 0..rounds {
            let _ = std::fs::remove_dir_all(&dir);
            copy(&good, &dir);
            let at = random.below(bytes.len());
            let what = match round {
                // A missing file of the live part may never have existed; a truncated one may have
                // been that short.
                0 if !is_live => {
                    std::fs::remove_file(dir.join(file)).unwrap();
                    format!("{}: removed", file.display())
                }
                1 if !is_live => {
                    std::fs::write(dir.join(file), &bytes[..at]).unwrap();
                    format!("{}: cut at {at} of {}", file.display(), bytes.len())
                }
                2 => {
                    let mut bytes = bytes.clone();
                    let end = bytes.len().min(at + 1 + random.below(64));
                    bytes[at..end].fill(0);
                    std::fs::write(dir.join(file), &bytes).unwrap();
                    format!("{}: {} bytes from {at} are zero", file.display(), end - at)
                }
                _ => {
                    let (mut bytes, bit) = (bytes.clone(), random.below(8));
                    bytes[at] ^= 1 << bit;
                    std::fs::write(dir.join(file), &bytes).unwrap();
                    format!("{}: bit {bit} of byte {at} flipped", file.display())
                }
            };
            judge(&truth, &read(&dir), &what);
        }
    }
}

/// A live stream ends where its writer has stopped writing, which is not damage.
#[test]
fn truncated_live_stream_is_not_damage() {
    let temp = tempfile::tempdir().unwrap();
    let (good, dir) = (temp.path().join("good"), temp.path().join("trace"));
    trace(&good);
    copy(&good, &dir);
    let name = "live/part-000002.events.arrows";
    let bytes = std::fs::read(good.join(name)).unwrap();
    // All kinds of positions: messages and their sections begin at multiples of eight.
    for end in (0..bytes.len()).step_by(13) {
        std::fs::write(dir.join(name), &bytes[..end]).unwrap();
        let reader = Reader::tolerant(&dir).unwrap();
        let rows: usize =
            reader.scan(&Select::columns(&[]).live()).unwrap().map(|batch| batch.unwrap().num_rows()).sum();
        assert!(rows <= 18 && rows.is_multiple_of(6), "{rows} rows");
        assert!(reader.unread().is_empty(), "cut at {end}: {:?}", reader.unread().all());
    }
}

#[test]
fn skipped_data_is_logged_with_its_rows() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    trace(&dir);
    let part = dir.join("events/part-000001.parquet");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&part, &bytes).unwrap();
    std::fs::remove_file(dir.join("files/part-000001.parquet")).unwrap();
    let live = dir.join("live/part-000002.events.arrows");
    let mut bytes = std::fs::read(&live).unwrap();
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    std::fs::write(&live, &bytes).unwrap();

    let reader = Reader::tolerant(&dir).unwrap();
    let rows: usize = reader.rows().unwrap().map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, 60 + 12);
    let said: Vec<String> = reader.unread().all().iter().map(ToString::to_string).collect();
    let [events, files, live] = &said[..] else { panic!("{said:?}") };
    assert_eq!(
        events,
        "events/part-000001.parquet: row group 0 is not what was written; 60 rows are not read"
    );
    assert_eq!(files, "files/part-000001.parquet: it is missing; 1 row is not read");
    assert!(live.starts_with("live/part-000002.events.arrows: the message at byte "), "{live}");
    assert!(live.ends_with(" bytes are not read"), "{live}");
    assert_eq!(reader.unread().rows(), 61);
    // A reader that is not tolerant returns an error.
    let strict = Reader::open(&dir).unwrap();
    assert!(strict.events().any(|batch| matches!(batch, Err(Error::Damaged { .. }))));
}

/// Only the ids of its events show which side tables a live part must have.
#[test]
fn missing_live_side_table_is_detected() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("trace");
    let mut writer = Writer::create(&dir, Options::default()).unwrap();
    sides(&mut writer);
    writer.append(Table::Events, &events(&turn(0, 60))).unwrap();
    writer.seal().unwrap();
    let of_file = |file| turn(60, 90).into_iter().map(move |event| Ev { file: Some(file), ..event });
    writer.append(Table::Files, &files(&[(2, None)])).unwrap();
    writer.append(Table::Events, &events(&of_file(2).collect::<Vec<_>>())).unwrap();
    writer.commit().unwrap();
    let said = || -> Vec<String> {
        let reader = Reader::tolerant(&dir).unwrap();
        let rows: usize =
            reader.scan(&Select::columns(&[])).unwrap().map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(rows, 90);
        reader.unread().all().iter().map(ToString::to_string).collect()
    };
    assert_eq!(said(), [""; 0]);
    std::fs::remove_file(dir.join("live/part-000001.files.arrows")).unwrap();
    assert_eq!(said(), ["live/part-000001.files.arrows: rows for file 2 to 2 are missing"]);
}
