//! Messages of a printf-style debug call, recorded raw: the format and the arguments, put together only when
//! somebody reads them.
//!
//! A message is a request [`op::app::DEBUG`](crate::op::app::DEBUG) without duration: `length` is the mask, bits 8-14 of
//! the flags are the prefix character, the handle stands for the format (a record of kind `File` whose path is its
//! text; or the text itself is path 1), and path 2 holds the arguments:
//!
//! ```text
//! one u64 per argument, in order: an integer (sign-extended from its type), a pointer, the bits of an f64
//!     (a `long double` is rounded to one), or of a string its length in bytes | CUT, or NULL
//! the bytes of the strings, in order, without ends
//! ```
//!
//! | file | role |
//! |---|---|
//! | `format` | formats taken apart, and the kinds of their arguments |
//! | `message` | format and arguments put together, as the C library's `printf` in the locale "C" does it |

mod format;
mod message;

pub use format::{MAX_ARGUMENTS, argument_kind, argument_kinds};
pub use message::message;

/// Longest list of arguments recorded, bytes: it takes the place of a path.
pub const MAX_ARGUMENT_BYTES: usize = crate::event::MAX_PATH;
/// Set in the word of a string of which the rest did not fit.
pub const CUT: u64 = 1 << 63;
/// The word of a string that is a null pointer.
pub const NULL: u64 = u64::MAX;
