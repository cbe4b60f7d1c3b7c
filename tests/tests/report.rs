//! `miot report`, opened in a browser: the page shows the programs' requests and the figures of
//! `miot stat`, and uses no network.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use arrow_array::{ArrayRef, StringArray, TimestampNanosecondArray, UInt64Array, new_null_array};
use miot_proto::op::by_name;
use miot_tests::browser::Browser;
use miot_tests::built::built;
use miot_tests::mpi;
use miot_tests::process::{Ended, run, until};
use miot_tests::test_dir::fresh;
use miot_tests::traced::traced;
use miot_trace_exchange::build::{Event, Process, TraceBuilder};
use miot_trace_store::{Options, Table, Writer, schema};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const SECOND: i64 = 1_000_000_000;
/// 2026-01-01.
const START: i64 = 1_767_225_600 * SECOND;

fn miot(words: &[&str], trace: &Path) -> Ended {
    run(Command::new(&built().miot).args(words).arg(trace))
}

fn json_of(words: &[&str], trace: &Path) -> Value {
    serde_json::from_str(&miot(words, trace).success().stdout).expect("JSON")
}

/// Writes a report and returns its path.
fn report(trace: &Path, options: &[&str]) -> PathBuf {
    let page = trace.with_extension("html");
    let words = [&["report", "-o", page.to_str().unwrap()][..], options].concat();
    let _ = miot(&words, trace).success();
    page
}

/// Opens a page and checks that it is self-contained.
fn opened(page: &Path) -> Browser {
    let mut browser = Browser::start();
    browser.open(&format!("file://{}", page.display())).unwrap();
    browser.shows("document.readyState === 'complete'");
    browser
}

/// Checks that the page has requested only itself and has no errors.
#[track_caller]
fn assert_self_contained(browser: &mut Browser) {
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let others: Vec<_> = browser
        .asked()
        .iter()
        .filter(|url| !url.starts_with("file://") && !url.starts_with("data:"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(browser.asked().iter().filter(|url| url.starts_with("file://")).count(), 1);
}

/// Rows of a table: their keys, and the exact value of each cell.
fn table(browser: &mut Browser, name: &str) -> Vec<(String, Vec<Value>)> {
    let found = browser.value(&format!(
        "[...document.querySelectorAll('#{name} tbody tr')].map((row) => [row.dataset.key, [...row.cells].map(
            (cell) => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value))])"
    ));
    serde_json::from_value(found).unwrap()
}

fn totals(browser: &mut Browser) -> Value {
    browser.value(
        "Object.fromEntries([...document.querySelectorAll('[data-total]')].map((e) => [e.dataset.total, Number(e.dataset.value)]))",
    )
}

/// Checks that all of `subset` is in `all`.
#[track_caller]
fn assert_within(subset: &Value, all: &Value) {
    for (key, value) in subset.as_object().unwrap() {
        assert_eq!(value, &all[key], "{key}");
    }
}

