//! Roles, who owns what, and who may do what with it.
//!
//! An object without an entry belongs to [`RoleId::OWNER`], and others may do with it what its kind allows everybody. So a
//! database in which nobody grants anything has no entries. Privileges are PostgreSQL's, and so is what is granted by whom:
//! a grant is known by its grantee and its grantor, and falls with its grantor's right to make it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, RoleId, SchemaId, SqlState, TableId};

/// No schema's id: whoever changes roles or privileges locks a name under it, so that one does after another.
pub(crate) const ACCESS: SchemaId = SchemaId(1);

/// A role: somebody who may connect, or a group of such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleDef {
    pub id: RoleId,
    pub name: String,
    pub superuser: bool,
    /// It may do what the roles may that it is a member of, without `SET ROLE`.
    pub inherit: bool,
    pub create_role: bool,
    pub create_database: bool,
    pub login: bool,
    pub replication: bool,
    pub bypass_row_security: bool,
    /// Sessions at once. `None`: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<u32>,
    /// Until when its password is good: microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<i64>,
    /// A SCRAM verifier (PostgreSQL's `SCRAM-SHA-256$…` text).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// What its sessions start with, in the order in which it was set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<(String, String)>,
    /// Roles that it is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub member_of: Vec<Membership>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    pub role: RoleId,
    /// It may make others members, too.
    pub admin: bool,
    pub grantor: RoleId,
}

impl RoleDef {
    /// A role as `CREATE ROLE` makes it without options.
    pub fn new(id: RoleId, name: impl Into<String>) -> RoleDef {
        RoleDef {
            id,
            name: name.into(),
            superuser: false,
            inherit: true,
            create_role: false,
            create_database: false,
            login: false,
            replication: false,
            bypass_row_security: false,
            connections_max: None,
            valid_until: None,
            password: None,
            settings: Vec::new(),
            member_of: Vec::new(),
        }
    }

    /// The one that a database begins with.
    pub(crate) fn owner(password: Option<String>) -> RoleDef {
        RoleDef {
            superuser: true,
            create_role: true,
            create_database: true,
            login: true,
            bypass_row_security: true,
            password,
            ..RoleDef::new(RoleId::OWNER, "tidepool")
        }
    }
}

/// Roles that exist from the beginning, and that others are made members of (PostgreSQL's predefined roles, by its oids).
pub mod predefined {
    use tidepool_base::RoleId;

    pub const MONITOR: RoleId = RoleId(3373);
    pub const READ_ALL_STATS: RoleId = RoleId(3375);
    pub const SIGNAL_BACKEND: RoleId = RoleId(4200);
    pub const CHECKPOINT: RoleId = RoleId(4544);
    pub const READ_SERVER_FILES: RoleId = RoleId(4569);
    pub const WRITE_SERVER_FILES: RoleId = RoleId(4570);
    pub const READ_ALL_DATA: RoleId = RoleId(6181);
    pub const WRITE_ALL_DATA: RoleId = RoleId(6182);
    pub const MAINTAIN: RoleId = RoleId(6337);

    pub(crate) const ALL: [(RoleId, &str); 9] = [
        (MONITOR, "pg_monitor"),
        (READ_ALL_STATS, "pg_read_all_stats"),
        (SIGNAL_BACKEND, "pg_signal_backend"),
        (CHECKPOINT, "pg_checkpoint"),
        (READ_SERVER_FILES, "pg_read_server_files"),
        (WRITE_SERVER_FILES, "pg_write_server_files"),
        (READ_ALL_DATA, "pg_read_all_data"),
        (WRITE_ALL_DATA, "pg_write_all_data"),
        (MAINTAIN, "pg_maintain"),
    ];
}

/// The roles of a database in which none were made yet.
pub(crate) fn initial_roles(password: Option<String>) -> BTreeMap<RoleId, Arc<RoleDef>> {
    let predefined = predefined::ALL.iter().map(|(id, name)| RoleDef::new(*id, *name));
    std::iter::once(RoleDef::owner(password)).chain(predefined).map(|role| (role.id, Arc::new(role))).collect()
}

