//! Sequences in `pg_catalog` and `information_schema`.

use super::objects::*;
use super::relations::Rows;
use super::roles::{acl, owner_name, owner_oid};
use crate::facts::SessionFacts;
use tidepool_base::SqlType;
use tidepool_database::AccessObject;

/// The rows of `pg_class`.
pub fn classes(facts: &SessionFacts, rows: &mut Rows) {
    for sequence in facts.version.catalog.sequences.values() {
        rows.push([
            ("oid", sequence.def.id.0.into()),
            ("relname", sequence.def.name.clone().into()),
            ("relnamespace", sequence.def.schema.0.into()),
            ("relowner", owner_oid(facts, &AccessObject::Relation(sequence.def.id)).into()),
            ("relacl", acl(facts, &AccessObject::Relation(sequence.def.id))),
            ("relpages", 1.into()),
            ("reltuples", 1.0.into()),
            ("relpersistence", persistence(sequence.def.id).into()),
            ("relkind", "S".into()),
            ("relnatts", 3.into()),
            ("relispopulated", true.into()),
            ("relreplident", "n".into()),
        ]);
    }
}

/// The rows of `pg_sequence`, or of the view `pg_sequences`.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    for sequence in facts.version.catalog.sequences.values() {
        let def = &sequence.def;
        if name == "pg_sequence" {
            rows.push([
                ("seqrelid", def.id.0.into()),
                ("seqtypid", def.data_type.oid().into()),
                ("seqstart", def.start.into()),
                ("seqincrement", def.increment.into()),
                ("seqmax", def.max.into()),
                ("seqmin", def.min.into()),
                ("seqcache", def.cache.into()),
                ("seqcycle", def.cycle.into()),
            ]);
            continue;
        }
        let position = sequence.position();
        rows.push([
            ("schemaname", facts.version.schema_name(def.schema).to_owned().into()),
            ("sequencename", def.name.clone().into()),
            ("sequenceowner", owner_name(facts, &AccessObject::Relation(def.id)).into()),
            ("data_type", def.data_type.oid().into()),
            ("start_value", def.start.into()),
            ("min_value", def.min.into()),
            ("max_value", def.max.into()),
            ("increment_by", def.increment.into()),
            ("cycle", def.cycle.into()),
            ("cache_size", def.cache.into()),
            ("last_value", position.is_called.then_some(position.last_value).into()),
        ]);
    }
}

/// The rows of `information_schema.sequences`.
pub fn standard(facts: &SessionFacts, rows: &mut Rows) {
    for sequence in facts.version.catalog.sequences.values() {
        let def = &sequence.def;
        // What stands behind an identity column is no object of its own to the standard.
        if def.owner.is_some_and(|owner| owner.identity) || !super::visible::sequence(facts, def.id) {
            continue;
        }
        let precision = match def.data_type {
            SqlType::SmallInt => 16,
            SqlType::Integer => 32,
            _ => 64,
        };
        rows.push([
            ("sequence_catalog", facts.database.into()),
            ("sequence_schema", facts.version.schema_name(def.schema).to_owned().into()),
            ("sequence_name", def.name.clone().into()),
            ("data_type", def.data_type.to_string().into()),
            ("numeric_precision", precision.into()),
            ("numeric_precision_radix", 2.into()),
            ("numeric_scale", 0.into()),
            ("start_value", def.start.to_string().into()),
            ("minimum_value", def.min.to_string().into()),
            ("maximum_value", def.max.to_string().into()),
            ("increment", def.increment.to_string().into()),
            ("cycle_option", if def.cycle { "YES" } else { "NO" }.into()),
        ]);
    }
}

/// The rows of `pg_depend`: sequences with their columns, and defaults with the sequences that they name.
pub fn dependencies(facts: &SessionFacts, rows: &mut Rows) {
    for sequence in facts.version.catalog.sequences.values() {
        let Some(owner) = sequence.def.owner else { continue };
        rows.push([
            ("classid", PG_CLASS.into()),
            ("objid", sequence.def.id.0.into()),
            ("objsubid", 0.into()),
            ("refclassid", PG_CLASS.into()),
            ("refobjid", owner.table.0.into()),
            ("refobjsubid", owner.column.into()),
            ("deptype", if owner.identity { "i" } else { "a" }.into()),
        ]);
    }
    for table in facts.version.tables.values() {
        for column in table.def.columns.iter().filter(|column| column.identity.is_none()) {
            for named in column.default.iter().flat_map(|default| crate::sequences::named_in(default)) {
                rows.push([
                    ("classid", PG_ATTRDEF.into()),
                    ("objid", default_oid(table.def.id.0, column.number.into()).into()),
                    ("objsubid", 0.into()),
                    ("refclassid", PG_CLASS.into()),
                    ("refobjid", named.0.into()),
                    ("refobjsubid", 0.into()),
                    ("deptype", "n".into()),
                ]);
            }
        }
    }
}
