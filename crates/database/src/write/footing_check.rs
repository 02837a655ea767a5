//! That a transaction still stands on what its statement was planned against, looked at after each lock.

use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::catalog::roles::ACCESS;
use crate::write::footing::{Footing, overtaken};
use std::sync::Arc;
use tidepool_base::Result;

impl Transaction {
    /// From now on each lock that is taken is followed by a look at what the statement that runs was planned against: 40001 where
    /// it is not so any more. `None`: it is over.
    pub fn stand_on(&mut self, footing: Option<Arc<Footing>>) {
        self.footing = footing;
    }

    /// Nothing of what exists has changed since the transaction's one snapshot, if it has one.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.base.as_ref().is_none_or(|base| Arc::ptr_eq(base, &self.database.state()))
    }

    /// A lock was taken.
    pub(crate) fn check_footing(&self, locked: &RelationName) -> Result<()> {
        let Some(footing) = &self.footing else { return Ok(()) };
        let Some(since) = &footing.since else { return Ok(()) };
        let now = self.database.state();
        let is_now = match &self.base {
            Some(base) => Arc::ptr_eq(base, &now),
            None => std::ptr::eq(since.as_ptr(), Arc::as_ptr(&now)),
        };
        if is_now {
            return Ok(());
        }
        // What nobody has any more cannot be compared.
        let Some(then) = self.base.clone().or_else(|| since.upgrade()) else {
            footing.overtake();
            return Err(overtaken());
        };
        let (then, now) = (self.with_changes(then), self.with_changes(now));
        let looked_up = footing.looked_up.lock();
        if self.base.is_some() {
            return if looked_up.may_the_same(&then, &now) { Ok(()) } else { Err(overtaken()) };
        }
        // Who changes roles and privileges looks all of them up once he has their lock.
        let is_of_access = locked.schema == ACCESS;
        let access_stays = !is_of_access
            || Arc::ptr_eq(&then.catalog, &now.catalog)
            || (then.catalog.access == now.catalog.access && then.catalog.roles == now.catalog.roles);
        if access_stays && looked_up.means_the_same(&then, &now) {
            return Ok(());
        }
        footing.overtake();
        Err(overtaken())
    }
}
