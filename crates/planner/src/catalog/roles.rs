//! Roles and privileges in `pg_catalog` and `information_schema`, and the functions that ask for them.

use super::functions::{Call, Function, Type, find_relation, oid_of, sql_error};
use super::objects::*;
use super::relations::Rows;
use super::value::Value;
use crate::facts::SessionFacts;
use crate::privileges::Acting;
use crate::resolve::{self, Relation};
use datafusion::common::Result;
use tidepool_base::{RoleId, SchemaId, SqlState, TableId};
use tidepool_database::{AccessKind, AccessObject, Grant, Privileges, RoleDef};

use Type::*;

/// A role's name by oid.
pub fn role_name(facts: &SessionFacts, oid: u32) -> Option<String> {
    facts.version.catalog.roles.get(&RoleId(oid)).map(|role| role.name.clone())
}

pub fn role_oid(facts: &SessionFacts, name: &str) -> Option<u32> {
    facts.version.catalog.role(name).map(|role| role.id.0)
}

pub fn owner_oid(facts: &SessionFacts, object: &AccessObject) -> u32 {
    facts.version.catalog.owner_of(object).0
}

pub fn owner_name(facts: &SessionFacts, object: &AccessObject) -> String {
    let oid = owner_oid(facts, object);
    role_name(facts, oid).unwrap_or_else(|| format!("unknown (OID={oid})"))
}

/// The text of a user's statement, for those who may see it.
pub fn shown_text(facts: &SessionFacts, user: &str, text: &str) -> String {
    let role = facts.version.catalog.role(user).map_or(RoleId::OWNER, |role| role.id);
    match facts.role.may_see_all_statistics() || facts.role.has(role) {
        true => text.to_owned(),
        false => "<insufficient privilege>".to_owned(),
    }
}

/// A list of grants as PostgreSQL shows `aclitem`s: `grantee=letters/grantor`, each letter with a `*` that may be granted on.
fn list(facts: &SessionFacts, grants: &[Grant]) -> Value {
    let name = |role: RoleId| match role {
        RoleId::PUBLIC => String::new(),
        role => role_name(facts, role.0).map_or_else(|| role.to_string(), |name| quote_identifier(&name)),
    };
    let item = |grant: &Grant| {
        let letters: String = grant
            .privileges
            .each()
            .flat_map(|(privilege, letter, _)| {
                std::iter::once(letter).chain(grant.options.has(privilege).then_some('*'))
            })
            .collect();
        Value::text(format!("{}={letters}/{}", name(grant.grantee), name(grant.grantor)))
    };
    Value::List(grants.iter().map(item).collect())
}

/// NULL where nothing was ever said of the object.
pub fn acl(facts: &SessionFacts, object: &AccessObject) -> Value {
    let access = facts.version.catalog.access(object);
    access.grants.as_deref().map_or(Value::Null, |grants| list(facts, grants))
}

pub fn column_acl(facts: &SessionFacts, table: TableId, number: u16) -> Value {
    let access = facts.version.catalog.access.get(&AccessObject::Relation(table));
    access.and_then(|access| access.columns.get(&number)).map_or(Value::Null, |grants| list(facts, grants))
}

