//! Finds the command to trace, and checks whether the preloaded hook can record it.

use anyhow::Context as _;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Reason why a command cannot be started, with the exit code that shells use.
#[derive(Debug)]
pub(crate) struct NotRunnable {
    pub(crate) exit: u8,
    pub(crate) reason: String,
}

impl NotRunnable {
    /// The kernel refused to start it.
    pub(crate) fn refused(program: &Path, error: &std::io::Error) -> NotRunnable {
        // The interpreter of a script, or the loader of a program, may be missing.
        let exit = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
        NotRunnable { exit, reason: format!("cannot start {}: {error}", program.display()) }
    }
}

impl std::fmt::Display for NotRunnable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for NotRunnable {}

/// Reason why a command that can be started cannot be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UntraceableReason {
    /// No dynamic loader, so no preloading.
    Static,
    /// The loader ignores `LD_PRELOAD` for programs that gain privileges.
    Privileged,
}

impl std::fmt::Display for UntraceableReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UntraceableReason::Static => {
                "is statically linked: LD_PRELOAD cannot see its calls. Programs it starts are traced if they \
                 are dynamic. To see it, trace below the program (a FUSE or file-system-client hook) or link \
                 it with libmiot"
            }
            UntraceableReason::Privileged => {
                "gains privileges when it starts (set-uid, set-gid or file capabilities): the loader ignores \
                 LD_PRELOAD for it. Run it as the user it changes to, or trace below it (a FUSE or \
                 file-system-client hook)"
            }
        })
    }
}

/// Returns the file that `command` names, searched in `PATH` like a shell.
pub(crate) fn find(command: &OsStr) -> Result<PathBuf, NotRunnable> {
    let candidates: Vec<PathBuf> = if command.as_bytes().contains(&b'/') {
        vec![PathBuf::from(command)]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
        std::env::split_paths(&path).map(|dir| dir.join(command)).collect()
    };
    let mut refused = None;
    for candidate in candidates {
        let Ok(metadata) = std::fs::metadata(&candidate) else { continue };
        if metadata.is_file() && rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_ok() {
            return Ok(candidate);
        }
        refused.get_or_insert(candidate);
    }
    Err(match refused {
        Some(found) => NotRunnable {
            exit: 126,
            reason: format!(
                "{} is not an executable file: chmod +x it, or name its interpreter",
                found.display()
            ),
        },
        None if command.as_bytes().contains(&b'/') => {
            NotRunnable { exit: 127, reason: format!("{}: no such file", Path::new(command).display()) }
        }
        None => NotRunnable {
            exit: 127,
            reason: format!(
                "{}: not found in PATH; give its path if it is elsewhere",
                Path::new(command).display()
            ),
        },
    })
}

/// Returns why preloading cannot work for this file, if so. For a script the interpreter is
/// checked.
pub(crate) fn untraceable_reason(program: &Path) -> anyhow::Result<Option<UntraceableReason>> {
    let mut head = Vec::new();
    let file = File::open(program).with_context(|| format!("cannot read {}", program.display()))?;
    file.take(64 * 1024).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or(&[]);
        let interpreter = line.split(|b| *b == b' ' || *b == b'\t').find(|word| !word.is_empty());
        return match interpreter {
            Some(interpreter) if !interpreter.starts_with(b"#!") => {
                let interpreter = Path::new(OsStr::from_bytes(interpreter));
                if is_script(interpreter) { Ok(None) } else { untraceable_reason(interpreter) }
            }
            _ => Ok(None),
        };
    }
    if is_dynamic(&head) == Some(false) {
        return Ok(Some(UntraceableReason::Static));
    }
    let metadata = std::fs::metadata(program)?;
    let mode = metadata.permissions().mode();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let gains_user = mode & 0o4000 != 0 && metadata.uid() != uid;
    let gains_group = mode & 0o2010 == 0o2010 && metadata.gid() != gid;
    let gains_capabilities =
        uid != 0 && rustix::fs::getxattr(program, "security.capability", &mut [0u8; 64][..]).is_ok();
    Ok((gains_user || gains_group || gains_capabilities).then_some(UntraceableReason::Privileged))
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    File::open(path).and_then(|mut f| f.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// Returns true if an ELF file names a dynamic loader (program header PT_INTERP, ELF-64
/// specification, figure 6); `None` if it is not an ELF-64 file.
fn is_dynamic(head: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    let word = |at: usize, n: usize| -> Option<u64> {
        Some(head.get(at..at + n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    };
    if head.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let (table, size, count) = (word(32, 8)? as usize, word(54, 2)? as usize, word(56, 2)? as usize);
    let mut found = false;
    for i in 0..count {
        found |= word(table.checked_add(i * size)?, 4)? as u32 == PT_INTERP;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_like_in_a_shell() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(OsStr::new("/etc/passwd")).unwrap_err().exit, 126);
        assert_eq!(find(OsStr::new("no-such-command-anywhere")).unwrap_err().exit, 127);
        assert_eq!(find(OsStr::new("/no/such/file")).unwrap_err().exit, 127);
    }

    #[test]
    fn dynamic_programs_and_scripts_are_traceable() {
        assert_eq!(untraceable_reason(Path::new("/bin/sh")).unwrap(), None);
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#! /bin/sh -e\ntrue\n").unwrap();
        assert_eq!(untraceable_reason(&script).unwrap(), None);
    }

    #[test]
    fn program_without_loader_is_static() {
        // An ELF-64 header without program headers.
        let mut elf = vec![0u8; 64];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        assert_eq!(is_dynamic(&elf), Some(false));
        assert_eq!(is_dynamic(b"#!/bin/sh"), None);
        (elf[54], elf[56]) = (56, 200);
        assert_eq!(is_dynamic(&elf), None, "a truncated file is undecided");
    }
}
