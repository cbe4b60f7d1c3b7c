//! Writes plots to files.

use super::write as write_file;
use crate::files::check_writable;
use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use miot_plot::Plot;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Renderer of librsvg, which Linux distributions package. A built-in renderer would need forty
/// crates, and fonts all the same.
const RENDERER: &str = "rsvg-convert";
/// Pixels per unit of a plot.
const ZOOM: &str = "2";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum PictureFormat {
    /// Vector graphics
    #[default]
    Svg,
    /// Raster images
    Png,
}

/// Creates the directory if it does not exist, and checks that plots can be written to it, before a
/// long trace is read.
pub(super) fn prepare(dir: &Path, format: PictureFormat) -> anyhow::Result<()> {
    if format == PictureFormat::Png {
        let found = Command::new(RENDERER).arg("--version").stdin(Stdio::null()).output();
        match found {
            Ok(output) if output.status.success() => {}
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                "PNG requires {RENDERER}, which is not in PATH: install it (Debian: librsvg2-bin, Fedora: librsvg2-tools), or remove --plot-format png: \
                 SVG requires no other program, and the page can save each plot as PNG"
            ),
            other => bail!("cannot run {RENDERER}: {other:?}"),
        }
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    check_writable(&dir.join("plot.svg"))
}

/// Writes the plots into a directory.
pub(super) fn write(plots: &[Plot], dir: &Path, format: PictureFormat) -> anyhow::Result<()> {
    for plot in plots {
        let svg = plot.svg(Some(miot_plot::FILE_STYLE));
        match format {
            PictureFormat::Svg => write_file(&dir.join(format!("{}.svg", plot.name)), svg.as_bytes())?,
            PictureFormat::Png => {
                let picture = picture(&svg).with_context(|| format!("cannot draw {}", plot.name))?;
                write_file(&dir.join(format!("{}.png", plot.name)), &picture)?;
            }
        }
    }
    Ok(())
}

fn picture(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut renderer = Command::new(RENDERER)
        .args(["--format", "png", "--zoom", ZOOM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {RENDERER}"))?;
    // The renderer reads all input before it writes.
    let given = renderer.stdin.take().map(|mut stdin| stdin.write_all(svg.as_bytes()));
    let output = renderer.wait_with_output()?;
    ensure!(output.status.success(), "{RENDERER} failed: {}", output.status);
    given.transpose()?;
    Ok(output.stdout)
}
