//! Who may do what, as one state of the catalogue says.

use crate::catalog::roles::{Access, AccessObject, RoleDef};
use crate::catalog::state::{Catalog, DatabaseState};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::RoleId;

impl Catalog {
    pub fn role(&self, name: &str) -> Option<&Arc<RoleDef>> {
        self.roles.values().find(|role| role.name == name)
    }

    pub fn access(&self, object: &AccessObject) -> Access {
        self.access.get(object).map_or_else(|| Access::initial(object), |access| Access::clone(access))
    }

    pub fn owner_of(&self, object: &AccessObject) -> RoleId {
        self.access.get(object).map_or(RoleId::OWNER, |access| access.owner)
    }

    /// The roles whose privileges `role` has: itself, and those that it is a member of. With `inherited` only as far as each
    /// takes part in its groups' privileges.
    pub fn roles_of(&self, role: RoleId, inherited: bool) -> BTreeSet<RoleId> {
        let mut all = BTreeSet::from([role]);
        let mut left = vec![role];
        while let Some(next) = left.pop() {
            let Some(def) = self.roles.get(&next).filter(|def| def.inherit || !inherited) else { continue };
            left.extend(def.member_of.iter().map(|of| of.role).filter(|of| all.insert(*of)));
        }
        all
    }
}

impl DatabaseState {
    /// Whether the object that is spoken of exists. Tablespaces are not the state's to know.
    pub(crate) fn has_object(&self, object: &AccessObject) -> bool {
        match object {
            AccessObject::Relation(id) => {
                self.tables.values().any(|table| table.def.id == *id)
                    || self.catalog.view_by_id(*id).is_some()
                    || self.catalog.sequence_by_id(*id).is_some()
            }
            AccessObject::Schema(id) => self.catalog.schemas.contains_key(id),
            AccessObject::Tablespace(_) | AccessObject::Database => true,
        }
    }
}
