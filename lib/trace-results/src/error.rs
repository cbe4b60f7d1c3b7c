//! The error type of the crate.

/// Why there is no result. The text contains what was found and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] miot_trace_store::Error),
    /// An option has a value that is not possible.
    #[error("{0}")]
    Option(String),
    /// The trace, the simulation or the log-server gave no result.
    #[error("{0}")]
    Failed(String),
    /// The caller ended the reading, see [`crate::Watch`].
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Returns an error for an action and its cause. The causes of the cause are appended, each
    /// once: many errors already contain the text of their cause.
    pub(crate) fn because(action: &str, cause: &dyn std::error::Error) -> Error {
        Error::Failed(Error::chain(action, cause))
    }

    /// Returns the text of an action and its causes.
    pub(crate) fn chain(action: &str, cause: &dyn std::error::Error) -> String {
        let mut text = format!("{action}: {cause}");
        let mut next = cause.source();
        while let Some(cause) = next {
            let added = cause.to_string();
            if !text.contains(&added) {
                text = format!("{text}: {added}");
            }
            next = cause.source();
        }
        text
    }
}

impl From<arrow_schema::ArrowError> for Error {
    fn from(error: arrow_schema::ArrowError) -> Error {
        Error::Failed(error.to_string())
    }
}

impl From<miot_simulator::ConfigError> for Error {
    fn from(error: miot_simulator::ConfigError) -> Error {
        Error::Option(error.to_string())
    }
}
