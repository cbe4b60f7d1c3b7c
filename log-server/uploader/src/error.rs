//! Why parts are not copied.

use object_store::Error as StoreError;
use std::path::PathBuf;

/// Why parts are not copied. The text says what was found and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings do not allow a start.
    #[error("{0}")]
    Settings(String),
    /// The trace directory.
    #[error(transparent)]
    Trace(#[from] miot_trace_store::Error),
    /// A file of the trace cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A file of the trace is not what was sealed.
    #[error(
        "{} is not what was sealed (expected {expected}, found {found}), so it is not copied: run `miot fsck`",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Length and checksum in the ledger.
        expected: String,
        /// Length and checksum of the file.
        found: String,
    },
    /// The prefix belongs to another trace.
    #[error("{store} holds another trace ({found}, this one: {expected}): choose another prefix")]
    OtherTrace {
        /// Address of the store.
        store: String,
        /// Description of the trace in the store.
        found: String,
        /// Description of the local trace.
        expected: String,
    },
    /// The store has another version of a part.
    #[error(
        "{store} has another version of part {part}, as it was sealed before a repair: the store keeps it; \
         to replace it, remove {object} there"
    )]
    OtherPart {
        /// Address of the store.
        store: String,
        /// Number of the part.
        part: u64,
        /// The object that differs.
        object: String,
    },
    /// The program that registers parts has failed.
    #[error("part {part} is copied, but {program} did not register it: {reason}")]
    Register {
        /// The program.
        program: String,
        /// Number of the part.
        part: u64,
        /// Its messages, or why it cannot be started.
        reason: String,
    },
    /// The store does not do what was asked.
    #[error("{store}: cannot {action} {object}: {}", explain(source))]
    Store {
        /// Address of the store.
        store: String,
        /// `get` or `put`.
        action: &'static str,
        /// Name of the object.
        object: String,
        /// Error of the store.
        source: Box<StoreError>,
    },
}

/// The innermost reasons of an error of a store, and what to do about it.
fn explain(error: &StoreError) -> String {
    let reason = innermost(error);
    match error {
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => format!(
            "access is denied ({reason}): check the credentials in the environment, and that they permit to get \
             and put objects below the prefix"
        ),
        StoreError::NotFound { .. } => format!("there is no such bucket or container ({reason}): create it"),
        _ => reason,
    }
}

fn innermost(error: &StoreError) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
