//! `miot fsstats` on trees with known contents and on `/usr`, compared with other programs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod resumed;
mod trouble;

use miot_tests::built::{built, root};
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Two days and an hour from now, so that files changed in the meantime are two days old.
pub(crate) fn as_of() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + 2 * 86_400 + 3600
}

fn tree(arguments: &[&str]) -> String {
    run(Command::new("python3").arg(root().join("tests/programs/tree.py")).args(arguments)).success().stdout
}

fn made(dir: &Path, as_of: i64) -> Value {
    serde_json::from_str(&tree(&["make", dir.to_str().unwrap(), &as_of.to_string()])).unwrap()
}

pub(crate) fn fsstats(dir: &Path, as_of: i64) -> Command {
    let mut command = Command::new(&built().miot);
    command.arg("fsstats").arg(dir).args(["--format", "json", "--as-of", &format!("{}", At(as_of))]);
    command
}

/// A time in seconds since 1970, in the format that `miot` parses.
pub(crate) struct At(pub(crate) i64);

impl std::fmt::Display for At {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = run(Command::new("date").args(["-u", "+%FT%TZ", "-d", &format!("@{}", self.0)])).success();
        out.write_str(text.stdout.trim())
    }
}

pub(crate) fn snapshot(command: &mut Command) -> Value {
    serde_json::from_str(&run(command).success().stdout).unwrap()
}

/// Figures of a snapshot in the form that `tree.py` prints.
pub(crate) fn figures(snapshot: &Value) -> Value {
    let contents = &snapshot["contents"];
    let mut figures = json!({ "histograms": {} });
    for (name, value) in contents.as_object().unwrap() {
        if let Some(bins) = value.get("bins") {
            let bins =
                bins.as_array().unwrap().iter().map(|bin| {
                    json!([bin["from"], bin["count"], bin["total"], bin["size"], bin["capacity"]])
                });
            figures["histograms"][name] = bins.collect();
        } else if name == "special" {
            for kind in ["fifos", "sockets", "block_devices", "character_devices"] {
                figures[kind] = value[kind].clone();
            }
        } else {
            figures[name] = value.clone();
        }
    }
    figures
}

#[track_caller]
pub(crate) fn assert_same(found: &Value, expected: &Value) {
    for (name, value) in expected.as_object().unwrap() {
        if name == "histograms" {
            for (name, bins) in value.as_object().unwrap() {
                assert_eq!(&found["histograms"][name], bins, "{name}");
            }
        } else {
            assert_eq!(&found[name], value, "{name}");
        }
    }
    assert_eq!(found.as_object().unwrap().len(), expected.as_object().unwrap().len());
}

#[test]
fn generated_tree_has_known_figures() {
    let place = fresh("fsstats-made");
    let (dir, as_of) = (place.join("tree"), as_of());
    let expected = made(&dir, as_of);
    for threads in ["1", "4"] {
        let snapshot = snapshot(fsstats(&dir, as_of).args(["--threads", threads]));
        assert_same(&figures(&snapshot), &expected);
        assert_eq!(snapshot["errors"], json!([]));
    }
    // With the minimum of descriptors: one for the directory of the walk, one or two for each
    // thread.
    let miot = built().miot.display().to_string();
    let few =
        format!("ulimit -n 12; exec {miot} fsstats tree --threads 2 --format json --as-of {}", At(as_of));
    let few = snapshot(Command::new("sh").args(["-c", &few]).current_dir(&place));
    assert_same(&figures(&few), &expected);

    let csv =
        run(Command::new(&built().miot).arg("fsstats").arg(&dir).args(["--format", "csv"])).success().stdout;
    let last = csv.lines().rfind(|line| line.starts_with("size,")).unwrap();
    let cells: Vec<_> = last.split(',').collect();
    assert_eq!((cells[2], cells[4], cells[6]), ("2147483648", "1", "1.0"), "{csv}");

    let text = run(Command::new(&built().miot).arg("fsstats").arg(&dir)).success().stdout;
    let row = text.lines().find(|line| line.starts_with("2.0 GiB - 4.0 GiB")).unwrap();
    let cells: Vec<_> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!((cells[1], cells[3], cells[4]), ("1", "100.00%", "3.0 GiB"), "{row}");

    let without = snapshot(fsstats(&dir, as_of).args(["--exclude", "size-*", "--exclude", "/full"]));
    assert_eq!(without["excluded"], 14);
    let names = expected["names"].as_u64().unwrap();
    assert_eq!(without["contents"]["names"].as_u64().unwrap(), names - 14 - 5000);
}