/// `pg_authid`, `pg_roles`, `pg_user`, `pg_shadow`, `pg_group` and `pg_auth_members`.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    let catalog = &facts.version.catalog;
    let until = |role: &RoleDef| role.valid_until.map_or(Value::Null, Value::Timestamp);
    let settings = |role: &RoleDef| match role.settings.is_empty() {
        true => Value::Null,
        false => {
            Value::List(role.settings.iter().map(|(name, value)| Value::text(format!("{name}={value}"))).collect())
        }
    };
    for role in catalog.roles.values() {
        match name {
            "pg_authid" | "pg_roles" => {
                let password = match (name, &role.password) {
                    ("pg_roles", _) => Value::from("********"),
                    (_, Some(verifier)) => Value::text(verifier.clone()),
                    (_, None) => Value::Null,
                };
                let row = [
                    ("oid", role.id.0.into()),
                    ("rolname", role.name.clone().into()),
                    ("rolsuper", role.superuser.into()),
                    ("rolinherit", role.inherit.into()),
                    ("rolcreaterole", role.create_role.into()),
                    ("rolcreatedb", role.create_database.into()),
                    ("rolcanlogin", role.login.into()),
                    ("rolreplication", role.replication.into()),
                    ("rolconnlimit", role.connections_max.map_or(-1, i64::from).into()),
                    ("rolpassword", password),
                    ("rolvaliduntil", until(role)),
                    ("rolbypassrls", role.bypass_row_security.into()),
                ];
                let config = (name == "pg_roles").then(|| ("rolconfig", settings(role)));
                rows.push(row.into_iter().chain(config));
            }
            "pg_user" | "pg_shadow" if role.login => {
                let password = match (name, &role.password) {
                    ("pg_user", _) => Value::from("********"),
                    (_, Some(verifier)) => Value::text(verifier.clone()),
                    (_, None) => Value::Null,
                };
                rows.push([
                    ("usename", role.name.clone().into()),
                    ("usesysid", role.id.0.into()),
                    ("usecreatedb", role.create_database.into()),
                    ("usesuper", role.superuser.into()),
                    ("userepl", role.replication.into()),
                    ("usebypassrls", role.bypass_row_security.into()),
                    ("passwd", password),
                    ("valuntil", until(role)),
                    ("useconfig", settings(role)),
                ]);
            }
            "pg_group" if !role.login => {
                let members = catalog.roles.values();
                let members = members.filter(|member| member.member_of.iter().any(|of| of.role == role.id));
                rows.push([
                    ("groname", role.name.clone().into()),
                    ("grosysid", role.id.0.into()),
                    ("grolist", Value::List(members.map(|member| member.id.0.into()).collect())),
                ]);
            }
            "pg_auth_members" => {
                for of in &role.member_of {
                    rows.push([
                        ("roleid", of.role.0.into()),
                        ("member", role.id.0.into()),
                        ("grantor", of.grantor.0.into()),
                        ("admin_option", of.admin.into()),
                    ]);
                }
            }
            _ => {}
        }
    }
}

/// `table_privileges` and `role_table_grants`: those that concern a role that the session has.
pub fn table_privileges(facts: &SessionFacts, rows: &mut Rows) {
    let version = &facts.version;
    let tables = version.tables.values().map(|table| (table.def.id, table.def.schema, table.def.name.clone()));
    let views = version.catalog.views.values().map(|view| (view.id, view.schema, view.name.clone()));
    for (id, schema, name) in tables.chain(views) {
        let access = version.catalog.access(&AccessObject::Relation(id));
        for grant in access.grants(AccessKind::Table) {
            let concerns = grant.grantee == RoleId::PUBLIC
                || [grant.grantee, grant.grantor].iter().any(|role| facts.role.has(*role));
            if !concerns {
                continue;
            }
            let shown = |role: RoleId| match role {
                RoleId::PUBLIC => "PUBLIC".to_owned(),
                role => role_name(facts, role.0).unwrap_or_default(),
            };
            for (privilege, _, privilege_name) in grant.privileges.each() {
                let grantable = grant.options.has(privilege) || grant.grantee == access.owner;
                rows.push([
                    ("grantor", shown(grant.grantor).into()),
                    ("grantee", shown(grant.grantee).into()),
                    ("table_catalog", facts.database.into()),
                    ("table_schema", version.schema_name(schema).to_owned().into()),
                    ("table_name", name.clone().into()),
                    ("privilege_type", privilege_name.into()),
                    ("is_grantable", if grantable { "YES" } else { "NO" }.into()),
                    ("with_hierarchy", if privilege_name == "SELECT" { "YES" } else { "NO" }.into()),
                ]);
            }
        }
    }
}

