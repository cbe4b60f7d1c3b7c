//! A plot: shapes, axes, title and legend.

use crate::scale::Scale;
use crate::text::XmlText;
use std::fmt::{self, Write as _};

/// Width of a plot over the whole page, in the units of its coordinates.
pub const WIDE: f64 = 1080.0;
/// Space for the labels of the vertical axis.
pub const LEFT: f64 = 76.0;
/// Space at the right, for half a label.
pub const RIGHT: f64 = 14.0;
/// Space for the labels of the horizontal axis.
pub const BOTTOM: f64 = 26.0;
/// Shades of a heat map: the classes `heat0` to `heat6`.
pub const SHADES: usize = 7;
/// Approximate width of a character of a label.
const CHARACTER: f64 = 6.3;
/// Approximate width of a character of the title.
const TITLE_CHARACTER: f64 = 9.4;
/// Space above a plot in a file, for its title and legend.
const HEAD: f64 = 52.0;
/// Space at the left of a plot in a file, for the name of the vertical axis.
const SIDE: f64 = 20.0;
/// Space below a plot in a file, for the name of the horizontal axis.
const FOOT: f64 = 20.0;
/// Width and height of a color sample of the legend.
const SAMPLE: f64 = 10.0;

/// Entry of the legend: the class of a color, and its meaning.
#[derive(Clone, Copy, Debug)]
pub enum LegendEntry {
    /// A filled area.
    Area(&'static str, &'static str),
    /// A line.
    Line(&'static str, &'static str),
}

/// A finished plot.
#[derive(Debug)]
pub struct Plot {
    /// Name of the file, and prefix of the element ids in a page.
    pub name: String,
    /// Title.
    pub title: String,
    /// Description of the plot, for screen readers.
    pub description: String,
    /// Meaning of the colors.
    pub keys: Vec<LegendEntry>,
    /// Meaning of the shades of a heat map, from the lightest to the darkest.
    pub shades: Option<String>,
    /// Names of the horizontal and the vertical axis.
    pub axes: (String, String),
    width: f64,
    height: f64,
    body: String,
}

impl Plot {
    /// Returns an empty plot of this width and height, in the units of its coordinates.
    #[must_use]
    pub fn new(name: &str, title: &str, (width, height): (f64, f64)) -> Plot {
        Plot {
            name: name.to_owned(),
            title: title.to_owned(),
            description: String::new(),
            keys: Vec::new(),
            shades: None,
            axes: Default::default(),
            width,
            height,
            body: String::new(),
        }
    }

    /// Returns the plot as an element of a page without title and legend, or, with a style, as a
    /// separate file. The attribute `data-alone` is the view box that a page must set when it
    /// exports the element as a file.
    #[must_use]
    pub fn svg(&self, style: Option<&str>) -> String {
        let Plot { name, width, height, body, .. } = self;
        let (wide, high) = (width + SIDE, height + HEAD + FOOT);
        let alone = format!("-{SIDE} -{HEAD} {wide} {high}");
        let (view, style) = match style {
            None => (format!("viewBox=\"0 0 {width} {height}\" data-alone=\"{alone}\""), String::new()),
            Some(style) => {
                let size = format!("width=\"{wide}\" height=\"{high}\"");
                let paper = format!("<rect class=\"paper\" x=\"-{SIDE}\" y=\"-{HEAD}\" {size}/>");
                (format!("{size} viewBox=\"{alone}\""), format!("<style>{style}</style>{paper}"))
            }
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" {view} role=\"img\" aria-labelledby=\"{name}-title {name}-description\"><title id=\"{name}-title\">{}</title><desc id=\"{name}-description\">{}</desc>{style}<g class=\"frame\">{}</g>{body}</svg>",
            XmlText(&self.title),
            XmlText(&self.description),
            self.frame()
        )
    }

