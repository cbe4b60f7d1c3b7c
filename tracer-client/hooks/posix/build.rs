//! Builds the bodies of the variadic functions.

fn main() {
    println!("cargo:rerun-if-changed=src/shim.c");
    cc::Build::new()
        .file("src/shim.c")
        // Calls must be made as they stand, and cancellation must pass through.
        .flag("-fno-builtin")
        .flag("-fexceptions")
        .opt_level(2)
        .compile("miot_shim");
    // The bounds of the table of functions are for this library only: a second copy has its own.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,start-stop-visibility=hidden");
}
