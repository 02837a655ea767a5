//! The rows of `information_schema`'s views, the SQL standard's form of the catalogue.

use super::keys::{foreign_keys, foreign_keys_of};
use super::objects::*;
use super::relations::{self, Rows};
use super::roles::owner_name;
use super::types;
use super::value::Value;
use super::visible;
use crate::facts::SessionFacts;
use crate::references::rule;
use std::sync::Arc;
use tidepool_base::{SchemaId, SqlType};
use tidepool_database::{AccessObject, Sequence};
use tidepool_table::{ForeignKeyDef, Identity, Table};

/// Fills `rows` with what the view named `name` holds.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    match name {
        "information_schema_catalog_name" => rows.push([("catalog_name", facts.database.into())]),
        "schemata" => {
            for (oid, schema) in schemas(facts).into_iter().filter(|(oid, _)| visible::schema(facts, SchemaId(*oid))) {
                rows.push([
                    ("catalog_name", facts.database.into()),
                    ("schema_name", schema.into()),
                    ("schema_owner", owner_name(facts, &AccessObject::Schema(SchemaId(oid))).into()),
                ]);
            }
        }
        "tables" => tables(facts, rows),
        "columns" => {
            columns(facts, rows);
            view_columns(facts, rows);
        }
        "views" => {
            for relation in relations::all().iter().filter(|relation| relation.kind == "v") {
                rows.push([
                    ("table_catalog", facts.database.into()),
                    ("table_schema", relation.schema.into()),
                    ("table_name", relation.name.into()),
                    ("check_option", "NONE".into()),
                    ("is_updatable", "NO".into()),
                    ("is_insertable_into", "NO".into()),
                    ("is_trigger_updatable", "NO".into()),
                    ("is_trigger_deletable", "NO".into()),
                    ("is_trigger_insertable_into", "NO".into()),
                ]);
            }
            for view in facts.version.catalog.views.values().filter(|view| visible::relation(facts, view.id)) {
                let definition = visible::owns(facts, view.id).then(|| crate::view::definition(facts, view));
                rows.push([
                    ("table_catalog", facts.database.into()),
                    ("table_schema", facts.version.schema_name(view.schema).to_owned().into()),
                    ("table_name", view.name.clone().into()),
                    ("view_definition", definition.into()),
                    ("check_option", "NONE".into()),
                    ("is_updatable", "NO".into()),
                    ("is_insertable_into", "NO".into()),
                    ("is_trigger_updatable", "NO".into()),
                    ("is_trigger_deletable", "NO".into()),
                    ("is_trigger_insertable_into", "NO".into()),
                ]);
            }
        }
        "view_table_usage" | "view_column_usage" => view_usage(name, facts, rows),
        "sequences" => super::sequences::standard(facts, rows),
        "table_constraints" => table_constraints(facts, rows),
        "check_constraints" => {
            for table in facts.version.tables.values().filter(|table| visible::owns(facts, table.def.id)) {
                for check in &table.def.checks {
                    rows.push([
                        ("constraint_catalog", facts.database.into()),
                        ("constraint_schema", table_schema(facts, table).into()),
                        ("constraint_name", check.name.clone().into()),
                        ("check_clause", format!("(({}))", crate::sequences::shown(facts, &check.condition)).into()),
                    ]);
                }
                for (index, column) in table.def.columns.iter().enumerate().filter(|(_, column)| !column.nullable) {
                    rows.push([
                        ("constraint_catalog", facts.database.into()),
                        ("constraint_schema", table_schema(facts, table).into()),
                        ("constraint_name", not_null_name(table, index).into()),
                        ("check_clause", format!("{} IS NOT NULL", quote_identifier(&column.name)).into()),
                    ]);
                }
            }
        }
        "key_column_usage" | "constraint_column_usage" => {
            let is_own = name == "key_column_usage";
            let is_shown = |table: &Arc<Table>, number: u16| match is_own {
                true => visible::column(facts, table.def.id, number),
                false => visible::owns(facts, table.def.id),
            };
            for table in facts.version.tables.values() {
                let has_checks = !is_own && visible::owns(facts, table.def.id);
                for check in table.def.checks.iter().filter(|_| has_checks) {
                    for (_, column) in check.columns.iter().filter_map(|number| table.def.column_by_number(*number)) {
                        rows.push([
                            ("constraint_catalog", facts.database.into()),
                            ("constraint_schema", table_schema(facts, table).into()),
                            ("constraint_name", check.name.clone().into()),
                            ("table_catalog", facts.database.into()),
                            ("table_schema", table_schema(facts, table).into()),
                            ("table_name", table.def.name.clone().into()),
                            ("column_name", column.name.clone().into()),
                        ]);
                    }
                }
                for key in foreign_keys_of(facts, table) {
                    foreign_key_usage(is_own, &is_shown, facts, table, &key, rows);
                }
                let keys = table.def.indexes.iter().filter(|index| index.constraint.is_some());
                let columns = keys.flat_map(|key| {
                    let positions = table.def.index_positions(key);
                    positions.into_iter().enumerate().map(move |(place, position)| (key, place, position))
                });
                let columns = columns.filter(|(_, _, position)| is_shown(table, table.def.columns[*position].number));
                for (key, index, position) in columns {
                    let shared = [
                        ("constraint_catalog", Value::from(facts.database)),
                        ("constraint_schema", table_schema(facts, table).into()),
                        ("constraint_name", key.name.clone().into()),
                        ("table_catalog", facts.database.into()),
                        ("table_schema", table_schema(facts, table).into()),
                        ("table_name", table.def.name.clone().into()),
                        ("column_name", table.def.columns[position].name.clone().into()),
                    ];
                    if is_own {
                        let [a, b, c, d, e, f, g] = shared;
                        rows.push([a, b, c, d, e, f, g, ("ordinal_position", (index + 1).into())]);
                    } else {
                        rows.push(shared);
                    }
                }
            }
        }
        "referential_constraints" => {
            for (table, key) in foreign_keys(facts) {
                if !visible::changed(facts, table.def.id) {
                    continue;
                }
                let parent = facts.version.index_by_id(key.index);
                let schema = |table: &Arc<Table>| Value::from(table_schema(facts, table));
                // Of an index that serves no constraint the standard knows nothing.
                let unique = parent.filter(|(_, index)| index.constraint.is_some());
                rows.push([
                    ("constraint_catalog", facts.database.into()),
                    ("constraint_schema", schema(table)),
                    ("constraint_name", key.name.clone().into()),
                    ("unique_constraint_catalog", unique.map(|_| facts.database).into()),
                    ("unique_constraint_schema", unique.map_or(Value::Null, |(table, _)| schema(table))),
                    ("unique_constraint_name", unique.map(|(_, index)| index.name.clone()).into()),
                    ("match_option", if key.match_full { "FULL" } else { "NONE" }.into()),
                    ("update_rule", rule(key.on_update).into()),
                    ("delete_rule", rule(key.on_delete).into()),
                ]);
            }
        }
        "constraint_table_usage" => {
            for (table, key) in foreign_keys(facts) {
                let parent = table_by_oid(facts, key.referenced.0);
                let Some(parent) = parent.filter(|parent| visible::owns(facts, parent.def.id)) else { continue };
                rows.push([
                    ("table_catalog", facts.database.into()),
                    ("table_schema", table_schema(facts, parent).into()),
                    ("table_name", parent.def.name.clone().into()),
                    ("constraint_catalog", facts.database.into()),
                    ("constraint_schema", table_schema(facts, table).into()),
                    ("constraint_name", key.name.clone().into()),
                ]);
            }
            let own = facts.version.tables.values().filter(|table| visible::owns(facts, table.def.id));
            let keys = own.flat_map(|table| {
                let keys = table.def.indexes.iter().filter(|index| index.constraint.is_some());
                keys.map(move |key| (table, key))
            });
            for (table, key) in keys {
                rows.push([
                    ("table_catalog", facts.database.into()),
                    ("table_schema", table_schema(facts, table).into()),
                    ("table_name", table.def.name.clone().into()),
                    ("constraint_catalog", facts.database.into()),
                    ("constraint_schema", table_schema(facts, table).into()),
                    ("constraint_name", key.name.clone().into()),
                ]);
            }
        }
        "applicable_roles" => {}
        "enabled_roles" => {
            let catalog = &facts.version.catalog;
            for role in catalog.roles.values().filter(|role| facts.role.has(role.id)) {
                rows.push([("role_name", role.name.clone().into())]);
            }
        }
        "character_sets" => rows.push([
            ("character_set_name", "UTF8".into()),
            ("character_repertoire", "UCS".into()),
            ("form_of_use", "UTF8".into()),
            ("default_collate_catalog", facts.database.into()),
            ("default_collate_schema", "pg_catalog".into()),
            ("default_collate_name", "C".into()),
        ]),
        "table_privileges" | "role_table_grants" => super::roles::table_privileges(facts, rows),
        _ => {}
    }
}

