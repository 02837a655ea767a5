//! What tablespaces' devices held, as manifests have it.

use serde::{Deserialize, Serialize};
use tidepool_tablespace::Contents;

/// What a tablespace's device held when the manifest was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedContents {
    pub tablespace: String,
    identity: String,
    number: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

impl SavedContents {
    pub fn new(tablespace: &str, contents: &Contents) -> SavedContents {
        SavedContents {
            tablespace: tablespace.to_owned(),
            identity: format!("{:032x}", u128::from_be_bytes(contents.identity)),
            number: contents.number,
            boot: contents.boot.clone(),
        }
    }

    /// `None`: it says nothing of use.
    pub fn contents(&self) -> Option<Contents> {
        let identity = u128::from_str_radix(&self.identity, 16).ok()?.to_be_bytes();
        Some(Contents { identity, number: self.number, boot: self.boot.clone() })
    }
}
