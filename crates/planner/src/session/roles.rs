//! Roles made, changed and dropped; privileges granted and revoked; owners.

use super::objects::{drop_all, path_ids};
use super::{Notice, Outcome, Session};
use crate::dependents::Object;
use crate::facts::SessionFacts;
use crate::privileges::Acting;
use crate::resolve::{self, Relation};
use crate::settings::Settings;
use crate::statement::{
    GrantClause, GrantTargets, OwnedKind, QualifiedName, RoleCommand, RoleName, RoleOptions, SetValue,
};
use std::sync::Arc;
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_database::{
    Access, AccessKind, AccessObject, Catalog, DatabaseVersion, Grant, Membership, Privileges, RoleDef, Transaction,
};

fn denied(message: impl Into<String>) -> Error {
    Error::new(SqlState::INSUFFICIENT_PRIVILEGE, message.into())
}

fn missing(name: &str) -> Error {
    Error::new(SqlState::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
}

/// Of a setting.
fn no_value(name: &str) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("role \"{name}\" does not exist"))
}

/// The roles that a statement's words for them mean.
#[derive(Clone)]
struct Speaker {
    current: RoleId,
    session: RoleId,
}

impl Speaker {
    /// 42704 when there is no such role. `PUBLIC` is none.
    fn role(&self, catalog: &Catalog, name: &RoleName) -> Result<Arc<RoleDef>> {
        let by_id = |id: RoleId| catalog.roles.get(&id).cloned().ok_or_else(|| missing("current_user"));
        match name {
            RoleName::CurrentUser => by_id(self.current),
            RoleName::SessionUser => by_id(self.session),
            RoleName::Public => Err(missing("public")),
            RoleName::Named(name) => catalog.role(name).cloned().ok_or_else(|| missing(name)),
        }
    }

    fn grantee(&self, catalog: &Catalog, name: &RoleName) -> Result<RoleId> {
        match name {
            RoleName::Public => Ok(RoleId::PUBLIC),
            name => self.role(catalog, name).map(|role| role.id),
        }
    }

    fn acting(&self, catalog: &Catalog) -> Acting {
        Acting::of(catalog, self.current)
    }
}

/// An object of a statement on privileges.
struct Target {
    object: AccessObject,
    kind: AccessKind,
    /// `table t`.
    shown: String,
    /// Of a table.
    columns: Vec<(String, u16)>,
}

impl Session {
    fn speaker(&self, facts: &SessionFacts) -> Speaker {
        Speaker { current: facts.role.id, session: self.session_role(&facts.version.catalog) }
    }

    /// A role that the statement's own is a member of, so that it may make things that are the other's. 42501 otherwise.
    pub(super) fn member_role(&self, facts: &SessionFacts, name: &RoleName) -> Result<RoleId> {
        let catalog = &facts.version.catalog;
        let role = self.speaker(facts).role(catalog, name)?;
        match facts.role.is_superuser || catalog.roles_of(facts.role.id, false).contains(&role.id) {
            true => Ok(role.id),
            false => Err(denied(format!("must be member of role \"{}\"", role.name))),
        }
    }

