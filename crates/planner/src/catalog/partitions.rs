//! What the catalogue says of partitioned tables and partitions.

use super::objects::quote_identifier;
use super::pg_catalog::operator_class;
use super::relations::Rows;
use super::types;
use super::value::Value;
use crate::facts::SessionFacts;
use std::sync::Arc;
use tidepool_base::TableId;
use tidepool_database::{bound_literal, bound_text};
use tidepool_table::{
    IndexDef, PartitionBound, PartitionDef, PartitionStrategy, Partitioning, RangeBound, Table, TableDef,
};

/// `pg_class.relkind` of a table.
pub fn table_kind(def: &TableDef) -> &'static str {
    if def.partitioning.is_some() { "p" } else { "r" }
}

/// `pg_class.relkind` of an index.
pub fn index_kind(def: &TableDef) -> &'static str {
    if def.partitioning.is_some() { "I" } else { "i" }
}

/// The table that a partition is of, how that is partitioned, and the partition's place in it.
fn place_of<'f>(
    facts: &'f SessionFacts,
    def: &TableDef,
) -> Option<(&'f Arc<Table>, &'f Partitioning, &'f PartitionDef)> {
    let parent = facts.version.table_of_id(def.partition_of?)?;
    let partitioning = parent.def.partitioning.as_ref()?;
    let partition = partitioning.partitions.iter().find(|partition| partition.id == def.id)?;
    Some((parent, partitioning, partition))
}

/// `pg_class.relpartbound`.
pub fn bound(facts: &SessionFacts, def: &TableDef) -> Value {
    let place = place_of(facts, def);
    place.map(|(parent, partitioning, partition)| bound_text(&parent.def, partitioning, &partition.bound)).into()
}

/// The rows of `pg_partitioned_table`.
pub fn partitioned(facts: &SessionFacts, rows: &mut Rows) {
    for table in facts.version.tables.values() {
        let Some(partitioning) = &table.def.partitioning else { continue };
        let columns: Vec<_> = (table.def.positions(&partitioning.columns).into_iter())
            .map(|position| &table.def.columns[position])
            .collect();
        let collation = |oid: u32| types::by_oid(oid).map_or(0, |entry| entry.collation);
        let default = partitioning.partitions.iter().find(|partition| partition.bound == PartitionBound::Default);
        rows.push([
            ("partrelid", table.def.id.0.into()),
            (
                "partstrat",
                match partitioning.strategy {
                    PartitionStrategy::Range => "r",
                    PartitionStrategy::List => "l",
                    PartitionStrategy::Hash => "h",
                }
                .into(),
            ),
            ("partnatts", columns.len().into()),
            ("partdefid", default.map_or(0, |default| default.id.0).into()),
            ("partattrs", columns.iter().map(|column| column.number as i16).collect::<Vec<i16>>().into()),
            ("partclass", columns.iter().map(|column| operator_class(column.sql_type)).collect::<Vec<u32>>().into()),
            (
                "partcollation",
                columns.iter().map(|column| collation(column.sql_type.oid())).collect::<Vec<u32>>().into(),
            ),
        ]);
    }
}

/// The rows of `pg_inherits`: partitions, and their parts of indexes.
pub fn inherits(facts: &SessionFacts, rows: &mut Rows) {
    let mut push = |child: u32, parent: u32| {
        rows.push([
            ("inhrelid", child.into()),
            ("inhparent", parent.into()),
            ("inhseqno", 1.into()),
            ("inhdetachpending", false.into()),
        ]);
    };
    for table in facts.version.tables.values() {
        if let Some(parent) = table.def.partition_of {
            push(table.def.id.0, parent.0);
        }
        let of = |index: &IndexDef| index.partition_of.map(|parent| (index.id.0, parent.0));
        table.def.indexes.iter().filter_map(of).for_each(|(child, parent)| push(child, parent));
    }
}

/// `pg_partition_ancestors`: a partition or partitioned table, or the index of one, and what it is part of, the nearest
/// first.
pub fn ancestors(facts: &SessionFacts, oid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = Some(TableId(oid));
    while let Some(id) = next {
        let table = facts.version.table_of_id(id).map(|table| (&table.def, table.def.partition_of));
        let index = || facts.version.index_by_id(id).map(|(table, index)| (&table.def, index.partition_of));
        let Some((def, parent)) = table.or_else(index) else { break };
        if def.partitioning.is_none() && def.partition_of.is_none() {
            break;
        }
        found.push(id.0);
        next = parent;
    }
    found
}

