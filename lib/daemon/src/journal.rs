//! Entries of systemd's journal, in its own protocol (systemd.journal-fields(7), "Native Journal
//! Protocol").
//!
//! The crate `tracing-journald` does not add the fields to the message, so that `journalctl` shows
//! "connection refused" without the reason. Here the fields are in the message, for people, and in
//! fields of the entry, for searches (`journalctl MIOT_NODE=node7`).

use std::fmt::{Debug, Write as _};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Environment variable with device and inode of the stream to the journal, systemd.exec(5).
const STREAM_ENV: &str = "JOURNAL_STREAM";
/// Prefix of the names of MIOT's fields.
const PREFIX: &str = "MIOT_";
/// Maximum length of a field name in the journal.
const MAX_NAME: usize = 64;

/// Connection to the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    socket: UnixDatagram,
    identifier: &'static str,
}

impl Journal {
    /// Connects if standard error is the journal.
    pub(crate) fn of_standard_error(identifier: &'static str) -> Option<Journal> {
        let stream = std::env::var(STREAM_ENV).ok()?;
        let stat = rustix::fs::fstat(rustix::stdio::stderr()).ok()?;
        let is_journal = stream == format!("{}:{}", stat.st_dev, stat.st_ino);
        is_journal.then(|| Journal::connect(Path::new(SOCKET), identifier).ok()).flatten()
    }

    fn connect(socket: &Path, identifier: &'static str) -> io::Result<Journal> {
        let unbound = UnixDatagram::unbound()?;
        unbound.connect(socket)?;
        Ok(Journal { socket: unbound, identifier })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = EventText::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let priority = priority(*metadata.level());
        let mut entry = Entry::default();
        entry.field("MESSAGE", text.line().as_bytes());
        entry.field("PRIORITY", &[priority]);
        entry.field("SYSLOG_IDENTIFIER", self.identifier.as_bytes());
        entry.field("MIOT_TARGET", metadata.target().as_bytes());
        if let Some(file) = metadata.file() {
            entry.field("CODE_FILE", file.as_bytes());
        }
        if let Some(line) = metadata.line() {
            entry.field("CODE_LINE", line.to_string().as_bytes());
        }
        text.fields.iter().for_each(|(name, value)| entry.field(&journal_name(name), value.as_bytes()));
        if self.socket.send(&entry.0).is_err() {
            // The entry is too long, or the journal restarts: its stream accepts lines of any
            // length.
            let _ = writeln!(io::stderr(), "<{}>{}", char::from(priority), text.line());
        }
    }
}

/// Returns the priority of syslog(3), as a digit.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => b'3',
        Level::WARN => b'4',
        Level::INFO => b'6',
        Level::DEBUG | Level::TRACE => b'7',
    }
}

/// Returns the field name in the journal: capitals, digits, underscores.
fn journal_name(name: &str) -> String {
    let capital = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    PREFIX.chars().chain(name.chars().map(capital)).take(MAX_NAME).collect()
}

#[derive(Default)]
struct Entry(Vec<u8>);

impl Entry {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.0.extend_from_slice(name.as_bytes());
        if value.contains(&b'\n') {
            self.0.push(b'\n');
            self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }
}

/// Message and fields of an event.
#[derive(Default)]
struct EventText {
    message: String,
    fields: Vec<(&'static str, String)>,
    /// The fields as text, after the message.
    suffix: String,
}

impl EventText {
    fn line(&self) -> String {
        format!("{}{}", self.message, self.suffix)
    }
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
            return;
        }
        let _ = write!(self.suffix, " {field}={value:?}");
        self.fields.push((field.name(), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.message = value;
            return;
        }
        let _ = write!(self.suffix, " {field}={value}");
        self.fields.push((field.name(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt as _;

    #[test]
    fn entries_have_fields_twice_and_escape_newlines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let journald = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::connect(&path, "log-client").unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            let reason = "it has\ntwo lines";
            tracing::warn!(peer = %"10.0.0.1", reason, share.bytes = 7, "refused");
        });
        let mut buffer = [0; 4096];
        let length = journald.recv(&mut buffer).unwrap();
        let entry = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let message = "refused peer=10.0.0.1 reason=\"it has\\ntwo lines\" share.bytes=7";
        assert!(entry.starts_with(&format!("MESSAGE={message}\nPRIORITY=4\n")), "{entry}");
        assert!(entry.contains("\nSYSLOG_IDENTIFIER=log-client\n"), "{entry}");
        assert!(entry.contains("\nMIOT_PEER=10.0.0.1\n"), "{entry}");
        assert!(entry.contains("\nMIOT_REASON\n\u{10}\0\0\0\0\0\0\0it has\ntwo lines\n"), "{entry:?}");
        assert!(entry.contains("\nMIOT_SHARE_BYTES=7\n"), "{entry}");
    }

    #[test]
    fn standard_error_of_tests_is_not_the_journal() {
        assert!(Journal::of_standard_error("test").is_none());
    }
}
