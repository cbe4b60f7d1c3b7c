//! Builds the C parts, and sets linker options for a short start.

#[path = "../link.rs"]
mod link;

fn main() -> std::io::Result<()> {
    link::build(&["src/shim.c"], "miot_shim", link::Frames::Plain)?;
    // Keep the bounds of the hook list local: a second copy of the library has its own.
    link::argument("-Wl,-z,start-stop-visibility=hidden");
    Ok(())
}
