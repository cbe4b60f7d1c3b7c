//! Models of the seven programs that Miller traced in 1990: generators with the parameters of his
//! Tables 1 and 2 and his text. The original traces are not public.
//!
//! | module | role |
//! |---|---|
//! | [`model`] | parameters of each program and their sources |
//! | `pattern` | generates requests from parameters |

pub mod model;
mod pattern;
#[cfg(test)]
mod tests;

pub use model::{MODELS, Model, named};
pub use pattern::{Generated, generate};
