//! Plots as SVG, as elements of a page and as files.
//!
//! Colors are classes of a style sheet, so that a page can change them with the color scheme of the
//! reader.
//!
//! | module | role |
//! |---|---|
//! | [`plot`] | a plot: shapes, axes, title and legend |
//! | [`scale`] | coordinates of values, ticks of axes, staircases |
//! | [`text`] | text that is safe in HTML and XML |
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod plot;
pub mod scale;
pub mod text;

pub use plot::{BOTTOM, LEFT, LegendEntry, Plot, RIGHT, SHADES, WIDE};
pub use scale::{Scale, staircase, ticks};
pub use text::XmlText;

/// Style sheet for the plots of a page. The page defines its variables.
pub const PAGE_STYLE: &str = include_str!("plot.css");
/// Style sheet for a plot in a file, without variables.
pub const FILE_STYLE: &str = include_str!("plain.css");
