//! Standard output, with names that cannot control a terminal.

use miot_proto::text::{EscapeStyle, EscapingWriter};
use std::io::{IsTerminal as _, LineWriter, StdoutLock, Write, stdout};

/// Standard output. On a terminal, control characters in names are escaped, in every format.
pub(crate) enum Out {
    Plain(StdoutLock<'static>),
    Terminal(EscapingWriter<LineWriter<StdoutLock<'static>>>),
}

impl Out {
    /// Locks standard output. With `is_json`, escapes keep the value of JSON strings.
    pub(crate) fn new(is_json: bool) -> Out {
        let out = stdout();
        if !out.is_terminal() {
            return Out::Plain(out.lock());
        }
        let escape = if is_json { EscapeStyle::Json } else { EscapeStyle::Braces };
        Out::Terminal(EscapingWriter::new(LineWriter::new(out.lock()), escape))
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(bytes),
            Out::Terminal(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            Out::Terminal(out) => out.flush(),
        }
    }
}
