//! The examples of `docs/guide/query.md`, run unchanged.

use crate::{asked, python};
use miot_tests::built::root;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::traced;
use std::path::PathBuf;
use std::process::Command;

/// Text of the page's code blocks in a language, in order.
fn blocks(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/guide/query.md")).unwrap();
    let mut found = Vec::new();
    let mut rest = page.as_str();
    let opening = format!("\n```{language}\n");
    while let Some(at) = rest.find(&opening) {
        let block = &rest[at + opening.len()..];
        let end = block.find("\n```").unwrap();
        found.push(block[..end].to_owned());
        rest = &block[end + 4..];
    }
    found
}

/// Creates a folder with a trace of the name that the page uses.
fn traced_here(name: &str) -> PathBuf {
    let place = fresh(&format!("query-docs-{name}"));
    let script = "head -c 300000 /dev/zero > a; cp a b; cat a b > c; tail -c 1000 c > d";
    let mut command = traced::command(&place, &place.join("DIR"), &["sh", "-c", script]);
    let _ = run(command.env("MIOT_JOB", "nightly")).success();
    place
}

#[test]
fn queries_of_the_page_give_rows() {
    let place = traced_here("sql");
    let queries = blocks("sql");
    assert!(queries.len() >= 5, "{queries:?}");
    for sql in queries {
        let ended = asked(&[place.join("DIR").to_str().unwrap(), &sql, "--format", "csv"]).success();
        assert!(ended.stdout.lines().count() > 1, "no rows: {sql}");
    }
}

#[test]
fn other_readers_agree_with_miot_query() {
    let place = traced_here("python");
    let programs = blocks("python");
    assert_eq!(programs.len(), 3, "pyarrow, pandas, DuckDB");
    let sql = "SELECT path, count(*) AS requests FROM events JOIN paths USING (file, trace)
        GROUP BY path ORDER BY requests DESC, path LIMIT 10";
    let ours = asked(&[place.join("DIR").to_str().unwrap(), sql, "--format", "csv"]).success().stdout;
    let expected: Vec<&str> = ours.lines().skip(1).collect();
    assert_eq!(expected.len(), 10);
    for program in programs {
        let run = run(Command::new(python()).args(["-c", &program]).current_dir(&place)).success();
        let said: Vec<&str> = run.stdout.lines().collect();
        assert_eq!(said, expected, "{program}");
    }
}
