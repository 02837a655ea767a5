//! Statements on roles, privileges and owners, read from their tokens.

use super::cursor::Cursor;
use super::parts::{names, qualified_name};
use super::{QualifiedName, SetValue};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Privileges;

/// A role as a statement names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleName {
    Named(String),
    CurrentUser,
    SessionUser,
    Public,
}

/// The options of `CREATE ROLE` and `ALTER ROLE` that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleOptions {
    pub superuser: Option<bool>,
    pub create_database: Option<bool>,
    pub create_role: Option<bool>,
    pub inherit: Option<bool>,
    pub login: Option<bool>,
    pub replication: Option<bool>,
    pub bypass_row_security: Option<bool>,
    pub connection_limit: Option<i64>,
    /// `Some(None)`: none.
    pub password: Option<Option<String>>,
    pub valid_until: Option<String>,
    /// Roles that it becomes a member of, and that become its members, the last of these with the admin option.
    pub in_roles: Vec<String>,
    pub roles: Vec<String>,
    pub admins: Vec<String>,
}

/// What `GRANT` and `REVOKE` name.
#[derive(Clone, Debug)]
pub enum GrantTargets {
    /// Tables and views, or also sequences, which `GRANT … ON name` takes.
    Relations(Vec<QualifiedName>),
    Sequences(Vec<QualifiedName>),
    AllTables(Vec<String>),
    AllSequences(Vec<String>),
    Schemas(Vec<String>),
    Tablespaces(Vec<String>),
    Databases(Vec<String>),
}

/// What `ALTER … OWNER TO` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedKind {
    Table,
    View,
    Sequence,
    Schema,
    Tablespace,
    Database,
}

#[derive(Clone, Debug)]
pub struct GrantClause {
    /// `None`: all. Otherwise each with its columns; none: all of the object.
    pub privileges: Option<Vec<(Privileges, Vec<String>)>>,
    /// Columns of `ALL (…)`.
    pub all_columns: Vec<String>,
    pub targets: GrantTargets,
    pub grantees: Vec<RoleName>,
    /// `WITH GRANT OPTION`, or `GRANT OPTION FOR`.
    pub option: bool,
    pub grantor: Option<RoleName>,
    pub cascade: bool,
}

/// What becomes of a membership.
#[derive(Clone, Copy, Debug)]
pub enum MemberChange {
    Grant { admin: bool },
    Revoke { admin_only: bool },
}

#[derive(Clone, Debug)]
pub enum RoleCommand {
    Create {
        name: String,
        options: RoleOptions,
        login: bool,
    },
    Alter {
        role: RoleName,
        options: RoleOptions,
    },
    Rename {
        role: String,
        new_name: String,
    },
    /// `ALTER ROLE … SET`; `None`: `RESET ALL`.
    Set {
        role: RoleName,
        setting: Option<(String, SetValue)>,
    },
    Drop {
        names: Vec<RoleName>,
        if_exists: bool,
    },
    /// Of each of the roles, and each of the grantees.
    Members {
        roles: Vec<String>,
        grantees: Vec<RoleName>,
        change: MemberChange,
        grantor: Option<RoleName>,
    },
    Grant(GrantClause),
    Revoke(GrantClause),
    Owner {
        kind: OwnedKind,
        name: QualifiedName,
        if_exists: bool,
        owner: RoleName,
    },
    Reassign {
        from: Vec<RoleName>,
        to: RoleName,
    },
    DropOwned {
        roles: Vec<RoleName>,
        cascade: bool,
    },
    /// `None`: `NONE`.
    SetRole {
        role: Option<String>,
        local: bool,
    },
    /// `None`: `DEFAULT`.
    SetSession {
        user: Option<String>,
        local: bool,
    },
}

