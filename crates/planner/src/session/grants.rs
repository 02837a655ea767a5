//! `GRANT` and `REVOKE`: memberships and privileges.

use super::roles::{Told, Work, denied};
use crate::resolve::{self, Relation};
use crate::statement::{GrantClause, GrantTargets, MemberChange, QualifiedName, RoleName};
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_database::{Access, AccessKind, AccessObject, Grant, Membership, Privileges, RoleDef, Transaction};

/// An object of a statement on privileges.
pub(super) struct Target {
    pub object: AccessObject,
    pub kind: AccessKind,
    /// `table t`.
    pub shown: String,
    /// Of a table.
    pub columns: Vec<(String, u16)>,
}

impl Work {
    /// Who may make others members of a role: superusers, its admins, and, unless it is a superuser, who may create roles.
    pub(super) fn check_may_admit(&self, group: &RoleDef) -> Result<()> {
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

    /// Nobody speaks for another: `GRANTED BY` is the current role.
    fn check_grantor(&self, grantor: Option<&RoleName>) -> Result<()> {
        match grantor {
            Some(grantor) if self.speaker.role(self.catalog(), grantor)?.id != self.speaker.current => {
                Err(Error::unsupported("grantor must be current user"))
            }
            _ => Ok(()),
        }
    }

    /// `GRANT` and `REVOKE` of roles.
    pub(super) fn members(
        mut self,
        transaction: &mut Transaction,
        roles: &[String],
        grantees: &[RoleName],
        change: MemberChange,
        grantor: Option<&RoleName>,
    ) -> Told {
        self.check_grantor(grantor)?;
        for role in roles {
            let group = self.speaker.role(self.catalog(), &RoleName::Named(role.clone()))?;
            self.check_may_admit(&group)?;
            for grantee in grantees {
                self.version = transaction.version();
                let member = self.speaker.role(self.catalog(), grantee)?;
                if let Some(changed) = self.member(&group, &member, change)? {
                    transaction.alter_role(changed)?;
                }
            }
        }
        self.told()
    }

    /// The member as it will be. `None`, with a notice, when it is so already.
    fn member(&mut self, group: &RoleDef, member: &RoleDef, change: MemberChange) -> Result<Option<RoleDef>> {
        if matches!(change, MemberChange::Grant { .. }) && self.catalog().roles_of(group.id, false).contains(&member.id)
        {
            return Err(Error::new(
                SqlState::INVALID_GRANT_OPERATION,
                format!("role \"{}\" is a member of role \"{}\"", group.name, member.name),
            ));
        }
        let mut changed = member.clone();
        let of = changed.member_of.iter_mut().find(|of| of.role == group.id);
        match (change, of) {
            (MemberChange::Grant { admin }, Some(of)) if of.admin || !admin => {
                let message = format!("role \"{}\" is already a member of role \"{}\"", member.name, group.name);
                self.notice("NOTICE", SqlState::SUCCESSFUL_COMPLETION, message);
                return Ok(None);
            }
            (MemberChange::Grant { .. }, Some(of)) => of.admin = true,
            (MemberChange::Grant { admin }, None) => {
                changed.member_of.push(Membership { role: group.id, admin, grantor: self.speaker.current });
            }
            (MemberChange::Revoke { .. }, None) => {
                let message = format!("role \"{}\" is not a member of role \"{}\"", member.name, group.name);
                self.notice("WARNING", SqlState::WARNING, message);
                return Ok(None);
            }
            (MemberChange::Revoke { admin_only: true }, Some(of)) => of.admin = false,
            (MemberChange::Revoke { admin_only: false }, Some(_)) => {
                changed.member_of.retain(|of| of.role != group.id);
            }
        }
        Ok(Some(changed))
    }

    pub(super) fn relation(&self, name: &QualifiedName) -> Result<Target> {
        let acting = self.speaker.acting(self.catalog());
        crate::privileges::check_schema(&self.facts, &acting, name.schema.as_deref())?;
        match resolve::relation(&self.facts, name.schema.as_deref(), &name.name) {
            Some(Relation::System(relation)) => Err(crate::errors::system_relation(relation.name)),
            Some(relation) => Ok(target_of(&relation)),
            None => Err(resolve::missing(name)),
        }
    }

    pub(super) fn schema(&self, name: &str) -> Result<Target> {
        let id = resolve::own_schema(&self.facts, name)?;
        Ok(Target {
            object: AccessObject::Schema(id),
            kind: AccessKind::Schema,
            shown: format!("schema {name}"),
            columns: Vec::new(),
        })
    }

    pub(super) fn targets(&self, targets: &GrantTargets) -> Result<Vec<Target>> {
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

    pub(super) fn grant(mut self, transaction: &mut Transaction, clause: &GrantClause, revokes: bool) -> Told {
        let acting = self.speaker.acting(self.catalog());
        self.check_grantor(clause.grantor.as_ref())?;
        let grantees = clause.grantees.iter().map(|name| self.speaker.grantee(self.catalog(), name));
        let grantees: Vec<RoleId> = grantees.collect::<Result<_>>()?;
        if clause.option && !revokes && grantees.contains(&RoleId::PUBLIC) {
            return Err(Error::new(SqlState::INVALID_GRANT_OPERATION, "grant options can only be granted to roles"));
        }
        for target in self.targets(&clause.targets)? {
            let mut access = self.catalog().access(&target.object);
            let mut wanted = wanted(&target, clause)?;
            // What is not asked for by itself is no reason to complain.
            let asked = wanted.len();
            if revokes {
                wanted.extend(of_columns(&target, &access, &wanted));
            }
            let is_implied = |place: usize| place >= asked;
            let mut grants = access.grants(target.kind);
            for (place, (privileges, column)) in wanted.into_iter().enumerate() {
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
                if grantable.is_empty() && !is_implied(place) {
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

/// What is taken of columns when a table's privileges are: these, as far as anything was granted of a column.
fn of_columns(
    target: &Target,
    access: &Access,
    wanted: &[(Privileges, Option<u16>)],
) -> Vec<(Privileges, Option<u16>)> {
    if target.kind != AccessKind::Table {
        return Vec::new();
    }
    let of_table = wanted.iter().filter(|(_, column)| column.is_none());
    let privileges = of_table.fold(Privileges::NONE, |all, (privileges, _)| all.and(*privileges));
    let privileges = privileges.both(AccessKind::Column.privileges());
    let columns = access.columns.keys().filter(|_| !privileges.is_empty());
    columns.map(|number| (privileges, Some(*number))).collect()
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
