//! Where the log is, as the manifest has it.

use super::contents::SavedContents;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tidepool_base::CommitTs;
use tidepool_log::DatabaseIdentity;

/// As the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedLog {
    pub place: LogPlace,
    /// The checkpoint has everything.
    #[serde(default)]
    pub closed: bool,
    /// There is a note of the log's segments beside them. False in folders of earlier releases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noted: bool,
    /// The log before, whose files may still be there: a process may end while it removes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftFolder>,
}

/// A folder with a log that was read, and that another has taken the place of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeftFolder {
    pub folder: Option<PathBuf>,
    pub identity: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogPlace {
    /// `None`: `log` in the data folder, wherever that is.
    Folder(Option<PathBuf>),
    Memory(LogRegion),
    /// In a pool. The folder is the database's second tier, and has a copy of it.
    Pool(LogCopy),
}

/// The copy of a pool's log from where the checkpoint ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogCopy {
    /// The folder within that of logs.
    pub folder: String,
    /// Term and number of the first segment that the checkpoint lacks something of. `None`: the oldest that there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<(u64, u64)>,
    pub segment_bytes: usize,
    pub pool: SavedPool,
}

/// A pool, as it is made anew where it was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedPool {
    /// The first device.
    pub location: String,
    pub devices: usize,
    pub bytes: u64,
    pub bytes_max: u64,
    pub extent_bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

/// Another life of the database, in a pool that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EarlierLife {
    /// Whose log it was.
    pub identity: String,
    /// What the next life has of it: all up to there.
    pub upto: CommitTs,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogRegion {
    pub contents: SavedContents,
    pub offset: u64,
    pub bytes: u64,
    pub segment_bytes: usize,
}

impl LogRegion {
    pub fn place(&self) -> (u64, usize) {
        (self.offset, self.bytes as usize)
    }
}

/// Whose log it is, and where.
#[derive(Clone, Debug)]
pub(crate) struct LogHome {
    pub identity: DatabaseIdentity,
    pub saved: SavedLog,
}
