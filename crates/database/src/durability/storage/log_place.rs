//! Where the log is, as the manifest has it.

use super::contents::SavedContents;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
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
