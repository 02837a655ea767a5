//! What exists: relations, roles and privileges, comments, sequences, and states of all of it.

pub(crate) mod comment;
pub(crate) mod privileges;
pub(crate) mod relation;
pub(crate) mod roles;
pub(crate) mod sequence;
pub(crate) mod state;
pub(crate) mod temporary;
