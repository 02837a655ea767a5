//! Tables' indexes: made, changed and dropped by transactions, and kept up to date with rows.
//!
//! Where an index is in a definition, its tree is beside the rows ([`Table::indexes`]) as soon as anybody can find the
//! table. A transaction that makes or drops one has the table to itself; readers go on with the table that they have. Or it
//! makes or drops it beside others' writes (`online`).

mod build;
mod conflict;
mod ddl;
mod definition;
mod online;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod write;

#[cfg(test)]
pub(crate) use build::INDEXED_AT_ONCE;
pub(crate) use build::IndexedAtOnce;
pub use conflict::{OnConflict, Upserted};
pub use definition::NewIndex;
pub(crate) use definition::add_declared_keys;
pub(crate) use text::{duplicate_key, value_text};
pub(crate) use write::ChangedKeys;

use crate::catalog::relation::RelationName;
use crate::catalog::state::DatabaseState;
use std::sync::Arc;
use tidepool_base::{SchemaId, TableId};
use tidepool_table::{IndexDef, Table};

/// PostgreSQL's limit, which its clients rely on.
const NAME_BYTES_MAX: usize = 63;

impl DatabaseState {
    /// An index and its table, by the index's name.
    pub fn index(&self, name: &RelationName) -> Option<(&Arc<Table>, &IndexDef)> {
        let tables = self.tables.values().filter(|table| table.def.schema == name.schema);
        tables.filter_map(|table| table.def.index(&name.name).map(|index| (table, index))).next()
    }

    pub fn index_by_id(&self, id: TableId) -> Option<(&Arc<Table>, &IndexDef)> {
        let of = |table: &'_ Arc<Table>| table.def.indexes.iter().position(|index| index.id == id);
        self.tables.values().find_map(|table| of(table).map(|place| (table, &table.def.indexes[place])))
    }

    /// A name that no relation of the schema has, made of `parts` and a label as PostgreSQL does: `table_column_seq`,
    /// parts cut where it is too long, the label numbered where it is taken, or `avoid` has it.
    pub fn free_name(&self, schema: SchemaId, parts: [&str; 2], label: &str, avoid: &[&str]) -> String {
        let cut = |text: &str, length: usize| text[..text.floor_char_boundary(length)].to_owned();
        let [first, second] = parts;
        let mut number = 0;
        loop {
            let label = if number == 0 { label.to_owned() } else { format!("{label}{number}") };
            let between = if second.is_empty() { 1 } else { 2 };
            let room = NAME_BYTES_MAX - label.len() - between;
            let (mut first_len, mut second_len) = (first.len(), second.len());
            while first_len + second_len > room {
                if first_len > second_len { first_len -= 1 } else { second_len -= 1 }
            }
            let name = match second.is_empty() {
                true => format!("{}_{label}", cut(first, first_len)),
                false => format!("{}_{}_{label}", cut(first, first_len), cut(second, second_len)),
            };
            if !avoid.contains(&name.as_str()) && !self.is_taken(&RelationName::new(schema, &name)) {
                return name;
            }
            number += 1;
        }
    }
}
