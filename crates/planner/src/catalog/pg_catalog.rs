//! The rows of `pg_catalog`'s relations. Those that nothing of Tidepool's can be in (triggers, policies, …) have none.

use super::functions::procedures;
use super::keys::{index_definition, index_tablespace, indexed};
use super::locks::{LockWaits, xid};
use super::objects::*;
use super::relations::{self, Rows};
use super::roles::{acl, column_acl, owner_name, owner_oid, role_oid};
use super::types;
use super::value::Value;
use crate::QueryState;
use crate::facts::SessionFacts;
use crate::session::TransactionStatus;
use datafusion::common::Result;
use std::sync::atomic::Ordering;
use tidepool_base::{SchemaId, SqlType, TableId};
use tidepool_database::AccessObject;
use tidepool_table::{Identity, Table};

/// PostgreSQL's number for UTF8.
pub const ENCODING_UTF8: i32 = 6;
/// `heap`-like relations store their pages in units of this many bytes, as far as `relpages` is concerned.
const PAGE_BYTES: u64 = 8192;

/// Fills `rows` with what the relation named `name` holds.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) -> Result<()> {
    match name {
        "pg_am" => {
            rows.push([("oid", TABLE_ACCESS_METHOD.into()), ("amname", "tidepool".into()), ("amtype", "t".into())]);
            rows.push([
                ("oid", INDEX_ACCESS_METHOD.into()),
                ("amname", "btree".into()),
                ("amhandler", 330.into()),
                ("amtype", "i".into()),
            ]);
        }
        "pg_attrdef" => attribute_defaults(facts, rows),
        "pg_attribute" => {
            attributes(facts, rows);
            view_attributes(facts, rows);
            for sequence in facts.version.catalog.sequences.values() {
                for (index, (name, type_oid)) in
                    [("last_value", 20), ("log_cnt", 20), ("is_called", 16)].into_iter().enumerate()
                {
                    let shown = Attribute {
                        relation: sequence.def.id.0,
                        name,
                        type_oid,
                        modifier: -1,
                        number: index + 1,
                        not_null: true,
                        has_default: false,
                        identity: "",
                        acl: Value::Null,
                    };
                    attribute(rows, &shown);
                }
            }
        }
        "pg_authid" | "pg_roles" | "pg_user" | "pg_shadow" | "pg_group" | "pg_auth_members" => {
            super::roles::fill(name, facts, rows);
        }
        "pg_class" => {
            classes(facts, rows);
            super::keys::classes(facts, rows);
            view_classes(facts, rows);
            super::sequences::classes(facts, rows);
        }
        "pg_collation" => {
            for (oid, collation, provider) in [(100, "default", "d"), (950, "C", "c"), (951, "POSIX", "c")] {
                let locale = if provider == "d" { Value::Null } else { collation.into() };
                rows.push([
                    ("oid", oid.into()),
                    ("collname", collation.into()),
                    ("collnamespace", PG_CATALOG.into()),
                    ("collowner", OWNER.into()),
                    ("collprovider", provider.into()),
                    ("collisdeterministic", true.into()),
                    ("collencoding", (-1).into()),
                    ("collcollate", locale.clone()),
                    ("collctype", locale),
                ]);
            }
        }
        "pg_constraint" => constraints(facts, rows),
        "pg_cursors" | "pg_prepared_statements" => {}
        "pg_database" => rows.push([
            ("oid", DATABASE.into()),
            ("datname", facts.database.into()),
            ("datdba", owner_oid(facts, &AccessObject::Database).into()),
            ("encoding", ENCODING_UTF8.into()),
            ("datlocprovider", "c".into()),
            ("datallowconn", true.into()),
            ("datconnlimit", (-1).into()),
            ("dattablespace", default_tablespace(facts).into()),
            ("datcollate", "C.UTF-8".into()),
            ("datctype", "C.UTF-8".into()),
            ("datacl", acl(facts, &AccessObject::Database)),
        ]),
        "pg_description" => {
            for (object, class, part, text) in super::comments::all(facts) {
                rows.push([
                    ("objoid", object.into()),
                    ("classoid", class.into()),
                    ("objsubid", i32::from(part).into()),
                    ("description", text.into()),
                ]);
            }
        }
        "pg_shdescription" => {
            for (object, class, _, text) in super::comments::shared(facts) {
                rows.push([("objoid", object.into()), ("classoid", class.into()), ("description", text.into())]);
            }
        }
        "pg_index" => super::keys::indexes(facts, rows),
        "pg_indexes" => {
            for (table, index) in indexed(facts) {
                let space = index_tablespace(table, index);
                let shown = (tablespace_of(facts, space) != default_tablespace(facts)).then(|| space.to_owned());
                rows.push([
                    ("schemaname", table_schema(facts, table).into()),
                    ("tablename", table.def.name.clone().into()),
                    ("indexname", index.name.clone().into()),
                    ("tablespace", shown.into()),
                    ("indexdef", index_definition(facts, table, index).into()),
                ]);
            }
        }
        "pg_locks" => super::locks::fill(facts, rows),
        "pg_language" => {
            for (oid, language) in [(12, "internal"), (14, "sql")] {
                rows.push([
                    ("oid", oid.into()),
                    ("lanname", language.into()),
                    ("lanowner", OWNER.into()),
                    ("lanpltrusted", (oid == 14).into()),
                ]);
            }
        }
        "pg_namespace" => {
            for (oid, schema) in schemas(facts) {
                let object = AccessObject::Schema(SchemaId(oid));
                rows.push([
                    ("oid", oid.into()),
                    ("nspname", schema.into()),
                    ("nspowner", owner_oid(facts, &object).into()),
                    ("nspacl", acl(facts, &object)),
                ]);
            }
        }
        "pg_opclass" => operator_classes(rows),
        "pg_opfamily" => {
            for (oid, family) in [(1976, "integer_ops"), (1994, "text_ops")] {
                rows.push([
                    ("oid", oid.into()),
                    ("opfmethod", INDEX_ACCESS_METHOD.into()),
                    ("opfname", family.into()),
                    ("opfnamespace", PG_CATALOG.into()),
                    ("opfowner", OWNER.into()),
                ]);
            }
        }
        "pg_inherits" => super::partitions::inherits(facts, rows),
        "pg_partitioned_table" => super::partitions::partitioned(facts, rows),
        "pg_proc" => procedures::fill(rows),
        "pg_depend" => {
            super::sequences::dependencies(facts, rows);
            rules(facts, rows);
        }
        "pg_sequence" | "pg_sequences" => super::sequences::fill(name, facts, rows),
        "pg_range" => ranges(rows),
        "pg_rewrite" => {
            for view in facts.version.catalog.views.values() {
                rows.push([
                    ("oid", rule_oid(view.id.0).into()),
                    ("rulename", "_RETURN".into()),
                    ("ev_class", view.id.0.into()),
                    ("ev_type", "1".into()),
                    ("ev_enabled", "O".into()),
                    ("is_instead", true.into()),
                ]);
            }
        }
        "pg_settings" => settings(facts, rows),
        "pg_stat_activity" => activity(facts, rows),
        "pg_stat_archiver" | "pg_stat_database_conflicts" | "pg_stat_replication" | "pg_stat_wal_receiver" => {
            super::replication::fill(name, facts, rows);
        }
        "pg_stat_database" => rows.push([
            ("datid", DATABASE.into()),
            ("datname", facts.database.into()),
            ("numbackends", facts.planner.session_count().into()),
        ]),
        "pg_stat_progress_copy" => progress(facts, rows),
        "pg_stat_all_tables" | "pg_stat_user_tables" => {
            for table in facts.version.versions() {
                rows.push([
                    ("relid", table.def.id.0.into()),
                    ("schemaname", table_schema(facts, table.table()).into()),
                    ("relname", table.def.name.clone().into()),
                    ("n_live_tup", table.statistics().rows.into()),
                    ("n_dead_tup", 0.into()),
                ]);
            }
        }
        "pg_stats" => statistics(facts, rows),
        "pg_tables" => {
            let default = default_tablespace(facts);
            for relation in relations::all().iter().filter(|relation| relation.kind == "r") {
                rows.push([
                    ("schemaname", relation.schema.into()),
                    ("tablename", relation.name.into()),
                    ("tableowner", OWNER_NAME.into()),
                    ("hasindexes", false.into()),
                    ("hasrules", false.into()),
                    ("hastriggers", false.into()),
                    ("rowsecurity", false.into()),
                ]);
            }
            for table in facts.version.tables.values() {
                let elsewhere = placed(facts, table) != default;
                rows.push([
                    ("schemaname", table_schema(facts, table).into()),
                    ("tablename", table.def.name.clone().into()),
                    ("tableowner", owner_name(facts, &AccessObject::Relation(table.def.id)).into()),
                    ("tablespace", elsewhere.then(|| table.placement.main.clone()).into()),
                    ("hasindexes", (!table.def.indexes.is_empty()).into()),
                    ("hasrules", false.into()),
                    ("hastriggers", false.into()),
                    ("rowsecurity", false.into()),
                ]);
            }
        }
        "pg_tablespace" => {
            for space in facts.planner.database().tablespaces().list() {
                let object = AccessObject::Tablespace(space.name().to_owned());
                let options = space.config().profile_names().map(|names| vec![format!("profile={names}")]);
                rows.push([
                    ("oid", tablespace_oid(space.id()).into()),
                    ("spcname", space.name().to_owned().into()),
                    ("spcowner", owner_oid(facts, &object).into()),
                    ("spcacl", acl(facts, &object)),
                    ("spcoptions", options.into()),
                ]);
            }
        }
        "pg_timezone_names" => {}
        "pg_type" => type_rows(rows),
        "pg_views" => {
            for relation in relations::all().iter().filter(|relation| relation.kind == "v") {
                rows.push([
                    ("schemaname", relation.schema.into()),
                    ("viewname", relation.name.into()),
                    ("viewowner", OWNER_NAME.into()),
                    ("definition", "".into()),
                ]);
            }
            for view in facts.version.catalog.views.values() {
                rows.push([
                    ("schemaname", facts.version.schema_name(view.schema).to_owned().into()),
                    ("viewname", view.name.clone().into()),
                    ("viewowner", owner_name(facts, &AccessObject::Relation(view.id)).into()),
                    ("definition", crate::view::definition(facts, view).into()),
                ]);
            }
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn default_tablespace(facts: &SessionFacts) -> u32 {
    let database = facts.planner.database();
    database.tablespaces().get(&database.config().default_tablespace).map_or(1663, |space| tablespace_oid(space.id()))
}

/// The oid of the tablespace of a table's main.
fn placed(facts: &SessionFacts, table: &Table) -> u32 {
    tablespace_of(facts, &table.placement.main)
}

pub(super) fn tablespace_of(facts: &SessionFacts, name: &str) -> u32 {
    facts.planner.database().tablespaces().get(name).map_or(0, |space| tablespace_oid(space.id()))
}

fn classes(facts: &SessionFacts, rows: &mut Rows) {
    for relation in relations::all() {
        rows.push([
            ("oid", relation.oid.into()),
            ("relname", relation.name.into()),
            ("relnamespace", system_schema_oid(relation.schema).unwrap_or(0).into()),
            ("relowner", OWNER.into()),
            ("relam", if relation.kind == "r" { TABLE_ACCESS_METHOD } else { 0 }.into()),
            ("reltuples", (-1.0).into()),
            ("relpersistence", "p".into()),
            ("relkind", relation.kind.into()),
            ("relnatts", relation.columns.len().into()),
            ("relispopulated", true.into()),
            ("relreplident", "n".into()),
        ]);
    }
    let default = default_tablespace(facts);
    for table in facts.version.versions() {
        let tablespace = placed(facts, table.table());
        let (main, delta) = table_bytes(&table);
        let row_count = table.statistics().rows;
        let has_foreign_keys =
            !table.def.foreign_keys.is_empty() || !facts.version.foreign_keys_on(table.def.id).is_empty();
        rows.push([
            ("oid", table.def.id.0.into()),
            ("relname", table.def.name.clone().into()),
            ("relnamespace", table.def.schema.0.into()),
            ("relowner", owner_oid(facts, &AccessObject::Relation(table.def.id)).into()),
            ("relacl", acl(facts, &AccessObject::Relation(table.def.id))),
            ("relam", TABLE_ACCESS_METHOD.into()),
            ("relfilenode", table.def.id.0.into()),
            ("reltablespace", if tablespace == default { 0 } else { tablespace }.into()),
            ("relpages", (main + delta).div_ceil(PAGE_BYTES).min(i32::MAX as u64).into()),
            ("reltuples", (row_count as f64).into()),
            ("relhasindex", (!table.def.indexes.is_empty()).into()),
            // PostgreSQL checks foreign keys by triggers, so clients ask for them only where there are some.
            ("relhastriggers", has_foreign_keys.into()),
            ("relpersistence", persistence(table.def.id).into()),
            ("relkind", super::partitions::table_kind(&table.def).into()),
            ("relispartition", table.def.partition_of.is_some().into()),
            ("relpartbound", super::partitions::bound(facts, &table.def)),
            ("relhassubclass", table.def.partitioning.as_ref().is_some_and(|of| !of.partitions.is_empty()).into()),
            ("relchecks", table.def.checks.len().into()),
            ("relnatts", table.def.columns.len().into()),
            ("relispopulated", true.into()),
            ("relreplident", "d".into()),
            (
                "reloptions",
                match table.def.parameters.list() {
                    none if none.is_empty() => Value::Null,
                    some => Value::List(some.into_iter().map(Value::text).collect()),
                },
            ),
        ]);
    }
}

/// The rows of `pg_class` for views.
fn view_classes(facts: &SessionFacts, rows: &mut Rows) {
    for view in facts.version.catalog.views.values() {
        rows.push([
            ("oid", view.id.0.into()),
            ("relname", view.name.clone().into()),
            ("relnamespace", view.schema.0.into()),
            ("relowner", owner_oid(facts, &AccessObject::Relation(view.id)).into()),
            ("relacl", acl(facts, &AccessObject::Relation(view.id))),
            ("reltuples", (-1.0).into()),
            ("relpersistence", "p".into()),
            ("relkind", "v".into()),
            ("relnatts", view.columns.len().into()),
            ("relhasrules", true.into()),
            ("relispopulated", true.into()),
            ("relreplident", "n".into()),
        ]);
    }
}

struct Attribute<'a> {
    relation: u32,
    name: &'a str,
    type_oid: u32,
    modifier: i32,
    number: usize,
    not_null: bool,
    has_default: bool,
    identity: &'static str,
    acl: Value,
}

fn attributes(facts: &SessionFacts, rows: &mut Rows) {
    for relation in relations::all() {
        for (index, column) in relation.columns.iter().enumerate() {
            attribute(
                rows,
                &Attribute {
                    relation: relation.oid,
                    name: column.name,
                    type_oid: types::by_name(column.type_name).map_or(25, |entry| entry.oid),
                    modifier: -1,
                    number: index + 1,
                    not_null: column.not_null,
                    has_default: false,
                    identity: "",
                    acl: Value::Null,
                },
            );
        }
    }
    for table in facts.version.tables.values() {
        for column in &table.def.columns {
            attribute(
                rows,
                &Attribute {
                    relation: table.def.id.0,
                    name: &column.name,
                    type_oid: column.sql_type.oid(),
                    modifier: column.sql_type.type_modifier(),
                    number: column.number.into(),
                    not_null: !column.nullable,
                    has_default: column.default.is_some() && column.identity.is_none(),
                    identity: match column.identity {
                        Some(Identity::Always) => "a",
                        Some(Identity::ByDefault) => "d",
                        None => "",
                    },
                    acl: column_acl(facts, table.def.id, column.number),
                },
            );
        }
        for index in &table.def.indexes {
            for (place, position) in table.def.index_positions(index).into_iter().enumerate() {
                let column = &table.def.columns[position];
                attribute(
                    rows,
                    &Attribute {
                        relation: index.id.0,
                        name: &column.name,
                        type_oid: column.sql_type.oid(),
                        modifier: column.sql_type.type_modifier(),
                        number: place + 1,
                        not_null: false,
                        has_default: false,
                        identity: "",
                        acl: Value::Null,
                    },
                );
            }
        }
    }
}

fn view_attributes(facts: &SessionFacts, rows: &mut Rows) {
    for view in facts.version.catalog.views.values() {
        for (index, column) in view.columns.iter().enumerate() {
            let shown = Attribute {
                relation: view.id.0,
                name: &column.name,
                type_oid: column.type_oid,
                modifier: column.type_modifier,
                number: index + 1,
                not_null: false,
                has_default: false,
                identity: "",
                acl: Value::Null,
            };
            attribute(rows, &shown);
        }
    }
}

fn attribute(rows: &mut Rows, attribute: &Attribute<'_>) {
    let entry = types::by_oid(attribute.type_oid);
    rows.push([
        ("attrelid", attribute.relation.into()),
        ("attname", attribute.name.to_owned().into()),
        ("atttypid", attribute.type_oid.into()),
        ("attstattarget", (-1).into()),
        ("attlen", entry.map_or(-1, |entry| entry.len).into()),
        ("attnum", attribute.number.into()),
        ("attcacheoff", (-1).into()),
        ("atttypmod", attribute.modifier.into()),
        ("attbyval", entry.is_some_and(|entry| entry.by_value).into()),
        ("attalign", entry.map_or("i", |entry| entry.alignment).into()),
        ("attstorage", entry.map_or("x", |entry| entry.storage).into()),
        ("attnotnull", attribute.not_null.into()),
        ("atthasdef", attribute.has_default.into()),
        ("attidentity", attribute.identity.into()),
        ("attislocal", true.into()),
        ("attcollation", entry.map_or(0, |entry| entry.collation).into()),
        ("attacl", attribute.acl.clone()),
    ]);
}

fn attribute_defaults(facts: &SessionFacts, rows: &mut Rows) {
    for table in facts.version.tables.values() {
        for column in &table.def.columns {
            if let (Some(default), None) = (&column.default, column.identity) {
                rows.push([
                    ("oid", default_oid(table.def.id.0, column.number.into()).into()),
                    ("adrelid", table.def.id.0.into()),
                    ("adnum", column.number.into()),
                    ("adbin", default.clone().into()),
                ]);
            }
        }
    }
}

fn constraints(facts: &SessionFacts, rows: &mut Rows) {
    for table in facts.version.tables.values() {
        for check in &table.def.checks {
            rows.push([
                ("oid", check.oid.into()),
                ("conname", check.name.clone().into()),
                ("connamespace", table.def.schema.0.into()),
                ("contype", "c".into()),
                ("convalidated", true.into()),
                ("conrelid", table.def.id.0.into()),
                ("confupdtype", " ".into()),
                ("confdeltype", " ".into()),
                ("confmatchtype", " ".into()),
                ("conislocal", true.into()),
                ("conkey", Value::List(check.columns.iter().map(|number| (*number).into()).collect())),
                ("conbin", check.condition.clone().into()),
            ]);
        }
    }
    super::keys::constraints(facts, rows);
    super::keys::foreign_key_constraints(facts, rows);
}

/// PostgreSQL's default btree operator class by type: oid, name, family, input type.
const OPERATOR_CLASSES: [(u32, &str, u32, u32); 14] = [
    (424, "bool_ops", 424, 16),
    (426, "bpchar_ops", 426, 1042),
    (428, "bytea_ops", 428, 17),
    (434, "float8_ops", 1970, 701),
    (1970, "float4_ops", 1970, 700),
    (1978, "int4_ops", 1976, 23),
    (1979, "int2_ops", 1976, 21),
    (1982, "interval_ops", 1982, 1186),
    (2968, "uuid_ops", 2968, 2950),
    (3122, "date_ops", 434, 1082),
    (3124, "int8_ops", 1976, 20),
    (3125, "numeric_ops", 1988, 1700),
    (3126, "text_ops", 1994, 25),
    (3127, "timestamptz_ops", 434, 1184),
];

pub(super) fn operator_class(sql_type: SqlType) -> u32 {
    let input = match sql_type {
        SqlType::Varchar { .. } | SqlType::Json | SqlType::Jsonb => 25,
        SqlType::Timestamp { .. } => 1184,
        other => other.oid(),
    };
    OPERATOR_CLASSES.iter().find(|class| class.3 == input).map_or(0, |class| class.0)
}

fn operator_classes(rows: &mut Rows) {
    for (oid, name, family, input) in OPERATOR_CLASSES {
        rows.push([
            ("oid", oid.into()),
            ("opcmethod", INDEX_ACCESS_METHOD.into()),
            ("opcname", name.into()),
            ("opcnamespace", PG_CATALOG.into()),
            ("opcowner", OWNER.into()),
            ("opcfamily", family.into()),
            ("opcintype", input.into()),
            ("opcdefault", true.into()),
        ]);
    }
}

fn ranges(rows: &mut Rows) {
    // Range type, its element type and its multirange type.
    for (range, element, multirange) in [
        (3904, 23, 4451),
        (3906, 1700, 4532),
        (3908, 1114, 4533),
        (3910, 1184, 4534),
        (3912, 1082, 4535),
        (3926, 20, 4536),
    ] {
        rows.push([("rngtypid", range.into()), ("rngsubtype", element.into()), ("rngmultitypid", multirange.into())]);
    }
}

fn type_rows(rows: &mut Rows) {
    for entry in types::all() {
        rows.push([
            ("oid", entry.oid.into()),
            ("typname", entry.name.into()),
            ("typnamespace", PG_CATALOG.into()),
            ("typowner", OWNER.into()),
            ("typlen", entry.len.into()),
            ("typbyval", entry.by_value.into()),
            ("typtype", entry.kind.into()),
            ("typcategory", entry.category.into()),
            ("typispreferred", entry.preferred.into()),
            ("typisdefined", true.into()),
            ("typdelim", entry.delimiter.into()),
            ("typelem", entry.element.into()),
            ("typarray", entry.array.into()),
            ("typinput", entry.input.into()),
            ("typoutput", entry.output.into()),
            ("typreceive", entry.receive.into()),
            ("typsend", entry.send.into()),
            ("typmodin", entry.modifier_input.into()),
            ("typmodout", entry.modifier_output.into()),
            ("typalign", entry.alignment.into()),
            ("typstorage", entry.storage.into()),
            ("typtypmod", (-1).into()),
            ("typcollation", entry.collation.into()),
        ]);
    }
}

fn settings(facts: &SessionFacts, rows: &mut Rows) {
    for setting in facts.settings.list(facts.planner.database()) {
        let kind = match setting.value.as_str() {
            "on" | "off" => "bool",
            value if value.parse::<i64>().is_ok() => "integer",
            value if value.parse::<f64>().is_ok() => "real",
            _ => "string",
        };
        rows.push([
            ("name", setting.name.into()),
            ("setting", setting.value.clone().into()),
            (
                "category",
                if setting.name.contains('.') { "Customized Options" } else { "Client Connection Defaults" }.into(),
            ),
            ("short_desc", setting.description.into()),
            ("context", "user".into()),
            ("vartype", kind.into()),
            ("source", "session".into()),
            ("reset_val", setting.value.into()),
            ("pending_restart", false.into()),
        ]);
    }
}

fn activity(facts: &SessionFacts, rows: &mut Rows) {
    let queries = facts.planner.queries();
    let waits = LockWaits::of(facts);
    for session in facts.planner.sessions() {
        // Running statements come first, then finished ones, newest first: the first is the latest.
        let query = queries.iter().find(|query| query.session_id == session.session_id);
        let active = query.is_some_and(|query| matches!(query.state(), QueryState::Planning | QueryState::Running));
        let state = match session.transaction_status {
            _ if active || session.waits_for_standbys => "active",
            TransactionStatus::Idle => "idle",
            TransactionStatus::InTransaction => "idle in transaction",
            TransactionStatus::Failed => "idle in transaction (aborted)",
        };
        let event = if session.waits_for_standbys { Some(("IPC", "SyncRep")) } else { waits.event(&session) };
        let text = query.map_or_else(String::new, |query| super::roles::shown_text(facts, &session.user, &query.text));
        rows.push([
            ("datid", DATABASE.into()),
            ("datname", facts.database.into()),
            ("pid", session.session_id.into()),
            ("usesysid", role_oid(facts, &session.user).unwrap_or(OWNER).into()),
            ("usename", session.user.into()),
            ("application_name", session.application_name.into()),
            ("backend_start", session.start.into()),
            ("query_start", query.map(|query| query.start).into()),
            ("state_change", query.map(|query| query.end().unwrap_or(query.start)).into()),
            ("wait_event_type", event.map(|(kind, _)| kind).into()),
            ("wait_event", event.map(|(_, name)| name).into()),
            ("state", state.into()),
            ("backend_xid", session.tag.filter(|tag| waits.has_written(*tag)).map(xid).into()),
            ("query_id", query.map(|query| query.id.0).into()),
            ("query", text.into()),
            ("backend_type", "client backend".into()),
        ]);
    }
}

fn progress(facts: &SessionFacts, rows: &mut Rows) {
    for progress in facts.planner.database().progress().list() {
        if !progress.command.starts_with("COPY") {
            continue;
        }
        let table = facts.version.tables.values().find(|table| facts.version.shown_name(&table.def) == progress.table);
        let oid = table.map_or(0, |table| table.def.id.0);
        // Which session runs it is not known to the registry of progress.
        rows.push([
            ("datid", DATABASE.into()),
            ("datname", facts.database.into()),
            ("relid", oid.into()),
            ("command", progress.command.clone().into()),
            ("type", "FILE".into()),
            ("bytes_processed", progress.bytes_done.load(Ordering::Relaxed).into()),
            ("bytes_total", progress.bytes_total.load(Ordering::Relaxed).into()),
            ("tuples_processed", progress.rows_done.load(Ordering::Relaxed).into()),
            ("tuples_excluded", 0.into()),
        ]);
    }
}

fn statistics(facts: &SessionFacts, rows: &mut Rows) {
    for table in facts.version.versions() {
        let statistics = table.statistics();
        let columns = table.def.columns.iter().zip(&statistics.columns);
        let is_shown = |number| super::visible::readable(facts, table.def.id, number);
        for (column, column_statistics) in columns.filter(|(column, _)| is_shown(column.number)) {
            let row_count = statistics.rows.max(1) as f64;
            let distinct = match column_statistics.distinct_count {
                _ if column_statistics.unique => -1.0,
                Some(count) => count as f64,
                None => 0.0,
            };
            rows.push([
                ("schemaname", table_schema(facts, table.table()).into()),
                ("tablename", table.def.name.clone().into()),
                ("attname", column.name.clone().into()),
                ("inherited", false.into()),
                ("null_frac", (column_statistics.null_count as f64 / row_count).into()),
                ("avg_width", (column_statistics.value_bytes_avg.round() as i64).into()),
                ("n_distinct", distinct.into()),
            ]);
        }
    }
}

/// Of each view's rule, in `pg_depend`: it is the view's, and it needs what its query names.
fn rules(facts: &SessionFacts, rows: &mut Rows) {
    for view in facts.version.catalog.views.values() {
        let mut needs = |relation: TableId, column: u32, kind: &'static str| {
            rows.push([
                ("classid", PG_REWRITE.into()),
                ("objid", rule_oid(view.id.0).into()),
                ("objsubid", 0.into()),
                ("refclassid", PG_CLASS.into()),
                ("refobjid", relation.0.into()),
                ("refobjsubid", column.into()),
                ("deptype", kind.into()),
            ]);
        };
        needs(view.id, 0, "i");
        for relation in &view.relations {
            let mut used = relation.columns.iter().filter(|column| column.used).peekable();
            // One whose rows alone count.
            if used.peek().is_none() {
                needs(relation.id, 0, "n");
            }
            used.for_each(|column| needs(relation.id, column.number.into(), "n"));
        }
    }
}
