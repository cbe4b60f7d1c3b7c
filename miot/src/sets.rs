//! Names of one or several traces, or log-servers, on the command line.
//!
//! | text | meaning |
//! |---|---|
//! | `DIR` | one trace |
//! | `DIR,DIR` | the traces of a set |
//! | `HOST:PORT,HOST:PORT` | the log-servers of a set |
//! | `FILE.toml` | the members of a set: tables `[[server]]` with `address` and `trace` |

mod clocks;

use crate::remote::address;
use anyhow::{Context as _, bail, ensure};
pub(crate) use clocks::{MemberStatus, examine};
use figment::Figment;
use figment::providers::{Format as _, Toml};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A file that names the members of a set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetFile {
    server: Vec<SetEntry>,
}

/// A log-server of a set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetEntry {
    /// `host:port`.
    address: Option<String>,
    /// Trace directory; a relative path begins at the directory of the file.
    trace: Option<PathBuf>,
}

/// Returns the directories of a trace or set.
pub(crate) fn traces(text: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if is_file(text) {
        let folder = text.parent().unwrap_or(Path::new(""));
        return read(text)?
            .server
            .into_iter()
            .map(|entry| entry.trace.map(|trace| folder.join(trace)))
            .collect::<Option<Vec<_>>>()
            .with_context(|| format!("{}: a server has no `trace`, which is read here", text.display()));
    }
    match text.to_str().filter(|names| names.contains(',') && !text.exists()) {
        None => Ok(vec![text.to_owned()]),
        Some(names) => {
            let dirs: Vec<PathBuf> =
                names.split(',').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
            ensure!(!dirs.is_empty(), "`{names}` names no trace");
            Ok(dirs)
        }
    }
}

/// Returns the addresses of a log-server or of a set; `None` if the text names directories.
pub(crate) fn servers(text: &str) -> anyhow::Result<Option<Vec<String>>> {
    let path = Path::new(text);
    if is_file(path) {
        return Ok(read(path)?.server.into_iter().map(|entry| entry.address).collect());
    }
    if path.exists() {
        return Ok(None);
    }
    let names: Vec<&str> = text.split(',').filter(|name| !name.is_empty()).collect();
    let addresses = names.iter().filter(|name| address(name).is_some()).count();
    match addresses {
        0 => Ok(None),
        all if all == names.len() => Ok(Some(names.into_iter().map(str::to_owned).collect())),
        _ => bail!("`{text}` names both log-servers and directories: give one kind"),
    }
}

/// True for a file that names the members of a set.
fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml") && path.is_file()
}

fn read(path: &Path) -> anyhow::Result<SetFile> {
    let file: SetFile = Figment::from(Toml::file(path).search(false)).extract().with_context(|| {
        format!("{}: expected tables [[server]] with `address` and `trace`", path.display())
    })?;
    ensure!(!file.server.is_empty(), "{}: no [[server]]", path.display());
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::{servers, traces};
    use std::path::{Path, PathBuf};

    #[test]
    fn lists_and_files_name_members() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("set.toml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write(
            "[[server]]\naddress = \"a:1\"\ntrace = \"p0\"\n[[server]]\naddress = \"b:1\"\ntrace = \"/p1\"\n",
        );
        assert_eq!(traces(&file).unwrap(), [dir.path().join("p0"), PathBuf::from("/p1")]);
        assert_eq!(servers(file.to_str().unwrap()).unwrap().unwrap(), ["a:1", "b:1"]);
        assert_eq!(traces(Path::new("x,y")).unwrap(), [PathBuf::from("x"), PathBuf::from("y")]);
        assert_eq!(servers("x,y").unwrap(), None);
        assert_eq!(servers("a:1,b:2").unwrap().unwrap(), ["a:1", "b:2"]);
        assert!(servers("a:1,y").is_err());
        write("[[server]]\naddress = \"a:1\"\n");
        assert!(traces(&file).unwrap_err().to_string().contains("has no `trace`"));
        write("[[sever]]\n");
        assert!(traces(&file).unwrap_err().to_string().contains("[[server]]"));
    }
}
