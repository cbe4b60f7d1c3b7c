//! Plots as SVG: scales, axes, shapes. Colours are classes, so that the page can change them with the light.

use miot_trace_events::text::printable;
use std::fmt::{self, Write as _};

/// Width of a plot over the whole page, in the units of its coordinates.
pub(crate) const WIDE: f64 = 1080.0;
/// Room for the labels of the vertical axis.
pub(crate) const LEFT: f64 = 76.0;
/// Room at the right, for half a label.
pub(crate) const RIGHT: f64 = 14.0;
/// Room for the labels of the horizontal axis.
pub(crate) const BOTTOM: f64 = 26.0;
/// Shades of a heat map: the classes `heat0` to `heat6`.
pub(crate) const SHADES: usize = 7;
/// What a character of a label takes, about.
const CHARACTER: f64 = 6.3;
/// What a character of a drawn title takes, about.
const TITLE_CHARACTER: f64 = 9.4;
/// Room around a plot that is a file: above, for its title and what the colours mean,
const HEAD: f64 = 52.0;
/// at the left and below, for the names of the axes.
const SIDE: f64 = 20.0;
const FOOT: f64 = 20.0;
/// Width and height of a sample of a colour.
const SAMPLE: f64 = 10.0;

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

/// A colour, by its class, and what it means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Area(&'static str, &'static str),
    Line(&'static str, &'static str),
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
    /// What its colours mean.
    pub(crate) keys: Vec<Key>,
    /// What the shades of a heat map mean, from the lightest to the darkest.
    pub(crate) shades: Option<String>,
    /// What the horizontal axis says, and the vertical one.
    pub(crate) axes: (String, String),
    width: f64,
    height: f64,
    body: String,
}

impl Plot {
    pub(crate) fn new(name: &str, title: &str, (width, height): (f64, f64)) -> Plot {
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

    /// As an element of a page, which says around it what it is; with a style of its own it is a file, which says so itself. `data-alone`
    /// is the view that a page has to give it when it makes it a file.
    pub(crate) fn svg(&self, style: Option<&str>) -> String {
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
            Text(&self.title),
            Text(&self.description),
            self.frame()
        )
    }

    /// Title, key and names of the axes, around the plot.
    fn frame(&self) -> String {
        let mut frame = String::new();
        let (left, right) = (LEFT, self.width - RIGHT);
        let room = ((self.width - LEFT) / TITLE_CHARACTER) as usize;
        line(&mut frame, "title", "start", (left, 20.0 - HEAD), &shortened(&self.title, room));
        let (mut x, y) = (left, -10.0);
        let said = |frame: &mut String, x: &mut f64, text: &str| {
            line(frame, "label", "start", (*x + 5.0, y), text);
            *x += 20.0 + text.chars().count() as f64 * CHARACTER;
        };
        for key in &self.keys {
            let (Key::Area(class, meaning) | Key::Line(class, meaning)) = key;
            let shape = match key {
                Key::Area(..) => format!("v-{SAMPLE}h{SAMPLE}v{SAMPLE}z"),
                Key::Line(..) => format!("m0 -4h{SAMPLE}"),
            };
            let _ = write!(frame, "<path class=\"{class}\" d=\"M{x:.1} {y}{shape}\"/>");
            x += SAMPLE;
            said(&mut frame, &mut x, meaning);
        }
        if let Some(shades) = &self.shades {
            for shade in 0..SHADES {
                let _ = write!(
                    frame,
                    "<path class=\"heat{shade}\" d=\"M{x:.1} {y}v-{SAMPLE}h{SAMPLE}v{SAMPLE}z\"/>"
                );
                x += SAMPLE;
            }
            said(&mut frame, &mut x, shades);
        }
        let (across, up) = &self.axes;
        line(&mut frame, "label", "middle", ((left + right) / 2.0, self.height + 11.0), across);
        if !up.is_empty() {
            let middle = (self.height - BOTTOM) / 2.0;
            let _ = write!(
                frame,
                "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(-6 {middle:.1}) rotate(-90)\">{}</text>",
                Text(up)
            );
        }
        frame
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
    pub(crate) fn text(&mut self, class: &str, anchor: &str, at: (f64, f64), text: &str) {
        line(&mut self.body, class, anchor, at, text);
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

/// A line of text.
fn line(out: &mut String, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
    let _ = write!(
        out,
        "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        Text(text)
    );
}

/// At most so many characters: of a longer text the begin and, because paths differ there, the end.
fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let begin = most / 3;
    let end = most.saturating_sub(begin + 1);
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(length - end)).collect()
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
    fn a_long_title_keeps_both_ends() {
        assert_eq!(shortened("Accesses to ä", 13), "Accesses to ä");
        assert_eq!(shortened("Accesses to /a/long/path/to/file", 13), "Acce…/to/file");
        assert_eq!([0, 1].map(|most| shortened("long", most)), ["…", "…"]);
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
