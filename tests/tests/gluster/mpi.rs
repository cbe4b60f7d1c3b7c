//! MPI programs on a mount with the translator: MPI-IO calls, POSIX calls and client requests form
//! one tree.

use miot_tests::built::built;
use miot_tests::gluster::Gluster;
use miot_tests::mpi::compile;
use miot_tests::node::Node;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Bytes that four ranks write, in rows of 128 bytes.
const BYTES: i64 = 4 * 64 * 128;

fn children<'a>(tree: &'a Value, layer: &str) -> Vec<&'a Value> {
    tree["children"].as_array().unwrap().iter().filter(|child| child["layer"] == layer).collect()
}

fn json(arguments: &[&str], trace: &Path) -> String {
    run(Command::new(&built().miot).args(arguments).args(["--format", "json"]).arg(trace)).success().stdout
}

#[test]
fn mpi_io_is_linked_to_the_requests_of_the_client() {
    let place = fresh("gluster-mpi");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    gluster.volume("traced", false);
    gluster.ask_for("traced", "user.miot", "all");
    let mount = gluster.mount("traced", &node.dir);
    let program = compile(&place, "patterns", "patterns.c", &[]);
    let mpi = built().folder.join("libmiot_mpi.so");
    for mode in ["direct", "sieved", "collective"] {
        let _ = mount.shell(&format!(
            "export MIOT_DIR='{}' LD_PRELOAD='{}:{}'; mpiexec.mpich -n 4 '{}' {mode} \"$PWD/{mode}\"",
            node.dir.display(),
            built().hook.display(),
            mpi.display(),
            program.display(),
        ));
        let data = std::fs::read(mount.seen().join(mode)).unwrap();
        let rows = data.chunks(128).enumerate();
        assert!(
            rows.len() == 4 * 64 && rows.clone().all(|(i, row)| row == [b'a' + (i % 4) as u8; 128]),
            "{mode}"
        );
    }
    mount.end();
    let trace = node.trace.clone();
    let _ = node.end();

    for mode in ["direct", "sieved", "collective"] {
        let file = format!("**/{mode}");
        let text = json(&["cat", "--tree", "--layer", "mpi-io", "--path", &file], &trace);
        let (mut asked, mut written) = (0, 0);
        for tree in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            if !tree["op"].as_str().unwrap().starts_with("write") {
                continue;
            }
            asked += tree["result"].as_i64().unwrap();
            for call in children(&tree, "posix")
                .into_iter()
                .filter(|call| call["op"] == "pwrite" || call["op"] == "write")
            {
                let served = children(call, "client").into_iter().filter(|child| child["op"] == "write");
                let bytes: i64 = served.map(|child| child["result"].as_i64().unwrap()).sum();
                assert_eq!(Some(bytes), call["result"].as_i64(), "{mode}: {call:#}");
                written += bytes;
            }
        }
        assert_eq!(asked, BYTES, "{mode}: {text}");
        assert!(if mode == "sieved" { written > 3 * BYTES } else { written == BYTES }, "{mode}: {written}");
    }
    let layers: Value = serde_json::from_str(&json(&["stat", "--by", "layer"], &trace)).unwrap();
    let below =
        layers.as_array().unwrap().iter().find(|row| row["layer"] == "client" && row["above"] == "posix");
    assert!(below.is_some_and(|row| row["write_moved"].as_i64() > Some(4 * BYTES)), "{layers:#}");
}
