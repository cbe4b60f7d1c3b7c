//! Builds the C parts, and links for a short start: each program that runs with the library pays for it.

use std::path::Path;

/// What `ar` makes of no files.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=src/shim.c");
    println!("cargo:rerun-if-changed=src/unwind.c");
    cc::Build::new()
        .files(["src/shim.c", "src/unwind.c"])
        // Calls must be made as they stand, and cancellation must pass through.
        .flag("-fno-builtin")
        .flag("-fexceptions")
        .opt_level(2)
        // Rust's library, which comes later on the linker's command line, needs the unwinder's names.
        .link_lib_modifier("+whole-archive")
        .compile("miot_shim");
    let argument = |text: &str| println!("cargo:rustc-cdylib-link-arg={text}");
    // The bounds of the list of hooks are for this library only: a second copy has its own.
    argument("-Wl,-z,start-stop-visibility=hidden");
    // Never unloaded: threads that have recorded run code of the library when they end.
    argument("-Wl,-z,nodelete");
    // What the library calls of its own names is its own: nothing for the loader to look up.
    argument("-Wl,-Bsymbolic-functions");
    // What runs at the start of a program lies together, and no segment shares a page with another: fewer pages to touch.
    argument("-Wl,-z,keep-text-section-prefix");
    argument("-Wl,-z,separate-loadable-segments");
    // In the place of libgcc_s, which `unwind.c` finds when it is needed.
    let nothing = Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("nothing");
    std::fs::create_dir_all(&nothing)?;
    std::fs::write(nothing.join("libgcc_s.a"), EMPTY_ARCHIVE)?;
    argument(&format!("-L{}", nothing.display()));
    Ok(())
}
