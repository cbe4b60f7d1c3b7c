//! Plots as SVG: scales, axes, shapes. Colours are classes, so that the page can change them with the light.

use crate::output::printable;
use std::fmt::{self, Write as _};

/// Width of a plot over the whole page, in the units of its coordinates.
pub(crate) const WIDE: f64 = 1080.0;
/// Room for the labels of the vertical axis.
pub(crate) const LEFT: f64 = 76.0;
/// Room at the right, for half a label.
pub(crate) const RIGHT: f64 = 14.0;
/// Room for the labels of the horizontal axis.
pub(crate) const BOTTOM: f64 = 26.0;
/// What a character of a label takes, about.
const CHARACTER: f64 = 6.3;

/// Text as it may stand in HTML and XML, also in an attribute; control characters are shown, not obeyed.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
            match character {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                // No characters of XML, or ones that turn the text around them.
                '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(out, "\\u{{{:x}}}", u32::from(character))?;
                }
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A finished plot.
#[derive(Debug)]
pub(crate) struct Plot {
    /// Name of its file, and of its elements in the page.
    pub(crate) name: String,
    /// What it shows.
    pub(crate) title: String,
    /// What can be seen in it, for those who do not see it.
    pub(crate) description: String,
    width: f64,
    height: f64,
    body: String,
}

impl Plot {
    pub(crate) fn new(name: &str, title: &str, (width, height): (f64, f64)) -> Plot {
        let (name, title) = (name.to_owned(), title.to_owned());
        Plot { name, title, description: String::new(), width, height, body: String::new() }
    }

    /// As an element; with a style of its own it is a file.
    pub(crate) fn svg(&self, style: Option<&str>) -> String {
        let Plot { name, width, height, body, .. } = self;
        let (size, style) = style.map_or_else(Default::default, |style| {
            let size = format!("width=\"{width}\" height=\"{height}\"");
            let style = format!("<style>{style}</style><rect class=\"paper\" {size}/>");
            (size, style)
        });
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" {size} viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{name}-title {name}-description\"><title id=\"{name}-title\">{}</title><desc id=\"{name}-description\">{}</desc>{style}{body}</svg>",
            Text(&self.title),
            Text(&self.description)
        )
    }

    /// Adds shapes.
    pub(crate) fn add(&mut self, shapes: fmt::Arguments<'_>) {
        // A string takes everything.
        let _ = self.body.write_fmt(shapes);
    }

    /// Adds a path, unless it is empty.
    pub(crate) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    /// Adds a line of text; `anchor` is `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        self.add(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            Text(text)
        ));
    }

    /// Lines across the plot and labels beside them.
    pub(crate) fn rows(&mut self, x: (f64, f64), y: &Scale, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let at = y.at(*value);
            self.add(format_args!("<path class=\"grid\" d=\"M{:.1} {at:.1}H{:.1}\"/>", x.0, x.1));
            self.text("tick", "end", (x.0 - 8.0, at + 3.5), label);
        }
    }

    /// Labels below the plot.
    pub(crate) fn columns(&mut self, x: &Scale, bottom: f64, ticks: &[(f64, String)]) {
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

/// From values to coordinates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

impl Scale {
    pub(crate) fn at(&self, value: f64) -> f64 {
        let span = self.to - self.from;
        let share = if span > 0.0 { (value - self.from) / span } else { 0.5 };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }
}

/// Round numbers from 0 to `most`, about `wanted` of them, in steps of 1, 2 or 5 times a power of ten, within a unit that is
/// `unit` times the one below (1000, or 1024 for bytes).
pub(crate) fn ticks(most: f64, wanted: usize, unit: f64) -> Vec<f64> {
    if most <= 0.0 || !most.is_finite() {
        return vec![0.0];
    }
    let rough = most / wanted as f64;
    let power = if rough >= 1.0 { rough.log(unit).floor() } else { 0.0 };
    let within = rough / unit.powf(power);
    let ten = 10f64.powf(within.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * ten >= within).unwrap_or(10.0);
    // 1000 of one unit is rather 1 of the next.
    let step = if step * ten >= 1000.0 { unit } else { step * ten } * unit.powf(power);
    (0..).map(|number| f64::from(number) * step).take_while(|value| *value <= most * 1.000_001).collect()
}

/// The area between two lines over steps of `x`, the first of which begins at 0: as staircases, because each value holds for a
/// whole interval.
pub(crate) fn staircase(x: &Scale, step: f64, from: &[f64], to: &[f64]) -> String {
    let mut path = String::new();
    let mut at = 0;
    while at < to.len() {
        // Nothing is drawn where there is nothing.
        if from[at] == to[at] {
            at += 1;
            continue;
        }
        let run = to[at..].iter().zip(&from[at..]).take_while(|(to, from)| to != from).count();
        let _ = write!(path, "M{:.1} {:.1}", x.at(at as f64 * step), from[at]);
        let border = |index: usize| x.at(index as f64 * step);
        for (index, to) in to.iter().enumerate().skip(at).take(run) {
            let _ = write!(path, "V{to:.1}H{:.1}", border(index + 1));
        }
        for index in (at..at + run).rev() {
            let _ = write!(path, "V{:.1}H{:.1}", from[index], border(index));
        }
        path.push('z');
        at += run;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        let hostile = "<script>\"'&\u{1}\u{202e}\u{ffff}";
        assert_eq!(Text(hostile).to_string(), "&lt;script&gt;&quot;&#39;&amp;\\u{1}\\u{202e}\\u{ffff}");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(10.0, 4, 1000.0), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(3_500.0, 4, 1000.0), [0.0, 1000.0, 2000.0, 3000.0]);
        let mebi = 1_048_576.0;
        assert_eq!(ticks(700.0 * mebi, 3, 1024.0), [0.0, 500.0 * mebi]);
        assert_eq!(ticks(3.9 * mebi, 5, 1024.0), [0.0, 1.0, 2.0, 3.0].map(|value| value * mebi));
        assert_eq!(ticks(0.0, 3, 1000.0), [0.0]);
    }

    #[test]
    fn a_staircase_has_gaps() {
        let x = Scale { from: 0.0, to: 4.0, start: 0.0, end: 4.0 };
        let path = staircase(&x, 1.0, &[9.0; 4], &[5.0, 9.0, 4.0, 3.0]);
        assert_eq!(path, "M0.0 9.0V5.0H1.0V9.0H0.0zM2.0 9.0V4.0H3.0V3.0H4.0V9.0H3.0V9.0H2.0z");
    }
}
