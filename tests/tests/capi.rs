//! The C interface: the example is compiled with `cc` against `miot.h` and both libraries through
//! pkg-config, and traced.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_tests::built::{built, root};
use miot_tests::process::run;
use miot_tests::test_dir::fresh;
use miot_tests::trace::PrintedEvent;
use miot_tests::traced::{command, events};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `miot.pc` as installed, with paths of the build.
fn pkg_config(place: &Path, arguments: &[&str]) -> Vec<String> {
    let template = fs::read_to_string(root().join("tracer-client/capi/miot.pc.in")).unwrap();
    let text = template
        .replace("@PREFIX@", "/usr")
        .replace("@INCLUDEDIR@", root().join("tracer-client/include").to_str().unwrap())
        .replace("@LIBDIR@", built().library.to_str().unwrap())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    assert!(!text.contains('@'), "a placeholder unknown to this test: {text}");
    fs::write(place.join("miot.pc"), text).unwrap();
    let mut tool = Command::new("pkg-config");
    let out = run(tool.args(arguments).arg("miot").env("PKG_CONFIG_PATH", place)).success();
    out.stdout.split_whitespace().map(str::to_owned).collect()
}

fn example() -> PathBuf {
    root().join("tracer-client/examples/c/client.c")
}

/// Checks that the trace has the example's requests: eight writes, a failing one, the note, the
/// file.
fn check(rows: &[PrintedEvent]) {
    let writes: Vec<&PrintedEvent> =
        rows.iter().filter(|row| row.layer == "client" && row.op == "write").collect();
    let facts: Vec<_> =
        writes.iter().map(|row| (row.offset.unwrap(), row.length.unwrap(), row.result)).collect();
    let mut expected: Vec<_> = (0..8).map(|block| (block * 8, 8, 8)).collect();
    expected.push((64, 1, -i64::from(libc::EBADF)));
    assert_eq!(facts, expected);
    assert!(
        writes.iter().all(|row| row.path.as_deref().is_some_and(|path| path.ends_with("/served"))),
        "{writes:?}"
    );
    assert!(rows.iter().any(|row| row.layer == "app" && row.path.as_deref() == Some("checkpoint begins")));
}

fn trace(place: &Path, program: &Path, library: Option<&Path>) -> Vec<PrintedEvent> {
    let words = [program.to_path_buf(), place.join("served")];
    let mut miot = command(place, &place.join("trace"), &words);
    if let Some(library) = library {
        miot.env("LD_LIBRARY_PATH", library);
    }
    let ended = run(&mut miot).success();
    assert_eq!(ended.stdout, "recording: yes\n");
    events(&place.join("trace"))
}

#[test]
fn example_with_the_shared_library_is_traced() {
    let place = fresh("capi-shared");
    let flags = pkg_config(&place, &["--cflags", "--libs"]);
    let program = place.join("client");
    let mut cc = Command::new("cc");
    let _ = run(cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(example()).args(&flags))
        .success();
    check(&trace(&place, &program, Some(&built().library)));

    // Without a log-client nothing is recorded and nothing fails.
    let mut alone = Command::new(&program);
    alone
        .arg(place.join("served"))
        .env("MIOT_DIR", place.join("none"))
        .env("LD_LIBRARY_PATH", &built().library);
    assert_eq!(run(&mut alone).success().stdout, "recording: no\n");
}

#[test]
fn example_with_the_static_library_is_traced() {
    let place = fresh("capi-static");
    let cflags = pkg_config(&place, &["--cflags"]);
    let private: Vec<String> = pkg_config(&place, &["--static", "--libs"]);
    let program = place.join("client");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(example()).args(&cflags);
    // All flags of --static except the library itself, which is given as a file.
    cc.arg(built().library.join("libmiot.a")).args(private.iter().filter(|flag| *flag != "-lmiot"));
    let _ = run(&mut cc).success();
    check(&trace(&place, &program, None));
}

