//! Linking of the preloaded libraries, for a short start: every program of a node loads them, and
//! each page that a starting program touches costs it a microsecond. Included by the build scripts.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Content of an archive without files.
const EMPTY_ARCHIVE: &str = "!<arch>\n";

/// Frames of a library through which exceptions and cancellations of the program pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frames {
    /// They own nothing that needs a destructor.
    Plain,
    /// They have destructors.
    #[allow(dead_code, reason = "each build script uses one of them")]
    WithDestructors,
}

/// Passes an option to the linker of the shared library.
pub(crate) fn argument(text: &str) {
    println!("cargo:rustc-cdylib-link-arg={text}");
}

/// Builds the C parts of the library together with those that replace parts of the standard
/// library, and sets the options of the linker.
pub(crate) fn build(files: &[&str], name: &str, frames: Frames) -> std::io::Result<()> {
    let own = ["../posix/src/unwind.c", "../posix/src/panic.c"];
    let mut build = cc::Build::new();
    if let Some(panic) = panic_symbol() {
        build.define("PANIC", format!("__wrap_{panic}").as_str());
        argument(&format!("-Wl,--wrap={panic}"));
        if frames == Frames::Plain {
            argument("-Wl,--wrap=rust_eh_personality");
        }
    }
    for file in files.iter().chain(&own) {
        println!("cargo:rerun-if-changed={file}");
        build.file(file);
    }
    build
        // Do not replace calls by builtins, and let thread cancellation pass through.
        .flag("-fno-builtin")
        .flag("-fexceptions")
        .opt_level(2)
        // Rust's standard library, later on the linker's command line, needs the unwinder's
        // symbols.
        .link_lib_modifier("+whole-archive")
        .compile(name);
    // Never unload the library: threads that have recorded run its code when they exit.
    argument("-Wl,-z,nodelete");
    // Bind the library's calls of its own functions locally, so that the loader looks up nothing.
    argument("-Wl,-Bsymbolic-functions");
    // Place the code for the start of a program together, and give each segment its own pages:
    // fewer pages are touched.
    argument("-Wl,-z,keep-text-section-prefix");
    argument("-Wl,-z,separate-loadable-segments");
    // Without the start files of C: a library with only `.init_array` and `.fini_array` does not
    // need them, and each program would touch their memory at its start and at its end.
    argument("-nostartfiles");
    let folder = Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join("link");
    std::fs::create_dir_all(&folder)?;
    // Replaces libgcc_s, which `unwind.c` loads when it is needed.
    std::fs::write(folder.join("libgcc_s.a"), EMPTY_ARCHIVE)?;
    argument(&format!("-L{}", folder.display()));
    // Without the standard library's copy of the program's arguments, which it makes at the start
    // of each program.
    let script = folder.join("discard.ld");
    std::fs::write(&script, "SECTIONS { /DISCARD/ : { *(.init_array.00099) } } INSERT AFTER .text;\n")?;
    argument(&format!("-Wl,-T,{}", script.display()));
    Ok(())
}

/// Returns the symbol of the standard library that handles panics. `None`: it is not replaced.
fn panic_symbol() -> Option<String> {
    const SUFFIX: &[u8] = b"_7___rustc17rust_begin_unwind";
    let output = Command::new(std::env::var_os("RUSTC")?).args(["--print", "sysroot"]).output().ok()?;
    let sysroot = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    let libraries = sysroot.join("lib/rustlib").join(std::env::var("TARGET").ok()?).join("lib");
    let std = std::fs::read_dir(libraries).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libstd-") && name.ends_with(".rlib")
    })?;
    let bytes = std::fs::read(std).ok()?;
    let at = bytes.windows(SUFFIX.len()).position(|window| window == SUFFIX)?;
    let start = bytes[..at].iter().rposition(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')? + 1;
    String::from_utf8(bytes[start..at + SUFFIX.len()].to_vec()).ok().filter(|symbol| symbol.starts_with("_R"))
}