/// Whether it is as every database has it.
pub(crate) fn is_initial(role: &RoleDef) -> bool {
    initial_roles(None).get(&role.id).is_some_and(|initial| **initial == *role)
}

/// A set of privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Privileges(u16);

impl Privileges {
    pub const NONE: Privileges = Privileges(0);
    pub const INSERT: Privileges = Privileges(1);
    pub const SELECT: Privileges = Privileges(1 << 1);
    pub const UPDATE: Privileges = Privileges(1 << 2);
    pub const DELETE: Privileges = Privileges(1 << 3);
    pub const TRUNCATE: Privileges = Privileges(1 << 4);
    pub const REFERENCES: Privileges = Privileges(1 << 5);
    pub const TRIGGER: Privileges = Privileges(1 << 6);
    pub const USAGE: Privileges = Privileges(1 << 7);
    pub const CREATE: Privileges = Privileges(1 << 8);
    pub const TEMPORARY: Privileges = Privileges(1 << 9);
    pub const CONNECT: Privileges = Privileges(1 << 10);

    /// Each, with the letter that an access list shows it by, in the order in which it does.
    pub const ALL: [(Privileges, char, &'static str); 11] = [
        (Privileges::INSERT, 'a', "INSERT"),
        (Privileges::SELECT, 'r', "SELECT"),
        (Privileges::UPDATE, 'w', "UPDATE"),
        (Privileges::DELETE, 'd', "DELETE"),
        (Privileges::TRUNCATE, 'D', "TRUNCATE"),
        (Privileges::REFERENCES, 'x', "REFERENCES"),
        (Privileges::TRIGGER, 't', "TRIGGER"),
        (Privileges::USAGE, 'U', "USAGE"),
        (Privileges::CREATE, 'C', "CREATE"),
        (Privileges::TEMPORARY, 'T', "TEMPORARY"),
        (Privileges::CONNECT, 'c', "CONNECT"),
    ];

    /// `TEMP` is another name of `TEMPORARY`.
    pub fn of_name(name: &str) -> Option<Privileges> {
        let name = if name.eq_ignore_ascii_case("temp") { "temporary" } else { name };
        Self::ALL.iter().find(|(_, _, own)| own.eq_ignore_ascii_case(name)).map(|(privilege, ..)| *privilege)
    }

    pub const fn and(self, other: Privileges) -> Privileges {
        Privileges(self.0 | other.0)
    }

    pub const fn both(self, other: Privileges) -> Privileges {
        Privileges(self.0 & other.0)
    }

    pub const fn without(self, other: Privileges) -> Privileges {
        Privileges(self.0 & !other.0)
    }

    pub const fn has(self, all: Privileges) -> bool {
        self.0 & all.0 == all.0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each by itself.
    pub fn each(self) -> impl Iterator<Item = (Privileges, char, &'static str)> {
        Self::ALL.into_iter().filter(move |(privilege, ..)| self.has(*privilege))
    }
}

/// What privileges are granted on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessObject {
    /// A table, a view or a sequence.
    Relation(TableId),
    Schema(SchemaId),
    Tablespace(String),
    Database,
}

/// Kinds of objects, which differ in what can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    Table,
    Column,
    Sequence,
    Schema,
    Tablespace,
    Database,
}

impl AccessKind {
    /// What can be granted on one.
    pub const fn privileges(self) -> Privileges {
        let columns = Privileges::INSERT.and(Privileges::SELECT).and(Privileges::UPDATE).and(Privileges::REFERENCES);
        match self {
            AccessKind::Table => columns.and(Privileges::DELETE).and(Privileges::TRUNCATE).and(Privileges::TRIGGER),
            AccessKind::Column => columns,
            AccessKind::Sequence => Privileges::USAGE.and(Privileges::SELECT).and(Privileges::UPDATE),
            AccessKind::Schema => Privileges::USAGE.and(Privileges::CREATE),
            AccessKind::Tablespace => Privileges::CREATE,
            AccessKind::Database => Privileges::CREATE.and(Privileges::TEMPORARY).and(Privileges::CONNECT),
        }
    }

