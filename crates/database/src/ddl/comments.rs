//! Comments, given by transactions and found of what there is.

use crate::catalog::comment::Commented;
use crate::catalog::state::DatabaseState;
use crate::{Database, Transaction};
use std::sync::Arc;
use tidepool_base::TableId;
use tidepool_heap::QueryHeap;

impl Transaction {
    /// Gives an object a comment, in the place of the one that it has, or none.
    pub fn comment(&mut self, about: Commented, text: Option<&str>) {
        QueryHeap::outside(|| drop(self.changes.comments.insert(about, text.map(Arc::from))));
    }
}

impl DatabaseState {
    /// Comments on what there is.
    pub fn comments<'s>(&'s self, database: &'s Database) -> impl Iterator<Item = (&'s Commented, &'s Arc<str>)> {
        self.catalog.comments.iter().filter(|(about, _)| self.is_there(database, about))
    }

    fn is_there(&self, database: &Database, about: &Commented) -> bool {
        let table = |id: TableId| self.tables.values().find(|table| table.def.id == id);
        match about {
            Commented::Relation(id) => {
                table(*id).is_some()
                    || self.catalog.view_by_id(*id).is_some()
                    || self.catalog.sequence_by_id(*id).is_some()
                    || self.index_by_id(*id).is_some()
            }
            Commented::Column(id, number) => match (table(*id), self.catalog.view_by_id(*id)) {
                (Some(table), _) => table.def.columns.iter().any(|column| column.number == *number),
                (None, Some(view)) => usize::from(*number) <= view.columns.len(),
                (None, None) => false,
            },
            Commented::Constraint(oid) => self.tables.values().any(|table| {
                let def = &table.def;
                def.checks.iter().any(|check| check.oid == *oid)
                    || def.foreign_keys.iter().any(|key| key.oid == *oid)
                    || def.foreign_keys.iter().flat_map(|key| &key.referenced_parts).any(|part| part.oid == *oid)
                    || def.indexes.iter().any(|index| index.constraint.is_some_and(|constraint| constraint.oid == *oid))
            }),
            Commented::Schema(id) => self.catalog.schemas.contains_key(id),
            Commented::Database => true,
            Commented::Tablespace(name) => database.tablespaces().get(name).is_ok(),
        }
    }
}
