//! One safe function per libc call.
//!
//! The calls go through libc, not to the kernel directly, so that a preloaded hook records them.

mod data;
mod descriptor;
mod directory;
mod path;
mod stream;

pub(super) use data::*;
pub(super) use descriptor::*;
pub(super) use directory::{Directory, scandir};
pub(super) use path::*;
pub(super) use stream::{Stream, flush_all};

use std::ffi::c_void;
use std::ptr::null_mut;

/// Address of a buffer that a call fills; null for an empty one, which asks the xattr calls for the
/// size.
fn address_mut(memory: &mut [u8]) -> *mut c_void {
    if memory.is_empty() { null_mut() } else { memory.as_mut_ptr().cast() }
}