impl RoleCommand {
    /// Its command tag; `None` for those that change the session alone.
    pub fn tag(&self) -> Option<&'static str> {
        Some(match self {
            RoleCommand::Create { .. } => "CREATE ROLE",
            RoleCommand::Alter { .. } | RoleCommand::Rename { .. } | RoleCommand::Set { .. } => "ALTER ROLE",
            RoleCommand::Drop { .. } => "DROP ROLE",
            RoleCommand::Members { change: MemberChange::Grant { .. }, .. } => "GRANT ROLE",
            RoleCommand::Members { change: MemberChange::Revoke { .. }, .. } => "REVOKE ROLE",
            RoleCommand::Grant(_) => "GRANT",
            RoleCommand::Revoke(_) => "REVOKE",
            RoleCommand::Owner { kind, .. } => match kind {
                OwnedKind::Table => "ALTER TABLE",
                OwnedKind::View => "ALTER VIEW",
                OwnedKind::Sequence => "ALTER SEQUENCE",
                OwnedKind::Schema => "ALTER SCHEMA",
                OwnedKind::Tablespace => "ALTER TABLESPACE",
                OwnedKind::Database => "ALTER DATABASE",
            },
            RoleCommand::Reassign { .. } => "REASSIGN OWNED",
            RoleCommand::DropOwned { .. } => "DROP OWNED",
            RoleCommand::SetRole { .. } | RoleCommand::SetSession { .. } => return None,
        })
    }
}

/// `None`, with nothing read, when the statement is another's to read.
pub fn command(cursor: &mut Cursor<'_>) -> Result<Option<RoleCommand>> {
    for [verb, kind] in
        ["create", "alter", "drop"].into_iter().flat_map(|verb| ["role", "user", "group"].map(|kind| [verb, kind]))
    {
        if cursor.keywords(&[verb, kind]) {
            return match verb {
                "create" => create(cursor, kind == "user"),
                "alter" => alter(cursor),
                _ => drop(cursor),
            }
            .map(Some);
        }
    }
    if cursor.keyword("grant") {
        return grant(cursor).map(Some);
    }
    if cursor.keyword("revoke") {
        return revoke(cursor).map(Some);
    }
    if cursor.keywords(&["reassign", "owned", "by"]) {
        let from = role_names(cursor)?;
        cursor.expect_keyword("to")?;
        return Ok(Some(RoleCommand::Reassign { from, to: role_name(cursor)? }));
    }
    if cursor.keywords(&["drop", "owned", "by"]) {
        let roles = role_names(cursor)?;
        return Ok(Some(RoleCommand::DropOwned { roles, cascade: super::objects::cascades(cursor) }));
    }
    if cursor.is_keyword("set") || cursor.is_keyword("reset") {
        return set(cursor);
    }
    if cursor.is_keyword("alter") {
        return owner(cursor);
    }
    Ok(None)
}

pub fn role_name(cursor: &mut Cursor<'_>) -> Result<RoleName> {
    if let Some(word) = cursor.one_of(&["current_user", "current_role", "session_user", "public"]) {
        return Ok(match word {
            "session_user" => RoleName::SessionUser,
            "public" => RoleName::Public,
            _ => RoleName::CurrentUser,
        });
    }
    cursor.ident().map(RoleName::Named)
}

fn role_names(cursor: &mut Cursor<'_>) -> Result<Vec<RoleName>> {
    let mut all = vec![role_name(cursor)?];
    while cursor.token(&Token::Comma) {
        all.push(role_name(cursor)?);
    }
    Ok(all)
}

fn idents(cursor: &mut Cursor<'_>) -> Result<Vec<String>> {
    let mut all = vec![cursor.ident()?];
    while cursor.token(&Token::Comma) {
        all.push(cursor.ident()?);
    }
    Ok(all)
}

fn create(cursor: &mut Cursor<'_>, login: bool) -> Result<RoleCommand> {
    let name = cursor.ident()?;
    cursor.keyword("with");
    Ok(RoleCommand::Create { name, options: options(cursor, true)?, login })
}

