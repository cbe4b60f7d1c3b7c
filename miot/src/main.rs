//! The program `miot`.

fn main() -> std::process::ExitCode {
    miot::main()
}
