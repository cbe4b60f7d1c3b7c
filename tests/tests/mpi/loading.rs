//! Ways to load the hook: preloaded with and without the posix hook, linked, and in a program whose
//! module loads MPI.

use crate::{of_layer, place, text};
use miot_tests::built::built;
use miot_tests::mpi::{Mpi, compile, traced};
use miot_tests::process::run;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::events;
use std::path::Path;
use std::process::Command;

fn layers(rows: &[PrintedEvent]) -> (usize, usize) {
    (of_layer(rows, "mpi-io").len(), of_layer(rows, "posix").len())
}

#[test]
fn hook_alone_records_with_its_own_tracer() {
    let place = place("alone");
    let program = compile(&place, "errors", "errors.c", &["-DFINALIZE"]);
    let trace = place.join("trace");
    let _ = traced(&trace, 1, &["--hook", "mpi"], &[&program, &place.join("data")]).success();
    assert_eq!(layers(&events(&trace)), (15, 0));
}

#[test]
fn posix_hook_alone_loads_no_mpi_hook() {
    let place = place("posix-alone");
    let program = compile(&place, "errors", "errors.c", &["-DFINALIZE"]);
    let trace = place.join("trace");
    let _ = traced(&trace, 1, &["--hook", "posix"], &[&program, &place.join("data")]).success();
    let (mpi, posix) = layers(&events(&trace));
    assert!(mpi == 0 && posix > 0, "{mpi} {posix}");
}

/// Both libraries preloaded, in either order, as before the posix hook could load the mpi hook.
#[test]
fn both_hooks_may_be_preloaded() {
    let place = place("both");
    let program = compile(&place, "errors", "errors.c", &["-DFINALIZE"]);
    let hooks = ["libmiot_posix.so", "libmiot_mpi.so"].map(|name| built().folder.join(name));
    for (name, [first, second]) in [("one", [0, 1]), ("other", [1, 0])] {
        let trace = place.join(name);
        let preload = format!("LD_PRELOAD={}:{}", text(&hooks[first]), text(&hooks[second]));
        let mut miot = Command::new(&built().miot);
        miot.args(["run", "--quiet", "-o"]).arg(&trace).args(["--", "env", &preload]);
        let _ = run(miot.arg(&program).arg(place.join("data"))).success();
        let rows = events(&trace);
        let (mpi, posix) = layers(&rows);
        assert!(mpi == 15 && posix > 0, "{name}: {mpi} {posix}");
        let write = rows.iter().find(|row| row.op == "write_at" && row.result == 8).unwrap();
        assert_eq!(crate::within(&rows, write, "posix").len(), 1, "{name}: one tracer");
    }
}

/// A function that only the mpi hook exported would not be recorded where the posix hook loads it.
/// Large-count forms with arrays of counts are not exported: MPI may not have them, and a call
/// could not go to the other form.
#[test]
fn posix_hook_exports_the_functions_of_the_mpi_hook() {
    let exported = |library: &str| -> Vec<String> {
        let file = built().folder.join(library);
        let nm = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&file)).success().stdout;
        let names = nm.lines().filter_map(|line| line.split_whitespace().last());
        names.filter(|name| name.contains("MPI_")).map(str::to_owned).collect()
    };
    let is_array = |name: &str| {
        ["v_c", "w_c", "educe_scatter_c"].iter().any(|end| name.ends_with(end)) && !name.ends_with("ecv_c")
    };
    let mut mpi = exported("libmiot_mpi.so");
    assert_eq!(mpi.iter().filter(|name| is_array(name)).count(), 24);
    mpi.retain(|name| !is_array(name));
    assert_eq!(exported("libmiot_posix.so"), mpi);
}

