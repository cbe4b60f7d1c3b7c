//! Checks that `include/miot.h` is what cbindgen generates from `src/capi.rs` and the operation
//! table.
//!
//! `MIOT_BLESS=1 cargo test -p miot-tracer --test header` regenerates it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use miot_proto::event::flag;
use miot_proto::op::{self, Layer};
use std::fmt::Write as _;
use std::path::Path;

const INTRODUCTION: &str = "\
/* MIOT: record the I/O requests of a file-system client.
 *
 * Generated from tracer-client/src/capi.rs; do not edit.
 *
 *   struct miot_request r = miot_begin(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE);
 *   ssize_t n = ... the request ...;
 *   struct miot_done done = { handle, offset, length, n < 0 ? -errno : n, 0 };
 *   miot_end(&r, &done);
 *
 * Link with `pkg-config --cflags --libs miot`. Without a log-client on the node nothing is
 * recorded, and a request costs about a nanosecond.
 */
";

/// Declarations that cbindgen cannot generate: functions that take `...` or a `va_list`.
const VARIADIC: &str = "
#ifdef __GNUC__
#define MIOT_PRINTF(string, first) __attribute__((__format__(__printf__, string, first)))
#else
#define MIOT_PRINTF(string, first)
#endif

#ifdef __cplusplus
extern \"C\" {
#endif

/*
 Records a message of a debug log without formatting it. The format's address and the arguments are
 copied, strings up to 4096 bytes in all, and the message is formatted when the trace is read. The
 mask is recorded, but not tested: the caller decides whether to record the message. A format with
 %n, %a, %m, wide characters or numbered arguments is recorded without arguments. Returns 1 if the
 message was recorded.
 */
int miot_debug(uint64_t mask, const char *format, ...) MIOT_PRINTF(2, 3);

/*
 miot_debug with a va_list, and a character for the kind of message ('D', 'E', ...).
 */
int miot_vdebug(uint64_t mask, char prefix, const char *format, va_list list) MIOT_PRINTF(3, 0);

#ifdef __cplusplus
}
#endif
";

fn constants() -> String {
    let mut out = String::new();
    let upper = |name: &str| name.replace('-', "_").to_uppercase();
    writeln!(out, "/* Layers. */").unwrap();
    for layer in Layer::ALL {
        writeln!(out, "#define MIOT_LAYER_{} {}", upper(layer.name()), layer as u8).unwrap();
    }
    writeln!(
        out,
        "\n/* Operations of the client, FUSE and block layers, of MPI-IO, and of the application. */"
    )
    .unwrap();
    for row in op::all_operations() {
        let layer = match Layer::from_number(row.op.layer) {
            Some(Layer::Client) => "CLIENT",
            Some(Layer::App) => "APP",
            Some(Layer::MpiIo) => "MPI_IO",
            _ => continue,
        };
        writeln!(out, "#define MIOT_{layer}_{} {}", upper(row.name), row.op.number).unwrap();
    }
    writeln!(out, "\n/* Initializer of a struct miot_ext without attributes. */").unwrap();
    writeln!(
        out,
        "#define MIOT_EXT_NONE {{0, 0, 0, MIOT_NONE, 0, MIOT_NOBODY, 0, 0, MIOT_NONE, MIOT_NONE, MIOT_NONE}}"
    )
    .unwrap();
    writeln!(out, "\n/* Flags. */").unwrap();
    for (name, bit) in [("ASYNC", flag::ASYNC), ("APPEND", flag::APPEND), ("DIRECT", flag::DIRECT)] {
        writeln!(out, "#define MIOT_FLAG_{name} {bit}").unwrap();
    }
    out
}

#[test]
fn committed_header_matches_the_generated_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        header: Some(INTRODUCTION.into()),
        include_guard: Some("MIOT_H".into()),
        no_includes: true,
        sys_includes: vec!["stdarg.h".into(), "stdint.h".into()],
        after_includes: Some(format!("\n{}{VARIADIC}", constants())),
        export: cbindgen::ExportConfig {
            exclude: vec!["miot_vdebug".into()],
            ..cbindgen::ExportConfig::default()
        },
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::C,
        style: cbindgen::Style::Tag,
        ..cbindgen::Config::default()
    };
    let mut generated = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/capi.rs"))
        .generate()
        .expect("cbindgen must parse capi.rs")
        .write(&mut generated);
    let path = root.join("include/miot.h");
    if std::env::var_os("MIOT_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read(&path).unwrap();
    assert_eq!(
        String::from_utf8(committed).unwrap(),
        String::from_utf8(generated).unwrap(),
        "include/miot.h is out of date; run: MIOT_BLESS=1 cargo test -p miot-tracer --test header"
    );
}