/// `has_…_privilege` and `pg_has_role`.
pub fn functions() -> Vec<Function> {
    // An object by oid or by name, and before it, perhaps, a role.
    const OBJECT: &[&[Type]] = &[&[Any, Text], &[Any, Any, Text]];
    let mut all = Vec::new();
    let relation = |name| Function::new(name, OBJECT, "bool", |call, args| of_relation(call, args, false)).stable();
    all.extend(["has_table_privilege", "has_sequence_privilege"].map(relation));
    all.push(
        Function::new("has_any_column_privilege", OBJECT, "bool", |call, args| of_relation(call, args, true)).stable(),
    );
    all.push(
        Function::new("has_schema_privilege", OBJECT, "bool", |call, args| {
            let facts = call.facts()?;
            let id = match &args[args.len() - 2] {
                Value::Text(name) => match super::schema_oid(facts, name) {
                    Some(oid) => oid,
                    None => {
                        let message = format!("schema \"{name}\" does not exist");
                        return Err(sql_error(SqlState::INVALID_SCHEMA_NAME, message));
                    }
                },
                oid => oid_of(oid),
            };
            let acting = acting(facts, args, 2)?;
            if !facts.version.catalog.schemas.contains_key(&SchemaId(id)) {
                return asked(args, AccessKind::Schema, |privilege| {
                    acting.is_superuser || privilege == Privileges::USAGE
                });
            }
            let has =
                acting.privileges(&facts.version.catalog, &AccessObject::Schema(SchemaId(id)), AccessKind::Schema);
            asked(args, AccessKind::Schema, |privilege| has.has(privilege))
        })
        .stable(),
    );
    all.push(
        Function::new("has_database_privilege", OBJECT, "bool", |call, args| {
            let facts = call.facts()?;
            let acting = acting(facts, args, 2)?;
            let has = acting.privileges(&facts.version.catalog, &AccessObject::Database, AccessKind::Database);
            asked(args, AccessKind::Database, |privilege| has.has(privilege))
        })
        .stable(),
    );
    all.push(
        Function::new("has_tablespace_privilege", OBJECT, "bool", |call, args| {
            let facts = call.facts()?;
            let spaces = facts.planner.database().tablespaces();
            let name = match &args[args.len() - 2] {
                Value::Text(name) => name.to_string(),
                oid => {
                    let oid = oid_of(oid);
                    let found = spaces.list().into_iter().find(|space| tablespace_oid(space.id()) == oid);
                    match found {
                        Some(space) => space.name().to_owned(),
                        None => return Ok(Value::Null),
                    }
                }
            };
            if let Err(error) = spaces.get(&name) {
                return Err(sql_error(error.code(), error.message().to_owned()));
            }
            let object = AccessObject::Tablespace(name);
            let has = acting(facts, args, 2)?.privileges(&facts.version.catalog, &object, AccessKind::Tablespace);
            asked(args, AccessKind::Tablespace, |privilege| has.has(privilege))
        })
        .stable(),
    );
    let column: &[&[Type]] = &[&[Any, Any, Text], &[Any, Any, Any, Text]];
    all.push(
        Function::new("has_column_privilege", column, "bool", |call, args| {
            let facts = call.facts()?;
            let Some(relation) = relation_of(facts, &args[args.len() - 3])? else { return Ok(Value::Null) };
            let acting = acting(facts, args, 3)?;
            let object = AccessObject::Relation(TableId(relation.oid()));
            let catalog = &facts.version.catalog;
            let of_table = acting.privileges(catalog, &object, AccessKind::Table);
            let number = match (&relation, &args[args.len() - 2]) {
                (Relation::Table(table), Value::Text(name)) => {
                    let found = table.def.columns.iter().find(|column| column.name == **name);
                    let Some(column) = found else {
                        let message = format!("column \"{name}\" of relation \"{}\" does not exist", table.def.name);
                        return Err(sql_error(SqlState::UNDEFINED_COLUMN, message));
                    };
                    column.number
                }
                (_, number) => u16::try_from(number.as_int()).unwrap_or(0),
            };
            let has = of_table.and(acting.of_column(catalog, &object, number));
            asked(args, AccessKind::Column, |privilege| has.has(privilege))
        })
        .stable(),
    );
    all.push(
        Function::new("pg_has_role", OBJECT, "bool", |call, args| {
            let facts = call.facts()?;
            let role = role_of(facts, &args[args.len() - 2])?;
            let acting = acting(facts, args, 2)?;
            let catalog = &facts.version.catalog;
            let words = args[args.len() - 1].as_str().to_lowercase();
            let has = words.split(',').map(str::trim).any(|word| match word.split_whitespace().next() {
                Some("usage") => acting.has(role),
                _ => acting.is_superuser || catalog.roles_of(acting.id, false).contains(&role),
            });
            Ok(has.into())
        })
        .stable(),
    );
    // What there is of these is for everybody.
    for name in [
        "has_function_privilege",
        "has_language_privilege",
        "has_type_privilege",
        "has_server_privilege",
        "has_foreign_data_wrapper_privilege",
        "has_parameter_privilege",
    ] {
        all.push(Function::new(name, OBJECT, "bool", |_, _| Ok(true.into())));
    }
    all
}