fn tables(facts: &SessionFacts, rows: &mut Rows) {
    let mut push = |schema: String, name: Value, kind: &'static str, insertable: bool| {
        rows.push([
            ("table_catalog", facts.database.into()),
            ("table_schema", schema.into()),
            ("table_name", name),
            ("table_type", kind.into()),
            ("is_insertable_into", if insertable { "YES" } else { "NO" }.into()),
            ("is_typed", "NO".into()),
        ]);
    };
    for relation in relations::all() {
        let kind = if relation.kind == "v" { "VIEW" } else { "BASE TABLE" };
        push(relation.schema.to_owned(), relation.name.into(), kind, false);
    }
    for table in facts.version.tables.values().filter(|table| visible::relation(facts, table.def.id)) {
        let kind = if table.def.is_temporary() { "LOCAL TEMPORARY" } else { "BASE TABLE" };
        push(table_schema(facts, table), table.def.name.clone().into(), kind, true);
    }
    for view in facts.version.catalog.views.values().filter(|view| visible::relation(facts, view.id)) {
        push(facts.version.schema_name(view.schema).to_owned(), view.name.clone().into(), "VIEW", false);
    }
}

/// What views read: the relations, or their columns.
fn view_usage(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    for view in facts.version.catalog.views.values() {
        for relation in &view.relations {
            let Some((schema, table)) = relation_by_oid(facts, relation.id.0) else { continue };
            if !visible::owns(facts, relation.id) {
                continue;
            }
            let shared = [
                ("view_catalog", Value::from(facts.database)),
                ("view_schema", facts.version.schema_name(view.schema).to_owned().into()),
                ("view_name", view.name.clone().into()),
                ("table_catalog", facts.database.into()),
                ("table_schema", schema.into()),
                ("table_name", table.into()),
            ];
            if name == "view_table_usage" {
                rows.push(shared);
                continue;
            }
            for column in relation.columns.iter().filter(|column| column.used) {
                let [a, b, c, d, e, f] = shared.clone();
                rows.push([a, b, c, d, e, f, ("column_name", column.name.clone().into())]);
            }
        }
    }
}

