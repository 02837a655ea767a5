//! What a statement was planned against, looked at again once the statement has its locks.
//!
//! A statement looks names and privileges up over what exists when it begins, and takes its locks only then. While it waits for a lock,
//! or between the two, others may change what it looked up: definitions, privileges, indexes, partitions, views, roles. So a
//! transaction that gets a lock compares what the statement looked up as it was with what it is now ([`Transaction::stand_on`]).
//! Where these differ, nothing of the statement may stand: it is undone, and planned anew by whoever runs it
//! ([`Footing::is_overtaken`]).
//!
//! A statement records what it looks up while it is planned, so a change of anything else does not disturb it. What the
//! transaction has changed itself is the same on both sides of the comparison.
//!
//! A transaction with one snapshot reads what exists as of it, and cannot be planned anew: that its tables are the ones that it
//! sees is checked with their locks ([`Transaction::check_current`]), and here that nobody took privileges away since.

use crate::catalog::relation::RelationName;
use crate::catalog::roles::AccessObject;
use crate::catalog::state::DatabaseState;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{Error, RoleId, SqlState, TableId};

#[derive(Debug, Default)]
pub struct Footing {
    /// What was committed before the statement looked anything up. `None` where nothing is planned. Not held: a statement may
    /// wait until nobody has it any more.
    pub(super) since: Option<Weak<DatabaseState>>,
    pub(super) looked_up: Mutex<LookedUp>,
    /// The statement cannot be planned anew any more.
    is_fixed: AtomicBool,
    is_overtaken: AtomicBool,
}

/// What a statement asked for, whether it was there or not.
#[derive(Clone, Debug, Default)]
pub struct LookedUp {
    schemas: BTreeSet<String>,
    names: BTreeSet<RelationName>,
    relations: BTreeSet<TableId>,
    roles: BTreeSet<RoleId>,
}

impl Footing {
    /// Of a statement that is planned over `since`, or over what came after it.
    pub fn on(since: &Arc<DatabaseState>) -> Footing {
        Footing { since: Some(Arc::downgrade(since)), ..Footing::default() }
    }

    fn record(&self, what: impl FnOnce(&mut LookedUp)) {
        if self.since.is_some() {
            tidepool_heap::QueryHeap::outside(|| what(&mut self.looked_up.lock()));
        }
    }

    pub fn schema(&self, name: &str) {
        self.record(|looked_up| {
            if !looked_up.schemas.contains(name) {
                looked_up.schemas.insert(name.to_owned());
            }
        });
    }

    /// A relation's name, or an index's.
    pub fn name(&self, name: &RelationName) {
        self.record(|looked_up| {
            if !looked_up.names.contains(name) {
                looked_up.names.insert(name.clone());
            }
        });
    }

    pub fn relation(&self, id: TableId) {
        self.record(|looked_up| _ = looked_up.relations.insert(id));
    }

    /// Whom something is done for.
    pub fn role(&self, id: RoleId) {
        self.record(|looked_up| _ = looked_up.roles.insert(id));
    }

    /// What was looked up so far.
    pub fn looked_up(&self) -> LookedUp {
        self.looked_up.lock().clone()
    }

    /// Looks up what another statement did that means the same: a plan of its is used.
    pub fn look_up(&self, as_before: &LookedUp) {
        self.record(|looked_up| {
            looked_up.schemas.extend(as_before.schemas.iter().cloned());
            looked_up.names.extend(as_before.names.iter().cloned());
            looked_up.relations.extend(as_before.relations.iter().copied());
        });
    }

    /// From now on the statement fails where it would be planned anew: its client has had part of its answer.
    pub fn fix(&self) {
        self.is_fixed.store(true, Ordering::Release);
    }

    /// What the statement was planned against has changed: it did nothing, and is to be planned anew.
    pub fn is_overtaken(&self) -> bool {
        self.is_overtaken.load(Ordering::Acquire)
    }

    /// Marks the statement as one to be planned anew, unless it is fixed.
    pub(super) fn overtake(&self) {
        if !self.is_fixed.load(Ordering::Acquire) {
            self.is_overtaken.store(true, Ordering::Release);
        }
    }
}

