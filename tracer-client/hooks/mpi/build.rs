//! Links for a short start, as the posix hook does: every program of a node may run with the library.

use std::path::Path;

/// What `ar` makes of no files.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

fn main() -> std::io::Result<()> {
    // The posix hook's way to do without libgcc_s.
    let unwinder = "../posix/src/unwind.c";
    println!("cargo:rerun-if-changed={unwinder}");
    cc::Build::new()
        .file(unwinder)
        .flag("-fexceptions")
        .opt_level(2)
        .link_lib_modifier("+whole-archive")
        .compile("miot_mpi_unwind");
    let argument = |text: &str| println!("cargo:rustc-cdylib-link-arg={text}");
    // Never unloaded: threads that have recorded run code of the library when they end.
    argument("-Wl,-z,nodelete");
    argument("-Wl,-Bsymbolic-functions");
    argument("-Wl,-z,keep-text-section-prefix");
    argument("-Wl,-z,separate-loadable-segments");
    // The tracer's C interface of this copy is for this library only: see src/tracer.rs.
    argument("-Wl,--exclude-libs,ALL");
    let nothing = Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("nothing");
    std::fs::create_dir_all(&nothing)?;
    std::fs::write(nothing.join("libgcc_s.a"), EMPTY_ARCHIVE)?;
    argument(&format!("-L{}", nothing.display()));
    Ok(())
}
