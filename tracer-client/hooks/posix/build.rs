//! Builds the C parts, and sets linker options for a short start, because every program that loads
//! the library pays for its start.

use std::path::Path;

/// Content of an archive without files.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=src/shim.c");
    println!("cargo:rerun-if-changed=src/unwind.c");
    cc::Build::new()
        .files(["src/shim.c", "src/unwind.c"])
        // Do not replace calls by builtins, and let thread cancellation pass through.
        .flag("-fno-builtin")
        .flag("-fexceptions")
        .opt_level(2)
        // Rust's standard library, later on the linker's command line, needs the unwinder's
        // symbols.
        .link_lib_modifier("+whole-archive")
        .compile("miot_shim");
    let argument = |text: &str| println!("cargo:rustc-cdylib-link-arg={text}");
    // Keep the bounds of the hook list local: a second copy of the library has its own.
    argument("-Wl,-z,start-stop-visibility=hidden");
    // Never unload the library: threads that have recorded run its code when they exit.
    argument("-Wl,-z,nodelete");
    // Bind the library's calls of its own functions locally, so that the loader looks up nothing.
    argument("-Wl,-Bsymbolic-functions");
    // Place the code for the start of a program together, and give each segment its own pages:
    // fewer pages are touched.
    argument("-Wl,-z,keep-text-section-prefix");
    argument("-Wl,-z,separate-loadable-segments");
    // Replaces libgcc_s, which `unwind.c` loads when it is needed.
    let empty = Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("empty");
    std::fs::create_dir_all(&empty)?;
    std::fs::write(empty.join("libgcc_s.a"), EMPTY_ARCHIVE)?;
    argument(&format!("-L{}", empty.display()));
    Ok(())
}