/// Checks that the page has every figure of `miot stat`.
#[track_caller]
fn assert_as_stat(browser: &mut Browser, trace: &Path) {
    let stat = json_of(&["stat", "--format", "json", "--files", "50"], trace);
    assert_within(&totals(browser), &stat["totals"]);
    let rows = |name: &str, key: &dyn Fn(&Value) -> String, columns: &[&str]| -> Vec<(String, Vec<Value>)> {
        let rows = stat[name].as_array().unwrap().iter();
        rows.map(|row| (key(row), columns.iter().map(|column| row[column].clone()).collect())).collect()
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let columns = ["layer", "op", "count", "failed", "bytes", "time"];
    let expected =
        rows("operations", &|row| format!("{} {}", text(&row["layer"]), text(&row["op"])), &columns);
    let found = table(browser, "operations-table").into_iter().map(|(key, cells)| (key, cells[..6].to_vec()));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let columns = ["requests", "opens", "reads", "writes", "bytes_read", "bytes_written", "time", "path"];
    let expected = rows("files", &|row| row["file"].to_string(), &columns);
    assert_eq!(table(browser, "files-table"), expected);

    let by_file = json_of(&["stat", "--by", "file", "--format", "json"], trace);
    let by_file = by_file["rows"].as_array().unwrap();
    for (key, cells) in table(browser, "counted-files-table") {
        let row = by_file.iter().find(|row| format!("{} {}", text(&row["layer"]), text(&row["path"])) == key);
        let row = row.unwrap_or_else(|| panic!("{key}"));
        let columns = [
            "bytes_read",
            "bytes_written",
            "reads",
            "writes",
            "seq_reads_share",
            "seq_writes_share",
            "file_not_aligned",
            "rw_switches",
            "f_meta_time",
            "f_read_time",
            "f_write_time",
        ];
        for (cell, column) in cells[2..].iter().zip(columns) {
            let expected = row[column].as_f64().unwrap_or(-1.0);
            assert_eq!(cell.as_f64(), Some(expected), "{key} {column}");
        }
    }
}

/// Sixty-four blocks of 4 KiB are written, and after a pause of half a second read back twice.
#[test]
#[expect(clippy::too_many_lines, reason = "one scenario from start to end")]
fn page_shows_the_program_and_the_figures_of_stat() {
    let place = fresh("report-program");
    let trace = place.join("trace");
    let script = "dd if=/dev/zero of=out bs=4096 count=64 status=none; sleep 0.5
        dd if=out of=/dev/null bs=4096 status=none; dd if=out of=/dev/null bs=4096 status=none";
    let _ = traced(&place, &trace, &["sh", "-c", script]).success();
    let plots = place.join("plots");
    let page = report(&trace, &["--plots", plots.to_str().unwrap()]);
    let mut browser = opened(&page);
    assert_as_stat(&mut browser, &trace);

    let out = place.join("out").display().to_string();
    let files = table(&mut browser, "counted-files-table");
    let (_, cells) = files.iter().find(|(key, _)| *key == format!("posix {out}")).expect("the file");
    // Bytes read and written, reads (each dd makes one more, at the end of the file) and writes.
    assert_eq!(cells[2..6], [json!(2 * 64 * 4096), json!(64 * 4096), json!(2 * 65), json!(64)]);
    let sizes =
        browser.value("[...document.querySelectorAll('#sizes-figure rect title')].map((t) => t.textContent)");
    let sizes: Vec<String> = serde_json::from_value(sizes).unwrap();
    assert!(
        sizes.iter().any(|told| told.starts_with("64 written") && told.ends_with("≤ 10 KiB")),
        "{sizes:?}"
    );
    let idle = table(&mut browser, "idle-table");
    let (_, cells) = idle.iter().find(|(length, _)| length == "100000000").expect("0.1 s and more");
    assert!(cells[1].as_u64() >= Some(1) && cells[2].as_u64() >= Some(500_000_000), "{idle:?}");
    // The file was accessed from start to end three times, one of them writing.
    let model = json_of(&["report", "--format", "json", "-o", "-"], &trace);
    let accesses =
        model["accesses"].as_array().unwrap().iter().find(|of| of["path"] == out.as_str()).unwrap();
    assert_eq!(
        (&accesses["requests"], &accesses["lowest"], &accesses["highest"]),
        (&json!(192), &json!(0), &json!(64 * 4096 - 1))
    );
    let marks: Vec<(i64, i64, u8)> = serde_json::from_value(accesses["marks"].clone()).unwrap();
    // The highest row of each column: a delayed request marks several columns.
    let rows = |mark: u8| -> Vec<i64> {
        let mut highest = BTreeMap::new();
        for (column, row, _) in marks.iter().filter(|of| of.2 & mark > 0) {
            let high = highest.entry(*column).or_insert(*row);
            *high = (*high).max(*row);
        }
        highest.into_values().collect()
    };
    assert!(rows(2).is_sorted(), "one pass");
    // Both passes may be within one column.
    let read = rows(1);
    assert!(read.windows(2).filter(|pair| pair[1] < pair[0]).count() <= 1, "{marks:?}");
    assert_eq!(read.iter().max(), rows(2).iter().max());

    assert!(
        browser
            .value("document.getElementById('quality').innerText")
            .as_str()
            .unwrap()
            .contains("no event was lost")
    );
    // A click sorts the table.
    browser.click("#operations-table th:nth-child(3) button");
    let counts: Vec<i64> =
        table(&mut browser, "operations-table").iter().map(|(_, c)| c[2].as_i64().unwrap()).collect();
    assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    assert_self_contained(&mut browser);

    let shown =
        browser.value("[...document.querySelectorAll('figure')].map((f) => f.id.replace('-figure', ''))");
    let shown: Vec<String> = serde_json::from_value(shown).unwrap();
    for plot in ["throughput", "operations", "latency", "bursts", "activity", "sizes", "accesses-1", "ranks"]
    {
        assert!(shown.iter().any(|shown| shown == plot), "{plot} of {shown:?}");
    }
    let saved = place.join("saved");
    browser.save_into(&saved);
    let pictures = place.join("pictures");
    let page = place.join("again.html");
    let words = [
        "report",
        "--plot-format",
        "png",
        "-o",
        page.to_str().unwrap(),
        "--plots",
        pictures.to_str().unwrap(),
    ];
    let _ = miot(&words, &trace).success();
    let mut alone = Browser::start();
    for plot in &shown {
        let file = |dir: &Path, format: &str| dir.join(format!("{plot}.{format}"));
        for (number, format) in [(1, "svg"), (2, "png")] {
            browser.click(&format!("#{plot}-figure .save button:nth-child({number})"));
            until("the plot is saved", || file(&saved, format).exists());
        }
        assert_eq!(
            drawn(&mut alone, &file(&saved, "svg")),
            drawn(&mut alone, &file(&plots, "svg")),
            "{plot}"
        );
        assert_speaks_for_itself(&mut alone, plot);
        assert_eq!(size(&file(&saved, "png")), size(&file(&pictures, "png")), "{plot}");
    }
    // Twice the units of a full-width plot, including the text around it.
    assert_eq!(size(&pictures.join("throughput.png")), (2 * 1100, 2 * 332));
    // On the page itself these labels are hidden.
    let hidden =
        "[...document.querySelectorAll('.frame')].every((e) => getComputedStyle(e).display === 'none')";
    assert_eq!(browser.value(hidden), true);
}

/// Checks that the saved file of an open plot has labels, inside the picture and without overlaps.
#[track_caller]
fn assert_speaks_for_itself(browser: &mut Browser, plot: &str) {
    let time = "time since the first event";
    let said: &[&str] = match plot {
        "throughput" => {
            &["Throughput over time", "read, upwards", "written, downwards", time, "bytes per second"]
        }
        "operations" => &["Operations over time, by layer", "metadata", time, "operations per second"],
        "latency" => &["Latency over time", "99th percentile", time, "duration of requests"],
        "bursts" => &["Burstiness", "share of the time", "bytes per second"],
        "activity" => &["Idle times", "requests under way", time],
        "sizes" => &["Access sizes", "reads", "writes", "bytes that a request moved", "requests"],
        "ranks" => &["Time in I/O, by process", "process", "reading", "metadata", "time in posix"],
        accesses if accesses.starts_with("accesses-") => &["read", "written", time, "offset in the file"],
        other => panic!("{other} is not known"),
    };
    let texts = browser.value("[...document.querySelectorAll('.frame text')].map((e) => e.textContent)");
    let texts: Vec<String> = serde_json::from_value(texts).unwrap();
    for said in said {
        assert!(texts.iter().any(|text| text == said), "{plot}: {said} of {texts:?}");
    }
    assert!(!plot.starts_with("accesses-") || texts.iter().any(|text| text.starts_with("Accesses to ")));
    let outside = "(() => {
        const paper = document.querySelector('.paper').getBoundingClientRect();
        const inside = (box) => box.left >= paper.left && box.right <= paper.right && box.top >= paper.top && box.bottom <= paper.bottom;
        return [...document.querySelectorAll('.frame *')].filter((e) => !inside(e.getBoundingClientRect())).map((e) => e.outerHTML);
    })()";
    assert_eq!(browser.value(outside), json!([]), "{plot}");
    let covered = "(() => {
        const boxes = [...document.querySelectorAll('text')].map((e) => [e, e.getBoundingClientRect()]);
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
        return boxes.filter(([e, a]) => e.closest('.frame') && boxes.some(([f, b]) => e !== f && meet(a, b))).map(([e]) => e.outerHTML);
    })()";
    assert_eq!(browser.value(covered), json!([]), "{plot}");
}

