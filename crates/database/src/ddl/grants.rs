//! Roles and privileges, made and changed by transactions.

use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::catalog::roles::{ACCESS, Access, AccessObject, RoleDef};
use std::sync::Arc;
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_heap::QueryHeap;

fn role_exists(name: &str) -> Error {
    Error::new(SqlState::DUPLICATE_OBJECT, format!("role \"{name}\" already exists"))
}

impl Transaction {
    /// Whose the objects are that it makes. [`RoleId::OWNER`] unless told otherwise.
    pub fn act_as(&mut self, role: RoleId) {
        self.role = role;
    }

    /// An object was made.
    pub(crate) fn own(&mut self, object: AccessObject) {
        if self.role != RoleId::OWNER {
            self.changes.access.insert(object, Some(Arc::new(Access::of(self.role))));
        }
    }

    /// Waits for others that change roles or privileges, and keeps them waiting until the end. To be called before the version
    /// is looked at that the change is made of.
    pub fn lock_access(&mut self, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        QueryHeap::outside(|| self.lock_name(RelationName::new(ACCESS, "roles and privileges"), interrupted))
    }

    /// 42710 when there is one of this name, 42939 for a name that is the system's.
    pub fn create_role(&mut self, mut role: RoleDef) -> Result<RoleId> {
        QueryHeap::outside(|| {
            self.check_role_name(&role.name)?;
            role.id = RoleId(self.database.next_table_id().0);
            let id = role.id;
            self.changes.roles.insert(id, Some(Arc::new(role)));
            Ok(id)
        })
    }

    /// Puts `role` in the place of the one of its id.
    pub fn alter_role(&mut self, role: RoleDef) -> Result<()> {
        QueryHeap::outside(|| {
            let state = self.state();
            let before = state.catalog.roles.get(&role.id);
            if before.is_some_and(|before| before.name != role.name) {
                self.check_role_name(&role.name)?;
            }
            self.changes.roles.insert(role.id, Some(Arc::new(role)));
            Ok(())
        })
    }

    /// Drops a role that owns nothing and that nothing was granted to, and ends its memberships. 2BP01 otherwise.
    pub fn drop_role(&mut self, id: RoleId) -> Result<()> {
        QueryHeap::outside(|| {
            let state = self.state();
            let uses = |access: &Access| access.owner == id || access.names(id);
            if state.catalog.access.values().any(|access| uses(access)) {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    "a role cannot be dropped because some objects depend on it",
                ));
            }
            for member in state.catalog.roles.values() {
                if member.member_of.iter().any(|of| of.role == id || of.grantor == id) {
                    let mut member = RoleDef::clone(member);
                    member.member_of.retain(|of| of.role != id);
                    // What it granted stays, as the database's owner's doing.
                    for of in member.member_of.iter_mut().filter(|of| of.grantor == id) {
                        of.grantor = RoleId::OWNER;
                    }
                    self.changes.roles.insert(member.id, Some(Arc::new(member)));
                }
            }
            self.changes.roles.insert(id, None);
            Ok(())
        })
    }

    fn check_role_name(&mut self, name: &str) -> Result<()> {
        crate::write::transaction::check_name(name)?;
        if name.starts_with("pg_") || matches!(name, "public" | "none") {
            let error = Error::new(SqlState::RESERVED_NAME, format!("role name \"{name}\" is reserved"));
            return Err(match name.starts_with("pg_") {
                true => error.with_detail("Role names starting with \"pg_\" are reserved."),
                false => error,
            });
        }
        if self.state().catalog.role(name).is_some() {
            return Err(role_exists(name));
        }
        Ok(())
    }

    /// Forgets what was granted on an object that is gone.
    pub fn forget_access(&mut self, object: AccessObject) {
        QueryHeap::outside(|| drop(self.changes.access.insert(object, None)));
    }

    /// Says who may do what with an object.
    pub fn set_access(&mut self, object: AccessObject, access: Access) {
        QueryHeap::outside(|| drop(self.changes.access.insert(object, Some(Arc::new(access)))));
    }
}
