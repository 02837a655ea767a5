//! Functions that ask the session, the catalogue or the server.

use super::{Call, Function, Type, procedures, sql_error};
use crate::catalog::keys::{index_column, index_definition, key_definition};
use crate::catalog::locks::LockWaits;
use crate::catalog::objects::*;
use crate::catalog::roles::{role_name, role_oid};
use crate::catalog::value::Value;
use crate::catalog::{comments, partitions, types};
use crate::facts::SessionFacts;
use crate::resolve;
use crate::settings::POSTGRES_VERSION;
use datafusion::common::{DataFusionError, Result};
use std::sync::Arc;
use tidepool_base::{SqlState, TableId};

use Type::*;

pub fn functions() -> Vec<Function> {
    let mut list = vec![
        Function::new("version", &[&[]], "text", |_, _| {
            Ok(format!("PostgreSQL {POSTGRES_VERSION} (Tidepool {})", env!("CARGO_PKG_VERSION")).into())
        }),
        Function::new("current_database", &[&[]], "name", |call, _| Ok(call.facts()?.database.into()))
            .alias("current_catalog")
            .stable(),
        Function::new("current_schema", &[&[]], "name", |call, _| Ok(resolve::current_schema(call.facts()?).into()))
            .stable(),
        Function::new("current_schemas", &[&[Bool]], "_name", |call, args| {
            let facts = call.facts()?;
            Ok(if args[0].as_bool() { resolve::search_path(facts) } else { resolve::named_path(facts) }.into())
        })
        .stable(),
        Function::new("session_user", &[&[]], "name", |call, _| Ok(call.facts()?.session_user.clone().into())).stable(),
        Function::new("current_user", &[&[]], "name", |call, _| Ok(call.facts()?.user.clone().into()))
            .alias("user")
            .alias("current_role")
            .stable(),
        Function::new("pg_backend_pid", &[&[]], "int4", |call, _| Ok(call.facts()?.session_id.into())).stable(),
        Function::new("set_config", &[&[Text, Text, Bool]], "text", |call, args| {
            let facts = call.facts()?;
            let name = args[0].as_str().to_owned();
            let mut settings = facts.settings.as_ref().clone();
            let set = settings.set(&name, &[args[1].as_str().to_owned()], facts.planner.database());
            set.map_err(|error| DataFusionError::External(Box::new(error)))?;
            let value = settings.get(&name);
            if let Some(session) = facts.planner.shared(facts.session_id) {
                let requested = session.request_setting(name, args[1].as_str().to_owned(), args[2].as_bool());
                requested.map_err(|error| DataFusionError::External(Box::new(error)))?;
            }
            Ok(value.into())
        })
        .volatile(),
        Function::new("pg_cancel_backend", &[&[Int4]], "bool", |call, args| {
            let pid = u32::try_from(args[0].as_int()).unwrap_or(0);
            check_signal(call.facts()?, pid, "cancel query")?;
            Ok(call.facts()?.planner.cancel(pid).into())
        })
        .volatile(),
        Function::new("pg_blocking_pids", &[&[Int4]], "_int4", |call, args| {
            let session = u32::try_from(args[0].as_int()).unwrap_or(0);
            Ok(Value::List(LockWaits::of(call.facts()?).holders(session).map(Value::from).collect()))
        })
        .volatile(),
        Function::new("pg_terminate_backend", &[&[Int4], &[Int4, Int8]], "bool", |call, args| {
            let pid = u32::try_from(args[0].as_int()).unwrap_or(0);
            check_signal(call.facts()?, pid, "terminate process")?;
            Ok(call.facts()?.planner.terminate(pid).into())
        })
        .volatile(),
        Function::new("current_setting", &[&[Text], &[Text, Bool]], "text", |call, args| {
            let name = args[0].as_str();
            let facts = call.facts()?;
            match facts.settings.shown(name, facts.planner.database()) {
                Some(value) => Ok(value.into()),
                None if args.get(1).is_some_and(Value::as_bool) => Ok(Value::Null),
                None => Err(sql_error(
                    SqlState::UNDEFINED_OBJECT,
                    format!("unrecognized configuration parameter \"{name}\""),
                )),
            }
        })
        .stable(),
        Function::new("pg_get_userbyid", &[&[Oid]], "name", |call, args| {
            let oid = oid_of(&args[0]);
            Ok(role_name(call.facts()?, oid).unwrap_or_else(|| format!("unknown (OID={oid})")).into())
        })
        .stable(),
        Function::new("pg_table_is_visible", &[&[Oid]], "bool", |call, args| {
            let facts = call.facts()?;
            let oid = oid_of(&args[0]);
            match relation_by_oid(facts, oid) {
                Some((schema, name)) => Ok(is_visible(facts, oid, &schema, &name).into()),
                None => Ok(Value::Null),
            }
        })
        .stable(),
        Function::new("format_type", &[&[Oid, Int4]], "text", |_, args| {
            if args[0].is_null() {
                return Ok(Value::Null);
            }
            let modifier = (!args[1].is_null()).then(|| args[1].as_int() as i32);
            Ok(types::format_type(oid_of(&args[0]), modifier).into())
        })
        .nullable(),
        Function::new("pg_typeof", &[&[Any]], "text", |call, _| Ok(type_of(call).into())).nullable(),
        Function::new("pg_get_expr", &[&[Text, Oid], &[Text, Oid, Bool]], "text", |call, args| {
            Ok(crate::sequences::shown(call.facts()?, args[0].as_str()).into())
        })
        .stable(),
        Function::new("pg_get_indexdef", &[&[Oid], &[Oid, Int4, Bool]], "text", |call, args| {
            let Some((table, index)) = index_by_oid(call.facts()?, oid_of(&args[0])) else {
                return Ok(Value::Null);
            };
            match args.get(1).map_or(0, Value::as_int) {
                0 => Ok(index_definition(call.facts()?, table, index).into()),
                number => {
                    let column = usize::try_from(number - 1).ok().and_then(|place| index.columns.get(place));
                    Ok(column.map(|column| index_column(&table.def, column)).into())
                }
            }
        })
        .stable(),
        Function::new("pg_get_constraintdef", &[&[Oid], &[Oid, Bool]], "text", |call, args| {
            let (facts, oid) = (call.facts()?, oid_of(&args[0]));
            if let Some(check) = check_by_oid(facts, oid) {
                // Written plainly it has a pair of brackets, otherwise another around the condition.
                let pretty = args.get(1).is_some_and(Value::as_bool);
                let condition = crate::sequences::shown(facts, &check.condition);
                return Ok(match pretty {
                    true => format!("CHECK ({condition})"),
                    false => format!("CHECK (({condition}))"),
                }
                .into());
            }
            if let Some((table, key)) = foreign_key_by_oid(facts, oid) {
                return Ok(crate::references::definition(facts, &table.def, &key).into());
            }
            Ok(key_by_oid(facts, oid).map(|(table, index)| key_definition(&table.def, index)).into())
        })
        .stable(),
        Function::new("pg_get_function_result", &[&[Oid]], "text", |_, args| {
            Ok(procedures::by_oid(oid_of(&args[0])).map(|procedure| procedure.result()).into())
        }),
        Function::new("pg_get_function_arguments", &[&[Oid]], "text", |_, args| {
            Ok(procedures::by_oid(oid_of(&args[0])).map(|procedure| procedure.arguments()).into())
        })
        .alias("pg_get_function_identity_arguments"),
        Function::new("obj_description", &[&[Oid], &[Oid, Text]], "text", |call, args| {
            Ok(comments::of_object(call.facts()?, oid_of(&args[0]), args.get(1).map(Value::as_str)).into())
        })
        .stable(),
        Function::new("pg_size_pretty", &[&[Int8], &[Numeric]], "text", |_, args| {
            Ok(size_pretty(args[0].as_float()).into())
        }),
        Function::new("pg_size_bytes", &[&[Text]], "int8", |_, args| {
            let size: tidepool_base::ByteSize = args[0]
                .as_str()
                .parse()
                .map_err(|error| DataFusionError::External(Box::<tidepool_base::Error>::new(error)))?;
            Ok(size.0.into())
        }),
        Function::new("pg_relation_size", &[&[Oid], &[Oid, Text], &[Text], &[Text, Text]], "int8", |call, args| {
            if args.get(1).is_some_and(|fork| fork.as_str() != "main") {
                return Ok(Value::Int(0));
            }
            relation_size(call, &args[0])
        })
        .alias("pg_table_size")
        .alias("pg_total_relation_size")
        .stable(),
        Function::new("pg_database_size", &[&[Oid], &[Text]], "int8", |call, _| {
            let sizes = call.facts()?.version.versions().map(|table| {
                let (main, delta) = table_bytes(&table);
                main + delta
            });
            Ok(sizes.sum::<u64>().into())
        })
        .stable(),
        Function::new("pg_tablespace_size", &[&[Oid], &[Text]], "int8", |call, args| {
            let spaces = call.facts()?.planner.database().tablespaces().list();
            let space = spaces.iter().find(|space| is_tablespace(space, &args[0]));
            Ok(space.map(|space| space.usage().used_bytes).into())
        })
        .stable(),
        Function::new("pg_tablespace_location", &[&[Oid]], "text", |call, args| {
            let spaces = call.facts()?.planner.database().tablespaces().list();
            let space = spaces.iter().find(|space| is_tablespace(space, &args[0]));
            Ok(space.map(|space| space.config().location.to_string()).into())
        })
        .stable(),
        Function::new("pg_encoding_to_char", &[&[Int4]], "name", |_, args| {
            Ok(match args[0].as_int() {
                6 => "UTF8",
                0 => "SQL_ASCII",
                _ => "",
            }
            .into())
        }),
        Function::new("pg_char_to_encoding", &[&[Text]], "int4", |_, args| {
            Ok(match args[0].as_str().to_ascii_lowercase().as_str() {
                "utf8" | "utf-8" | "unicode" => 6,
                "sql_ascii" => 0,
                _ => -1,
            }
            .into())
        }),
        Function::new("getdatabaseencoding", &[&[]], "name", |_, _| Ok("UTF8".into())).alias("pg_client_encoding"),
        Function::new("pg_reload_conf", &[&[]], "bool", |call, _| {
            let facts = call.facts()?;
            if !facts.role.is_superuser {
                let message = "permission denied for function pg_reload_conf";
                return Err(sql_error(SqlState::INSUFFICIENT_PRIVILEGE, message));
            }
            facts.planner.database().reload_configuration();
            Ok(true.into())
        })
        .volatile(),
        Function::new("pg_my_temp_schema", &[&[]], "oid", |call, _| {
            Ok(call.facts()?.version.temporary_schema().map_or(0, |schema| schema.0).into())
        }),
        // Schemas of other sessions are not to be seen.
        Function::new("pg_is_other_temp_schema", &[&[Oid]], "bool", |_, _| Ok(false.into())),
        Function::new("pg_jit_available", &[&[]], "bool", |_, _| Ok(false.into())),
        Function::new("pg_relation_is_publishable", &[&[Oid], &[Text]], "bool", |_, _| Ok(false.into())),
        Function::new("pg_postmaster_start_time", &[&[]], "timestamptz", |_, _| Ok(server_start().into()))
            .alias("pg_conf_load_time"),
        Function::new("to_regclass", &[&[Text]], "regclass", |call, args| {
            Ok(find_relation(call.facts()?, args[0].as_str()).into())
        })
        .stable(),
        Function::new("to_regtype", &[&[Text]], "regtype", |_, args| {
            Ok(types::by_sql_name(args[0].as_str()).map(|entry| entry.oid).into())
        }),
        Function::new("to_regproc", &[&[Text]], "regproc", |_, args| Ok(find_procedure(args[0].as_str()).into())),
        Function::new("to_regnamespace", &[&[Text]], "regnamespace", |call, args| {
            Ok(find_schema(call.facts()?, args[0].as_str()).into())
        })
        .stable(),
        Function::new("to_regrole", &[&[Text]], "regrole", |call, args| {
            Ok(role_oid(call.facts()?, &split_name(args[0].as_str()).concat()).into())
        })
        .stable(),
    ];
    // Objects without a schema of their own, or always found without it, are visible when they exist.
    for name in [
        "pg_type_is_visible",
        "pg_function_is_visible",
        "pg_operator_is_visible",
        "pg_opclass_is_visible",
        "pg_opfamily_is_visible",
        "pg_collation_is_visible",
        "pg_conversion_is_visible",
        "pg_statistics_obj_is_visible",
        "pg_ts_config_is_visible",
        "pg_ts_dict_is_visible",
        "pg_ts_parser_is_visible",
        "pg_ts_template_is_visible",
    ] {
        list.push(Function::new(name, &[&[Oid]], "bool", |_, _| Ok(true.into())));
    }
    list.push(
        Function::new("pg_ancestors", &[&[Oid], &[Text]], "_oid", |call, args| {
            let facts = call.facts()?;
            let find = |name: &str| find_relation(facts, name);
            let oid = oid_of(&reg_in(&args[0], find, SqlState::UNDEFINED_TABLE, "relation")?);
            Ok(Value::List(partitions::ancestors(facts, oid).into_iter().map(Value::from).collect()))
        })
        .stable(),
    );
    list.push(
        Function::new("pg_partition_root", &[&[Oid], &[Text]], "regclass", |call, args| {
            let facts = call.facts()?;
            let find = |name: &str| find_relation(facts, name);
            let oid = oid_of(&reg_in(&args[0], find, SqlState::UNDEFINED_TABLE, "relation")?);
            Ok(partitions::ancestors(facts, oid).last().copied().into())
        })
        .stable(),
    );
    // There are no such objects, so nothing can be said about them.
    for name in [
        "pg_get_ruledef",
        "pg_get_triggerdef",
        "pg_get_functiondef",
        "pg_get_function_sqlbody",
        "pg_get_statisticsobjdef",
        "pg_get_statisticsobjdef_columns",
        "pg_relation_filepath",
        "pg_stat_get_last_vacuum_time",
    ] {
        list.push(Function::new(name, &[&[Oid], &[Oid, Bool], &[Text], &[Text, Bool]], "text", |_, _| Ok(Value::Null)));
    }
    list.push(
        Function::new("pg_get_partkeydef", &[&[Oid]], "text", |call, args| {
            let table = call.facts()?.version.table_of_id(TableId(oid_of(&args[0])));
            Ok(table.and_then(|table| partitions::key_definition(&table.def)).into())
        })
        .stable(),
    );
    list.push(
        Function::new("pg_get_partition_constraintdef", &[&[Oid]], "text", |call, args| {
            let facts = call.facts()?;
            let table = facts.version.table_of_id(TableId(oid_of(&args[0])));
            Ok(table.and_then(|table| partitions::constraint_definition(facts, &table.def)).into())
        })
        .stable(),
    );
    list.push(
        Function::new(
            "pg_get_viewdef",
            &[&[Oid], &[Oid, Bool], &[Oid, Int4], &[Text], &[Text, Bool]],
            "text",
            |call, args| {
                let facts = call.facts()?;
                let find = |name: &str| find_relation(facts, name);
                let oid = oid_of(&reg_in(&args[0], find, SqlState::UNDEFINED_TABLE, "relation")?);
                let view = facts.version.catalog.view_by_id(TableId(oid));
                Ok(view.map(|view| crate::view::definition(facts, view)).into())
            },
        )
        .stable(),
    );
    list.push(
        Function::new("shobj_description", &[&[Oid, Text]], "text", |call, args| {
            Ok(comments::of_shared(call.facts()?, oid_of(&args[0]), args[1].as_str()).into())
        })
        .stable(),
    );
    list.push(
        Function::new("col_description", &[&[Oid, Int4]], "text", |call, args| {
            Ok(comments::of_column(call.facts()?, oid_of(&args[0]), args[1].as_int()).into())
        })
        .stable(),
    );
    list.push(
        Function::new("pg_describe_object", &[&[Oid, Oid, Int4]], "text", |call, args| {
            if oid_of(&args[0]) != PG_CLASS {
                return Ok(Value::Null);
            }
            let relation = relation_by_oid(call.facts()?, oid_of(&args[1]));
            Ok(relation.map(|(_, name)| format!("table {name}")).into())
        })
        .stable(),
    );
    list.push(Function::new("pg_indexes_size", &[&[Oid], &[Text]], "int8", |_, _| Ok(Value::Int(0))));
    for name in ["inet_server_addr", "inet_client_addr"] {
        list.push(Function::new(name, &[&[]], "text", |_, _| Ok(Value::Null)));
    }
    for name in ["inet_server_port", "inet_client_port"] {
        list.push(Function::new(name, &[&[]], "int4", |_, _| Ok(Value::Null)));
    }
    list.extend(crate::catalog::roles::functions());
    list.extend(registered_types());
    list
}