    /// What everybody may do with one of which nothing else was said.
    pub const fn of_everybody(self) -> Privileges {
        match self {
            AccessKind::Database => Privileges::TEMPORARY.and(Privileges::CONNECT),
            _ => Privileges::NONE,
        }
    }
}

/// What one role gave to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// [`RoleId::PUBLIC`]: to everybody.
    pub grantee: RoleId,
    pub grantor: RoleId,
    pub privileges: Privileges,
    /// Those that the grantee may grant, too.
    #[serde(default, skip_serializing_if = "Privileges::is_empty_ref")]
    pub options: Privileges,
}

impl Privileges {
    fn is_empty_ref(&self) -> bool {
        self.is_empty()
    }
}

/// Whose an object is, and what others may do with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub owner: RoleId,
    /// `None`: what its kind allows; the owner everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<Grant>>,
    /// Of columns, by their numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<u16, Vec<Grant>>,
}

impl Access {
    pub fn of(owner: RoleId) -> Access {
        Access { owner, grants: None, columns: BTreeMap::new() }
    }

    /// The grants, those of the kind's included where nothing else was said.
    pub fn grants(&self, kind: AccessKind) -> Vec<Grant> {
        if let Some(grants) = &self.grants {
            return grants.clone();
        }
        let grant = |grantee, privileges| Grant { grantee, grantor: self.owner, privileges, options: Privileges::NONE };
        let everybody = Some(kind.of_everybody()).filter(|privileges| !privileges.is_empty());
        everybody
            .map(|privileges| grant(RoleId::PUBLIC, privileges))
            .into_iter()
            .chain([grant(self.owner, kind.privileges())])
            .collect()
    }

    /// Gives the object to another: what the one before granted is the new one's doing, and what it had is the new one's.
    pub fn give_to(&mut self, owner: RoleId) {
        let before = std::mem::replace(&mut self.owner, owner);
        let moved = |grants: &mut Vec<Grant>| {
            for grant in grants.iter_mut() {
                for role in [&mut grant.grantee, &mut grant.grantor] {
                    if *role == before {
                        *role = owner;
                    }
                }
            }
            tidy(grants);
        };
        self.grants.iter_mut().chain(self.columns.values_mut()).for_each(moved);
    }

    /// Roles that it names, but for its owner.
    pub fn names(&self, role: RoleId) -> bool {
        let all = self.grants.iter().chain(self.columns.values()).flatten();
        all.into_iter().any(|grant| grant.grantee == role || grant.grantor == role)
    }
}

/// Joins grants of the same two roles, and leaves out those of nothing.
fn tidy(grants: &mut Vec<Grant>) {
    let mut all: Vec<Grant> = Vec::with_capacity(grants.len());
    for grant in grants.drain(..) {
        match all.iter_mut().find(|other| (other.grantee, other.grantor) == (grant.grantee, grant.grantor)) {
            Some(other) => {
                other.privileges = other.privileges.and(grant.privileges);
                other.options = other.options.and(grant.options);
            }
            None => all.push(grant),
        }
    }
    all.retain(|grant| !grant.privileges.is_empty());
    *grants = all;
}

/// Adds to grants.
pub fn grant(grants: &mut Vec<Grant>, added: Grant) {
    grants.push(added);
    tidy(grants);
}

/// Takes from grants of `grantor`'s what `grantee` has, or with `options_only` the right to grant it; and then what that
/// right was the ground of. 2BP01 without `cascade` if there is such.
pub fn revoke(
    grants: &mut Vec<Grant>,
    owner: RoleId,
    grantee: RoleId,
    grantor: RoleId,
    privileges: Privileges,
    options_only: bool,
    cascade: bool,
) -> Result<()> {
    let mut taken = vec![(grantee, grantor, privileges, options_only)];
    while let Some((grantee, grantor, privileges, options_only)) = taken.pop() {
        let before = options_of(grants, grantee);
        for grant in grants.iter_mut().filter(|grant| (grant.grantee, grant.grantor) == (grantee, grantor)) {
            grant.options = grant.options.without(privileges);
            if !options_only {
                grant.privileges = grant.privileges.without(privileges);
            }
        }
        tidy(grants);
        // Only what the role granted by an option that it has no more goes: it may have granted by one on the whole of a table.
        let lost = before.without(options_of(grants, grantee));
        let unfounded = grants.iter().filter(|grant| grantee != owner && grant.grantor == grantee);
        let unfounded: Vec<_> = unfounded
            .map(|grant| (grant.grantee, grantee, grant.privileges.both(lost), false))
            .filter(|(_, _, privileges, _)| !privileges.is_empty())
            .collect();
        if !unfounded.is_empty() && !cascade {
            return Err(Error::new(SqlState::DEPENDENT_OBJECTS_STILL_EXIST, "dependent privileges exist")
                .with_hint("Use CASCADE to revoke them too."));
        }
        taken.extend(unfounded);
    }
    Ok(())
}