/// Shapes of an SVG file as parsed by a browser, which must report no error.
fn drawn(browser: &mut Browser, file: &Path) -> Value {
    browser.open(&format!("file://{}", file.display())).unwrap();
    browser.shows("document.readyState === 'complete'");
    assert_eq!(browser.value("document.documentElement.tagName"), "svg", "{}", file.display());
    assert_eq!(browser.complaints(), Vec::<String>::new(), "{}", file.display());
    let shapes = browser.value("[...document.querySelectorAll('path, rect, text')].map((e) => [e.tagName, e.textContent,
        e.getAttribute('d'), getComputedStyle(e).fill, getComputedStyle(e).stroke, ...Object.values(e.getBoundingClientRect().toJSON())])");
    assert!(shapes.as_array().unwrap().len() > 1, "{}", file.display());
    shapes
}

/// Width and height of a PNG file of more than one color.
fn size(file: &Path) -> (u32, u32) {
    let bytes = std::fs::read(file).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n", "{}", file.display());
    assert!(bytes.len() > 3000, "{}: {} bytes", file.display(), bytes.len());
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

/// An output that cannot be written is reported before the trace is read, and no page remains.
#[test]
fn unwritable_output_is_reported_at_once() {
    let place = fresh("report-unwritable");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["cat", "/etc/passwd"]).success();
    // Reading this part would be an error.
    let part = first_part(&trace);
    std::fs::write(&part, "damaged").unwrap();
    let fails = |words: &[&str], says: &str| {
        let page = place.join("page.html");
        let words = [&["report", "-o", page.to_str().unwrap()][..], words].concat();
        let mut command = Command::new(&built().miot);
        let ended = run(command.args(words).arg(&trace).env("PATH", "/nonexistent"));
        assert_eq!(ended.code(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
        assert!(!page.exists());
    };
    let plots = place.join("plots");
    fails(&["--plots", plots.to_str().unwrap(), "--plot-format", "png"], "librsvg2-bin");
    fails(&["--plots", "/proc/plots"], "cannot create /proc/plots");
    let ended = miot(&["report", "-o", place.join("none/page.html").to_str().unwrap()], &trace);
    assert!(ended.stderr.contains("cannot write into") && ended.stderr.contains("none"), "{}", ended.stderr);
    fails(&[], "damaged");
}

/// Four ranks write a block in turn, and rank 0 reads all.
#[test]
fn ranks_of_a_program_are_distinguished() {
    let place = fresh("report-ranks");
    let program = mpi::compile(&place, "blocks", "blocks.c", &[]);
    let (trace, data) = (place.join("trace"), place.join("data"));
    let _ = mpi::traced(&trace, 4, &[], &[&program, &data]).success();
    let page = report(&trace, &[]);
    let mut browser = opened(&page);
    assert_as_stat(&mut browser, &trace);
    let ranks = table(&mut browser, "counted-ranks-table");
    let mpi: Vec<_> = ranks.iter().filter(|(_, cells)| cells[3] == "mpi-io").collect();
    let mut found: Vec<_> =
        mpi.iter().map(|(_, c)| (c[0].as_i64().unwrap(), c[4].clone(), c[5].clone())).collect();
    found.sort_by_key(|(rank, ..)| *rank);
    let written = json!(16 * 65536);
    let expected = (0..4).map(|rank| (rank, json!(if rank == 0 { 64 * 65536 } else { 0 }), written.clone()));
    assert_eq!(found, expected.collect::<Vec<_>>());
    browser.shows(
        "document.querySelector('#ranks-figure svg desc').textContent.includes('each rank in the layer mpi-io')",
    );
    let jobs = table(&mut browser, "jobs-table");
    assert!(jobs.iter().any(|(_, cells)| cells[1] == "mpi-io" && cells[2] == json!(4)), "{jobs:?}");
    assert_self_contained(&mut browser);
}

/// Names that would be markup, and names that are not text.
#[test]
fn hostile_names_stay_text() {
    let place = fresh("report-hostile");
    let names: [&[u8]; 5] = [
        // in a directory that has the first half of the name
        b"<script>document.title='got in'</script>",
        b"\"'><img src=x onerror=alert(1)>",
        b"\xff\xfe not text",
        b"\x1b]0;title\x07\n]]>&amp;&lt;",
        "\u{202e}fdp.exe".as_bytes(),
    ];
    std::fs::create_dir(place.join("<script>document.title='got in'<")).unwrap();
    let mut words = vec![OsString::from("tee")];
    words.extend(names.iter().map(|name| OsString::from_vec(name.to_vec())));
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &words).success();
    let plots = place.join("plots");
    let page = report(&trace, &["--plots", plots.to_str().unwrap()]);
    let mut browser = opened(&page);
    assert_as_stat_of_names(&mut browser);
    assert_eq!(browser.value("document.querySelectorAll('script').length"), 1);
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.value("document.title"), "trace – MIOT report");
    let paths: Vec<String> = table(&mut browser, "files-table")
        .into_iter()
        .filter_map(|(_, c)| c[7].as_str().map(str::to_owned))
        .collect();
    let has = |end: &str| paths.iter().any(|path| path.ends_with(end));
    assert!(
        has("<script>document.title='got in'</script>") && has("\"'><img src=x onerror=alert(1)>"),
        "{paths:?}"
    );
    assert!(has("\\xff\\xfe not text") && has("\\u{202e}fdp.exe"), "{paths:?}");
    assert_self_contained(&mut browser);
}

