//! `miot`: trace a program, read a trace.

fn main() -> std::process::ExitCode {
    miot::main()
}
