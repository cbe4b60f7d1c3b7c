//! `miot report`: an HTML page about a trace, with plots.

mod accesses;
mod export;
mod model;
mod page;
mod pass;
mod plots;
mod tables;
mod times;
mod words;

use crate::files::{check_writable, folder_of, is_special};
use crate::source::Source;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a report of a trace with plots, as an HTML page that does not need a network
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot report miot-trace                                  writes report.html\n  miot report /data/trace --since 7d -o week.html         a week of a cluster\n  miot report miot-trace --plots plots                    also write each plot to a file\n  miot report miot-trace --format json -o -               figures of the page as JSON"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Output file; -: standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: PageFormat,
    /// Also write each plot to this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Format of plot files; PNG requires rsvg-convert
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT", requires = "plots")]
    plot_format: export::PictureFormat,
    /// Maximum number of rows of the longer tables
    #[arg(long, value_name = "N", default_value_t = 50)]
    rows: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PageFormat {
    /// HTML page
    #[default]
    Html,
    /// Figures of the page, as one JSON object
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.output != Path::new("-") {
        check_writable(&arguments.output)?;
    }
    if let Some(dir) = &arguments.plots {
        export::prepare(dir, arguments.plot_format)?;
    }
    let model = model::gather(&arguments.source, arguments.rows)?;
    let plots = plots::all(&model);
    if let Some(dir) = &arguments.plots {
        export::write(&plots, dir, arguments.plot_format)?;
    }
    let text = match arguments.format {
        PageFormat::Html => page::page(&model, &plots),
        PageFormat::Json => serde_json::to_string_pretty(&model)? + "\n",
    };
    if arguments.output == Path::new("-") {
        stdout().lock().write_all(text.as_bytes())?;
    } else {
        write(&arguments.output, text.as_bytes())?;
        eprintln!("{}: {}", arguments.output.display(), words::headline(&model));
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces a file atomically. Pipes and devices are written to directly.
fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", file.display());
    if is_special(file) {
        return std::fs::write(file, content).with_context(failed);
    }
    let mut new = tempfile::Builder::new()
        .prefix(".miot-report")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(folder_of(file))
        .with_context(failed)?;
    new.write_all(content).with_context(failed)?;
    new.persist(file).with_context(failed)?;
    Ok(())
}