#[test]
fn example_under_sanitizers_is_traced() {
    let place = fresh("capi-sanitized");
    let flags = pkg_config(&place, &["--cflags", "--libs"]);
    let program = place.join("client");
    let mut cc = Command::new("cc");
    cc.args(["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"]).arg(&program);
    let _ = run(cc.arg(example()).args(&flags)).success();
    let words = [program, place.join("served")];
    let mut miot = command(&place, &place.join("trace"), &words);
    // The preloaded hook precedes the sanitizer's library, as it would precede any other.
    miot.env("ASAN_OPTIONS", "verify_asan_link_order=0").env("LD_LIBRARY_PATH", &built().library);
    assert_eq!(run(&mut miot).success().stdout, "recording: yes\n");
    check(&events(&place.join("trace")));
}

#[test]
fn static_client_is_traced_without_the_hook() {
    let place = fresh("capi-no-loader");
    let cflags = pkg_config(&place, &["--cflags"]);
    let program = place.join("client");
    let mut cc = Command::new("cc");
    cc.args(["-static", "-o"])
        .arg(&program)
        .arg(example())
        .args(&cflags)
        .arg(built().library.join("libmiot.a"));
    let _ = run(cc.args(["-lpthread"])).success();
    let rows = trace(&place, &program, None);
    check(&rows);
    assert!(rows.iter().all(|row| row.layer != "posix"), "the hook cannot record a static program");
}

#[test]
fn requests_inside_a_client_request_name_it() {
    let place = fresh("capi-enclosing");
    let flags = pkg_config(&place, &["--cflags", "--libs"]);
    let program = place.join("client");
    let mut cc = Command::new("cc");
    let _ = run(cc.arg("-o").arg(&program).arg(example()).args(&flags)).success();
    let rows = trace(&place, &program, Some(&built().library));
    // The preloaded hook shares its lanes with the shared library, so both layers are one producer.
    let mut writes = 0;
    for write in rows.iter().filter(|row| row.layer == "client" && row.op == "write" && row.result == 8) {
        let inner = |row: &&PrintedEvent| row.stream == write.stream && row.enclosing == Some(write.request);
        let inner: Vec<&PrintedEvent> = rows.iter().filter(inner).collect();
        let [pwrite] = inner[..] else { panic!("{write:?} encloses {inner:?}") };
        assert_eq!((pwrite.layer.as_str(), pwrite.op.as_str()), ("posix", "pwrite"));
        assert_eq!((pwrite.offset, pwrite.length, pwrite.result), (write.offset, write.length, write.result));
        assert!(pwrite.time <= write.time, "the inner request ends first");
        writes += 1;
    }
    assert_eq!(writes, 8);
}