/// Checks that no cell has a control character.
fn assert_as_stat_of_names(browser: &mut Browser) {
    let clean = "![...document.querySelectorAll('td')].some((cell) => /[\\u0000-\\u001f\\u202a-\\u202e]/.test(cell.textContent))";
    assert_eq!(browser.value(clean), true);
}

#[test]
fn losses_make_the_figures_lower_bounds() {
    let place = fresh("report-losses");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["cat", "/etc/passwd"]).success();
    let (mut writer, _) = Writer::open(&trace, Options::default()).unwrap();
    let columns: Vec<ArrayRef> = schema::of(Table::Losses)
        .fields()
        .iter()
        .map(|field| -> ArrayRef {
            match field.name().as_str() {
                "time" => Arc::new(TimestampNanosecondArray::from(vec![START]).with_timezone("UTC")),
                "node" => Arc::new(StringArray::from(vec!["n1"])),
                "place" => Arc::new(StringArray::from(vec!["lane_full"])),
                "count" => Arc::new(UInt64Array::from(vec![41])),
                _ => new_null_array(field.data_type(), 1),
            }
        })
        .collect();
    let losses = schema::batch(Table::Losses, columns).unwrap();
    writer.append(Table::Losses, &losses).unwrap();
    let _ = writer.finish().unwrap();
    let mut browser = opened(&report(&trace, &[]));
    assert_eq!(totals(&mut browser)["lost"], 41);
    assert_as_stat(&mut browser, &trace);
    let quality = browser.value("document.getElementById('quality').innerText");
    let quality = quality.as_str().unwrap();
    assert!(
        quality.contains("Lower bounds: 41 events were lost") && quality.contains("lane_full"),
        "{quality}"
    );
    assert!(
        browser
            .value("document.querySelector('[data-total=requests]').textContent")
            .as_str()
            .unwrap()
            .starts_with('≥')
    );
    assert_self_contained(&mut browser);
}

