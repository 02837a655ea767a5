//! Definitions made, changed and dropped by transactions.

pub(crate) mod alter;
pub(crate) mod comments;
pub(crate) mod grants;
pub(crate) mod objects;
