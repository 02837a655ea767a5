//! Which oid every object of the catalogue has, and back.
//!
//! System relations have PostgreSQL's oids; a user's table has its `TableId`, and indexes and constraints have numbers of
//! the same kind. What belongs to an object without a number of its own (a default, a view's rule) has an oid derived
//! from the object's, in ranges far above any object's.

use super::relations;
use crate::facts::SessionFacts;
use crate::resolve;
use std::borrow::Cow;
use std::sync::Arc;
use tidepool_base::{SchemaId, TableId};
use tidepool_database::RelationName;
use tidepool_table::{CheckDef, ForeignKeyDef, IndexDef, Table, TableVersion};

pub const PG_CATALOG: u32 = 11;
pub const PG_TOAST: u32 = 99;
pub const PUBLIC: u32 = 2200;
pub const INFORMATION_SCHEMA: u32 = 13207;
pub const TIDEPOOL: u32 = 14000;

/// Oid and name of each schema that is the system's.
pub const SYSTEM_SCHEMAS: [(u32, &str); 4] = [
    (PG_CATALOG, "pg_catalog"),
    (PG_TOAST, "pg_toast"),
    (INFORMATION_SCHEMA, "information_schema"),
    (TIDEPOOL, "tidepool"),
];

/// The one database.
pub const DATABASE: u32 = 5;
/// Role `tidepool`, which owns everything.
pub const OWNER: u32 = 10;
pub const OWNER_NAME: &str = "tidepool";

pub const TABLE_ACCESS_METHOD: u32 = 2;
pub const INDEX_ACCESS_METHOD: u32 = 403;

/// Oids of catalogue tables that descriptions and dependencies refer to.
pub const PG_CLASS: u32 = 1259;
pub const PG_ATTRDEF: u32 = 2604;
pub const PG_REWRITE: u32 = 2618;

const RULE_BASE: u32 = 0x6000_0000;
const DEFAULT_BASE: u32 = 0x8000_0000;

/// Oid and name of each schema.
pub fn schemas(facts: &SessionFacts) -> Vec<(u32, String)> {
    let system = SYSTEM_SCHEMAS.iter().map(|(oid, name)| (*oid, (*name).to_owned()));
    let own = facts.version.catalog.schemas.values().map(|schema| (schema.id.0, schema.name.clone()));
    let mut all: Vec<(u32, String)> = system.chain(own).collect();
    all.sort_unstable();
    all
}

/// The oid of a system schema.
pub fn system_schema_oid(name: &str) -> Option<u32> {
    SYSTEM_SCHEMAS.iter().find(|schema| schema.1 == name).map(|schema| schema.0)
}

pub fn schema_oid(facts: &SessionFacts, name: &str) -> Option<u32> {
    if name == resolve::TEMPORARY {
        // Also before there is anything in it.
        return Some(facts.version.temporary_schema().map_or(0, |schema| schema.0));
    }
    system_schema_oid(name).or_else(|| facts.version.schema(name).map(|schema| schema.id.0))
}

pub fn schema_name(facts: &SessionFacts, oid: u32) -> Option<String> {
    let system = SYSTEM_SCHEMAS.iter().find(|schema| schema.0 == oid).map(|schema| schema.1.to_owned());
    let own = || facts.version.catalog.schemas.get(&SchemaId(oid)).map(|schema| schema.name.clone());
    system.or_else(own)
}

/// `pg_class.relpersistence`.
pub fn persistence(id: TableId) -> &'static str {
    if id.is_temporary() { "t" } else { "p" }
}

/// The name of a table's schema.
pub fn table_schema(facts: &SessionFacts, table: &Table) -> String {
    facts.version.schema_name(table.def.schema).to_owned()
}

/// `near` has the oid of PostgreSQL's default tablespace; the others follow.
pub fn tablespace_oid(id: tidepool_base::TablespaceId) -> u32 {
    1663 + u32::from(id.0)
}

/// `attribute` counts from 1. Unique as long as no table has more than 1,600 columns, PostgreSQL's own limit.
pub fn default_oid(table: u32, attribute: usize) -> u32 {
    DEFAULT_BASE.wrapping_add(table.wrapping_mul(2048)).wrapping_add(attribute as u32) | DEFAULT_BASE
}

/// The rule that makes a view of a relation.
pub fn rule_oid(view: u32) -> u32 {
    RULE_BASE | view
}

/// An index, and its table.
pub fn index_by_oid(facts: &SessionFacts, oid: u32) -> Option<(&Arc<Table>, &IndexDef)> {
    facts.version.index_by_id(TableId(oid))
}

/// The index that serves a `PRIMARY KEY` or `UNIQUE` constraint, and its table.
pub fn key_by_oid(facts: &SessionFacts, oid: u32) -> Option<(&Arc<Table>, &IndexDef)> {
    let serves = |index: &&IndexDef| index.constraint.is_some_and(|constraint| constraint.oid == oid);
    facts.version.tables.values().find_map(|table| table.def.indexes.iter().find(serves).map(|index| (table, index)))
}

/// The table of a `CHECK`, and the constraint.
pub fn check_by_oid(facts: &SessionFacts, oid: u32) -> Option<&CheckDef> {
    facts.version.tables.values().flat_map(|table| &table.def.checks).find(|check| check.oid == oid)
}

