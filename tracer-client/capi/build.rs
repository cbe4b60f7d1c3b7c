//! Links the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The library must never be unloaded: threads that have recorded run its code when they end.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