/// A foreign key's own columns, or, of `constraint_column_usage`, those that it refers to.
fn foreign_key_usage(
    is_own: bool,
    is_shown: &dyn Fn(&Arc<Table>, u16) -> bool,
    facts: &SessionFacts,
    table: &Arc<Table>,
    key: &ForeignKeyDef,
    rows: &mut Rows,
) {
    let Some(parent) = table_by_oid(facts, key.referenced.0) else { return };
    let (of, numbers) = if is_own { (table, &key.columns) } else { (parent, &key.referenced_columns) };
    let unique = facts.version.index_by_id(key.index).map(|(_, index)| index);
    for (place, number) in numbers.iter().enumerate() {
        let Some((_, column)) = of.def.column_by_number(*number) else { continue };
        if !is_shown(of, *number) {
            continue;
        }
        let shared = [
            ("constraint_catalog", Value::from(facts.database)),
            ("constraint_schema", table_schema(facts, table).into()),
            ("constraint_name", key.name.clone().into()),
            ("table_catalog", facts.database.into()),
            ("table_schema", table_schema(facts, of).into()),
            ("table_name", of.def.name.clone().into()),
            ("column_name", column.name.clone().into()),
        ];
        if !is_own {
            rows.push(shared);
            continue;
        }
        let referenced = key.referenced_columns[place];
        let of_unique = unique.and_then(|index| index.columns.iter().position(|column| column.number == referenced));
        let [a, b, c, d, e, f, g] = shared;
        let ordinal = ("ordinal_position", (place + 1).into());
        let in_unique = ("position_in_unique_constraint", of_unique.map(|place| place + 1).into());
        rows.push([a, b, c, d, e, f, g, ordinal, in_unique]);
    }
}