#[test]
fn program_may_be_linked_with_the_hook() {
    let place = place("linked");
    let folder = built().folder.to_str().unwrap();
    let flags = ["-DFINALIZE", &format!("-L{folder}"), "-lmiot_mpi", &format!("-Wl,-rpath,{folder}")];
    let program = compile(&place, "errors", "errors.c", &flags);
    let trace = place.join("trace");
    let _ = traced(&trace, 1, &["--hook", "posix"], &[&program, &place.join("data")]).success();
    let rows = events(&trace);
    let (mpi, posix) = layers(&rows);
    assert!(mpi == 15 && posix > 0, "{mpi} {posix}");
    let write = rows.iter().find(|row| row.op == "write_at" && row.result == 8).unwrap();
    assert_eq!(crate::within(&rows, write, "posix").len(), 1, "with the posix hook's tracer");
}

/// MPI is not in the program's scope. The calls of the module are bound to the preloaded hooks.
#[test]
fn module_may_load_mpi() {
    let place = place("module");
    let module = compile(&place, "module.so", "module.c", &["-shared", "-fPIC"]);
    let host = place.join("host");
    let source = built_source("module.c");
    let _ = run(Command::new("cc").args(["-DHOST", "-o"]).arg(&host).arg(source).arg("-ldl")).success();
    let [posix, mpi] = ["libmiot_posix.so", "libmiot_mpi.so"].map(|name| built().folder.join(name));
    let mpi_first = format!("LD_PRELOAD={}:{}", text(&mpi), text(&posix));
    let recorded: &[&str] = &["open", "write", "close"];
    for (name, options, environment, expected) in [
        ("loaded", &[][..], &[][..], recorded),
        ("not-loaded", &["--hook", "posix"], &[], &[]),
        ("mpi-first", &[], &["env", &mpi_first], recorded),
    ] {
        let trace = place.join(name);
        let mut miot = Command::new(&built().miot);
        miot.args(["run", "--quiet"]).args(options).arg("-o").arg(&trace).arg("--").args(environment);
        let _ = run(miot.arg(&host).arg(&module).arg(place.join("data"))).success();
        let rows = events(&trace);
        let ops: Vec<&str> = of_layer(&rows, "mpi-io").iter().map(|row| row.op.as_str()).collect();
        assert_eq!(ops, expected, "{name}");
    }
}

/// Open MPI 4 has no functions with large counts. A program that asks whether they exist finds
/// those of the hook, which must work.
#[test]
fn weak_references_to_missing_functions_work() {
    let place = place("weak");
    let program = Mpi::OpenMpi.compile(&place, "weak", "weak.c", &[]);
    let data = place.join("data");
    for (name, options) in
        [("plain", None), ("loaded", Some(&[][..])), ("not-loaded", Some(&["--hook", "posix"]))]
    {
        let _ = std::fs::remove_file(&data);
        let trace = place.join(name);
        match options {
            Some(options) => {
                let _ = Mpi::OpenMpi.traced(&trace, 1, options, &[&program, &data]).success();
            }
            None => {
                let mut launcher = Mpi::OpenMpi.launcher(1).into_iter();
                let mut plain = Command::new(launcher.next().unwrap());
                let _ = run(plain.args(launcher).arg(&program).arg(&data)).success();
            }
        }
        assert_eq!(std::fs::read(&data).unwrap(), b"\0\0\0\0weakness", "{name}");
    }
    let rows = events(&place.join("loaded"));
    let ops: Vec<&str> = of_layer(&rows, "mpi-io").iter().map(|row| row.op.as_str()).collect();
    assert_eq!(ops, ["open", "write_at", "close"]);
}

fn built_source(name: &str) -> std::path::PathBuf {
    miot_tests::built::root().join("tests/programs/mpi").join(name)
}

/// The library requires no symbol of MPI, only libc.
#[test]
fn hook_loads_into_programs_without_mpi() {
    let library = built().folder.join("libmiot_mpi.so");
    let undefined = run(Command::new("nm").args(["-D", "--undefined-only"]).arg(&library)).success().stdout;
    assert!(!undefined.contains("MPI"), "{undefined}");
    let mut program = Command::new("/bin/echo");
    let ran = run(program.arg("hello").env("LD_PRELOAD", text(&library)).env("LD_BIND_NOW", "1")).success();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("hello\n", ""));
    assert!(Path::new(&library).is_file());
}
