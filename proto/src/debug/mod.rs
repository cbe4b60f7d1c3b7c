//! Messages of a printf-style debug call. They are recorded as format and arguments, and formatted
//! only when they are displayed.
//!
//! A message is a request [`op::app::DEBUG`](crate::op::app::DEBUG) without duration. `length` is
//! the mask; bits 8-14 of the flags are the prefix character. The handle identifies the format: a
//! record of kind `File` has its text as path. Alternatively, the text is path 1 of the message.
//! Path 2 holds the arguments:
//!
//! ```text
//! one u64 per argument, in order: an integer (sign-extended from its type), a pointer, the bits of
//!     an f64 (a `long double` is rounded to one), or of a string its length in bytes | CUT,
//!     or NULL
//! the bytes of the strings, in order, without terminating zeros
//! ```
//!
//! | file | role |
//! |---|---|
//! | `format` | parses formats and returns the kinds of their arguments |
//! | `message` | formats a message as the C library's `printf` does in the locale "C" |

mod format;
mod message;

pub use format::{MAX_ARGUMENTS, argument_kind, argument_kinds};
pub use message::message;

/// Maximum size of recorded arguments, bytes: the size of a path, in whose place they are stored.
pub const MAX_ARGUMENT_BYTES: usize = crate::event::MAX_PATH;
/// Set in the word of a string that was truncated because it did not fit.
pub const CUT: u64 = 1 << 63;
/// Word of a string argument that is a null pointer.
pub const NULL: u64 = u64::MAX;