#[test]
fn page_without_events_states_it() {
    let place = fresh("report-empty");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["cat", "/etc/passwd"]).success();
    let mut browser = opened(&report(&trace, &["--until", "2000-01-01T00:00:00Z"]));
    browser.shows("document.getElementById('summary').textContent === 'There are no events in this time.'");
    assert_eq!(totals(&mut browser)["requests"], 0);
    assert_self_contained(&mut browser);
    let nothing = place.join("nothing");
    let _ = Writer::create(&nothing, Options::default()).unwrap().finish().unwrap();
    let mut browser = opened(&report(&nothing, &[]));
    browser.shows("document.getElementById('summary').textContent === 'There are no events in this time.'");
    assert_self_contained(&mut browser);
}

#[test]
fn damaged_trace_gives_an_error_and_no_page() {
    let place = fresh("report-damaged");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["cat", "/etc/passwd"]).success();
    let part = trace.join("events/part-000000.parquet");
    let part = if part.exists() { part } else { first_part(&trace) };
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[..bytes.len() / 2]).unwrap();
    let page = place.join("page.html");
    let ended = miot(&["report", "-o", page.to_str().unwrap()], &trace);
    assert_eq!(ended.code(), 1);
    assert!(ended.stderr.contains("damaged") && ended.stderr.contains("part-"), "{}", ended.stderr);
    assert!(!page.exists());
}