#[test]
fn header_is_valid_c_and_cpp() {
    let place = fresh("capi-header");
    let include = root().join("tracer-client/include");
    for (compiler, extra) in [("cc", "-std=c99"), ("cc", "-xc++")] {
        let source = place.join("header.c");
        let text = "#include <miot_caliper.h>\nint main(void) { return miot_active(MIOT_LAYER_CLIENT); }\n";
        fs::write(&source, text).unwrap();
        let mut cc = Command::new(compiler);
        cc.args([extra, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"])
            .arg(&include)
            .arg(&source);
        let _ = run(&mut cc).success();
    }
}

/// Compiles a program of the tests and links it with the shared library.
fn linked(place: &Path, source: &str) -> PathBuf {
    let program = place.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-Wno-nonnull", "-Wno-format", "-Wno-format-overflow", "-o"]);
    cc.arg(&program).arg(root().join("tests/programs").join(source));
    let _ = run(cc.args(pkg_config(place, &["--cflags", "--libs"]))).success();
    program
}

/// Annotations of Caliper are regions, each of its own thread; two files share the open ones.
#[test]
fn annotations_of_caliper_are_regions() {
    let place = fresh("capi-caliper");
    let source = root().join("tests/programs/caliper.c");
    let flags = pkg_config(&place, &["--cflags"]);
    // The second file as C++.
    for (object, options) in [("main.o", &["-std=gnu11"][..]), ("elsewhere.o", &["-xc++", "-DELSEWHERE"])] {
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-c", "-o"]).arg(place.join(object));
        let _ = run(cc.args(options).args(&flags).arg(&source)).success();
    }
    let program = place.join("program");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).args([place.join("main.o"), place.join("elsewhere.o")]);
    let _ = run(cc.args(pkg_config(&place, &["--libs"])).arg("-lpthread")).success();
    // Without a tracer it does nothing.
    let mut alone = Command::new(&program);
    alone.env("MIOT_DIR", place.join("none")).env("LD_LIBRARY_PATH", &built().library);
    let _ = run(&mut alone).success();

    let trace = place.join("trace");
    let mut miot = command(&place, &trace, &[&program]);
    let _ = run(miot.env("LD_LIBRARY_PATH", &built().library)).success();
    let rows = events(&trace);
    let regions: Vec<(&str, &str, Option<i64>)> = rows
        .iter()
        .filter(|row| row.op == "region")
        .map(|row| (row.path.as_deref().unwrap_or(""), row.path2.as_deref().unwrap_or(""), row.arg))
        .collect();
    let expected = [
        ("iteration", "iteration=", Some(0)),
        ("iteration", "iteration=", Some(1)),
        ("mainloop", "", None),
        ("copied", "copied=a value", None),
        ("function", "", None),
        ("level", "level=-3", None),
        ("ratio", "ratio=0.5", None),
        ("elsewhere", "", None),
        ("of the thread", "", None),
        ("outer", "", None),
    ];
    assert_eq!(regions, expected);
    let thread_of = |name| rows.iter().find(|row| row.path.as_deref() == Some(name)).unwrap().tid;
    assert_ne!(thread_of("of the thread"), thread_of("outer"));
}

#[test]
fn each_pointer_may_be_null() {
    let place = fresh("capi-null");
    let program = linked(&place, "nulls.c");
    let mut alone = Command::new(&program);
    alone.env("MIOT_DIR", place.join("none")).env("LD_LIBRARY_PATH", &built().library);
    assert_eq!(run(&mut alone).success().stdout, "0\n");

    let trace = place.join("trace");
    let mut miot = command(&place, &trace, &[&program]);
    let ended = run(miot.env("LD_LIBRARY_PATH", &built().library)).success();
    assert_eq!(ended.stdout, "15\n");
    let rows = events(&trace);
    let of = |layer: &str, op: &str| rows.iter().filter(|row| row.layer == layer && row.op == op).count();
    assert_eq!((of("client", "write"), of("client", "open"), of("client", "close")), (10, 1, 1), "{rows:#?}");
    assert_eq!((of("app", "note"), of("app", "debug"), of("app", "region")), (2, 2, 1));
    let nothing_said = |row: &&PrintedEvent| (row.offset, row.length, row.result) == (None, None, 0);
    assert_eq!(rows.iter().filter(|row| row.op == "write").filter(nothing_said).count(), 5);
}

/// Regions with the shared library, which the preloaded hook precedes: requests stay outermost, the
/// tree and the table of regions have them.
#[test]
fn regions_contain_requests_by_time() {
    let place = fresh("capi-regions");
    let program = linked(&place, "regions.c");
    let trace = place.join("trace");
    let mut miot = command(&place, &trace, &[&program]);
    let ended = run(miot.env("LD_LIBRARY_PATH", &built().library)).success();
    assert_eq!(ended.stdout, "3 1\n");

    let rows = events(&trace);
    let regions: Vec<(&str, i64)> = rows
        .iter()
        .filter(|row| row.op == "region")
        .map(|row| (row.path.as_deref().unwrap_or_default(), row.result))
        .collect();
    assert_eq!(regions, [("fetch", 0), ("failed", -5), ("epoch", 0)]);
    let read = rows.iter().find(|row| row.op == "read" && row.path.as_deref() == Some("/etc/passwd"));
    assert_eq!(read.unwrap().enclosing, None, "a region is not a parent");

    let mut cat = Command::new(&built().miot);
    let tree = run(cat.arg("cat").arg(&trace).args(["--tree", "--op", "region"])).success().stdout;
    let line = |text: &str| tree.lines().find(|line| line.contains(text)).unwrap_or_default();
    assert!(line("region").ends_with(" epoch loader=1,epoch=3"), "{tree}");
    assert!(line(" read ").contains("    posix"), "within fetch, within epoch: {tree}");

    let mut stat = Command::new(&built().miot);
    let table =
        run(stat.arg("stat").arg(&trace).args(["--by", "region", "--format", "json"])).success().stdout;
    let table: serde_json::Value = serde_json::from_str(&table).unwrap();
    let row = |name: &str| {
        let rows = table["rows"].as_array().unwrap().iter();
        rows.clone().find(|row| row["region"] == name && row["layer"].is_null()).unwrap().clone()
    };
    let (epoch, fetch, failed) = (row("epoch"), row("fetch"), row("failed"));
    // open, read and close; open and read.
    assert_eq!((&epoch["requests"], &epoch["bytes_read"]), (&3.into(), &1.into()));
    assert_eq!((&fetch["requests"], &fetch["kind"]), (&2.into(), &"fetch".into()));
    assert_eq!((&failed["requests"], &failed["kind"]), (&0.into(), &"compute".into()));
    assert_eq!(epoch["hidden_time"], 0, "the main thread made the requests itself");

    let mut wrong = Command::new(&built().miot);
    let refused = run(wrong.arg("stat").arg(&trace).args(["--by", "region", "--layer", "posix"]));
    assert!(refused.stderr.contains("do not apply to regions"), "{}", refused.stderr);
}

#[test]
fn library_stays_loaded_until_its_recording_thread_ends() {
    let place = fresh("capi-unload");
    let host = miot_tests::compile::compile(&place, "host", &["unload_host.c"], &["-ldl"]);
    let plugin = |name: &str, libraries: &[String]| {
        let plugin = place.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&plugin).arg(root().join("tests/programs/unload_plugin.c"));
        cc.args(pkg_config(&place, &["--cflags"])).args(libraries);
        let _ = run(&mut cc).success();
        plugin
    };
    let shared = plugin("shared.so", &pkg_config(&place, &["--libs"]));
    // Like `-lmiot` where only the static library is installed.
    let private = pkg_config(&place, &["--static", "--libs"]);
    let archive = built().library.join("libmiot.a").to_str().unwrap().to_owned();
    let private: Vec<String> =
        private.into_iter().map(|flag| if flag == "-lmiot" { archive.clone() } else { flag }).collect();
    let own = plugin("static.so", &private);
    for (plugin, hook) in [(&shared, true), (&own, true), (&shared, false), (&own, false)] {
        let trace = place.join("trace");
        let _ = fs::remove_dir_all(&trace);
        let words = [host.as_os_str(), plugin.as_os_str()];
        let mut miot = command(&place, &trace, &words);
        if !hook {
            // Use the library's own tracer, not the one shared by the hook.
            let words = ["env", "-u", "LD_PRELOAD", host.to_str().unwrap(), plugin.to_str().unwrap()];
            miot = command(&place, &trace, &words);
        }
        let ended = run(miot.env("LD_LIBRARY_PATH", &built().library)).success();
        assert_eq!(ended.stdout, "recorded 1\nfine\n", "{}, hook {hook}", plugin.display());
        let reads = events(&trace).iter().filter(|row| row.layer == "client" && row.op == "read").count();
        assert_eq!(reads, 1, "{}, hook {hook}", plugin.display());
    }
    // No other library of MIOT is unloaded either, regardless of the module that opened it.
    for library in ["libmiot.so", "libmiot_posix.so", "libmiot_mpi.so"] {
        let mut opened = Command::new(&host);
        let ended = run(opened.arg(built().library.join(library)).arg("stays"));
        assert_eq!(ended.stdout, "stays\n", "{library}: {}", ended.stderr);
    }
}
