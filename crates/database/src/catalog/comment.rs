//! Comments: a text about an object, which `COMMENT ON` gives it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{SchemaId, TableId};

/// What a comment is about. Ids are never given twice, so one of an object that is gone is about nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Commented {
    /// A table, view, sequence or index.
    Relation(TableId),
    /// By number; of a view, by place, from one.
    Column(TableId, u16),
    Constraint(u32),
    Schema(SchemaId),
    Database,
    /// By name, which it keeps.
    Tablespace(String),
}

/// All comments.
pub type Comments = BTreeMap<Commented, Arc<str>>;