impl LookedUp {
    /// The relations that the names meant, and those that were asked for by their ids.
    fn relations(&self, state: &DatabaseState) -> BTreeSet<TableId> {
        let named = self.names.iter().filter_map(|name| state.id_of(name));
        named.chain(self.relations.iter().copied()).collect()
    }

    pub(super) fn means_the_same(&self, then: &DatabaseState, now: &DatabaseState) -> bool {
        let id = |state: &DatabaseState, name: &String| state.schema(name).map(|schema| schema.id);
        self.schemas.iter().all(|name| id(then, name) == id(now, name))
            && self.names.iter().all(|name| then.id_of(name) == now.id_of(name))
            && self.relations(then).into_iter().all(|id| is_the_same(then, now, id))
            && self.may_the_same(then, now)
    }

    /// Nothing changed of who may do what with what was looked up.
    pub(super) fn may_the_same(&self, then: &DatabaseState, now: &DatabaseState) -> bool {
        let (then_catalog, now_catalog) = (&then.catalog, &now.catalog);
        if Arc::ptr_eq(then_catalog, now_catalog) {
            return true;
        }
        let relations = self.relations(then);
        let schemas = self.schemas.iter().filter_map(|name| then.schema(name)).map(|schema| schema.id);
        let mut objects: BTreeSet<AccessObject> = relations.iter().copied().map(AccessObject::Relation).collect();
        objects.extend(schemas.map(AccessObject::Schema));
        objects.extend(self.names.iter().map(|name| AccessObject::Schema(name.schema)));
        let of_all = |object: &&AccessObject| matches!(object, AccessObject::Database | AccessObject::Tablespace(_));
        let all = then_catalog.access.keys().chain(now_catalog.access.keys());
        objects.extend(all.filter(of_all).cloned());
        // A view's query works for the view's owner.
        let mut roles = self.roles.clone();
        roles.extend(relations.iter().map(|id| then_catalog.owner_of(&AccessObject::Relation(*id))));
        objects.iter().all(|object| then_catalog.access.get(object) == now_catalog.access.get(object))
            && roles.iter().all(|id| {
                let is = |catalog: &crate::Catalog| {
                    let role = catalog.roles.get(id).map(|role| (role.name.clone(), role.superuser, role.create_role));
                    (role, catalog.roles_of(*id, true))
                };
                is(then_catalog) == is(now_catalog)
            })
    }
}

/// Whether a relation is as it was: its definition, its rows' place, its partitions, what refers to it.
fn is_the_same(then: &DatabaseState, now: &DatabaseState, id: TableId) -> bool {
    let (before, after) = match (then.table_of_id(id), now.table_of_id(id)) {
        (Some(before), Some(after)) => (before, after),
        (None, None) => {
            let views = (then.catalog.view_by_id(id), now.catalog.view_by_id(id));
            let sequence =
                |state: &DatabaseState| state.catalog.sequence_by_id(id).map(|sequence| sequence.def.clone());
            return views.0 == views.1 && sequence(then) == sequence(now);
        }
        _ => return false,
    };
    if Arc::ptr_eq(before, after) && before.def.partitioning.is_none() {
        return then.referencing.get(&id) == now.referencing.get(&id);
    }
    let partitions = before.def.partitioning.iter().flat_map(|partitioning| &partitioning.partitions);
    before.def == after.def
        && Arc::ptr_eq(&before.rows, &after.rows)
        && then.referencing.get(&id) == now.referencing.get(&id)
        && partitions.into_iter().all(|partition| is_the_same(then, now, partition.id))
}

impl DatabaseState {
    /// The relation or index that has a name.
    fn id_of(&self, name: &RelationName) -> Option<TableId> {
        let table = self.table(name).map(|table| table.def.id);
        let view = || self.catalog.views.get(name).map(|view| view.id);
        let sequence = || self.catalog.sequences.get(name).map(|sequence| sequence.def.id);
        let index = || self.index(name).map(|(_, index)| index.id);
        table.or_else(view).or_else(sequence).or_else(index)
    }
}

/// 40001, for a statement that is not, or cannot be, planned anew.
pub(super) fn overtaken() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail("What the statement was planned against was altered while the statement waited for a lock.")
        .with_hint("The transaction might succeed if retried.")
}