/// A foreign key, and its table.
pub fn foreign_key_by_oid(facts: &SessionFacts, oid: u32) -> Option<(&Arc<Table>, Cow<'_, ForeignKeyDef>)> {
    super::keys::foreign_keys(facts).find(|(_, key)| key.oid == oid)
}

pub fn table_by_oid(facts: &SessionFacts, oid: u32) -> Option<&Arc<Table>> {
    facts.version.tables.values().find(|table| table.def.id.0 == oid)
}

/// Schema and name of the relation (table, view or index) with this oid.
pub fn relation_by_oid(facts: &SessionFacts, oid: u32) -> Option<(String, String)> {
    if let Some(relation) = relations::all().iter().find(|relation| relation.oid == oid) {
        return Some((relation.schema.to_owned(), relation.name.to_owned()));
    }
    if let Some(table) = table_by_oid(facts, oid) {
        return Some((table_schema(facts, table), table.def.name.clone()));
    }
    if let Some(view) = facts.version.catalog.view_by_id(TableId(oid)) {
        return Some((facts.version.schema_name(view.schema).to_owned(), view.name.clone()));
    }
    if let Some(sequence) = facts.version.catalog.sequence_by_id(TableId(oid)) {
        return Some((facts.version.schema_name(sequence.def.schema).to_owned(), sequence.def.name.clone()));
    }
    index_by_oid(facts, oid).map(|(table, index)| (table_schema(facts, table), index.name.clone()))
}

/// The oid of a relation by name; without a schema, the first in the search path.
pub fn relation_oid(facts: &SessionFacts, schema: Option<&str>, name: &str) -> Option<u32> {
    let find = |schema: &str| -> Option<u32> {
        if let Some(relation) = resolve::in_schema(facts, schema, name) {
            return Some(relation.oid());
        }
        let name = RelationName::new(facts.version.schema(schema)?.id, name);
        facts.version.index(&name).map(|(_, index)| index.id.0)
    };
    match schema {
        Some(schema) => find(schema),
        None => resolve::search_path(facts).iter().find_map(|schema| find(schema)),
    }
}

/// A relation's name as SQL writes it: with its schema unless the path finds it without.
pub fn relation_text(facts: &SessionFacts, oid: u32) -> Option<String> {
    let (schema, name) = relation_by_oid(facts, oid)?;
    Some(match is_visible(facts, oid, &schema, &name) {
        true => quote_identifier(&name),
        false => format!("{}.{}", quote_identifier(&schema), quote_identifier(&name)),
    })
}

/// Whether a name of this schema is found without it: no earlier schema of the search path has the same.
pub fn is_visible(facts: &SessionFacts, oid: u32, schema: &str, name: &str) -> bool {
    resolve::search_path(facts).iter().any(|visible| visible == schema) && relation_oid(facts, None, name) == Some(oid)
}

/// Splits `schema.name` as written in SQL, unquoting each part and folding what is not quoted to lower case.
pub fn split_name(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    let mut characters = text.trim().chars().peekable();
    while let Some(character) = characters.next() {
        let last = parts.len() - 1;
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                parts[last].push('"');
            }
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(String::new()),
            // Blanks may stand around the dots.
            blank if !quoted && blank.is_whitespace() => {}
            other if quoted => parts[last].push(other),
            other => parts[last].extend(other.to_lowercase()),
        }
    }
    parts
}

/// `name` as SQL must write it: in double quotes unless it is a plain lower-case word that is not reserved.
pub fn quote_identifier(name: &str) -> String {
    let plain = name.chars().enumerate().all(|(index, character)| {
        character == '_'
            || character.is_ascii_lowercase()
            || (index > 0 && (character.is_ascii_digit() || character == '$'))
    });
    if plain && !name.is_empty() && RESERVED.binary_search(&name).is_err() {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// Encoded bytes in main, and bytes of delta.
pub fn table_bytes(table: &TableVersion) -> (u64, u64) {
    let main = table.row_groups.iter().map(|group| group.encoded_bytes()).sum();
    let delta = table.delta_bytes();
    (main, delta)
}

/// PostgreSQL's keywords that cannot name a column or table without quotes, sorted.
const RESERVED: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "both",
    "case",
    "cast",
    "char",
    "character",
    "check",
    "coalesce",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "dec",
    "decimal",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "exists",
    "extract",
    "false",
    "fetch",
    "float",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "greatest",
    "group",
    "grouping",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "inout",
    "int",
    "integer",
    "intersect",
    "interval",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "least",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "national",
    "natural",
    "nchar",
    "none",
    "normalize",
    "not",
    "notnull",
    "null",
    "nullif",
    "numeric",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "out",
    "outer",
    "overlaps",
    "overlay",
    "placing",
    "position",
    "precision",
    "primary",
    "real",
    "references",
    "returning",
    "right",
    "row",
    "select",
    "session_user",
    "setof",
    "similar",
    "smallint",
    "some",
    "substring",
    "symmetric",
    "table",
    "tablesample",
    "then",
    "time",
    "timestamp",
    "to",
    "trailing",
    "treat",
    "trim",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "values",
    "varchar",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
    "xmlattributes",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlnamespaces",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
    "xmltable",
];