/// The side tables of the part exist, so it must have had events.
#[test]
fn missing_part_is_reported() {
    let place = fresh("report-missing");
    let trace = place.join("trace");
    let _ = traced(&place, &trace, &["cat", "/etc/passwd"]).success();
    std::fs::remove_file(first_part(&trace)).unwrap();
    let stat = miot(&["stat"], &trace);
    let says = "part 0 of the trace is missing: figures are lower bounds; miot fsck";
    assert!(stat.code() == 4 && stat.stderr.contains(says), "{}", stat.stderr);
    let page = trace.with_extension("html");
    assert_eq!(miot(&["report", "-o", page.to_str().unwrap()], &trace).code(), 4);
    let mut browser = opened(&page);
    let quality = browser.value("document.getElementById('quality').innerText");
    let quality = quality.as_str().unwrap();
    assert!(quality.starts_with("Lower bounds: 1 part is missing"), "{quality}");
    assert_self_contained(&mut browser);
}

fn first_part(trace: &Path) -> PathBuf {
    let parts = std::fs::read_dir(trace.join("events")).unwrap();
    parts.map(|part| part.unwrap().path()).min().expect("a part")
}

/// Regions have a plot of their own and count neither as operations nor as durations of requests.
#[test]
fn regions_are_drawn_and_are_no_requests() {
    let trace = fresh("report-regions").join("trace");
    let mut build = TraceBuilder::create(&trace).unwrap();
    let process = build.process(Process { node: "n1".into(), pid: 7, ..Process::default() });
    let thread = build.thread(process, 7, "train");
    let op = |layer: &str, name: &str| by_name(layer, name).unwrap().op;
    for epoch in 0..3 {
        let at = |second: i64| START + (10 * epoch + second) * SECOND;
        for (name, from, to) in [("fetch", 0, 1), ("forward", 1, 8), ("checkpoint", 8, 9), ("epoch", 0, 9)] {
            let file = Some(build.file(process, name.as_bytes()).unwrap());
            let region = Event { file, ..Event::new(thread, op("app", "region"), at(from), at(to)) };
            build.event(&region).unwrap();
        }
        let file = Some(build.file(process, b"/data/samples").unwrap());
        let read = Event::new(thread, op("posix", "read"), at(0), at(0) + SECOND / 2);
        build.event(&Event { file, length: Some(1000), result: 1000, ..read }).unwrap();
    }
    let _ = build.finish(|_| ()).unwrap();
    let mut browser = opened(&report(&trace, &[]));
    let mut strips = |plot: &str| {
        browser.value(&format!(
            "[...document.querySelectorAll('#{plot}-figure svg > .strip')].map((e) => e.textContent)"
        ))
    };
    let names = ["epoch: 3 regions, 27 s", "forward: 3 regions, 21 s", "fetch: 3 regions, 3 s"];
    assert_eq!(
        strips("regions-over-time"),
        json!([names[0], names[1], names[2], "checkpoint: 3 regions, 3 s"])
    );
    assert_eq!(strips("operations"), json!(["posix"]));
    // Three bars of each color.
    let bars = "['meta', 'busy', 'read', 'written'].map((kind) => \
        document.querySelector('#regions-over-time-figure svg > path.' + kind).getAttribute('d').split('M').length - 1)";
    assert_eq!(browser.value(bars), json!([3, 3, 3, 3]));
    let model = json_of(&["report", "--format", "json", "-o", "-"], &trace);
    let durations =
        model["course"]["durations"].as_array().unwrap().iter().flat_map(|d| d.as_array().unwrap());
    assert_eq!(durations.map(|of| of[1].as_u64().unwrap()).sum::<u64>(), 3, "of requests only");
    assert_eq!(model["summary"]["operations"][0]["op"], "read", "regions come last");
}

