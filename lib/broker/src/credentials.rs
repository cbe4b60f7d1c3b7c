//! The file of credentials.

use crate::error::Error;
use std::path::Path;

const KEY: &str = "broker_credentials";
/// Largest file that is read, bytes.
const MAX_FILE: usize = 64 << 10;

/// How this program introduces itself to the broker. Not `Debug`: it holds secrets.
#[cfg_attr(
    not(feature = "nats"),
    allow(dead_code, reason = "without a connection, only their form is checked")
)]
pub(crate) enum Credentials {
    None,
    /// Text of a `.creds` file.
    Jwt(String),
    /// Seed of an nkey.
    Nkey(String),
    Token(String),
    User(String, String),
}

impl Credentials {
    /// Reads the file; errors do not contain its content.
    pub(crate) fn read(path: Option<&Path>) -> Result<Credentials, Error> {
        let Some(path) = path else { return Ok(Credentials::None) };
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            key: KEY,
            path: path.to_owned(),
            source,
        })?;
        parse(&text).ok_or_else(|| {
            let reason = format!(
                "{} holds none of: the text of a .creds file, a seed of an nkey (SU…), a line `token = TOKEN`, or lines \
                 `user = NAME` and `password = PASSWORD`",
                path.display()
            );
            Error::Setting { key: KEY, reason }
        })
    }
}

fn parse(text: &str) -> Option<Credentials> {
    if text.len() > MAX_FILE {
        return None;
    }
    if text.contains("BEGIN NATS USER JWT") {
        return Some(Credentials::Jwt(text.to_owned()));
    }
    let trimmed = text.trim();
    if trimmed.starts_with("SU") && trimmed.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Some(Credentials::Nkey(trimmed.to_owned()));
    }
    let (mut user, mut password, mut token) = (None, None, None);
    for line in trimmed.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, value) = line.split_once('=')?;
        let value = value.trim();
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let value = quoted.unwrap_or(value).to_owned();
        match key.trim() {
            "user" => user = Some(value),
            "password" => password = Some(value),
            "token" => token = Some(value),
            _ => return None,
        }
    }
    match (user, password, token) {
        (Some(user), Some(password), None) => Some(Credentials::User(user, password)),
        (None, None, Some(token)) => Some(Credentials::Token(token)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_credentials_are_recognized() {
        assert!(matches!(parse("token = abc=\n"), Some(Credentials::Token(token)) if token == "abc="));
        let user = "# of this node\nuser = \"n1\"\npassword=p w\n";
        assert!(matches!(parse(user), Some(Credentials::User(name, word)) if name == "n1" && word == "p w"));
        assert!(matches!(parse("SUAB2\n"), Some(Credentials::Nkey(seed)) if seed == "SUAB2"));
        assert!(matches!(parse("-----BEGIN NATS USER JWT-----\nx\n"), Some(Credentials::Jwt(_))));
        for text in ["", "user = a", "token = a\nuser = b\npassword = c", "secret", "a = b"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
