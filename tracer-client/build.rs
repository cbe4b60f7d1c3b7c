//! Builds the C part: Rust cannot define functions that take `...`.

fn main() {
    println!("cargo:rerun-if-changed=src/debug.c");
    cc::Build::new()
        .file("src/debug.c")
        // Calls must be made as they stand.
        .flag("-fno-builtin")
        .opt_level(2)
        .warnings(true)
        .compile("miot_debug");
}