/// Data like a cluster's: a month, many files, jobs on nodes, and extreme values.
#[test]
fn month_of_a_cluster_is_one_small_page() {
    const FILES: i64 = 20_000;
    let trace = fresh("report-cluster").join("trace");
    let mut build = TraceBuilder::create(&trace).unwrap();
    let op = |name: &str| by_name("posix", name).unwrap().op;
    for node in 0..4 {
        let process = build.process(Process {
            node: format!("n{node}"),
            pid: 7,
            job: Some(format!("job-{}", node / 2)),
            job_system: Some("slurm".into()),
            user: Some("ada".into()),
            ..Process::default()
        });
        let thread = build.thread(process, 7, "worker");
        for number in 0..FILES / 4 {
            let file = build.file(process, format!("/data/n{node}/f{number}").as_bytes()).unwrap();
            let begin = START + number * 500 * SECOND + node;
            let event = Event {
                file: Some(file),
                handle: Some(1),
                offset: Some(0),
                length: Some(1000),
                ..Event::new(thread, op("write"), begin, begin + 1_000_000)
            };
            build.event(&Event { result: 1000, ..event }).unwrap();
        }
        let file = build.file(process, b"/data/absurd").unwrap();
        let event = Event {
            file: Some(file),
            offset: Some(i64::MAX),
            length: Some(i64::MIN),
            result: i64::MAX,
            ..Event::new(thread, op("read"), START, START + 1)
        };
        build.event(&event).unwrap();
        build.event(&Event { offset: Some(-5), result: i64::MIN, ..event }).unwrap();
    }
    let _ = build.finish(|_| ()).unwrap();
    let page = report(&trace, &[]);
    let size = std::fs::metadata(&page).unwrap().len();
    assert!(size < 2 << 20, "{size}");
    let mut browser = opened(&page);
    let found = totals(&mut browser);
    assert_eq!((&found["files"], &found["bytes_written"]), (&json!(FILES + 1), &json!(FILES * 1000)));
    let jobs = table(&mut browser, "jobs-table");
    assert_eq!(jobs.len(), 2);
    assert!(jobs.iter().all(|(_, cells)| cells[5] == json!(FILES / 2 * 1000)), "{jobs:?}");
    assert_eq!(table(&mut browser, "nodes-table").len(), 4);
    let bursts = json_of(&["stat", "--show", "bursts", "--format", "json"], &trace);
    let model = json_of(&["report", "--format", "json", "-o", "-"], &trace);
    for key in ["interval", "intervals", "total", "read", "written"] {
        assert_eq!(model["bursts"][key], bursts[key], "{key}");
    }
    assert_eq!(
        model["idle"]["definitions"],
        json_of(&["stat", "--show", "idle", "--format", "json"], &trace)["definitions"]
    );
    assert_self_contained(&mut browser);
}