fn table_constraints(facts: &SessionFacts, rows: &mut Rows) {
    let yes_no = |yes: bool| Value::from(if yes { "YES" } else { "NO" });
    let mut push =
        |table: &Table, name: String, kind: &'static str, nulls_distinct: Option<bool>, deferred: [bool; 2]| {
            rows.push([
                ("constraint_catalog", facts.database.into()),
                ("constraint_schema", table_schema(facts, table).into()),
                ("constraint_name", name.into()),
                ("table_catalog", facts.database.into()),
                ("table_schema", table_schema(facts, table).into()),
                ("table_name", table.def.name.clone().into()),
                ("constraint_type", kind.into()),
                ("is_deferrable", yes_no(deferred[0])),
                ("initially_deferred", yes_no(deferred[1])),
                ("enforced", "YES".into()),
                ("nulls_distinct", nulls_distinct.map(|distinct| if distinct { "YES" } else { "NO" }).into()),
            ]);
        };
    for table in facts.version.tables.values().filter(|table| visible::changed(facts, table.def.id)) {
        for key in &table.def.indexes {
            let Some(constraint) = key.constraint else { continue };
            let kind = if constraint.primary { "PRIMARY KEY" } else { "UNIQUE" };
            push(table, key.name.clone(), kind, Some(!key.nulls_not_distinct), [false; 2]);
        }
        for check in &table.def.checks {
            push(table, check.name.clone(), "CHECK", None, [false; 2]);
        }
        for key in foreign_keys_of(facts, table) {
            push(table, key.name.clone(), "FOREIGN KEY", None, [key.deferrable, key.initially_deferred]);
        }
        for (index, _) in table.def.columns.iter().enumerate().filter(|(_, column)| !column.nullable) {
            push(table, not_null_name(table, index), "CHECK", None, [false; 2]);
        }
    }
}

/// As PostgreSQL 15 names the check that stands for NOT NULL.
fn not_null_name(table: &Table, index: usize) -> String {
    format!("{}_{}_{}_not_null", table.def.schema, table.def.id, table.def.columns[index].number)
}

struct ColumnRow<'a> {
    schema: &'a str,
    table: &'a str,
    name: &'a str,
    number: usize,
    type_oid: u32,
    sql_type: Option<SqlType>,
    default: Option<String>,
    nullable: bool,
    updatable: bool,
    identity: Option<(Identity, Arc<Sequence>)>,
}

fn columns(facts: &SessionFacts, rows: &mut Rows) {
    for relation in relations::all() {
        for (index, column) in relation.columns.iter().enumerate() {
            let row = ColumnRow {
                schema: relation.schema,
                table: relation.name,
                name: column.name,
                number: index + 1,
                type_oid: types::by_name(column.type_name).map_or(25, |entry| entry.oid),
                sql_type: None,
                default: None,
                nullable: !column.not_null,
                updatable: false,
                identity: None,
            };
            push_column(facts, rows, &row);
        }
    }
    for table in facts.version.tables.values() {
        for column in table.def.columns.iter().filter(|column| visible::column(facts, table.def.id, column.number)) {
            let row = ColumnRow {
                schema: facts.version.schema_name(table.def.schema),
                table: &table.def.name,
                name: &column.name,
                number: column.number.into(),
                type_oid: column.sql_type.oid(),
                sql_type: Some(column.sql_type),
                default: (column.default.as_ref().filter(|_| column.identity.is_none()))
                    .map(|default| crate::sequences::shown(facts, default)),
                nullable: column.nullable,
                updatable: true,
                identity: (column.identity).zip(crate::sequences::of_column(&facts.version, table, column.number)),
            };
            push_column(facts, rows, &row);
        }
    }
}