fn alter(cursor: &mut Cursor<'_>) -> Result<RoleCommand> {
    let role = if cursor.keyword("all") { RoleName::Public } else { role_name(cursor)? };
    if cursor.keywords(&["rename", "to"]) {
        let RoleName::Named(role) = role else { return Err(cursor.error()) };
        return Ok(RoleCommand::Rename { role, new_name: cursor.ident()? });
    }
    if cursor.keywords(&["in", "database"]) {
        let database = cursor.ident()?;
        if database != crate::facts::DATABASE {
            let message = format!("database \"{database}\" does not exist");
            return Err(Error::new(SqlState::INVALID_CATALOG_NAME, message));
        }
    }
    if cursor.keywords(&["reset", "all"]) {
        return Ok(RoleCommand::Set { role, setting: None });
    }
    if cursor.keyword("reset") {
        return Ok(RoleCommand::Set { role, setting: Some((cursor.ident()?, SetValue::Default)) });
    }
    if cursor.is_keyword("set") {
        let super::Command::Set { name, value, .. } = super::set::set(cursor)? else { return Err(cursor.error()) };
        return Ok(RoleCommand::Set { role, setting: Some((name, value)) });
    }
    // `ALTER GROUP g ADD USER u`.
    if cursor.keywords(&["add", "user"]) {
        let RoleName::Named(group) = role else { return Err(cursor.error()) };
        let grantees = role_names(cursor)?;
        return Ok(RoleCommand::Members {
            roles: vec![group],
            grantees,
            change: MemberChange::Grant { admin: false },
            grantor: None,
        });
    }
    if cursor.keywords(&["drop", "user"]) {
        let RoleName::Named(group) = role else { return Err(cursor.error()) };
        let grantees = role_names(cursor)?;
        return Ok(RoleCommand::Members {
            roles: vec![group],
            grantees,
            change: MemberChange::Revoke { admin_only: false },
            grantor: None,
        });
    }
    cursor.keyword("with");
    Ok(RoleCommand::Alter { role, options: options(cursor, false)? })
}

fn drop(cursor: &mut Cursor<'_>) -> Result<RoleCommand> {
    let if_exists = cursor.keywords(&["if", "exists"]);
    Ok(RoleCommand::Drop { names: role_names(cursor)?, if_exists })
}

fn options(cursor: &mut Cursor<'_>, creates: bool) -> Result<RoleOptions> {
    fn once<T>(slot: &mut Option<T>, value: T) -> Result<()> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(Error::new(SqlState::SYNTAX_ERROR, "conflicting or redundant options")),
        }
    }
    let mut options = RoleOptions::default();
    while !cursor.at_end() {
        let error = cursor.error();
        if cursor.keywords(&["connection", "limit"]) {
            let text = cursor.number_if().ok_or_else(|| cursor.error())?;
            once(&mut options.connection_limit, text.parse().map_err(|_| error)?)?;
        } else if cursor.keywords(&["valid", "until"]) {
            let until = cursor.string()?;
            once(&mut options.valid_until, until)?;
        } else if cursor.keywords(&["encrypted", "password"]) || cursor.keyword("password") {
            let password = if cursor.keyword("null") { None } else { Some(cursor.string()?) };
            once(&mut options.password, password)?;
        } else if creates && (cursor.keywords(&["in", "role"]) || cursor.keywords(&["in", "group"])) {
            options.in_roles = idents(cursor)?;
        } else if creates && cursor.keyword("admin") {
            options.admins = idents(cursor)?;
        } else if creates && cursor.keyword("sysid") {
            cursor.number_if().ok_or_else(|| cursor.error())?;
        } else if creates && cursor.one_of(&["role", "user"]).is_some() {
            options.roles = idents(cursor)?;
        } else {
            let word = cursor.ident()?;
            let (name, value) = match word.strip_prefix("no") {
                Some(name) => (name, false),
                None => (word.as_str(), true),
            };
            let slot = match name {
                "superuser" => &mut options.superuser,
                "createdb" => &mut options.create_database,
                "createrole" => &mut options.create_role,
                "inherit" => &mut options.inherit,
                "login" => &mut options.login,
                "replication" => &mut options.replication,
                "bypassrls" => &mut options.bypass_row_security,
                _ => return Err(Error::new(SqlState::SYNTAX_ERROR, format!("unrecognized role option \"{word}\""))),
            };
            once(slot, value)?;
        }
    }
    Ok(options)
}

/// Privileges and columns, as far as `ON`; or names of roles, as far as `TO` or `FROM`.
enum Granted {
    Privileges { privileges: Option<Vec<(Privileges, Vec<String>)>>, all_columns: Vec<String> },
    Roles(Vec<String>),
}