    pub(super) async fn role_command(&mut self, text: &str, command: &RoleCommand) -> Result<Outcome> {
        let tag = match command {
            RoleCommand::SetRole { role, local } => return self.set_role(role.as_deref(), *local),
            RoleCommand::SetSession { user, local } => return self.set_session_user(user.as_deref(), *local),
            RoleCommand::Create { .. } => "CREATE ROLE",
            RoleCommand::Alter { .. } | RoleCommand::Rename { .. } | RoleCommand::Set { .. } => "ALTER ROLE",
            RoleCommand::Drop { .. } => "DROP ROLE",
            RoleCommand::GrantRoles { .. } => "GRANT ROLE",
            RoleCommand::RevokeRoles { .. } => "REVOKE ROLE",
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
        };
        self.check_writable(tag)?;
        let running = self.running(text);
        let speaker = self.speaker(&running.facts);
        let (facts, command) = (running.facts.clone(), command.clone());
        let others: Vec<RoleId> = self
            .planner
            .sessions()
            .iter()
            .filter_map(|session| Some(facts.version.catalog.role(&session.user)?.id))
            .collect();
        let database = self.planner.database().clone();
        let told = self
            .write(running, move |transaction, interrupt| {
                transaction.lock_access(&interrupt.lock_wait())?;
                let version = transaction.version();
                let work = Work { facts: facts.over(version.clone()), version, speaker, notices: Vec::new() };
                match command {
                    RoleCommand::Create { name, options, login } => work.create(transaction, name, &options, login),
                    RoleCommand::Alter { role, options } => work.alter(transaction, &role, &options),
                    RoleCommand::Rename { role, new_name } => work.rename(transaction, &role, &new_name),
                    RoleCommand::Set { role, setting } => work.set(transaction, &role, setting, &database),
                    RoleCommand::Drop { names, if_exists } => work.drop(transaction, &names, if_exists, &others),
                    RoleCommand::GrantRoles { roles, grantees, admin } => {
                        work.grant_roles(transaction, &roles, &grantees, admin)
                    }
                    RoleCommand::RevokeRoles { roles, grantees, admin_only } => {
                        work.revoke_roles(transaction, &roles, &grantees, admin_only)
                    }
                    RoleCommand::Grant(clause) => work.grant(transaction, &clause, false),
                    RoleCommand::Revoke(clause) => work.grant(transaction, &clause, true),
                    RoleCommand::Owner { kind, name, if_exists, owner } => {
                        work.owner(transaction, kind, &name, if_exists, &owner)
                    }
                    RoleCommand::Reassign { from, to } => work.reassign(transaction, &from, &to),
                    RoleCommand::DropOwned { roles, cascade } => {
                        work.drop_owned(transaction, interrupt, &roles, cascade)
                    }
                    RoleCommand::SetRole { .. } | RoleCommand::SetSession { .. } => Ok(Vec::new()),
                }
            })
            .await?;
        self.notices.extend(told);
        Ok(Outcome::command(tag))
    }

    /// `SET ROLE`: one that the session's user is a member of. `None`: the session's user.
    fn set_role(&mut self, role: Option<&str>, local: bool) -> Result<Outcome> {
        if let Some(name) = role {
            let facts = self.facts(chrono::Utc::now());
            let catalog = &facts.version.catalog;
            let role = catalog.role(name).ok_or_else(|| no_value(name))?;
            let session = self.session_role(catalog);
            let is_superuser = catalog.roles.get(&session).is_some_and(|session| session.superuser);
            if !is_superuser && !catalog.roles_of(session, false).contains(&role.id) {
                return Err(denied(format!("permission denied to set role \"{name}\"")));
            }
        }
        self.set_own_setting("role", role.unwrap_or("none"), local)?;
        Ok(Outcome::command(if role.is_some() { "SET" } else { "RESET" }))
    }

    /// `SET SESSION AUTHORIZATION`: for superusers that have connected as such. `None`: who has connected.
    fn set_session_user(&mut self, user: Option<&str>, local: bool) -> Result<Outcome> {
        let facts = self.facts(chrono::Utc::now());
        let catalog = &facts.version.catalog;
        let name = user.unwrap_or(&self.shared.user).to_owned();
        if let Some(name) = user {
            let role = catalog.role(name).ok_or_else(|| no_value(name))?;
            let connected = self.shared.role;
            let is_superuser = catalog.roles.get(&connected).is_some_and(|role| role.superuser);
            if role.id != connected && !is_superuser {
                return Err(denied("permission denied to set session authorization"));
            }
        }
        self.set_own_setting("session_authorization", &name, local)?;
        self.set_own_setting("role", "none", local)?;
        Ok(Outcome::command(if user.is_some() { "SET" } else { "RESET" }))
    }
}

/// A statement at work, over what its transaction sees.
struct Work {
    facts: Arc<SessionFacts>,
    version: Arc<DatabaseVersion>,
    speaker: Speaker,
    notices: Vec<Notice>,
}

type Told = Result<Vec<Notice>>;

/// Microseconds since 1970 of a date and time as PostgreSQL reads them.
fn instant(text: &str) -> Result<Option<i64>> {
    if text.eq_ignore_ascii_case("infinity") {
        return Ok(None);
    }
    let wrong = || {
        Error::new(
            SqlState::INVALID_DATETIME_FORMAT,
            format!("invalid input syntax for type timestamp with time zone: \"{text}\""),
        )
    };
    let padded = if text.contains(':') { text.to_owned() } else { format!("{text} 00:00:00") };
    let parsed = arrow::compute::kernels::cast_utils::string_to_datetime(&chrono::Utc, &padded).map_err(|_| wrong())?;
    Ok(Some(parsed.timestamp_micros()))
}

impl Work {
    fn catalog(&self) -> &Catalog {
        &self.version.catalog
    }

    fn told(self) -> Told {
        Ok(self.notices)
    }

