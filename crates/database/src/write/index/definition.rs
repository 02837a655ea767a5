//! Definitions of indexes to be made.

use crate::catalog::relation::RelationName;
use std::collections::BTreeSet;
use tidepool_base::TableId;
use tidepool_table::{IndexColumn, IndexDef, KeyConstraint, TableDef};

/// An index to be made.
#[derive(Clone, Debug)]
pub struct NewIndex {
    /// `None`: one that is free, as PostgreSQL makes them: `t_pkey`, `t_a_b_key`, `t_a_b_idx`.
    pub name: Option<String>,
    pub columns: Vec<IndexColumn>,
    pub unique: bool,
    pub nulls_not_distinct: bool,
    /// It serves a constraint: whether a `PRIMARY KEY`, otherwise `UNIQUE`.
    pub primary: Option<bool>,
    pub tablespace: Option<String>,
    /// The index of a partitioned table that it is the part of.
    pub partition_of: Option<TableId>,
}

impl NewIndex {
    /// Of `PRIMARY KEY`, by columns' numbers.
    pub fn primary_key(columns: impl IntoIterator<Item = u16>) -> NewIndex {
        NewIndex {
            name: None,
            columns: columns.into_iter().map(IndexColumn::ascending).collect(),
            unique: true,
            nulls_not_distinct: false,
            primary: Some(true),
            tablespace: None,
            partition_of: None,
        }
    }
}

/// Primary keys that were declared before they were enforced get their indexes. `next_id` gives numbers of objects. True
/// if there were any.
pub(crate) fn add_declared_keys(tables: &mut [&mut TableDef], mut next_id: impl FnMut() -> u32) -> bool {
    let mut added = false;
    let mut taken: BTreeSet<RelationName> = tables.iter().map(|def| RelationName::from(&**def)).collect();
    for def in tables {
        if def.primary_key.is_empty() || def.indexes.iter().any(IndexDef::is_primary) {
            continue;
        }
        let name = (0..)
            .map(|number| match number {
                0 => format!("{}_pkey", def.name),
                _ => format!("{}_pkey{number}", def.name),
            })
            .find(|name| taken.insert(RelationName::new(def.schema, name)));
        let columns = def.primary_key.iter().map(|column| IndexColumn::ascending(def.columns[*column].number));
        def.indexes.push(IndexDef {
            id: tidepool_base::TableId(next_id()),
            name: name.unwrap_or_default(),
            columns: columns.collect(),
            unique: true,
            nulls_not_distinct: false,
            constraint: Some(KeyConstraint { oid: next_id(), primary: true }),
            tablespace: None,
            partition_of: None,
            building: false,
        });
        added = true;
    }
    added
}
