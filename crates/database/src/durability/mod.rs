//! What lasts: the data folder, the log, recovery, and looks at what is in them.

pub(crate) mod archive;
pub(crate) mod check;
pub(crate) mod commit;
pub(crate) mod ids;
pub(crate) mod log_home;
pub(crate) mod log_writer;
pub(crate) mod point_in_time;
pub(crate) mod recovery;
pub(crate) mod redo;
pub(crate) mod reset_log;
pub(crate) mod small;
pub(crate) mod space_configs;
pub(crate) mod storage;
pub(crate) mod tier1;
pub(crate) mod transaction_ids;