fn granted(cursor: &mut Cursor<'_>) -> Result<Granted> {
    let columns = |cursor: &mut Cursor<'_>| {
        if !cursor.token(&Token::LParen) {
            return Ok(Vec::new());
        }
        let columns = idents(cursor)?;
        cursor.expect_token(&Token::RParen)?;
        Ok::<_, Error>(columns)
    };
    if cursor.keyword("all") {
        cursor.keyword("privileges");
        let all_columns = columns(cursor)?;
        cursor.expect_keyword("on")?;
        return Ok(Granted::Privileges { privileges: None, all_columns });
    }
    let mut listed = Vec::new();
    loop {
        listed.push((cursor.ident()?, columns(cursor)?));
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    if !cursor.keyword("on") {
        if listed.iter().any(|(_, columns)| !columns.is_empty()) {
            return Err(cursor.error());
        }
        return Ok(Granted::Roles(listed.into_iter().map(|(name, _)| name).collect()));
    }
    let privilege = |(name, columns): (String, Vec<String>)| {
        let privilege = Privileges::of_name(&name)
            .ok_or_else(|| Error::new(SqlState::SYNTAX_ERROR, format!("unrecognized privilege type \"{name}\"")))?;
        Ok((privilege, columns))
    };
    let privileges = Some(listed.into_iter().map(privilege).collect::<Result<_>>()?);
    Ok(Granted::Privileges { privileges, all_columns: Vec::new() })
}

fn targets(cursor: &mut Cursor<'_>) -> Result<GrantTargets> {
    if cursor.keywords(&["all", "tables", "in", "schema"]) {
        return Ok(GrantTargets::AllTables(idents(cursor)?));
    }
    if cursor.keywords(&["all", "sequences", "in", "schema"]) {
        return Ok(GrantTargets::AllSequences(idents(cursor)?));
    }
    if cursor.keyword("schema") {
        return Ok(GrantTargets::Schemas(idents(cursor)?));
    }
    if cursor.keyword("database") {
        return Ok(GrantTargets::Databases(idents(cursor)?));
    }
    if cursor.keyword("tablespace") {
        return Ok(GrantTargets::Tablespaces(idents(cursor)?));
    }
    if cursor.keyword("sequence") {
        return Ok(GrantTargets::Sequences(names(cursor)?));
    }
    let others = ["function", "procedure", "routine", "language", "type", "domain", "foreign", "large", "parameter"];
    if !matches!(cursor.second(), Some(Token::Comma | Token::Period) | None)
        && !matches!(cursor.second(), Some(Token::Word(word)) if matches!(word.value.to_lowercase().as_str(), "to" | "from"))
        && let Some(what) = others.into_iter().find(|what| cursor.is_keyword(what))
    {
        return Err(Error::unsupported(format!("privileges on a {what} are not supported")));
    }
    cursor.keyword("table");
    Ok(GrantTargets::Relations(names(cursor)?))
}

fn grant(cursor: &mut Cursor<'_>) -> Result<RoleCommand> {
    match granted(cursor)? {
        Granted::Roles(roles) => {
            cursor.expect_keyword("to")?;
            let grantees = grantees(cursor)?;
            let admin = cursor.keywords(&["with", "admin", "option"]) || cursor.keywords(&["with", "admin", "true"]);
            let grantor = granted_by(cursor)?;
            Ok(RoleCommand::Members { roles, grantees, change: MemberChange::Grant { admin }, grantor })
        }
        Granted::Privileges { privileges, all_columns } => {
            let targets = targets(cursor)?;
            cursor.expect_keyword("to")?;
            let grantees = grantees(cursor)?;
            let option = cursor.keywords(&["with", "grant", "option"]);
            let grantor = granted_by(cursor)?;
            let clause = GrantClause { privileges, all_columns, targets, grantees, option, grantor, cascade: false };
            Ok(RoleCommand::Grant(clause))
        }
    }
}