/// `pg_get_partkeydef`.
pub fn key_definition(def: &TableDef) -> Option<String> {
    let partitioning = def.partitioning.as_ref()?;
    let columns = def.positions(&partitioning.columns).into_iter();
    let columns: Vec<String> = columns.map(|position| quote_identifier(&def.columns[position].name)).collect();
    Some(format!("{} ({})", partitioning.strategy.name().to_uppercase(), columns.join(", ")))
}

/// `pg_get_partition_constraintdef`: what a row must be like to be in a partition, as a condition. `None` where anything
/// may be.
pub fn constraint_definition(facts: &SessionFacts, def: &TableDef) -> Option<String> {
    let mut conditions = Vec::new();
    let mut def = def.clone();
    while let Some((parent, partitioning, partition)) = place_of(facts, &def) {
        let mut own = conditions_of(&parent.def, partitioning, partition);
        own.append(&mut conditions);
        conditions = own;
        def = TableDef::clone(&parent.def);
    }
    match conditions.len() {
        0 => None,
        1 => conditions.pop(),
        _ => Some(format!("({})", conditions.join(" AND "))),
    }
}

fn conditions_of(parent: &TableDef, partitioning: &Partitioning, partition: &PartitionDef) -> Vec<String> {
    let columns: Vec<_> =
        parent.positions(&partitioning.columns).into_iter().map(|position| &parent.columns[position]).collect();
    let names: Vec<String> = columns.iter().map(|column| quote_identifier(&column.name)).collect();
    let typed = |place: usize, text: &str| {
        let literal = bound_literal(columns[place].sql_type, text);
        match literal.starts_with('\'') {
            true => format!("{literal}::{}", columns[place].sql_type),
            false => literal,
        }
    };
    match &partition.bound {
        PartitionBound::Range { from, to } => {
            let mut all: Vec<String> = names.iter().map(|name| format!("({name} IS NOT NULL)")).collect();
            let side = |values: &[RangeBound], inclusive: &str, exclusive: &str, whole: &RangeBound| {
                let is_value = |value: &&RangeBound| matches!(value, RangeBound::Value(_));
                let count = values.iter().take_while(is_value).count();
                let texts = values.iter().enumerate().take(count).filter_map(|(place, value)| match value {
                    RangeBound::Value(text) => Some(typed(place, text)),
                    _ => None,
                });
                let texts: Vec<String> = texts.collect();
                // Whether keys that begin like this are within depends on what follows.
                let operator = if count < values.len() && values[count] == *whole { inclusive } else { exclusive };
                match count {
                    0 => None,
                    1 => Some(format!("({} {operator} {})", names[0], texts[0])),
                    _ => Some(format!("(ROW({}) {operator} ROW({}))", names[..count].join(", "), texts.join(", "))),
                }
            };
            all.extend(side(from, ">", ">=", &RangeBound::MaxValue));
            all.extend(side(to, "<=", "<", &RangeBound::MaxValue));
            all
        }
        PartitionBound::List { values } => {
            let texts: Vec<String> = values.iter().flatten().map(|text| typed(0, text)).collect();
            let name = &names[0];
            let listed = match texts.as_slice() {
                [one] => format!("({name} = {one})"),
                _ => format!("({name} = ANY (ARRAY[{}]))", texts.join(", ")),
            };
            match (values.contains(&None), texts.is_empty()) {
                (true, true) => vec![format!("({name} IS NULL)")],
                (true, false) => vec![format!("(({name} IS NULL) OR {listed})")],
                (false, _) => vec![format!("({name} IS NOT NULL)"), listed],
            }
        }
        PartitionBound::Hash { modulus, remainder } => {
            let oid = parent.id.0;
            vec![format!("satisfies_hash_partition('{oid}'::oid, {modulus}, {remainder}, {})", names.join(", "))]
        }
        PartitionBound::Default => {
            let others = partitioning.partitions.iter().filter(|other| other.id != partition.id);
            let others: Vec<String> = others
                .map(|other| match conditions_of(parent, partitioning, other).as_slice() {
                    [one] => one.clone(),
                    several => format!("({})", several.join(" AND ")),
                })
                .collect();
            match others.as_slice() {
                [] => Vec::new(),
                [one] => vec![format!("(NOT {one})")],
                _ => vec![format!("(NOT ({}))", others.join(" OR "))],
            }
        }
    }
}
