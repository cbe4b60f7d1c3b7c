//! Builds the C parts, and sets linker options for a short start, as the posix hook does.

#[path = "../link.rs"]
mod link;

fn main() -> std::io::Result<()> {
    link::build(&[], "miot_mpi_c", link::Frames::WithDestructors)?;
    // Do not export the C interface of this copy of the tracer, see src/tracer.rs.
    link::argument("-Wl,--exclude-libs,ALL");
    Ok(())
}
