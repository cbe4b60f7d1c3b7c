//! Builds the part in C: stable Rust cannot define functions that take `...`.

fn main() {
    println!("cargo:rerun-if-changed=src/debug.c");
    cc::Build::new()
        .file("src/debug.c")
        // The compiler must not replace calls of libc functions.
        .flag("-fno-builtin")
        .opt_level(2)
        .warnings(true)
        .compile("miot_debug");
}
