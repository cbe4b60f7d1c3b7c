//! Links the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Never unloaded: threads that have recorded run code of the library when they end.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
