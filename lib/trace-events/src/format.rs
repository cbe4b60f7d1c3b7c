//! Output formats that several commands share.

use clap::ValueEnum;

/// Output format of commands that print rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines or tables for people.
    #[default]
    #[value(alias = "table")]
    Text,
    /// JSON: one object, or one per line.
    Json,
    /// Comma-separated values with a header line.
    Csv,
}

/// Output format of commands that print one result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TextOrJson {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}