/// What a role may grant.
fn options_of(grants: &[Grant], role: RoleId) -> Privileges {
    let own = grants.iter().filter(|grant| grant.grantee == role);
    own.fold(Privileges::NONE, |all, grant| all.and(grant.options))
}

impl Access {
    /// Of an object of which nothing was said.
    pub(crate) fn initial(object: &AccessObject) -> Access {
        let mut access = Access::of(RoleId::OWNER);
        if *object == AccessObject::Schema(SchemaId::PUBLIC) {
            let grant =
                |grantee, privileges| Grant { grantee, grantor: RoleId::OWNER, privileges, options: Privileges::NONE };
            access.grants = Some(vec![
                grant(RoleId::OWNER, AccessKind::Schema.privileges()),
                grant(RoleId::PUBLIC, Privileges::USAGE),
            ]);
        }
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: RoleId = RoleId(20);
    const BOB: RoleId = RoleId(21);
    const EVE: RoleId = RoleId(22);

    fn given(grantee: RoleId, grantor: RoleId, privileges: Privileges, options: Privileges) -> Grant {
        Grant { grantee, grantor, privileges, options }
    }

    #[test]
    fn what_hangs_on_a_grant_falls_with_it_or_keeps_it() {
        let read = Privileges::SELECT;
        let chain = [
            given(ADA, RoleId::OWNER, read, read),
            given(BOB, ADA, read, read),
            given(EVE, BOB, read, Privileges::NONE),
            given(EVE, RoleId::OWNER, Privileges::INSERT, Privileges::NONE),
        ];
        let mut grants = chain.to_vec();
        let error = revoke(&mut grants, RoleId::OWNER, ADA, RoleId::OWNER, read, false, false).unwrap_err();
        assert_eq!(error.code(), SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
        let mut grants = chain.to_vec();
        revoke(&mut grants, RoleId::OWNER, ADA, RoleId::OWNER, read, false, true).unwrap();
        assert_eq!(grants, [chain[3]]);
        // Only the option: what Ada granted goes, what she has stays.
        let mut grants = chain.to_vec();
        revoke(&mut grants, RoleId::OWNER, ADA, RoleId::OWNER, read, true, true).unwrap();
        assert_eq!(grants, [given(ADA, RoleId::OWNER, read, Privileges::NONE), chain[3]]);
        // Somebody else has granted it too.
        let mut grants = chain.to_vec();
        grant(&mut grants, given(BOB, RoleId::OWNER, read, read));
        revoke(&mut grants, RoleId::OWNER, ADA, RoleId::OWNER, read, false, true).unwrap();
        assert!(grants.contains(&chain[2]));
        // Of nobody who has it nothing is taken.
        let mut grants = chain.to_vec();
        revoke(&mut grants, RoleId::OWNER, BOB, RoleId::OWNER, read, false, false).unwrap();
        assert_eq!(grants, chain);
    }

    #[test]
    fn an_object_is_given_away_with_its_grants() {
        let all = AccessKind::Table.privileges();
        let mut access = Access::of(ADA);
        access.grants =
            Some(vec![given(ADA, ADA, all, Privileges::NONE), given(BOB, ADA, Privileges::SELECT, Privileges::NONE)]);
        access.give_to(BOB);
        assert_eq!((access.owner, access.grants), (BOB, Some(vec![given(BOB, BOB, all, Privileges::NONE)])));
    }
}