/// Sessions of superusers are superusers' to end, others their own roles'.
fn check_signal(facts: &SessionFacts, pid: u32, what: &str) -> Result<()> {
    let catalog = &facts.version.catalog;
    let Some(session) = facts.planner.sessions().into_iter().find(|session| session.session_id == pid) else {
        return Ok(());
    };
    let role = catalog.role(&session.user).map_or(tidepool_base::RoleId::OWNER, |role| role.id);
    if facts.role.may_signal(catalog, role) {
        return Ok(());
    }
    Err(sql_error(
        SqlState::INSUFFICIENT_PRIVILEGE,
        format!(
            "must be a member of the role whose {} or member of pg_signal_backend",
            match what {
                "cancel query" => "query is being canceled",
                _ => "process is being terminated",
            }
        ),
    ))
}

/// `'t'::regclass` and its like: text or oid in, oid out (`…_in`), and oid to name (`…_out`). The rewriter calls them.
fn registered_types() -> Vec<Function> {
    vec![
        Function::new("regclass_in", &[&[Text], &[Oid]], "regclass", |call, args| {
            reg_in(&args[0], |name| find_relation(call.facts().ok()?, name), SqlState::UNDEFINED_TABLE, "relation")
        })
        .stable(),
        // What `tableoid` of a relation has become. It is one of the partitions' where there are some.
        Function::new("pg_tableoid", &[&[Text]], "regclass", |call, args| {
            let facts = call.facts()?;
            let oid = reg_in(&args[0], |name| find_relation(facts, name), SqlState::UNDEFINED_TABLE, "relation")?;
            let table = facts.version.table_of_id(TableId(oid_of(&oid)));
            match table.filter(|table| table.def.partitioning.is_some()) {
                None => Ok(oid),
                Some(table) => Err(sql_error(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("tableoid of partitioned table \"{}\" is not supported", table.def.name),
                )),
            }
        })
        .stable(),
        Function::new("regtype_in", &[&[Text], &[Oid]], "regtype", |_, args| {
            reg_in(&args[0], |name| types::by_sql_name(name).map(|entry| entry.oid), SqlState::UNDEFINED_OBJECT, "type")
        }),
        Function::new("regproc_in", &[&[Text], &[Oid]], "regproc", |_, args| {
            reg_in(&args[0], find_procedure, SqlState::UNDEFINED_FUNCTION, "function")
        }),
        Function::new("regnamespace_in", &[&[Text], &[Oid]], "regnamespace", |call, args| {
            let find = |name: &str| find_schema(call.facts().ok()?, name);
            reg_in(&args[0], find, SqlState::INVALID_SCHEMA_NAME, "schema")
        })
        .stable(),
        Function::new("regrole_in", &[&[Text], &[Oid]], "regrole", |call, args| {
            reg_in(
                &args[0],
                |name| role_oid(call.facts().ok()?, &split_name(name).concat()),
                SqlState::UNDEFINED_OBJECT,
                "role",
            )
        })
        .stable(),
        Function::new("regoper_in", &[&[Text], &[Oid]], "regoper", |_, args| {
            reg_in(&args[0], |_| None, SqlState::UNDEFINED_FUNCTION, "operator")
        }),
        Function::new("regclass_out", &[&[Oid]], "text", |call, args| {
            let facts = call.facts()?;
            let oid = oid_of(&args[0]);
            Ok(relation_text(facts, oid).unwrap_or_else(|| oid_text(oid)).into())
        })
        .stable(),
        Function::new("regtype_out", &[&[Oid]], "text", |_, args| {
            let oid = oid_of(&args[0]);
            Ok(if types::by_oid(oid).is_some() { types::format_type(oid, Some(-1)) } else { oid_text(oid) }.into())
        }),
        Function::new("regproc_out", &[&[Oid]], "text", |_, args| Ok(procedures::regproc(oid_of(&args[0])).into())),
        Function::new("regnamespace_out", &[&[Oid]], "text", |call, args| {
            let oid = oid_of(&args[0]);
            let name = schema_name(call.facts()?, oid);
            Ok(name.map_or_else(|| oid_text(oid), |name| quote_identifier(&name)).into())
        })
        .stable(),
        Function::new("regrole_out", &[&[Oid]], "text", |call, args| {
            let oid = oid_of(&args[0]);
            Ok(role_name(call.facts()?, oid).map_or_else(|| oid_text(oid), |name| quote_identifier(&name)).into())
        })
        .stable(),
        Function::new("regoper_out", &[&[Oid]], "text", |_, args| Ok(oid_text(oid_of(&args[0])).into())),
    ]
}