#[test]
fn usr_agrees_with_python_and_find() {
    let as_of = as_of();
    let usr = snapshot(&mut fsstats(Path::new("/usr"), as_of));
    let survey: Value = serde_json::from_str(&tree(&["survey", "/usr", &as_of.to_string()])).unwrap();
    let mut found = figures(&usr);
    // Other tests run programs of /usr.
    found["histograms"]["atime_age"] = survey["histograms"]["atime_age"].clone();
    assert_same(&found, &survey);
    let script = "find /usr -xdev -mindepth 1 -printf '%y %i %s %b\\n' | awk '
        { names++ } $1 == \"f\" && !seen[$2]++ { files++; size += $3; capacity += $4 * 512 }
        END { printf \"%d %d %.0f %.0f\", names, files, size, capacity }'";
    let find = run(Command::new("sh").args(["-c", script])).success().stdout;
    let totals = &usr["totals"];
    let own = [&usr["contents"]["names"], &totals["count"], &totals["size"], &totals["capacity"]];
    assert_eq!(find, own.map(Value::to_string).join(" "));
}

#[test]
fn growth_equals_the_added_files() {
    let place = fresh("fsstats-growth");
    let dir = place.join("tree");
    std::fs::create_dir(&dir).unwrap();
    let as_of = as_of();
    let file = |name: &str, size: usize| std::fs::write(dir.join(name), vec![b'x'; size]).unwrap();
    let taken = |name: &str, at: i64| -> PathBuf {
        let path = place.join(name);
        let _ = snapshot(fsstats(&dir, at).arg("-o").arg(&path));
        path
    };
    file("a", 10);
    file("b", 5000);
    let old = taken("old.json", as_of);
    file("c", 12);
    file("d", 9);
    std::fs::remove_file(dir.join("b")).unwrap();
    let new = taken("new.json", as_of + 4 * 86_400);
    let compare = |format: &str| {
        let mut command = Command::new(&built().miot);
        command.args(["fsstats", "--format", format, "--compare"]).arg(&old).arg(&new);
        run(&mut command).success().stdout
    };
    let growth: Value = serde_json::from_str(&compare("json")).unwrap();
    let files = &growth["totals"][0];
    assert_eq!((&files["old"], &files["new"], &files["growth"]), (&json!(2), &json!(3), &json!(0.5)));
    assert_eq!(files["per_day"], 0.25);
    assert_eq!((&growth["totals"][1]["old"], &growth["totals"][1]["new"]), (&json!(5010), &json!(31)));
    let size = &growth["histograms"][0];
    let bins = size["bins"].as_array().unwrap();
    let bins = bins.iter().map(|bin| json!([bin["from"], bin["old"]["count"], bin["new"]["count"]]));
    assert_eq!(bins.collect::<Vec<_>>(), [json!([8, 1, 3]), json!([4096, 1, 0])]);
    assert_eq!(size["shift_count"], json!({ "difference": 0.5, "below": 16 }));
    let text = compare("text");
    assert!(text.contains("4.0 days") && text.contains("+50.00 points below 16 B of files"), "{text}");
    assert!(compare("csv").contains("\nsize,bytes,4096,8192,1,0,5000,0,"), "{}", compare("csv"));
}
