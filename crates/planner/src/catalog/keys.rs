//! What the catalogue says of indexes and of the keys that they serve.

use super::objects::{INDEX_ACCESS_METHOD, persistence, quote_identifier, table_schema};
use super::pg_catalog::{default_tablespace, operator_class, tablespace_of};
use super::relations::Rows;
use super::types;
use super::value::Value;
use crate::facts::SessionFacts;
use std::borrow::Cow;
use std::sync::Arc;
use tidepool_database::AccessObject;
use tidepool_table::{ForeignKeyDef, IndexColumn, IndexDef, ReferentialAction, Table, TableDef};

/// `pg_index.indoption`: bits of a column that is not `ASC NULLS LAST`.
const OPTION_DESCENDING: i16 = 1;
const OPTION_NULLS_FIRST: i16 = 2;

/// All indexes, each with its table.
pub fn indexed(facts: &SessionFacts) -> impl Iterator<Item = (&Arc<Table>, &IndexDef)> {
    facts.version.tables.values().flat_map(|table| table.def.indexes.iter().map(move |index| (table, index)))
}

/// The tablespace that an index lives in.
pub fn index_tablespace<'t>(table: &'t Table, index: &'t IndexDef) -> &'t str {
    table.index_tablespace(index)
}

/// The rows of `pg_class`.
pub fn classes(facts: &SessionFacts, rows: &mut Rows) {
    let default = default_tablespace(facts);
    for (table, index) in indexed(facts) {
        let space = tablespace_of(facts, table.index_tablespace(index));
        let row_count = facts.version.table_by_id(table.def.id).map_or(0, |version| version.statistics().rows);
        rows.push([
            ("oid", index.id.0.into()),
            ("relname", index.name.clone().into()),
            ("relnamespace", table.def.schema.0.into()),
            ("relowner", super::roles::owner_oid(facts, &AccessObject::Relation(table.def.id)).into()),
            ("relam", INDEX_ACCESS_METHOD.into()),
            ("relfilenode", index.id.0.into()),
            ("reltablespace", if space == default { 0 } else { space }.into()),
            ("reltuples", (row_count as f64).into()),
            ("relpersistence", persistence(index.id).into()),
            ("relkind", super::partitions::index_kind(&table.def).into()),
            ("relispartition", index.partition_of.is_some().into()),
            ("relhassubclass", table.def.partitioning.as_ref().is_some_and(|of| !of.partitions.is_empty()).into()),
            ("relnatts", index.columns.len().into()),
            ("relispopulated", true.into()),
            ("relreplident", "n".into()),
        ]);
    }
}

fn numbers(index: &IndexDef) -> Value {
    Value::List(index.columns.iter().map(|column| column.number.into()).collect())
}

/// The rows of `pg_index`.
pub fn indexes(facts: &SessionFacts, rows: &mut Rows) {
    for (table, index) in indexed(facts) {
        let columns: Vec<_> =
            table.def.index_positions(index).into_iter().map(|position| &table.def.columns[position]).collect();
        let collations =
            columns.iter().map(|column| types::by_oid(column.sql_type.oid()).map_or(0, |entry| entry.collation));
        let classes = columns.iter().map(|column| operator_class(column.sql_type));
        let option = |column: &IndexColumn| {
            i16::from(column.descending) * OPTION_DESCENDING + i16::from(column.nulls_first) * OPTION_NULLS_FIRST
        };
        let count = index.columns.len();
        rows.push([
            ("indexrelid", index.id.0.into()),
            ("indrelid", table.def.id.0.into()),
            ("indnatts", count.into()),
            ("indnkeyatts", count.into()),
            ("indisunique", index.unique.into()),
            ("indnullsnotdistinct", index.nulls_not_distinct.into()),
            ("indisprimary", index.is_primary().into()),
            ("indimmediate", true.into()),
            ("indisvalid", (!index.building).into()),
            ("indisready", true.into()),
            ("indislive", true.into()),
            ("indkey", numbers(index)),
            ("indcollation", collations.collect::<Vec<u32>>().into()),
            ("indclass", classes.collect::<Vec<u32>>().into()),
            ("indoption", index.columns.iter().map(option).collect::<Vec<i16>>().into()),
        ]);
    }
}

/// The rows of `pg_constraint` for keys.
pub fn constraints(facts: &SessionFacts, rows: &mut Rows) {
    for (table, index) in indexed(facts) {
        let Some(constraint) = index.constraint else { continue };
        let above = index.partition_of.and_then(|above| facts.version.index_by_id(above));
        let of = above.and_then(|(_, above)| above.constraint).map(|constraint| constraint.oid);
        rows.push([
            ("oid", constraint.oid.into()),
            ("conname", index.name.clone().into()),
            ("connamespace", table.def.schema.0.into()),
            ("contype", if constraint.primary { "p" } else { "u" }.into()),
            ("convalidated", true.into()),
            ("conrelid", table.def.id.0.into()),
            ("conindid", index.id.0.into()),
            ("conparentid", of.unwrap_or_default().into()),
            ("confupdtype", " ".into()),
            ("confdeltype", " ".into()),
            ("confmatchtype", " ".into()),
            ("conislocal", of.is_none().into()),
            ("coninhcount", usize::from(of.is_some()).into()),
            ("connoinherit", (of.is_none() && table.def.partitioning.is_none()).into()),
            ("conkey", numbers(index)),
        ]);
    }
}