fn oid_text(oid: u32) -> String {
    if oid == 0 { "-".to_owned() } else { oid.to_string() }
}

fn reg_in(value: &Value, find: impl Fn(&str) -> Option<u32>, code: SqlState, kind: &str) -> Result<Value> {
    let Value::Text(name) = value else {
        return Ok(value.clone());
    };
    if name == "-" {
        return Ok(Value::Int(0));
    }
    if let Ok(oid) = name.parse::<u32>() {
        return Ok(oid.into());
    }
    match find(name) {
        Some(oid) => Ok(oid.into()),
        None => Err(sql_error(code, format!("{kind} \"{name}\" does not exist"))),
    }
}

pub fn oid_of(value: &Value) -> u32 {
    u32::try_from(value.as_int()).unwrap_or(0)
}

pub fn find_relation(facts: &SessionFacts, name: &str) -> Option<u32> {
    let parts = split_name(name);
    match parts.as_slice() {
        [name] => relation_oid(facts, None, name),
        [schema, name] => relation_oid(facts, Some(schema), name),
        [_, schema, name] => relation_oid(facts, Some(schema), name),
        _ => None,
    }
}

fn find_procedure(name: &str) -> Option<u32> {
    let name = split_name(name.split('(').next().unwrap_or(name)).pop()?;
    procedures::by_name(&name).map(|procedure| procedure.oid)
}

