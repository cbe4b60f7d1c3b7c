//! Settings of a broker.

use crate::credentials::Credentials;
use crate::error::Error;
use miot_tls::is_loopback;
use std::path::PathBuf;

/// Maximum length of the name of a stream, bytes.
const MAX_STREAM: usize = 64;
/// Maximum length of a node in a subject and in the name of a consumer, bytes; the limit of NATS
/// for names is 255.
const MAX_TOKEN: usize = 200;
/// Minimum of [`Settings::window`], bytes: some messages.
pub const MIN_WINDOW: u64 = 4 << 20;

/// The broker, and what is sent through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Addresses, `nats://host:port` or `tls://host:port`, separated by commas. Without user and
    /// password.
    pub url: String,
    /// Name of the stream, which is also the first part of all subjects.
    pub stream: String,
    /// File with credentials, see [`Settings::check`].
    pub credentials: Option<PathBuf>,
    /// Certificates of the authorities that may sign the broker's certificate, a PEM file. `None`:
    /// those of the system. If it is given, the connection is encrypted.
    pub authority: Option<PathBuf>,
    /// Certificate of this program for the broker, a PEM file.
    pub certificate: Option<PathBuf>,
    /// Key of the certificate, a PEM file.
    pub key: Option<PathBuf>,
    /// Maximum bytes of one node that wait in the broker.
    pub window: u64,
}

impl Settings {
    /// Addresses of the broker.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.url.split(',').map(str::trim)
    }

    /// True if the connection must be encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.authority.is_some()
            || self.certificate.is_some()
            || self.addresses().all(|a| a.starts_with("tls://"))
    }

    /// Hosts of the addresses.
    fn hosts(&self) -> impl Iterator<Item = &str> {
        let without_scheme = |address: &'_ str| address.find("://").map_or(0, |at| at + 3);
        self.addresses().map(move |address| {
            let rest = &address[without_scheme(address)..];
            rest.rsplit_once(':').map_or(rest, |(host, _)| host)
        })
    }

    /// Checks addresses, names, encryption and the content of the file of credentials. A broker on
    /// another machine requires encryption, or `allow_insecure`. The file holds
    ///
    /// * the text of a `.creds` file, as `nsc` makes it; or
    /// * a seed of an nkey, which begins with `SU`; or
    /// * one line `token = TOKEN`, or two lines `user = NAME` and `password = PASSWORD`.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Read`].
    pub fn check(&self, allow_insecure: bool) -> Result<(), Error> {
        let fail = |key, reason: String| Err(Error::Setting { key, reason });
        for address in self.addresses() {
            let rest = address.strip_prefix("nats://").or(address.strip_prefix("tls://"));
            let Some(rest) = rest else {
                let reason =
                    format!("expected nats://host:port or tls://host:port, found `{}`", shown(address));
                return fail("transport", reason);
            };
            if rest.contains('@') {
                let reason = "an address has a user or a password, which logs would show: write them to a file and name it \
                              in `broker_credentials`";
                return fail("transport", reason.into());
            }
            let valid = rest.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
            });
            if !valid {
                return fail(
                    "transport",
                    format!("expected nats://host:port, e.g. nats://broker:4222, found `{address}`"),
                );
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            return fail("broker_certificate", "goes with `broker_key`: give both, or none".into());
        }
        let other = self.hosts().find(|host| !is_loopback(host));
        if let Some(host) = other.filter(|_| !self.is_encrypted() && !allow_insecure) {
            let reason = format!(
                "{host} is another machine, and the connection is not encrypted: use tls:// and `broker_authority`, or set \
                 `allow_insecure = true` on a trusted network"
            );
            return fail("transport", reason);
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.stream.is_empty() || self.stream.len() > MAX_STREAM || !self.stream.chars().all(is_name) {
            let reason =
                format!("expected 1 to {MAX_STREAM} letters, digits, `-` or `_`, found `{}`", self.stream);
            return fail("broker_stream", reason);
        }
        if self.window < MIN_WINDOW {
            return fail("broker_window", format!("expected at least 4 MiB, found {} bytes", self.window));
        }
        Credentials::read(self.credentials.as_deref()).map(drop)?;
        if cfg!(feature = "nats") {
            return Ok(());
        }
        let reason = "this program was built without the broker transport: install the packages of MIOT, or build with \
                      `--features broker`";
        fail("transport", reason.into())
    }

    /// Subject of the messages of a node.
    ///
    /// # Errors
    /// [`Error::Setting`] if the node's name is too long for a subject.
    pub fn up(&self, node: &str) -> Result<String, Error> {
        let token = token(node);
        if token.len() > MAX_TOKEN {
            let reason = format!(
                "{node:?} is too long for a broker: at most {MAX_TOKEN} bytes, 3 for each special character"
            );
            return Err(Error::Setting { key: "node", reason });
        }
        Ok(self.subject("up", &token))
    }

    /// Subject of this kind for the node with this token, or for all (`*`).
    pub(crate) fn subject(&self, kind: &str, token: &str) -> String {
        format!("{}.{kind}.{token}", self.stream)
    }

    /// Subject on which a log-server announces itself.
    #[cfg(feature = "nats")]
    pub(crate) fn announcement(&self) -> String {
        format!("{}.server", self.stream)
    }

    /// Subject on which a log-server answers that it reads the stream.
    #[cfg(feature = "nats")]
    pub(crate) fn claim(&self) -> String {
        format!("{}.claim", self.stream)
    }
}

