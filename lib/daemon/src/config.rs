//! Settings of a daemon, merged from their sources.
//!
//! Later sources override earlier ones: defaults, configuration file, environment, options.

use crate::settings;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Variables with the prefix of the environment that are options of the program, not settings.
const NOT_SETTINGS: &[&str] = &["config", "log"];

/// Why settings cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The requested file does not exist.
    #[error("{}: no such file", .0.display())]
    NoFile(PathBuf),
    /// A key is unknown or its value is invalid; the text contains the source of the value.
    #[error("{0}")]
    Invalid(String),
}

/// Loads settings from their defaults, `file`, the variables of the environment that begin with
/// `env_prefix`, and `flags`, in this order. Without `file`, `default_file` is read if it exists.
/// Flags that were not given must not be serialized. Values are not checked beyond their types.
///
/// # Errors
/// [`Error::NoFile`] if `file` does not exist; [`Error::Invalid`] for an unknown key or a value of
/// the wrong type.
pub fn load<C: Default + Serialize + DeserializeOwned>(
    file: Option<&Path>,
    default_file: &Path,
    env_prefix: &str,
    flags: impl Serialize,
) -> Result<C, Error> {
    let mut sources = Figment::from(Serialized::defaults(C::default()));
    match file {
        Some(file) if !file.is_file() => return Err(Error::NoFile(file.into())),
        Some(file) => sources = sources.merge(Toml::file(file).search(false)),
        None if default_file.is_file() => sources = sources.merge(Toml::file(default_file).search(false)),
        None => {}
    }
    sources
        .merge(Env::prefixed(env_prefix).ignore(NOT_SETTINGS))
        .merge(Serialized::defaults(flags))
        .extract()
        .map_err(|errors| Error::Invalid(settings::explain(env_prefix, errors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Settings {
        size: u64,
        name: String,
    }

    #[derive(Serialize)]
    struct Flags {
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<&'static str>,
    }

    fn load_text(text: &str, name: Option<&'static str>) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("daemon.toml");
        std::fs::write(&file, text).unwrap();
        load(Some(&file), Path::new("/nonexistent"), "MIOT_TEST_DAEMON_", Flags { name })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let from_file = load_text("size = 7\nname = \"file\"", None).unwrap();
        assert_eq!(from_file, Settings { size: 7, name: "file".into() });
        let from_flags = load_text("size = 7\nname = \"file\"", Some("flag")).unwrap();
        assert_eq!(from_flags, Settings { size: 7, name: "flag".into() });
        let none = load(None, Path::new("/nonexistent"), "MIOT_TEST_DAEMON_", Flags { name: None });
        assert_eq!(none, Ok(Settings::default()));
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        let error = load_text("sise = 7", None).unwrap_err();
        assert!(error.contains("daemon.toml: sise: there is no such key; there are size, name"), "{error}");
        let missing = load::<Settings>(Some(Path::new("/nonexistent")), Path::new("/"), "X_", ());
        assert_eq!(missing.unwrap_err().to_string(), "/nonexistent: no such file");
    }
}
