//! Roles made, changed and dropped, and whom a session works for.

use super::{Notice, Outcome, Session};
use crate::facts::SessionFacts;
use crate::privileges::Acting;
use crate::resolve::{self, Relation};
use crate::settings::Settings;
use crate::statement::{RoleCommand, RoleName, RoleOptions, SetValue};
use std::sync::Arc;
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_database::{Access, AccessObject, Catalog, DatabaseVersion, Membership, RoleDef, Transaction};

pub(super) fn denied(message: impl Into<String>) -> Error {
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
pub(super) struct Speaker {
    pub current: RoleId,
    pub session: RoleId,
}

impl Speaker {
    /// 42704 when there is no such role. `PUBLIC` is none.
    pub fn role(&self, catalog: &Catalog, name: &RoleName) -> Result<Arc<RoleDef>> {
        let by_id = |id: RoleId| catalog.roles.get(&id).cloned().ok_or_else(|| missing("current_user"));
        match name {
            RoleName::CurrentUser => by_id(self.current),
            RoleName::SessionUser => by_id(self.session),
            RoleName::Public => Err(missing("public")),
            RoleName::Named(name) => catalog.role(name).cloned().ok_or_else(|| missing(name)),
        }
    }

    pub fn grantee(&self, catalog: &Catalog, name: &RoleName) -> Result<RoleId> {
        match name {
            RoleName::Public => Ok(RoleId::PUBLIC),
            name => self.role(catalog, name).map(|role| role.id),
        }
    }

    pub fn acting(&self, catalog: &Catalog) -> Acting {
        Acting::of(catalog, self.current)
    }
}

impl Session {
    fn speaker(&self, facts: &SessionFacts) -> Speaker {
        Speaker { current: facts.role.id, session: self.shared.session_role(&self.settings, &facts.version.catalog) }
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
        match command {
            RoleCommand::SetRole { role, local } => return self.set_role(role.as_deref(), *local),
            RoleCommand::SetSession { user, local } => return self.set_session_user(user.as_deref(), *local),
            _ => {}
        }
        let tag = command.tag().unwrap_or_default();
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
                    RoleCommand::Members { roles, grantees, change, grantor } => {
                        work.members(transaction, &roles, &grantees, change, grantor.as_ref())
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
            let session = self.shared.session_role(&self.settings, catalog);
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
pub(super) struct Work {
    pub facts: Arc<SessionFacts>,
    pub version: Arc<DatabaseVersion>,
    pub speaker: Speaker,
    pub notices: Vec<Notice>,
}

pub(super) type Told = Result<Vec<Notice>>;

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
    pub(super) fn catalog(&self) -> &Catalog {
        &self.version.catalog
    }

    pub(super) fn told(self) -> Told {
        Ok(self.notices)
    }

    pub(super) fn notice(&mut self, severity: &'static str, code: SqlState, message: String) {
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
        let own = role.id == self.speaker.current && only_password == RoleOptions::default();
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
}
