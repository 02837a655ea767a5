//! Transactions, and everything that writes rows: by statements, by keys, into partitions, with indexes and foreign keys.

pub(crate) mod activity;
pub mod by_key;
pub(crate) mod direct;
pub(crate) mod footing;
pub(crate) mod footing_check;
pub(crate) mod index;
pub(crate) mod loading;
pub(crate) mod locks;
pub(crate) mod partition;
pub(crate) mod portable;
pub(crate) mod references;
pub(crate) mod rows;
pub(crate) mod temporary;
pub(crate) mod transaction;
pub(crate) mod writer;
