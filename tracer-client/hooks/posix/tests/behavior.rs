//! The hook is transparent: a program behaves the same without it, with a dormant one, and while it
//! is recorded.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod common;

use common::{Node, compile, run};
use std::path::Path;

#[test]
fn hooked_program_behaves_like_the_plain_one() {
    let build = tempfile::tempdir().unwrap();
    for flags in [&["-O0", "-w"][..], &["-O2", "-D_FORTIFY_SOURCE=2", "-w"]] {
        let program = compile("behavior", build.path(), flags);
        let node = Node::new();
        let printed = |node: Option<&Path>| {
            let directory = tempfile::tempdir().unwrap();
            let output = run(&program, &[], directory.path(), node);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{:?}\n{text}", output.status);
            text
        };
        let plain = printed(None);
        assert!(plain.lines().count() > 100, "{plain}");
        assert_eq!(printed(Some(Path::new("/nonexistent"))), plain, "dormant, {flags:?}");
        assert_eq!(printed(Some(node.path())), plain, "recorded, {flags:?}");
        assert!(node.recorded().iter().map(|process| process.records.len()).sum::<usize>() > 100);
    }
}