fn view_columns(facts: &SessionFacts, rows: &mut Rows) {
    for view in facts.version.catalog.views.values().filter(|view| visible::relation(facts, view.id)) {
        for (index, column) in view.columns.iter().enumerate() {
            let row = ColumnRow {
                schema: facts.version.schema_name(view.schema),
                table: &view.name,
                name: &column.name,
                number: index + 1,
                type_oid: column.type_oid,
                sql_type: Some(column.sql_type),
                default: None,
                nullable: true,
                updatable: false,
                identity: None,
            };
            push_column(facts, rows, &row);
        }
    }
}

fn push_column(facts: &SessionFacts, rows: &mut Rows, column: &ColumnRow<'_>) {
    let entry = types::by_oid(column.type_oid);
    let (length_max, octets) = match column.sql_type {
        Some(SqlType::Varchar { length_max: Some(length) } | SqlType::Char { length }) => {
            (Some(length), Some(u64::from(length) * 4))
        }
        // No length: as many bytes as a value can have.
        Some(SqlType::Text | SqlType::Varchar { length_max: None }) => (None, Some(1 << 30)),
        _ => (None, None),
    };
    // Precision, its radix, and scale.
    let (precision, radix, scale) = match column.type_oid {
        21 => (Some(16), Some(2), Some(0)),
        23 => (Some(32), Some(2), Some(0)),
        20 => (Some(64), Some(2), Some(0)),
        700 => (Some(24), Some(2), None),
        701 => (Some(53), Some(2), None),
        1700 => match column.sql_type {
            Some(SqlType::Numeric { precision, scale }) => {
                (Some(i64::from(precision)), Some(10), Some(i64::from(scale)))
            }
            _ => (None, Some(10), None),
        },
        _ => (None, None, None),
    };
    let datetime_precision = match column.type_oid {
        1082 => Some(0),
        1114 | 1184
            if let Some(
                SqlType::Timestamp { precision: Some(digits) } | SqlType::TimestampTz { precision: Some(digits) },
            ) = column.sql_type =>
        {
            Some(i64::from(digits))
        }
        1083 | 1114 | 1184 | 1186 | 1266 => Some(6),
        _ => None,
    };
    let data_type = match entry {
        Some(entry) if entry.category == "A" && entry.len == -1 => "ARRAY".to_owned(),
        Some(entry) => entry.display.clone(),
        None => "USER-DEFINED".to_owned(),
    };
    let yes_no = |yes: bool| Value::from(if yes { "YES" } else { "NO" });
    let identity = |shown: fn(Identity, &Sequence) -> String| {
        Value::from(column.identity.as_ref().map(|(kind, sequence)| shown(*kind, sequence)))
    };
    rows.push([
        ("table_catalog", facts.database.into()),
        ("table_schema", column.schema.to_owned().into()),
        ("table_name", column.table.to_owned().into()),
        ("column_name", column.name.to_owned().into()),
        ("ordinal_position", column.number.into()),
        ("column_default", column.default.clone().into()),
        ("is_nullable", yes_no(column.nullable)),
        ("data_type", data_type.into()),
        ("character_maximum_length", length_max.into()),
        ("character_octet_length", octets.into()),
        ("numeric_precision", precision.into()),
        ("numeric_precision_radix", radix.into()),
        ("numeric_scale", scale.into()),
        ("datetime_precision", datetime_precision.into()),
        ("udt_catalog", facts.database.into()),
        ("udt_schema", "pg_catalog".into()),
        ("udt_name", entry.map(|entry| entry.name).into()),
        ("dtd_identifier", column.number.to_string().into()),
        ("is_self_referencing", "NO".into()),
        ("is_identity", yes_no(column.identity.is_some())),
        (
            "identity_generation",
            identity(|kind, _| match kind {
                Identity::Always => "ALWAYS".to_owned(),
                Identity::ByDefault => "BY DEFAULT".to_owned(),
            }),
        ),
        ("identity_start", identity(|_, sequence| sequence.def.start.to_string())),
        ("identity_increment", identity(|_, sequence| sequence.def.increment.to_string())),
        ("identity_maximum", identity(|_, sequence| sequence.def.max.to_string())),
        ("identity_minimum", identity(|_, sequence| sequence.def.min.to_string())),
        ("identity_cycle", yes_no(column.identity.as_ref().is_some_and(|(_, sequence)| sequence.def.cycle))),
        ("is_generated", "NEVER".into()),
        ("is_updatable", yes_no(column.updatable)),
    ]);
}