    /// Returns title, legend and names of the axes, around the plot.
    fn frame(&self) -> String {
        let mut frame = String::new();
        let (left, right) = (LEFT, self.width - RIGHT);
        let capacity = ((self.width - LEFT) / TITLE_CHARACTER) as usize;
        line(&mut frame, "title", "start", (left, 20.0 - HEAD), &shortened(&self.title, capacity));
        let (mut x, y) = (left, -10.0);
        let label = |frame: &mut String, x: &mut f64, text: &str| {
            line(frame, "label", "start", (*x + 5.0, y), text);
            *x += 20.0 + text.chars().count() as f64 * CHARACTER;
        };
        for key in &self.keys {
            let (LegendEntry::Area(class, meaning) | LegendEntry::Line(class, meaning)) = key;
            let shape = match key {
                LegendEntry::Area(..) => format!("v-{SAMPLE}h{SAMPLE}v{SAMPLE}z"),
                LegendEntry::Line(..) => format!("m0 -4h{SAMPLE}"),
            };
            let _ = write!(frame, "<path class=\"{class}\" d=\"M{x:.1} {y}{shape}\"/>");
            x += SAMPLE;
            label(&mut frame, &mut x, meaning);
        }
        if let Some(shades) = &self.shades {
            for shade in 0..SHADES {
                let _ = write!(
                    frame,
                    "<path class=\"heat{shade}\" d=\"M{x:.1} {y}v-{SAMPLE}h{SAMPLE}v{SAMPLE}z\"/>"
                );
                x += SAMPLE;
            }
            label(&mut frame, &mut x, shades);
        }
        let (across, up) = &self.axes;
        line(&mut frame, "label", "middle", ((left + right) / 2.0, self.height + 11.0), across);
        if !up.is_empty() {
            let middle = (self.height - BOTTOM) / 2.0;
            let _ = write!(
                frame,
                "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(-6 {middle:.1}) rotate(-90)\">{}</text>",
                XmlText(up)
            );
        }
        frame
    }

    /// Adds shapes.
    pub fn add(&mut self, shapes: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(shapes);
    }

    /// Adds a path, unless it is empty.
    pub fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    /// Adds a line of text; `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, class: &str, anchor: &str, at: (f64, f64), text: &str) {
        line(&mut self.body, class, anchor, at, text);
    }

    /// Adds horizontal lines across the plot, and labels beside them.
    pub fn rows(&mut self, x: (f64, f64), y: &Scale, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let at = y.at(*value);
            self.add(format_args!("<path class=\"grid\" d=\"M{:.1} {at:.1}H{:.1}\"/>", x.0, x.1));
            self.text("tick", "end", (x.0 - 8.0, at + 3.5), label);
        }
    }

    /// Adds labels below the plot.
    pub fn columns(&mut self, x: &Scale, bottom: f64, ticks: &[(f64, String)]) {
        let mut free = f64::MIN;
        for (value, label) in ticks {
            let at = x.at(*value);
            let half = label.chars().count() as f64 * CHARACTER / 2.0;
            self.add(format_args!("<path class=\"grid\" d=\"M{at:.1} {bottom:.1}v4\"/>"));
            if at - half > free && at + half < self.width {
                self.text("tick", "middle", (at, bottom + 17.0), label);
                free = at + half + 8.0;
            }
        }
    }
}

/// Appends a line of text.
fn line(out: &mut String, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
    let _ = write!(
        out,
        "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        XmlText(text)
    );
}

/// Shortens text to `most` characters. The beginning and the end of a longer text are kept, because
/// paths differ at the end.
fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let begin = most / 3;
    let end = most.saturating_sub(begin + 1);
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(length - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_titles_keep_both_ends() {
        assert_eq!(shortened("Accesses to ä", 13), "Accesses to ä");
        assert_eq!(shortened("Accesses to /a/long/path/to/file", 13), "Acce…/to/file");
        assert_eq!([0, 1].map(|most| shortened("long", most)), ["…", "…"]);
    }
}