/// `pg_constraint`'s letter for an action.
fn action(action: ReferentialAction) -> &'static str {
    match action {
        ReferentialAction::NoAction => "a",
        ReferentialAction::Restrict => "r",
        ReferentialAction::Cascade => "c",
        ReferentialAction::SetNull => "n",
        ReferentialAction::SetDefault => "d",
    }
}

/// All foreign keys, each with its table.
pub fn foreign_keys(facts: &SessionFacts) -> impl Iterator<Item = (&Arc<Table>, Cow<'_, ForeignKeyDef>)> {
    facts.version.tables.values().flat_map(|table| foreign_keys_of(facts, table).map(move |key| (table, key)))
}

/// A table's foreign keys. One that refers to a partitioned table is followed by what it is to each of the partitions.
pub fn foreign_keys_of<'a>(facts: &'a SessionFacts, table: &'a Table) -> impl Iterator<Item = Cow<'a, ForeignKeyDef>> {
    table.def.foreign_keys.iter().flat_map(|key| {
        let parts = key.referenced_parts.iter().filter_map(|part| facts.version.referenced_part(key, part));
        std::iter::once(Cow::Borrowed(key)).chain(parts.map(Cow::Owned))
    })
}

/// The rows of `pg_constraint` for foreign keys.
pub fn foreign_key_constraints(facts: &SessionFacts, rows: &mut Rows) {
    let numbers = |numbers: &[u16]| Value::List(numbers.iter().map(|number| (*number).into()).collect());
    for (table, key) in foreign_keys(facts) {
        rows.push([
            ("oid", key.oid.into()),
            ("conname", key.name.clone().into()),
            ("connamespace", table.def.schema.0.into()),
            ("contype", "f".into()),
            ("condeferrable", key.deferrable.into()),
            ("condeferred", key.initially_deferred.into()),
            ("convalidated", (!key.not_valid).into()),
            ("conrelid", table.def.id.0.into()),
            ("conindid", key.index.0.into()),
            ("conparentid", key.part_of.unwrap_or_default().into()),
            ("confrelid", key.referenced.0.into()),
            ("confupdtype", action(key.on_update).into()),
            ("confdeltype", action(key.on_delete).into()),
            ("confmatchtype", if key.match_full { "f" } else { "s" }.into()),
            ("conislocal", key.part_of.is_none().into()),
            ("coninhcount", usize::from(key.part_of.is_some()).into()),
            ("connoinherit", (key.part_of.is_none() && table.def.partitioning.is_none()).into()),
            ("conkey", numbers(&key.columns)),
            ("confkey", numbers(&key.referenced_columns)),
        ]);
    }
}

/// A column of an index as its definition names it.
pub fn index_column(table: &TableDef, column: &IndexColumn) -> String {
    quote_identifier(table.column_by_number(column.number).map_or("", |(_, column)| &column.name))
}

fn column_list(table: &TableDef, index: &IndexDef, with_order: bool) -> String {
    let one = |column: &IndexColumn| {
        let order = match (column.descending, column.nulls_first) {
            _ if !with_order => "",
            (false, false) => "",
            (false, true) => " NULLS FIRST",
            (true, true) => " DESC",
            (true, false) => " DESC NULLS LAST",
        };
        format!("{}{order}", index_column(table, column))
    };
    index.columns.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The statement that makes an index.
pub fn index_definition(facts: &SessionFacts, table: &Table, index: &IndexDef) -> String {
    format!(
        "CREATE {}INDEX {} ON {}.{} USING btree ({}){}",
        if index.unique { "UNIQUE " } else { "" },
        quote_identifier(&index.name),
        quote_identifier(&table_schema(facts, table)),
        quote_identifier(&table.def.name),
        column_list(&table.def, index, true),
        if index.nulls_not_distinct { " NULLS NOT DISTINCT" } else { "" },
    )
}

/// The constraint that an index serves, as `ALTER TABLE` takes it.
pub fn key_definition(table: &TableDef, index: &IndexDef) -> String {
    let kind = match (index.is_primary(), index.nulls_not_distinct) {
        (true, _) => "PRIMARY KEY",
        (false, false) => "UNIQUE",
        (false, true) => "UNIQUE NULLS NOT DISTINCT",
    };
    format!("{kind} ({})", column_list(table, index, false))
}
