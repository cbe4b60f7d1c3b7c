//! Programs whose view depends on the rank, or is set for each request, see `slices.c`. The model,
//! its replay and its estimate are compared with the known writes of the program, and those with
//! its file.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the tests")]

use crate::{miot, phases, place};
use miot_tests::built::built;
use miot_tests::mpi::Mpi;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{events, traced as traced_alone};
use miot_trace_analysis::model::{Model, Sharing, Ticks};
use miot_trace_analysis::view::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const RANKS: u64 = 3;
const STEPS: u64 = 6;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs `slices.c` traced. Returns its trace and its file.
fn ran(mpi: Mpi, mode: &str, steps: u64) -> (PathBuf, PathBuf) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Two tests may run the same mode at once.
    let test = std::thread::current().name().unwrap_or_default().replace("::", "-");
    let place = place(&format!("{test}-{}-{mode}-{mpi:?}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let program = mpi.compile(&place, "slices", "slices.c", &[]);
    let (trace, data) = (place.join("trace"), place.join("data"));
    let words = [text(&program), mode, text(&data), &steps.to_string()].map(str::to_owned);
    let _ = mpi.traced(&trace, RANKS as u32, &["--communication"], &words).success();
    (trace, data)
}

/// Ranges that a rank writes according to `slices.c`.
fn written(mode: &str, rank: u64, steps: u64) -> Vec<Range> {
    let range = |offset, bytes| Range { offset, bytes };
    let rows = |row: u64| (0..50 * steps).map(move |i| range(i * row + 20 * rank, 20)).collect::<Vec<_>>();
    match mode {
        "columns" => rows(20 * RANKS),
        "gaps" => rows(20 * RANKS + 30),
        "halves" | "offsets" | "views" => {
            (0..steps).map(|i| range((i * RANKS + rank) * 1000, 1000)).collect()
        }
        "variables" => {
            let (row, variable) = (40 * RANKS, 320 * RANKS);
            let of = |step: u64, i: u64| {
                let begin = step * 4 * variable + i * variable + i * i * 50;
                (0..8).map(move |line| range(begin + line * row + 40 * rank, 40))
            };
            (0..steps).flat_map(|step| (0..3).flat_map(move |i| of(step, i))).collect()
        }
        "uneven" => (0..steps)
            .flat_map(|i| {
                let begin = 170 * RANKS * i;
                [range(begin + 130 * rank, 100), range(begin + 130 * RANKS + 30 * rank, 30)]
            })
            .collect(),
        "scattered" => (0..steps).map(|i| range(rank * steps * 1000 + 1000 * i + i * i % 601, 10)).collect(),
        "matrix" => (0..1000).map(|i| range((i * RANKS + rank) * 80, 80)).collect(),
        _ => panic!("{mode}"),
    }
}

/// Joins adjacent and overlapping ranges.
fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut all: Vec<Range> = Vec::new();
    for range in ranges {
        let end = range.offset + range.bytes;
        match all.last_mut() {
            Some(last) if last.offset + last.bytes >= range.offset => {
                last.bytes = last.bytes.max(end - last.offset);
            }
            _ => all.push(range),
        }
    }
    all
}

/// Ranges that the processes of a trace have written to files of this name, by process.
fn by_process(trace: &Path, name: &str) -> BTreeSet<Vec<Range>> {
    let mut all: BTreeMap<u64, Vec<Range>> = BTreeMap::new();
    let is_wanted = |row: &PrintedEvent| {
        let is_file =
            row.path.as_ref().is_some_and(|path| Path::new(path).file_name() == Some(name.as_ref()));
        row.layer == "posix" && row.op.contains("write") && row.result > 0 && is_file
    };
    for row in events(trace).into_iter().filter(is_wanted) {
        let range = Range { offset: row.offset.unwrap() as u64, bytes: row.result as u64 };
        all.entry(row.process).or_default().push(range);
    }
    all.into_values().map(joined).collect()
}

fn together(all: BTreeSet<Vec<Range>>) -> Vec<Range> {
    joined(all.into_iter().flatten().collect())
}