fn find_schema(facts: &SessionFacts, name: &str) -> Option<u32> {
    schema_oid(facts, &split_name(name).concat())
}

/// `relation` is a `regclass`: an oid, or a name in quotes.
fn relation_size(call: &Call<'_>, relation: &Value) -> Result<Value> {
    let facts = call.facts()?;
    let find = |name: &str| find_relation(facts, name);
    let oid = oid_of(&reg_in(relation, find, SqlState::UNDEFINED_TABLE, "relation")?);
    if let Some(table) = facts.version.table_by_id(TableId(oid)) {
        let (main, delta) = table_bytes(&table);
        return Ok((main + delta).into());
    }
    // System relations and the indexes that stand for keys hold no bytes of their own.
    Ok(if relation_by_oid(facts, oid).is_some() { Value::Int(0) } else { Value::Null })
}

fn is_tablespace(space: &Arc<tidepool_tablespace::Tablespace>, wanted: &Value) -> bool {
    match wanted {
        Value::Text(name) => space.name() == name,
        oid => tablespace_oid(space.id()) == oid_of(oid),
    }
}

fn server_start() -> chrono::DateTime<chrono::Utc> {
    static START: std::sync::OnceLock<chrono::DateTime<chrono::Utc>> = std::sync::OnceLock::new();
    *START.get_or_init(chrono::Utc::now)
}