    fn notice(&mut self, severity: &'static str, code: SqlState, message: String) {
        self.notices.push(Notice { severity, error: Error::new(code, message) });
    }

    /// Superusers are made, changed and dropped by superusers, others by whoever may create roles.
    fn check_may_change(&self, role: &RoleDef, what: &str) -> Result<()> {
        let acting = self.speaker.acting(self.catalog());
        if acting.is_superuser {
            return Ok(());
        }
        if role.superuser {
            return Err(denied(format!("must be superuser to {what} superusers")));
        }
        if acting.may_create_roles { Ok(()) } else { Err(denied("permission denied")) }
    }

    fn apply(&self, role: &mut RoleDef, options: &RoleOptions) -> Result<()> {
        let acting = self.speaker.acting(self.catalog());
        for (asked, what) in [
            (options.superuser, "superusers"),
            (options.replication, "replication users"),
            (options.bypass_row_security, "bypassrls users"),
        ] {
            if asked == Some(true) && !acting.is_superuser {
                return Err(denied(format!("must be superuser to create {what}")));
            }
        }
        let set = |slot: &mut bool, value: Option<bool>| *slot = value.unwrap_or(*slot);
        set(&mut role.superuser, options.superuser);
        set(&mut role.create_database, options.create_database);
        set(&mut role.create_role, options.create_role);
        set(&mut role.inherit, options.inherit);
        set(&mut role.login, options.login);
        set(&mut role.replication, options.replication);
        set(&mut role.bypass_row_security, options.bypass_row_security);
        if let Some(limit) = options.connection_limit {
            let wrong = || Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid connection limit: {limit}"));
            role.connections_max = match limit {
                -1 => None,
                limit => Some(u32::try_from(limit).map_err(|_| wrong())?),
            };
        }
        if let Some(until) = &options.valid_until {
            role.valid_until = instant(until)?;
        }
        if let Some(password) = &options.password {
            // An empty one lets nobody in, as in PostgreSQL.
            let password = password.as_deref().filter(|password| !password.is_empty());
            role.password = password.map(tidepool_database::scram::verifier_text);
        }
        Ok(())
    }

    fn create(self, transaction: &mut Transaction, name: String, options: &RoleOptions, login: bool) -> Told {
        if !self.speaker.acting(self.catalog()).may_create_roles {
            return Err(denied("permission denied to create role"));
        }
        let mut role = RoleDef { login, ..RoleDef::new(RoleId(0), name) };
        self.apply(&mut role, options)?;
        let named = |names: &[String]| names.iter().cloned().map(RoleName::Named).collect::<Vec<_>>();
        for group in named(&options.in_roles) {
            let group = self.speaker.role(self.catalog(), &group)?;
            self.check_may_admit(&group)?;
            role.member_of.push(Membership { role: group.id, admin: false, grantor: self.speaker.current });
        }
        let id = transaction.create_role(role)?;
        for (members, admin) in [(&options.roles, false), (&options.admins, true)] {
            for member in named(members) {
                let mut member = RoleDef::clone(&*self.speaker.role(self.catalog(), &member)?);
                member.member_of.push(Membership { role: id, admin, grantor: self.speaker.current });
                transaction.alter_role(member)?;
            }
        }
        self.told()
    }

    fn alter(self, transaction: &mut Transaction, name: &RoleName, options: &RoleOptions) -> Told {
        let role = self.speaker.role(self.catalog(), name)?;
        // One's own password.
        let only_password = RoleOptions { password: None, ..options.clone() };
        let own =
            role.id == self.speaker.current && format!("{only_password:?}") == format!("{:?}", RoleOptions::default());
        if !own {
            self.check_may_change(&role, "alter")?;
        }
        let mut altered = RoleDef::clone(&role);
        self.apply(&mut altered, options)?;
        if role.id == RoleId::OWNER && !altered.superuser {
            return Err(Error::unsupported("the role that the database began with stays a superuser"));
        }
        transaction.alter_role(altered)?;
        self.told()
    }

    fn rename(self, transaction: &mut Transaction, name: &str, new_name: &str) -> Told {
        let role = self.speaker.role(self.catalog(), &RoleName::Named(name.to_owned()))?;
        if role.id == self.speaker.session {
            return Err(Error::unsupported("session user cannot be renamed"));
        }
        if role.id == RoleId::OWNER || name.starts_with("pg_") {
            return Err(Error::unsupported(format!("role \"{name}\" cannot be renamed")));
        }
        self.check_may_change(&role, "rename")?;
        transaction.alter_role(RoleDef { name: new_name.to_owned(), ..RoleDef::clone(&role) })?;
        self.told()
    }

