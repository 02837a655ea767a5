//! `ALTER … OWNER TO`, `REASSIGN OWNED` and `DROP OWNED`.

use super::Notice;
use super::grants::Target;
use super::objects::{drop_all, path_ids};
use super::roles::{Told, Work, denied};
use crate::dependents::Object;
use crate::resolve::{self, Relation};
use crate::statement::{GrantTargets, OwnedKind, QualifiedName, RoleName};
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_database::{Access, AccessKind, AccessObject, Grant, RoleDef, Transaction};

impl Work {
    pub(super) fn owner(
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

    pub(super) fn reassign(self, transaction: &mut Transaction, from: &[RoleName], to: &RoleName) -> Told {
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

    pub(super) fn drop_owned(
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
