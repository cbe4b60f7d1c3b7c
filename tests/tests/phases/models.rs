//! `miot model`: a saved model equals the phases found, and gives the same output again.

use crate::{miot, phases, ran};
use miot_trace_analysis::model::{Model, compare};
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn saved_model_equals_that_of_the_trace() {
    let trace = ran("saved", &["--communication"], 2, "barriers", [3, 5, 1000]);
    let file = trace.with_extension("toml");
    let _ = miot(&["model", "save", text(&trace), "-o", text(&file)]).success();
    let written = std::fs::read_to_string(&file).unwrap();
    let saved = Model::from_toml(&written).unwrap();
    assert_eq!(saved.to_toml().unwrap(), written);
    assert_eq!(compare(&saved, &phases(&trace, &[])), []);

    let again = miot(&["model", "save", text(&trace), "-o", text(&file)]);
    assert_eq!(again.code(), 1);
    assert!(again.stderr.contains("exists"), "{}", again.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), written, "an existing file is unchanged");

    let same = miot(&["model", "compare", text(&file), text(&trace)]).success().stdout;
    assert_eq!(same, "no difference\n");
    let explained = miot(&["model", "explain", text(&file)]).success().stdout;
    assert!(
        explained.contains("write 5 times 1000 bytes, independent, blocking, explicit offset"),
        "{explained}"
    );
    assert!(explained.contains("at byte 15000*p + 5000*(ph - 1) of the file"), "{explained}");
}

#[test]
fn models_are_compared_and_edited() {
    let one = ran("compared", &["--communication"], 2, "barriers", [3, 5, 1000]);
    let other = ran("compared-other", &["--communication"], 2, "barriers", [3, 6, 1000]);
    let said = miot(&["model", "compare", text(&one), text(&other), "--format", "csv"]);
    assert_eq!(said.code(), 3, "{}", said.stderr);
    assert!(said.stdout.contains("phases 1-3,repetitions,5,6"), "{}", said.stdout);

    let file = one.with_extension("toml");
    let model = miot(&["model", "save", text(&one)]).success().stdout;
    std::fs::write(&file, model.replace("repetitions = 5", "repetitions = 7")).unwrap();
    let said = miot(&["model", "explain", text(&file)]);
    assert_eq!(said.code(), 1);
    assert!(said.stderr.contains("displacement makes 5 requests, repetitions is 7"), "{}", said.stderr);
}

/// The picture has a bar for each process of each phase.
#[test]
fn phases_are_drawn() {
    let trace = ran("drawn", &["--communication"], 2, "barriers", [3, 5, 1000]);
    let file = trace.with_extension("svg");
    let _ = miot(&["phases", text(&trace), "--plot", text(&file)]).success();
    let svg = std::fs::read_to_string(file).unwrap();
    assert_eq!(svg.matches("<title>phase ").count(), 2 * 3);
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for said in [">Phases of ", ">logical time (communication)<", ">file offset<", ">read<", ">written<"] {
        assert!(svg.contains(said), "{said}");
    }
}