/// `any`: of some column is enough.
fn of_relation(call: &Call<'_>, args: &[Value], any: bool) -> Result<Value> {
    let facts = call.facts()?;
    let Some(relation) = relation_of(facts, &args[args.len() - 2])? else { return Ok(Value::Null) };
    let acting = acting(facts, args, 2)?;
    let (kind, id) = match &relation {
        Relation::Sequence(sequence) => (AccessKind::Sequence, sequence.def.id),
        relation => (AccessKind::Table, TableId(relation.oid())),
    };
    if matches!(relation, Relation::System(_)) {
        return asked(args, kind, |privilege| acting.is_superuser || privilege == Privileges::SELECT);
    }
    let object = AccessObject::Relation(id);
    let catalog = &facts.version.catalog;
    let has = acting.privileges(catalog, &object, kind);
    asked(args, kind, |privilege| has.has(privilege) || any && acting.with_some_column(catalog, &object, privilege))
}

/// NULL for an oid of none; 42P01 for a name of none.
fn relation_of(facts: &SessionFacts, value: &Value) -> Result<Option<Relation>> {
    let oid = match value {
        Value::Text(name) => find_relation(facts, name)
            .ok_or_else(|| sql_error(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist")))?,
        oid => oid_of(oid),
    };
    let system = || super::relations::all().iter().find(|relation| relation.oid == oid).map(Relation::System);
    Ok(resolve::by_id(facts, TableId(oid)).or_else(system))
}

/// 42704 for a name of none.
fn role_of(facts: &SessionFacts, value: &Value) -> Result<RoleId> {
    match value {
        Value::Text(name) if **name == *"public" => Ok(RoleId::PUBLIC),
        Value::Text(name) => role_oid(facts, name)
            .map(RoleId)
            .ok_or_else(|| sql_error(SqlState::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))),
        oid => Ok(RoleId(oid_of(oid))),
    }
}

/// The role that is asked about: the first of more arguments than `after`, or else the statement's.
fn acting(facts: &SessionFacts, args: &[Value], after: usize) -> Result<Acting> {
    match args.len() > after {
        true => Ok(Acting::of(&facts.version.catalog, role_of(facts, &args[0])?)),
        false => Ok(facts.role.clone()),
    }
}

/// Whether any of the privileges is had that the last argument lists. 22023 for what is none.
fn asked(args: &[Value], kind: AccessKind, has: impl Fn(Privileges) -> bool) -> Result<Value> {
    let words = args[args.len() - 1].as_str();
    let mut any = false;
    for word in words.split(',') {
        let word = word.trim().to_lowercase();
        let name = word.strip_suffix(" with grant option").unwrap_or(&word);
        let privilege = Privileges::of_name(name).filter(|privilege| kind.privileges().has(*privilege));
        let Some(privilege) = privilege else {
            let message = format!("unrecognized privilege type: \"{}\"", word);
            return Err(sql_error(SqlState::INVALID_PARAMETER_VALUE, message));
        };
        any |= has(privilege);
    }
    Ok(any.into())
}
