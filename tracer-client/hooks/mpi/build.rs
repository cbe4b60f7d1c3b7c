//! Sets linker options for a short start, as the posix hook does: every program of a node may load
//! the library.

use std::path::Path;

/// Content of an archive without files.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

fn main() -> std::io::Result<()> {
    // Replaces libgcc_s, as in the posix hook.
    let unwinder = "../posix/src/unwind.c";
    println!("cargo:rerun-if-changed={unwinder}");
    cc::Build::new()
        .file(unwinder)
        .flag("-fexceptions")
        .opt_level(2)
        .link_lib_modifier("+whole-archive")
        .compile("miot_mpi_unwind");
    let argument = |text: &str| println!("cargo:rustc-cdylib-link-arg={text}");
    // Never unload the library: threads that have recorded run its code when they exit.
    argument("-Wl,-z,nodelete");
    argument("-Wl,-Bsymbolic-functions");
    argument("-Wl,-z,keep-text-section-prefix");
    argument("-Wl,-z,separate-loadable-segments");
    // Do not export the C interface of this copy of the tracer, see src/tracer.rs.
    argument("-Wl,--exclude-libs,ALL");
    let empty = Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("empty");
    std::fs::create_dir_all(&empty)?;
    std::fs::write(empty.join("libgcc_s.a"), EMPTY_ARCHIVE)?;
    argument(&format!("-L{}", empty.display()));
    Ok(())
}