fn revoke(cursor: &mut Cursor<'_>) -> Result<RoleCommand> {
    let admin_only = cursor.keywords(&["admin", "option", "for"]);
    let option = cursor.keywords(&["grant", "option", "for"]);
    match granted(cursor)? {
        Granted::Roles(_) if option => Err(cursor.error()),
        Granted::Privileges { .. } if admin_only => Err(cursor.error()),
        Granted::Roles(roles) => {
            cursor.expect_keyword("from")?;
            let grantees = grantees(cursor)?;
            let grantor = granted_by(cursor)?;
            super::objects::cascades(cursor);
            Ok(RoleCommand::Members { roles, grantees, change: MemberChange::Revoke { admin_only }, grantor })
        }
        Granted::Privileges { privileges, all_columns } => {
            let targets = targets(cursor)?;
            cursor.expect_keyword("from")?;
            let grantees = grantees(cursor)?;
            let grantor = granted_by(cursor)?;
            let cascade = super::objects::cascades(cursor);
            let clause = GrantClause { privileges, all_columns, targets, grantees, option, grantor, cascade };
            Ok(RoleCommand::Revoke(clause))
        }
    }
}

fn grantees(cursor: &mut Cursor<'_>) -> Result<Vec<RoleName>> {
    let one = |cursor: &mut Cursor<'_>| {
        if matches!(cursor.second(), Some(Token::Word(_))) {
            cursor.keyword("group");
        }
        role_name(cursor)
    };
    let mut all = vec![one(cursor)?];
    while cursor.token(&Token::Comma) {
        all.push(one(cursor)?);
    }
    Ok(all)
}

fn granted_by(cursor: &mut Cursor<'_>) -> Result<Option<RoleName>> {
    if cursor.keywords(&["granted", "by"]) { role_name(cursor).map(Some) } else { Ok(None) }
}

/// `SET [LOCAL] ROLE …`, `SET [LOCAL] SESSION AUTHORIZATION …` and their `RESET`.
fn set(cursor: &mut Cursor<'_>) -> Result<Option<RoleCommand>> {
    if cursor.keywords(&["reset", "session", "authorization"]) {
        return Ok(Some(RoleCommand::SetSession { user: None, local: false }));
    }
    if cursor.keywords(&["reset", "role"]) {
        return Ok(Some(RoleCommand::SetRole { role: None, local: false }));
    }
    let forms: [(&[&str], bool); 5] = [
        (&["set", "role"], false),
        (&["set", "session", "role"], false),
        (&["set", "local", "role"], true),
        (&["set", "session", "authorization"], false),
        (&["set", "local", "session", "authorization"], true),
    ];
    let session = ["set", "session", "session", "authorization"];
    let (is_session, local) = match forms.iter().position(|(words, _)| cursor.are_keywords(words)) {
        Some(form) => {
            cursor.keywords(forms[form].0);
            (form >= 3, forms[form].1)
        }
        None if cursor.keywords(&session) => (true, false),
        None => return Ok(None),
    };
    if !cursor.keyword("to") {
        cursor.token(&Token::Eq);
    }
    let none = if is_session { "default" } else { "none" };
    let name = match cursor.string_if() {
        Some(text) => Some(text),
        None if cursor.keyword(none) || cursor.keyword("default") => None,
        None => Some(cursor.ident()?),
    };
    Ok(Some(match is_session {
        true => RoleCommand::SetSession { user: name, local },
        false => RoleCommand::SetRole { role: name, local },
    }))
}

/// `ALTER … OWNER TO …`.
fn owner(cursor: &mut Cursor<'_>) -> Result<Option<RoleCommand>> {
    let mut ahead = Cursor::new(cursor.source, cursor.rest());
    ahead.advance();
    let kinds = ["table", "view", "sequence", "schema", "tablespace", "database"];
    let Some(kind) = ahead.one_of(&kinds) else { return Ok(None) };
    let kind = match kind {
        "table" => OwnedKind::Table,
        "view" => OwnedKind::View,
        "sequence" => OwnedKind::Sequence,
        "schema" => OwnedKind::Schema,
        "tablespace" => OwnedKind::Tablespace,
        _ => OwnedKind::Database,
    };
    let if_exists = ahead.keywords(&["if", "exists"]);
    ahead.keyword("only");
    let Ok(name) = qualified_name(&mut ahead) else { return Ok(None) };
    if !ahead.keywords(&["owner", "to"]) {
        return Ok(None);
    }
    let owner = role_name(&mut ahead)?;
    ahead.expect_end()?;
    cursor.skip_rest();
    Ok(Some(RoleCommand::Owner { kind, name, if_exists, owner }))
}
