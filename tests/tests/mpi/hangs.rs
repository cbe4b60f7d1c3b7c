//! A hanging request is shown with its offset and length, and its event names the file.

use crate::place;
use miot_proto::event::flag;
use miot_tests::built::built;
use miot_tests::mpi::Mpi;
use miot_tests::node::Node;
use miot_tests::process::{Background, until};
use miot_tests::trace::PrintedEvent;
use rustix::process::Signal;
use std::process::Command;

#[test]
fn hanging_write_has_handle_offset_and_length() {
    for mpi in [Mpi::Mpich, Mpi::OpenMpi] {
        let place = place(&format!("hangs-{mpi:?}"));
        let program = mpi.compile(&place, "hangs", "hangs.c", &[]);
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let node = Node::start(&place, shared.path());
        let hooks = ["libmiot_posix.so", "libmiot_mpi.so"].map(|name| built().folder.join(name));
        let [posix, mpi_io] = hooks.map(|hook| hook.display().to_string());
        let words = mpi.launcher(1);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("env").arg(format!("LD_PRELOAD={posix}:{mpi_io}"));
        command.arg(format!("MIOT_DIR={}", node.dir.display()));
        let launched = Background::start(command.arg(program).arg(place.join("data")));
        let mut shown = None;
        until("the write is shown in flight", || {
            let mut rows = node.in_flight(&[]).into_iter();
            shown = rows.find(|row| row["layer"] == "mpi-io" && row["op"] == "write_at");
            shown.is_some()
        });
        let shown = shown.unwrap();
        assert_eq!((&shown["offset"], &shown["length"]), (&4096.into(), &1000.into()), "{mpi:?}: {shown}");
        assert!(shown["handle"].as_u64().is_some_and(|handle| handle != 0), "{mpi:?}: {shown}");
        let pid = i32::try_from(shown["pid"].as_u64().unwrap()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let _ = launched.stop(Signal::TERM);
        let cut_off =
            |row: &&PrintedEvent| row.layer == "mpi-io" && row.flags & u64::from(flag::INTERRUPTED) != 0;
        until("it is in the trace", || node.so_far().iter().any(|row| cut_off(&row)));
        let rows = node.end();
        let [row] = rows.iter().filter(cut_off).collect::<Vec<_>>()[..] else { panic!("one is cut off") };
        assert_eq!((row.op.as_str(), row.offset, row.length), ("write_at", Some(4096), Some(1000)));
        assert!(row.path.as_deref().is_some_and(|path| path.ends_with("/data")), "{row:?}");
    }
}
