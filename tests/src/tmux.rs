//! Runs programs on a terminal and reads its screen.

#![expect(clippy::disallowed_types, reason = "counters and stop flags of the tests")]

use crate::process::run;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Timeout of the screen: far longer than any text takes to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with a shell, closed when this value is dropped.
#[derive(Debug)]
pub struct Terminal {
    /// Socket of the tmux server. Each terminal has its own server.
    socket: String,
}

impl Terminal {
    /// Opens a terminal of `width` columns and `height` lines.
    #[must_use]
    pub fn new(width: u16, height: u16) -> Terminal {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let terminal = Terminal { socket: format!("miot-test-{}-{number}", std::process::id()) };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = "exec env PS1='ready> ' LC_ALL=C.UTF-8 sh";
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, shell]);
        let _ = terminal.shows("ready>");
        terminal
    }

    /// Types a line and presses Enter.
    pub fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.keys(&["Enter"]);
    }

    /// Presses keys, given by their names in tmux.
    pub fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Returns the lines of the screen.
    #[must_use]
    pub fn screen(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Returns the screen with its colors as an HTML page with one element `pre`.
    #[must_use]
    pub fn html(&self) -> String {
        let text = self.tmux(&["capture-pane", "-p", "-e"]);
        let mut page = String::from(
            "<!doctype html><meta charset=utf-8><style>body{margin:0}pre{display:inline-block;margin:0;padding:10px;\
             background:#1d1f21;color:#d0d0d0;font:15px/1.25 'DejaVu Sans Mono',monospace}</style><pre>",
        );
        let mut style = Style::default();
        // An escape sequence is a code up to `m`: the capture contains no other kind.
        for (at, part) in text.trim_end().split("\x1b[").enumerate() {
            let plain = match part.split_once('m') {
                Some((codes, plain)) if at > 0 => {
                    codes.split(';').for_each(|code| style.change(code.parse().unwrap_or(0)));
                    plain
                }
                _ => part,
            };
            let plain = plain.replace('&', "&amp;").replace('<', "&lt;");
            page += &format!("<span style='{}'>{plain}</span>", style.css());
        }
        page + "</pre>"
    }

    /// Waits until a text is on the screen and returns its line.
    ///
    /// # Panics
    /// If the text does not appear.
    #[must_use]
    pub fn shows(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if let Some(line) = screen.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            assert!(start.elapsed() < PATIENCE, "`{text}` is not shown\n{}", screen.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// True while a program uses the alternate screen, after which the earlier content returns.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }

    /// Process id of the shell.
    #[must_use]
    pub fn shell(&self) -> u32 {
        self.tmux(&["display-message", "-p", "#{pane_pid}"]).trim().parse().unwrap_or(0)
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        // Do not use the terminal of the user who runs the tests.
        tmux.env_remove("TMUX").args(["-L", &self.socket]).args(words);
        run(&mut tmux).success().stdout
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).status();
    }
}

/// Text attributes of a terminal: those that `miot top` uses (ECMA-48, 8.3.117), and colors by
/// number.
#[derive(Debug, Default)]
struct Style {
    bold: bool,
    dim: bool,
    reverse: bool,
    colour: Option<usize>,
}

impl Style {
    fn change(&mut self, code: usize) {
        match code {
            0 => *self = Style::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            7 => self.reverse = true,
            22 => (self.bold, self.dim) = (false, false),
            27 => self.reverse = false,
            30..=37 => self.colour = Some(code - 30),
            90..=97 => self.colour = Some(code - 90),
            39 => self.colour = None,
            _ => {}
        }
    }

    fn css(&self) -> String {
        const COLOURS: [&str; 8] =
            ["#555", "#f2777a", "#99cc99", "#ffcc66", "#6699cc", "#cc99cc", "#66cccc", "#eee"];
        let colour = self.colour.and_then(|colour| COLOURS.get(colour)).copied().unwrap_or("#d0d0d0");
        let (front, back) = if self.reverse { ("#1d1f21", colour) } else { (colour, "transparent") };
        let weight = if self.bold { "bold" } else { "normal" };
        let opacity = if self.dim { 0.6 } else { 1.0 };
        format!("color:{front};background:{back};font-weight:{weight};opacity:{opacity}")
    }
}
