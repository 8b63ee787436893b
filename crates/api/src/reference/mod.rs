//! The reference pages in `docs/`, as Markdown: what the types and numbers say, and nothing else.
//!
//! The binary prints them and `cargo xtask gen` writes them to files. To change the words, change the doc comments and
//! texts they come from. HTML is made by the documentation page, not here.

mod declarations;
mod errors;
mod markdown;

pub use declarations::declarations;
pub use errors::errors;
