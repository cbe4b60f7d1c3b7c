//! A program behaves the same without the hook, with a dormant one, and while it is recorded.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod common;

use common::{Node, compile, run};
use std::path::Path;

#[test]
fn results_errors_and_cancellation_are_those_of_the_plain_program() {
    let build = tempfile::tempdir().unwrap();
    for flags in [&["-O0", "-w"][..], &["-O2", "-D_FORTIFY_SOURCE=2", "-w"]] {
        let program = compile("behaviour", build.path(), flags);
        let node = Node::new();
        let said = |node: Option<&Path>| {
            let place = tempfile::tempdir().unwrap();
            let output = run(&program, &[], place.path(), node);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{:?}\n{text}", output.status);
            text
        };
        let plain = said(None);
        assert!(plain.lines().count() > 100, "{plain}");
        assert_eq!(said(Some(Path::new("/nonexistent"))), plain, "dormant, {flags:?}");
        assert_eq!(said(Some(node.path())), plain, "recorded, {flags:?}");
        assert!(node.recorded().iter().map(|process| process.records.len()).sum::<usize>() > 100);
    }
}
