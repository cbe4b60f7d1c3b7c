//! Programs that use a volume without a mount get the translator through the volume file.

use crate::{Profile, client};
use miot_tests::built::built;
use miot_tests::compile::compile;
use miot_tests::gluster::Gluster;
use miot_tests::node::Node;
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn gfapi_requests_agree_with_the_volume_profile() {
    let place = fresh("gluster-gfapi");
    let Some(mut gluster) = Gluster::start(&place) else { return };
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let node = Node::start(&place, shared.path());
    gluster.volume("traced", false);
    gluster.ask_for("traced", "user.miot", "all");
    gluster.cli(&["volume", "profile", "traced", "start"]);
    let before = gluster.profile("traced");

    let program = compile(&place, "gfapi", &["gfapi.c"], &["-D_FILE_OFFSET_BITS=64", "-lgfapi", "-luuid"]);
    let mut command = Command::new(&program);
    command.args(["traced", &gluster.host]).env("MIOT_DIR", &node.dir);
    let ended = run(&mut gluster.room.inside(&command)).success();
    let blocks: usize = ended.stdout.trim().parse().unwrap();
    // The same with a second copy of the tracer in the process: the preloaded hook.
    command.env("LD_PRELOAD", &built().hook);
    let _ = run(&mut gluster.room.inside(&command)).success();

    let mut fio = Command::new("fio");
    fio.args([
        "--name=gfapi",
        "--ioengine=gfapi",
        "--volume=traced",
        "--filename=/fio",
        "--bs=4k",
        "--size=1m",
    ]);
    fio.arg(format!("--brick={}", gluster.host)).args(["--rw=randrw", "--output-format=json", "--thread"]);
    fio.env("MIOT_DIR", &node.dir).current_dir(&place);
    let text = run(&mut gluster.room.inside(&fio)).success().stdout;
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let of_fio = ["read", "write"].map(|way| report["jobs"][0][way]["total_ios"].as_u64().unwrap() as usize);

    let profile = Profile::since(&gluster, "traced", &before);
    let rows = node.end();
    let all = client(&rows);
    profile.agrees_with(&all);
    let programs: BTreeSet<u64> = all.iter().map(|row| row.process).collect();
    assert_eq!(programs.len(), 3, "the program twice, fio once");
    let mut fio_seen = 0;
    for program in programs {
        let of = |path: &str, op: &str| -> Vec<&&PrintedEvent> {
            let there = |row: &&&PrintedEvent| {
                row.process == program && row.op == op && row.path.as_deref() == Some(path)
            };
            all.iter().filter(there).collect()
        };
        // libgfapi names the process that makes a request, not the thread.
        let asked = all.iter().filter(|row| row.process == program && !row.op.starts_with("close"));
        for row in asked {
            assert!(row.caller_tid.is_some_and(|tid| tid == row.pid || tid == 0), "{row:?}");
        }
        let fio =
            ["read", "write"].map(|op| of("/fio", op).iter().filter(|row| row.length == Some(4096)).count());
        if fio[0] > 0 {
            assert_eq!(fio[0], of_fio[0]);
            // fio writes the file before the measured requests.
            assert!(fio[1] >= of_fio[1], "{fio:?} {of_fio:?}");
            fio_seen += 1;
            continue;
        }
        for file in ["/plain", "/async"] {
            for op in ["read", "write"] {
                let seen: Vec<_> =
                    of(file, op).iter().map(|row| (row.offset, row.length, row.result)).collect();
                let expected: Vec<_> =
                    (0..blocks as i64).map(|i| (Some(i * 8192), Some(8192), 8192)).collect();
                assert_eq!(seen, expected, "{file} {op}");
            }
            assert_eq!(of(file, "close").len(), 1);
        }
        assert_eq!(of("/plain", "rename")[0].path2.as_deref(), Some("/dir/moved"));
        assert_eq!(of("/dir", "rmdir").len(), 1);
    }
    assert_eq!(fio_seen, 1);
    assert!(rows.iter().any(|row| row.layer != "client"), "the preloaded hook records as well");
}