    fn set(
        self,
        transaction: &mut Transaction,
        name: &RoleName,
        setting: Option<(String, SetValue)>,
        database: &tidepool_database::Database,
    ) -> Told {
        if *name == RoleName::Public {
            return Err(Error::unsupported("settings of all roles are the configuration's")
                .with_hint("Set them in [settings] of the configuration file."));
        }
        let role = self.speaker.role(self.catalog(), name)?;
        if role.id != self.speaker.current {
            self.check_may_change(&role, "alter")?;
        }
        let mut altered = RoleDef::clone(&role);
        match setting {
            None => altered.settings.clear(),
            Some((name, value)) => {
                altered.settings.retain(|(own, _)| !own.eq_ignore_ascii_case(&name));
                match value {
                    SetValue::Default => {}
                    SetValue::Values(values) => {
                        let names = name.eq_ignore_ascii_case("search_path");
                        let quoted: Vec<String> = match names {
                            true => values.iter().map(|value| crate::catalog::quote_identifier(value)).collect(),
                            false => values,
                        };
                        // Refused now rather than at each start of a session.
                        Settings::new(database, &role.name).set(&name, &quoted, database)?;
                        altered.settings.push((name, quoted.join(", ")));
                    }
                }
            }
        }
        transaction.alter_role(altered)?;
        self.told()
    }