/// Called as the server starts, so that its start time is known.
pub fn remember_start() {
    server_start();
}

fn type_of(call: &Call<'_>) -> String {
    let Some(field) = call.arg_fields.first() else {
        return "unknown".to_owned();
    };
    if let Some(oid) = crate::types::marked_oid(field) {
        return types::format_type(oid, Some(-1));
    }
    let base = |data_type: &datafusion::arrow::datatypes::DataType| {
        use datafusion::arrow::datatypes::DataType as D;
        match data_type {
            D::Null => "unknown".to_owned(),
            D::UInt32 => "oid".to_owned(),
            D::Struct(_) => "record".to_owned(),
            other => {
                let field = datafusion::arrow::datatypes::Field::new("", other.clone(), true);
                types::format_type(crate::types::describe(&field).1, Some(-1))
            }
        }
    };
    match field.data_type() {
        datafusion::arrow::datatypes::DataType::List(item) => format!("{}[]", base(item.data_type())),
        _ => types::format_type(crate::types::describe(field).1, Some(-1)).replace("bpchar", "character"),
    }
}

/// As PostgreSQL shortens sizes: up to 10,240 of a unit, rounded half up.
pub fn size_pretty(bytes: f64) -> String {
    let mut value = bytes;
    for (index, unit) in ["bytes", "kB", "MB", "GB", "TB", "PB"].into_iter().enumerate() {
        let limit = if index == 0 { 10_240.0 } else { 10_239.5 };
        if value.abs() < limit || unit == "PB" {
            let rounded = (value.abs() + 0.5).floor();
            return format!("{}{} {unit}", if value < 0.0 && rounded > 0.0 { "-" } else { "" }, rounded);
        }
        value /= 1024.0;
    }
    String::new()
}
