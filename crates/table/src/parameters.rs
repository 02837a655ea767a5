//! Storage parameters of a table: what `WITH (…)` says.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use tidepool_base::{Error, Result, SqlState};

/// PostgreSQL's bounds.
const FILLFACTOR: RangeInclusive<u8> = 10..=100;

/// When delta is moved into main without being told to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MergePolicy {
    /// When there is a row group's worth of it, or a good part of one that nobody has written to for a while.
    #[default]
    Auto,
    /// Only by `CALL tidepool.merge`.
    Never,
    /// After each commit.
    Immediate,
}

impl MergePolicy {
    pub fn name(self) -> &'static str {
        match self {
            MergePolicy::Auto => "auto",
            MergePolicy::Never => "never",
            MergePolicy::Immediate => "immediate",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageParameters {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergePolicy>,
    /// Percent. Kept for clients that set it: rows have no pages that could be left room in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fillfactor: Option<u8>,
}

impl StorageParameters {
    pub fn is_empty(&self) -> bool {
        *self == StorageParameters::default()
    }

    pub fn merge_policy(&self) -> MergePolicy {
        self.merge.unwrap_or_default()
    }

    /// Sets one, or puts it back to its default (`None`). 22023 for one that there is not, and for a value that it cannot
    /// have.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let invalid = |value: &str, detail: String| {
            let message = format!("invalid value for storage parameter \"{name}\": \"{value}\"");
            Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_detail(detail)
        };
        match name {
            "merge" => {
                let all = [MergePolicy::Auto, MergePolicy::Never, MergePolicy::Immediate];
                let policy = |value: &str| {
                    let found = all.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(value));
                    found
                        .ok_or_else(|| invalid(value, "Valid values are \"auto\", \"never\" and \"immediate\".".into()))
                };
                self.merge = value.map(policy).transpose()?;
            }
            "fillfactor" => {
                let percent = |value: &str| {
                    let number = value.parse().ok().filter(|percent| FILLFACTOR.contains(percent));
                    number.ok_or_else(|| invalid(value, "Valid values are between \"10\" and \"100\".".into()))
                };
                self.fillfactor = value.map(percent).transpose()?;
            }
            _ => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("unrecognized parameter \"{name}\""),
                )
                .with_hint("Storage parameters of tables are merge and fillfactor; TABLESPACE says where one lives."));
            }
        }
        Ok(())
    }

    /// Those that are set, as `name=value`.
    pub fn list(&self) -> Vec<String> {
        let merge = self.merge.map(|merge| format!("merge={}", merge.name()));
        merge.into_iter().chain(self.fillfactor.map(|percent| format!("fillfactor={percent}"))).collect()
    }
}