/// Ranges that a rank writes according to a model.
fn modelled(model: &Model, rank: u64) -> Vec<Range> {
    let mut all = Vec::new();
    for phase in &model.phases {
        let Some(place) = phase.processes.place(rank) else { continue };
        for nth in 0..phase.count() {
            for operation in &phase.operations {
                let requests = 0..operation.repetitions;
                all.extend(requests.flat_map(|i| operation.ranges(place, nth, i).unwrap()));
            }
        }
    }
    joined(all)
}

/// Checks that the model, the file and the replay have exactly the bytes of each rank.
fn check(mpi: Mpi, mode: &str, steps: u64) -> (PathBuf, Model) {
    let (trace, data) = ran(mpi, mode, steps);
    let truth: Vec<Vec<Range>> = (0..RANKS).map(|rank| joined(written(mode, rank, steps))).collect();
    let content = std::fs::read(&data).unwrap();
    for (rank, ranges) in (b'a'..).zip(&truth) {
        for Range { offset, bytes } in ranges {
            let part = &content[*offset as usize..][..*bytes as usize];
            assert!(part.iter().all(|byte| *byte == rank), "{mode}: the program writes what it should");
        }
    }
    let file = trace.with_extension("toml");
    let _ = miot(&["model", "save", text(&trace), "-o", text(&file)]).success();
    let model = Model::from_toml(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for (rank, ranges) in (0..).zip(&truth) {
        assert_eq!(modelled(&model, rank), *ranges, "{mpi:?}, {mode}, rank {rank}: {model:#?}");
    }
    let moved: u64 = model.phases.iter().map(|phase| phase.weight * phase.count()).sum();
    assert_eq!(moved, truth.iter().flatten().map(|range| range.bytes).sum::<u64>());

    let place = trace.parent().unwrap();
    let (into, again) = (place.join("into"), place.join("replay"));
    std::fs::create_dir(&into).unwrap();
    let words =
        [text(&built().miot), "replay", text(&file), "--into", text(&into), "--pace", "fast", "--keep"];
    let _ = traced_alone(place, &again, &words).success();
    assert_eq!(by_process(&again, "data"), truth.into_iter().collect(), "{mpi:?}, {mode}");
    let made = into.join(data.strip_prefix("/").unwrap());
    assert_eq!(made.metadata().unwrap().len(), content.len() as u64, "{mpi:?}, {mode}");
    (trace, model)
}

#[test]
fn requests_through_a_view_are_at_the_program_offsets() {
    for mode in ["columns", "halves", "gaps", "uneven", "matrix"] {
        let (_, model) = check(Mpi::Mpich, mode, STEPS);
        assert_eq!(model.phases.len(), 1, "{mode}: {model:?}");
    }
    // Irregular blocks, but few enough for the event of a view.
    let _ = check(Mpi::Mpich, "scattered", 40);
}

#[test]
fn requests_through_a_view_of_open_mpi_agree() {
    for mode in ["columns", "halves", "gaps", "views"] {
        let (_, model) = check(Mpi::OpenMpi, mode, STEPS);
        assert_eq!(model.phases.len(), 1, "{mode}: {model:?}");
    }
}

/// The same strips by explicit offsets and by a view for each give the same family.
#[test]
fn view_per_request_creates_no_other_phases() {
    let (offsets, by_offsets) = check(Mpi::Mpich, "offsets", STEPS);
    let (views, by_views) = check(Mpi::Mpich, "views", STEPS);
    let [phase] = by_views.phases.as_slice() else { panic!("{by_views:?}") };
    assert_eq!((phase.numbers.to_string(), phase.weight), (format!("1-{STEPS}"), RANKS * 1000));
    let same = miot(&["model", "compare", text(&offsets), text(&views)]).success().stdout;
    assert_eq!(same, "no difference\n");
    // The output names the separators: barriers in one case, the calls that set the views in the
    // other.
    assert_eq!((by_offsets.ticks, by_views.ticks), (Ticks::Communication, Ticks::Collective));
    let said = miot(&["phases", text(&views)]).success().stdout;
    assert!(said.contains("collective calls of MPI-IO") && !said.contains("no communication"), "{said}");
    let drawn = views.with_extension("svg");
    let _ = miot(&["phases", text(&views), "--plot", text(&drawn)]).success();
    let bars = std::fs::read_to_string(drawn).unwrap().matches("<title>phase ").count();
    assert_eq!(bars as u64, RANKS * STEPS);
}

/// Each variable that a step writes is a family with as many phases as there are steps.
#[test]
fn variables_of_a_record_are_families() {
    let (trace, model) = check(Mpi::Mpich, "variables", STEPS);
    let said: Vec<_> = model.phases.iter().map(|phase| (phase.numbers.to_string(), phase.weight)).collect();
    let expected = ["1-16:3", "2-17:3", "3-18:3"].map(|numbers| (numbers.to_owned(), RANKS * 320));
    assert_eq!(said, expected);
    let explained = miot(&["model", "explain", text(&trace)]).success().stdout;
    assert!(explained.contains("a request is 8 of 40 bytes, 8 x 120 bytes apart"), "{explained}");
}

/// An estimate under MPI writes the same ranges as the application, with the same MPI and the same
/// file size.
fn check_estimate(mpi: Mpi, mode: &str) {
    let (trace, data) = ran(mpi, mode, STEPS);
    let place = trace.parent().unwrap();
    let (here, again) = (place.join("here"), place.join("estimate"));
    std::fs::create_dir(&here).unwrap();
    let mut launcher = mpi.launcher(1);
    launcher.truncate(launcher.len() - 2);
    let (run, launcher) = (format!("here={}", text(&here)), launcher.join(" "));
    let words = [text(&built().miot), "estimate", text(&trace), "--mpi", &launcher, "--run", &run];
    let steps = STEPS.to_string();
    let words = [&words[..], &["--repetitions", &steps]].concat();
    let _ = traced_alone(place, &again, &words).success();
    let (original, estimated) = (together(by_process(&trace, "data")), together(by_process(&again, "file")));
    assert_eq!(estimated, original, "{mpi:?}, {mode}");
    let end = original.last().map(|range| range.offset + range.bytes);
    assert_eq!(end, Some(data.metadata().unwrap().len()), "{mpi:?}, {mode}");
}

#[test]
fn estimates_write_the_application_ranges() {
    for mode in ["columns", "halves", "uneven", "views"] {
        check_estimate(Mpi::Mpich, mode);
    }
}

/// Overlapping collective writes are an error in Open MPI.
#[test]
fn estimates_with_open_mpi_write_the_same_ranges() {
    for mode in ["columns", "halves", "views"] {
        check_estimate(Mpi::OpenMpi, mode);
    }
}

/// 700 irregular blocks do not fit the event of the view. Their offsets are unknown, so no model is
/// created.
#[test]
fn unknown_offsets_are_refused_with_the_reason() {
    let (trace, _) = ran(Mpi::Mpich, "scattered", 700);
    let place = trace.parent().unwrap();
    let reason = "lie in the file is not known: the file type of the view has more irregular blocks";
    let said = miot(&["phases", text(&trace)]).success().stdout;
    assert!(said.contains("\nincomplete: ") && said.contains(reason) && said.contains("(view)"), "{said}");
    let (file, into) = (trace.with_extension("toml"), place.join("into"));
    std::fs::create_dir(&into).unwrap();
    let run = format!("here={}", text(&into));
    let mut cases = vec![
        vec!["model", "save", text(&trace), "-o", text(&file)],
        vec!["estimate", text(&trace)],
        vec!["estimate", text(&trace), "--run", &run],
    ];
    for words in &cases {
        let refused = miot(words);
        assert!(refused.code() == 1 && refused.stderr.contains(reason), "{words:?}: {}", refused.stderr);
    }
    assert!(!file.exists());
    let model = phases(&trace, &[]);
    std::fs::write(&file, model.to_toml().unwrap()).unwrap();
    cases = vec![vec!["replay", text(&file), "--into", text(&into)]];
    for words in &cases {
        let refused = miot(words);
        assert!(refused.code() == 1 && refused.stderr.contains(reason), "{words:?}: {}", refused.stderr);
    }
    assert_eq!(std::fs::read_dir(&into).unwrap().count(), 0);
}

/// A file for each process and step, of which every second one is read back.
#[test]
fn checkpoints_of_each_process_are_a_family() {
    let (trace, data) = ran(Mpi::Mpich, "own", STEPS);
    let model = phases(&trace, &[]);
    let said: Vec<_> = model
        .phases
        .iter()
        .map(|phase| (phase.numbers.to_string(), phase.sharing, phase.file_per_phase))
        .collect();
    let family = |numbers: &str| (numbers.to_owned(), Sharing::Unique, true);
    assert_eq!(said, [family("1-2,4-5,7-8"), family("3-9:3")], "{model:?}");
    assert!(model.phases.iter().all(|phase| phase.weight == RANKS * 3000));

    let file = trace.with_extension("toml");
    let into = trace.with_file_name("into");
    std::fs::create_dir(&into).unwrap();
    let _ = miot(&["model", "save", text(&trace), "-o", text(&file)]).success();
    let _ = miot(&["replay", text(&file), "--into", text(&into), "--pace", "fast", "--keep"]).success();
    let made = into.join(data.strip_prefix("/").unwrap());
    let sizes = |folder: &Path| -> Vec<u64> {
        let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let data = all.filter(|entry| entry.file_name().to_str().unwrap().starts_with("data."));
        data.map(|entry| entry.metadata().unwrap().len()).collect()
    };
    assert_eq!(sizes(made.parent().unwrap()), vec![3000; (RANKS * STEPS) as usize]);
    assert_eq!(sizes(data.parent().unwrap()), vec![3000; (RANKS * STEPS) as usize]);
}

/// A shared file for each step with two phases. It is read back before the next step.
#[test]
fn checkpoints_that_are_read_back_are_families() {
    let (trace, _) = ran(Mpi::Mpich, "pairs", STEPS);
    let model = phases(&trace, &[]);
    let said: Vec<_> = model
        .phases
        .iter()
        .map(|phase| {
            (phase.numbers.to_string(), phase.file_per_phase, phase.operations[0].offset.to_string())
        })
        .collect();
    let family = |numbers: &str, offset: &str| (numbers.to_owned(), true, offset.to_owned());
    let expected =
        [family("1-16:3", "1000*p"), family("2-17:3", "3000 + 1000*p"), family("3-18:3", "2000*p")];
    assert_eq!(said, expected, "{model:?}");
}

/// PnetCDF sets a view for each request. Two variables like BT-IO's, one record after the other,
/// are a family each. The header and the number of records are written by the library. The replay
/// writes the same bytes.
#[test]
fn variables_written_by_pnetcdf_are_families() {
    let place = place("netcdf");
    let program = Mpi::OpenMpi.compile(&place, "netcdf", "netcdf.c", &["-lpnetcdf"]);
    let (trace, data, file) = (place.join("trace"), place.join("data"), place.join("model.toml"));
    let words = [text(&program), text(&data), "6", "16"];
    let _ = Mpi::OpenMpi.traced(&trace, 4, &["--communication"], &words).success();
    let model = phases(&trace, &["--all"]);
    let of_all = model.phases.iter().filter(|phase| phase.processes.len() == 4);
    let said: Vec<_> = of_all.map(|phase| (phase.weight, phase.count())).collect();
    let cells = 16 * 16 * 16;
    assert_eq!(said, [(8 * cells, 6), (4 * cells, 6), (8 * cells, 6)], "{model:#?}");
    assert_eq!(model.phases.len(), 5, "and the header, and the number of records: {model:#?}");

    let (into, again) = (place.join("into"), place.join("replay"));
    std::fs::create_dir(&into).unwrap();
    let _ = miot(&["model", "save", text(&trace), "-o", text(&file)]).success();
    let words =
        [text(&built().miot), "replay", text(&file), "--into", text(&into), "--pace", "fast", "--keep"];
    let _ = traced_alone(&place, &again, &words).success();
    assert_eq!(together(by_process(&again, "data")), together(by_process(&trace, "data")));
    let made = into.join(data.strip_prefix("/").unwrap());
    assert_eq!(made.metadata().unwrap().len(), data.metadata().unwrap().len());
}