    fn drop(mut self, transaction: &mut Transaction, names: &[RoleName], if_exists: bool, others: &[RoleId]) -> Told {
        if !self.speaker.acting(self.catalog()).may_create_roles {
            return Err(denied("permission denied to drop role"));
        }
        for name in names {
            let role = match self.speaker.role(self.catalog(), name) {
                Err(error) if if_exists && error.code() == SqlState::UNDEFINED_OBJECT => {
                    let message = format!("{}, skipping", error.message());
                    self.notice("NOTICE", SqlState::SUCCESSFUL_COMPLETION, message);
                    continue;
                }
                role => role?,
            };
            let in_use = |message: &str| Err(Error::new(SqlState::OBJECT_IN_USE, message.to_owned()));
            if role.id == self.speaker.current {
                return in_use("current user cannot be dropped");
            }
            if role.id == self.speaker.session {
                return in_use("session user cannot be dropped");
            }
            if role.id == RoleId::OWNER || role.name.starts_with("pg_") {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    format!("cannot drop role {} because it is required by the database system", role.name),
                ));
            }
            if others.contains(&role.id) {
                return in_use(&format!("role \"{}\" is used by a session", role.name));
            }
            self.check_may_change(&role, "drop")?;
            let depend = self.what_depends_on(role.id);
            if !depend.is_empty() {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    format!("role \"{}\" cannot be dropped because some objects depend on it", role.name),
                )
                .with_detail(depend.join("\n")));
            }
            transaction.drop_role(role.id)?;
        }
        self.told()
    }

    fn what_depends_on(&self, role: RoleId) -> Vec<String> {
        let of = |(object, access): (&AccessObject, &Arc<Access>)| {
            let shown = self.shown(object);
            let owner = (access.owner == role).then(|| format!("owner of {shown}"));
            owner.or_else(|| access.names(role).then(|| format!("privileges for {shown}")))
        };
        self.catalog().access.iter().filter_map(of).collect()
    }

    fn shown(&self, object: &AccessObject) -> String {
        match object {
            AccessObject::Relation(id) => match resolve::by_id(&self.facts, *id) {
                Some(Relation::Table(table)) => format!("table {}", table.def.name),
                Some(Relation::View(view)) => format!("view {}", view.name),
                Some(Relation::Sequence(sequence)) => format!("sequence {}", sequence.def.name),
                _ => format!("relation {id}"),
            },
            AccessObject::Schema(id) => format!("schema {}", self.version.schema_name(*id)),
            AccessObject::Tablespace(name) => format!("tablespace {name}"),
            AccessObject::Database => format!("database {}", self.facts.database),
        }
    }

    // ---------------------------------------------------------------------------------------------------- memberships

    /// Who may make others members of a role: superusers, its admins, and, unless it is a superuser, who may create roles.
    fn check_may_admit(&self, group: &RoleDef) -> Result<()> {
        let acting = self.speaker.acting(self.catalog());
        if acting.is_superuser {
            return Ok(());
        }
        if group.superuser {
            return Err(denied("must be superuser to alter superusers"));
        }
        let is_admin = self.catalog().roles_of(self.speaker.current, true).iter().any(|role| {
            self.catalog()
                .roles
                .get(role)
                .is_some_and(|role| role.member_of.iter().any(|of| of.role == group.id && of.admin))
        });
        match is_admin || acting.may_create_roles {
            true => Ok(()),
            false => Err(denied(format!("must have admin option on role \"{}\"", group.name))),
        }
    }

    fn grant_roles(
        mut self,
        transaction: &mut Transaction,
        roles: &[String],
        grantees: &[RoleName],
        admin: bool,
    ) -> Told {
        for role in roles {
            let group = self.speaker.role(self.catalog(), &RoleName::Named(role.clone()))?;
            self.check_may_admit(&group)?;
            for grantee in grantees {
                self.version = transaction.version();
                let member = self.speaker.role(self.catalog(), grantee)?;
                if self.catalog().roles_of(group.id, false).contains(&member.id) {
                    return Err(Error::new(
                        SqlState::INVALID_GRANT_OPERATION,
                        format!("role \"{}\" is a member of role \"{}\"", group.name, member.name),
                    ));
                }
                let mut member = RoleDef::clone(&member);
                match member.member_of.iter_mut().find(|of| of.role == group.id) {
                    Some(of) if of.admin || !admin => {
                        let message =
                            format!("role \"{}\" is already a member of role \"{}\"", member.name, group.name);
                        self.notice("NOTICE", SqlState::SUCCESSFUL_COMPLETION, message);
                        continue;
                    }
                    Some(of) => of.admin = true,
                    None => {
                        member.member_of.push(Membership { role: group.id, admin, grantor: self.speaker.current });
                    }
                }
                transaction.alter_role(member)?;
            }
        }
        self.told()
    }

    fn revoke_roles(
        mut self,
        transaction: &mut Transaction,
        roles: &[String],
        grantees: &[RoleName],
        admin_only: bool,
    ) -> Told {
        for role in roles {
            let group = self.speaker.role(self.catalog(), &RoleName::Named(role.clone()))?;
            self.check_may_admit(&group)?;
            for grantee in grantees {
                self.version = transaction.version();
                let member = self.speaker.role(self.catalog(), grantee)?;
                let mut member = RoleDef::clone(&member);
                match member.member_of.iter_mut().find(|of| of.role == group.id) {
                    None => {
                        let message = format!("role \"{}\" is not a member of role \"{}\"", member.name, group.name);
                        self.notice("WARNING", SqlState::WARNING, message);
                        continue;
                    }
                    Some(of) if admin_only => of.admin = false,
                    Some(_) => member.member_of.retain(|of| of.role != group.id),
                }
                transaction.alter_role(member)?;
            }
        }
        self.told()
    }

    // ------------------------------------------------------------------------------------------------------ privileges

    fn relation(&self, name: &QualifiedName) -> Result<Target> {
        let acting = self.speaker.acting(self.catalog());
        crate::privileges::check_schema(&self.facts, &acting, name.schema.as_deref())?;
        match resolve::relation(&self.facts, name.schema.as_deref(), &name.name) {
            Some(Relation::System(relation)) => Err(crate::errors::system_relation(relation.name)),
            Some(relation) => Ok(target_of(&relation)),
            None => Err(resolve::missing(name)),
        }
    }

    fn schema(&self, name: &str) -> Result<Target> {
        let id = resolve::own_schema(&self.facts, name)?;
        Ok(Target {
            object: AccessObject::Schema(id),
            kind: AccessKind::Schema,
            shown: format!("schema {name}"),
            columns: Vec::new(),
        })
    }

    fn targets(&self, targets: &GrantTargets) -> Result<Vec<Target>> {
        let plain = |object, kind, shown| Target { object, kind, shown, columns: Vec::new() };
        match targets {
            GrantTargets::Relations(names) => names.iter().map(|name| self.relation(name)).collect(),
            GrantTargets::Sequences(names) => {
                let of = |name: &QualifiedName| match self.relation(name)? {
                    target if target.kind == AccessKind::Sequence => Ok(target),
                    _ => Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not a sequence", name.name))),
                };
                names.iter().map(of).collect()
            }
            GrantTargets::AllTables(schemas) | GrantTargets::AllSequences(schemas) => {
                let sequences = matches!(targets, GrantTargets::AllSequences(_));
                let mut all = Vec::new();
                for schema in schemas {
                    let id = resolve::own_schema(&self.facts, schema)?;
                    let relations = self.version.relations().filter(|name| name.schema == id);
                    let found = relations.filter_map(|name| resolve::in_schema(&self.facts, schema, &name.name));
                    let of = found.map(|relation| target_of(&relation));
                    all.extend(of.filter(|target| (target.kind == AccessKind::Sequence) == sequences));
                }
                Ok(all)
            }
            GrantTargets::Schemas(names) => names.iter().map(|name| self.schema(name)).collect(),
            GrantTargets::Tablespaces(names) => {
                let of = |name: &String| {
                    self.facts.planner.database().tablespaces().get(name)?;
                    let object = AccessObject::Tablespace(name.clone());
                    Ok(plain(object, AccessKind::Tablespace, format!("tablespace {name}")))
                };
                names.iter().map(of).collect()
            }
            GrantTargets::Databases(names) => {
                let of = |name: &String| match name == self.facts.database {
                    true => Ok(plain(AccessObject::Database, AccessKind::Database, format!("database {name}"))),
                    false => {
                        Err(Error::new(SqlState::INVALID_CATALOG_NAME, format!("database \"{name}\" does not exist")))
                    }
                };
                names.iter().map(of).collect()
            }
        }
    }

    fn grant(mut self, transaction: &mut Transaction, clause: &GrantClause, revokes: bool) -> Told {
        let acting = self.speaker.acting(self.catalog());
        if let Some(grantor) = &clause.grantor
            && self.speaker.role(self.catalog(), grantor)?.id != self.speaker.current
        {
            return Err(Error::unsupported("grantor must be current user"));
        }
        let grantees = clause.grantees.iter().map(|name| self.speaker.grantee(self.catalog(), name));
        let grantees: Vec<RoleId> = grantees.collect::<Result<_>>()?;
        if clause.option && !revokes && grantees.contains(&RoleId::PUBLIC) {
            return Err(Error::new(SqlState::INVALID_GRANT_OPERATION, "grant options can only be granted to roles"));
        }
        for target in self.targets(&clause.targets)? {
            let mut access = self.catalog().access(&target.object);
            let wanted = wanted(&target, clause)?;
            let mut grants = access.grants(target.kind);
            for (privileges, column) in wanted {
                let of_column = column.map(|number| access.columns.remove(&number).unwrap_or_default());
                // Options on the table hold for its columns.
                let founded: Vec<Grant> = grants.iter().chain(of_column.iter().flatten()).copied().collect();
                let may = |role: RoleId| {
                    let options = founded.iter().filter(|grant| grant.grantee == role);
                    options.fold(Privileges::NONE, |all, grant| all.and(grant.options))
                };
                let is_owner = acting.has(access.owner);
                let roles = self.catalog().roles_of(self.speaker.current, true);
                let best = roles
                    .iter()
                    .copied()
                    .max_by_key(|role| (may(*role).both(privileges).each().count(), *role == self.speaker.current));
                let grantor = if is_owner { access.owner } else { best.unwrap_or(self.speaker.current) };
                let grantable = if is_owner { privileges } else { may(grantor).both(privileges) };
                if grantable.is_empty() {
                    let kind = if column.is_some() { AccessKind::Table } else { target.kind };
                    let has_any = !acting.privileges(self.catalog(), &target.object, kind).is_empty();
                    if !has_any {
                        return Err(denied(format!("permission denied for {}", target.shown)));
                    }
                    let name = target.shown.split_once(' ').map_or("", |(_, name)| name);
                    let (what, code) = match revokes {
                        true => ("could be revoked", SqlState::PRIVILEGE_NOT_REVOKED),
                        false => ("were granted", SqlState::PRIVILEGE_NOT_GRANTED),
                    };
                    self.notice("WARNING", code, format!("no privileges {what} for \"{name}\""));
                }
                let mut list = of_column.unwrap_or_else(|| std::mem::take(&mut grants));
                for grantee in &grantees {
                    match revokes {
                        true => tidepool_database::revoke(
                            &mut list,
                            access.owner,
                            *grantee,
                            grantor,
                            grantable,
                            clause.option,
                            clause.cascade,
                        )?,
                        false => tidepool_database::grant(
                            &mut list,
                            Grant {
                                grantee: *grantee,
                                grantor,
                                privileges: grantable,
                                options: if clause.option { grantable } else { Privileges::NONE },
                            },
                        ),
                    }
                }
                match column {
                    None => grants = list,
                    Some(number) if !list.is_empty() => drop(access.columns.insert(number, list)),
                    Some(_) => {}
                }
            }
            access.grants = Some(grants);
            transaction.set_access(target.object, access);
            self.version = transaction.version();
        }
        self.told()
    }

    // --------------------------------------------------------------------------------------------------------- owners

    fn owner(
        mut self,
        transaction: &mut Transaction,
        kind: OwnedKind,
        name: &QualifiedName,
        if_exists: bool,
        owner: &RoleName,
    ) -> Told {
        let target = match kind {
            OwnedKind::Table | OwnedKind::View | OwnedKind::Sequence => match self.relation(name) {
                Err(error) if if_exists && error.code() == SqlState::UNDEFINED_TABLE => {
                    let message = format!("{}, skipping", error.message());
                    self.notice("NOTICE", SqlState::SUCCESSFUL_COMPLETION, message);
                    return self.told();
                }
                target => target?,
            },
            OwnedKind::Schema => self.schema(&name.name)?,
            OwnedKind::Tablespace => self.targets(&GrantTargets::Tablespaces(vec![name.name.clone()]))?.remove(0),
            OwnedKind::Database => self.targets(&GrantTargets::Databases(vec![name.name.clone()]))?.remove(0),
        };
        let fits = match kind {
            // `ALTER TABLE` takes what is like one, too.
            OwnedKind::View => target.shown.starts_with("view "),
            OwnedKind::Sequence => target.kind == AccessKind::Sequence,
            _ => true,
        };
        if !fits {
            let what = if kind == OwnedKind::View { "view" } else { "sequence" };
            return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not a {what}", name.name)));
        }
        let owner = self.speaker.role(self.catalog(), owner)?;
        self.check_may_own(&target, &owner)?;
        self.give(transaction, &target.object, owner.id);
        self.told()
    }

    /// Whoever gives an object away owns it, and could take it back.
    fn check_may_own(&self, target: &Target, owner: &RoleDef) -> Result<()> {
        let acting = self.speaker.acting(self.catalog());
        if acting.is_superuser {
            return Ok(());
        }
        if !acting.owns(self.catalog(), &target.object) {
            return Err(denied(format!("must be owner of {}", target.shown)));
        }
        if !self.catalog().roles_of(self.speaker.current, false).contains(&owner.id) {
            return Err(denied(format!("must be member of role \"{}\"", owner.name)));
        }
        Ok(())
    }

    /// Gives an object away, a table with the sequences of its columns.
    fn give(&self, transaction: &mut Transaction, object: &AccessObject, owner: RoleId) {
        let mut all = vec![object.clone()];
        if let AccessObject::Relation(id) = object {
            all.extend(self.catalog().owned_sequences(*id).map(|sequence| AccessObject::Relation(sequence.def.id)));
        }
        for object in all {
            let mut access = self.catalog().access(&object);
            if access.owner != owner {
                access.give_to(owner);
                transaction.set_access(object, access);
            }
        }
    }

    fn owned_by(&self, role: RoleId) -> Vec<AccessObject> {
        let access = self.catalog().access.iter();
        access.filter(|(_, access)| access.owner == role).map(|(object, _)| object.clone()).collect()
    }

    fn reassign(self, transaction: &mut Transaction, from: &[RoleName], to: &RoleName) -> Told {
        let to = self.speaker.role(self.catalog(), to)?;
        let acting = self.speaker.acting(self.catalog());
        for name in from {
            let from = self.speaker.role(self.catalog(), name)?;
            if !acting.has(from.id) || !acting.has(to.id) {
                return Err(denied("permission denied to reassign objects"));
            }
            if from.id == RoleId::OWNER {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    format!(
                        "cannot reassign ownership of objects owned by role {} because they are required by the database system",
                        from.name
                    ),
                ));
            }
            for object in self.owned_by(from.id) {
                self.give(transaction, &object, to.id);
            }
        }
        self.told()
    }

    fn drop_owned(
        mut self,
        transaction: &mut Transaction,
        interrupt: &crate::interrupt::Interrupt,
        roles: &[RoleName],
        cascade: bool,
    ) -> Told {
        let acting = self.speaker.acting(self.catalog());
        for name in roles {
            let role = self.speaker.role(self.catalog(), name)?;
            if !acting.has(role.id) {
                return Err(denied("permission denied to drop objects"));
            }
            if role.id == RoleId::OWNER {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    format!(
                        "cannot drop objects owned by role {} because they are required by the database system",
                        role.name
                    ),
                ));
            }
            // What it was granted goes, and what it granted.
            let named: Vec<(AccessObject, Access)> = (self.catalog().access.iter())
                .filter(|(_, access)| access.owner != role.id && access.names(role.id))
                .map(|(object, access)| (object.clone(), Access::clone(access)))
                .collect();
            for (object, mut access) in named {
                let keep = |grant: &Grant| grant.grantee != role.id && grant.grantor != role.id;
                access.grants.iter_mut().chain(access.columns.values_mut()).for_each(|grants| grants.retain(keep));
                access.columns.retain(|_, grants| !grants.is_empty());
                transaction.set_access(object, access);
            }
            let targets: Vec<Object> = self
                .owned_by(role.id)
                .iter()
                .filter_map(|object| match object {
                    AccessObject::Relation(id) => match resolve::by_id(&self.facts, *id)? {
                        Relation::Table(table) => Some(Object::Table(table.def.id)),
                        Relation::View(view) => Some(Object::View(view.id)),
                        // Those of columns go with their tables.
                        Relation::Sequence(sequence) if sequence.def.owner.is_some() => None,
                        Relation::Sequence(sequence) => Some(Object::Sequence(sequence.def.id)),
                        Relation::System(_) => None,
                    },
                    AccessObject::Schema(id) => Some(Object::Schema(*id)),
                    AccessObject::Tablespace(_) | AccessObject::Database => None,
                })
                .collect();
            let told = drop_all(transaction, interrupt, &path_ids(&self.facts), &targets, cascade)?;
            self.notices.extend(told.map(|error| Notice { severity: "NOTICE", error }));
            self.version = transaction.version();
            self.facts = self.facts.over(self.version.clone());
        }
        self.told()
    }
}

