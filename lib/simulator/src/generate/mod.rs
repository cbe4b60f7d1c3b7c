//! Models of the seven programs that Miller traced in 1990: generators with the parameters of his Tables 1 and 2 and his
//! text. They are models: the traces themselves are not public.
//!
//! | module | role |
//! |---|---|
//! | [`model`] | the parameters, program by program, and where each is from |
//! | `pattern` | from parameters to requests |

pub mod model;
mod pattern;
#[cfg(test)]
mod tests;

pub use model::{MODELS, Model, named};
pub use pattern::{Generated, generate};