/// An address without what precedes an `@`.
fn shown(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(_, rest)| rest)
}

/// A node's name as a part of a subject: letters, digits, `-` and `_` stay, all else is `%` and two
/// hexadecimal digits.
pub(crate) fn token(node: &str) -> String {
    let mut token = String::with_capacity(node.len());
    for byte in node.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("%{byte:02X}"));
        }
    }
    token
}

/// The node with this token; `None` if no node has it.
#[cfg(any(test, feature = "nats"))]
pub(crate) fn node_of(subject_token: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), subject_token);
    while let Some(first) = rest.bytes().next() {
        let length = if first == b'%' {
            bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            3
        } else {
            bytes.push(first);
            1
        };
        rest = rest.get(length..)?;
    }
    String::from_utf8(bytes).ok().filter(|node| token(node) == subject_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings {
            url: url.into(),
            stream: "MIOT".into(),
            credentials: None,
            authority: None,
            certificate: None,
            key: None,
            window: 64 << 20,
        }
    }

    #[test]
    fn tokens_are_unique_and_reversible() {
        for node in ["n1", "node-1.example.org", "a b", "*", ">", "%2E", "käse"] {
            let token = token(node);
            assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_%".contains(&b)), "{token}");
            assert_eq!(node_of(&token).as_deref(), Some(node));
        }
        for token in ["a.b", "%", "%4", "%61", "%zz", "%ff"] {
            assert_eq!(node_of(token), None, "{token}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_without_their_secrets() {
        let refused = |settings: Settings| {
            let error = settings.check(false).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
            error
        };
        assert!(refused(settings("broker:4222")).contains("nats://host:port"));
        assert!(refused(settings("nats://u:secret@broker:4222")).contains("broker_credentials"));
        assert!(refused(settings("http://u:secret@broker:4222")).contains("transport"));
        assert!(refused(settings("nats://localhost:4222,nats://b")).contains("nats://b"));
        assert!(
            refused(Settings { stream: "a.b".into(), ..settings("nats://localhost:1") })
                .contains("broker_stream")
        );
        assert!(refused(Settings { window: 1, ..settings("nats://localhost:1") }).contains("broker_window"));
        let half = Settings { key: Some("key.pem".into()), ..settings("nats://localhost:1") };
        assert!(refused(half).contains("broker_certificate"));
        assert!(refused(settings("nats://a:1")).contains("a is another machine"));
        let missing = Settings { credentials: Some("/nowhere".into()), ..settings("nats://localhost:1") };
        assert!(refused(missing).contains("broker_credentials"));
        assert_eq!(settings("nats://a:1, tls://[::1]:2").hosts().collect::<Vec<_>>(), ["a", "[::1]"]);
    }
}