fn target_of(relation: &Relation) -> Target {
    let id = tidepool_base::TableId(relation.oid());
    let (kind, shown, columns) = match relation {
        Relation::Table(table) => {
            let columns = table.def.columns.iter().map(|column| (column.name.clone(), column.number)).collect();
            (AccessKind::Table, format!("table {}", table.def.name), columns)
        }
        Relation::View(view) => (AccessKind::Table, format!("view {}", view.name), Vec::new()),
        Relation::Sequence(sequence) => (AccessKind::Sequence, format!("sequence {}", sequence.def.name), Vec::new()),
        Relation::System(system) => (AccessKind::Table, format!("table {}", system.name), Vec::new()),
    };
    Target { object: AccessObject::Relation(id), kind, shown, columns }
}

/// What a clause asks for of an object: privileges, each with the number of its column, or for all of the object.
fn wanted(target: &Target, clause: &GrantClause) -> Result<Vec<(Privileges, Option<u16>)>> {
    let column = |name: &String| {
        let found = target.columns.iter().find(|(own, _)| own == name).map(|(_, number)| *number);
        found.ok_or_else(|| {
            let of = target.shown.split_once(' ').map_or("", |(_, name)| name);
            Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" of relation \"{of}\" does not exist"))
        })
    };
    let Some(listed) = &clause.privileges else {
        if clause.all_columns.is_empty() {
            return Ok(vec![(target.kind.privileges(), None)]);
        }
        let all = AccessKind::Column.privileges();
        return clause.all_columns.iter().map(|name| Ok((all, Some(column(name)?)))).collect();
    };
    let mut all: Vec<(Privileges, Option<u16>)> = Vec::new();
    for (privilege, columns) in listed {
        let kind = if columns.is_empty() { target.kind } else { AccessKind::Column };
        if !kind.privileges().has(*privilege) {
            let name = privilege.each().next().map_or("", |(_, _, name)| name);
            let of = match kind {
                AccessKind::Table => "relation",
                AccessKind::Column => "column",
                AccessKind::Sequence => "sequence",
                AccessKind::Schema => "schema",
                AccessKind::Tablespace => "tablespace",
                AccessKind::Database => "database",
            };
            let message = format!("invalid privilege type {name} for {of}");
            return Err(Error::new(SqlState::INVALID_GRANT_OPERATION, message));
        }
        let places = match columns.is_empty() {
            true => vec![None],
            false => columns.iter().map(|name| column(name).map(Some)).collect::<Result<_>>()?,
        };
        for place in places {
            match all.iter_mut().find(|(_, own)| *own == place) {
                Some((own, _)) => *own = own.and(*privilege),
                None => all.push((*privilege, place)),
            }
        }
    }
    Ok(all)
}
