//! What goes on beside statements: merges, tablespaces that change, the recorded workload and advice.

pub mod advice;
pub(crate) mod elastic;
pub(crate) mod merge;
pub(crate) mod room;
pub(crate) mod workload;
