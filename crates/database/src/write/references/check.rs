//! Checks: of rows that refer to keys, and of keys that are no more.

use super::link::{KEYS_KNOWN_MAX, Link, Reference, read_columns};
use super::pending::{Deferred, Event, Loss, Lost, RowRules, Rows, Views, concurrent_update};
use super::state::Referring;
use crate::{DatabaseVersion, Transaction};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::rows::{Outcome, RowLock};
use tidepool_table::{BATCH_ROWS, ReferentialAction, TableDef, TableVersion};

/// Keys that were lost in the same way, by table and index.
type Losses = BTreeMap<(TableId, TableId, Loss), Arc<[Lost]>>;

/// What a foreign key wants done where keys are no more that its rows may refer to.
struct Task {
    child: TableId,
    key: u32,
    action: ReferentialAction,
    deleted: bool,
    lost: Vec<Arc<[Lost]>>,
}

/// Verifies the foreign keys of a table, those that are valid, as one view of everything shows it. Tells `fault` of each
/// row that refers to nothing. An error is `interrupted`'s, or why rows could not be read.
pub(crate) fn verify(
    version: &DatabaseVersion,
    table: &Arc<TableVersion>,
    interrupted: &dyn Fn() -> Result<()>,
    fault: &mut dyn FnMut(String),
) -> Result<()> {
    if table.def.partitioning.is_some() {
        // Its partitions have the rows, and the foreign keys too.
        return Ok(());
    }
    for key in table.def.foreign_keys.iter().filter(|key| !key.not_valid) {
        let Some(parent) = version.table_of_id(key.referenced) else {
            fault(format!("foreign key \"{}\" refers to a table that is not there", key.name));
            continue;
        };
        let child = table.table();
        let mut link = Link::new(version.state(), key, child, vec![child.clone()], parent)?;
        link.open_all(version.state())?;
        // After a start it may be made still.
        if link.is_complete_for(table.view()) {
            link.each_orphan(table, interrupted, &mut |orphan| {
                fault(format!("foreign key \"{}\": {}", key.name, orphan.detail().unwrap_or_default()));
                Ok(())
            })?;
        }
    }
    Ok(())
}

impl Transaction {
    /// Checks what was written since the last time against foreign keys, and does what they want done to other rows. At a
    /// statement's end; a commit does it otherwise. 23503 where a row refers to nothing, or a key that is gone is referred
    /// to; 40001 where the transaction's one snapshot does not allow what is to be done.
    pub fn check_references(&mut self, rules: &dyn RowRules) -> Result<()> {
        if self.references.events.is_empty() {
            return Ok(());
        }
        QueryHeap::outside(|| self.check_events(rules))
    }

    /// Whether there is anything that waits for the transaction's end.
    pub(crate) fn has_references(&self) -> bool {
        !self.references.events.is_empty() || !self.references.deferred.is_empty()
    }

    /// As PostgreSQL's triggers do: what a statement did first, then what came of that.
    fn check_events(&mut self, rules: &dyn RowRules) -> Result<()> {
        loop {
            let mut lost: BTreeMap<_, Vec<Lost>> = BTreeMap::new();
            let mut written: BTreeMap<TableId, Vec<Rows>> = BTreeMap::new();
            for event in std::mem::take(&mut self.references.events) {
                match event {
                    Event::Written { table, rows } => written.entry(table).or_default().push(rows),
                    Event::Lost { index, lost: one } => {
                        lost.entry((one.place.0, index, one.loss)).or_default().push(one);
                    }
                }
            }
            if lost.is_empty() && written.is_empty() {
                self.references.moved.clear();
                return Ok(());
            }
            let losses: Losses = lost.into_iter().map(|(key, lost)| (key, lost.into())).collect();
            for task in self.tasks(&losses)? {
                self.lose(&task, rules)?;
            }
            for (table, rows) in written {
                let rows: Arc<[Rows]> = rows.into();
                let state = self.state();
                let Some(of_table) = state.table_of_id(table) else { continue };
                for key in &of_table.def.foreign_keys {
                    if self.references.is_deferred(key) {
                        let key = key.oid;
                        self.references.deferred.push(Deferred::Written { table, key, rows: rows.clone() });
                    } else if let Some(mut link) = self.link(table, key.oid)? {
                        self.require_references(&mut link, &rows)?;
                    }
                }
            }
        }
    }

    /// What is to be done about keys that are no more, the tables locked that have the foreign keys.
    fn tasks(&mut self, losses: &Losses) -> Result<Vec<Task>> {
        loop {
            let tasks = self.tasks_as_of_now(losses);
            let state = self.state();
            let is_partitioned =
                |task: &Task| state.table_of_id(task.child).is_some_and(|child| child.def.partitioning.is_some());
            if !tasks.iter().any(is_partitioned) {
                return Ok(tasks);
            }
            // A partition may leave meanwhile, and take its part along as a foreign key of its own. (None comes to be
            // while the locks of the rows' tables are held.)
            for task in &tasks {
                if let Some(child) = self.shared_by_id(task.child)? {
                    self.share_nodes(&child)?;
                }
            }
            let keys = |tasks: &[Task]| tasks.iter().map(|task| task.key).collect::<Vec<u32>>();
            if keys(&self.tasks_as_of_now(losses)) == keys(&tasks) {
                return Ok(tasks);
            }
        }
    }

    /// In the order of tables and indexes, and for each in which the foreign keys were made.
    fn tasks_as_of_now(&self, losses: &Losses) -> Vec<Task> {
        let state = self.state();
        let mut tasks: Vec<Task> = Vec::new();
        for ((table, index, loss), lost) in losses {
            let mut referring = state.foreign_keys_on(*table);
            referring.retain(|referring| referring.index == *index);
            referring.sort_by_key(|referring| referring.key.oid);
            for Referring { child, key, .. } in referring {
                let deleted = match loss {
                    Loss::Deleted => true,
                    Loss::Changed => false,
                    Loss::Moved => key.referenced == *table,
                };
                let known = tasks.iter_mut().find(|task| task.key == key.oid && task.deleted == deleted);
                match known {
                    Some(task) => task.lost.push(lost.clone()),
                    None => tasks.push(Task {
                        child: child.def.id,
                        key: key.oid,
                        action: if deleted { key.on_delete } else { key.on_update },
                        deleted,
                        lost: vec![lost.clone()],
                    }),
                }
            }
        }
        tasks
    }

    fn lose(&mut self, task: &Task, rules: &dyn RowRules) -> Result<()> {
        let Task { child: table, key, action, deleted, .. } = *task;
        let Some(mut link) = self.link(table, key)? else { return Ok(()) };
        let lost: Arc<[Lost]> = match task.lost.as_slice() {
            [lost] => lost.clone(),
            several => several.iter().flat_map(|lost| lost.iter().cloned()).collect(),
        };
        match action {
            ReferentialAction::NoAction if self.references.is_deferred(&link.key) => {
                self.references.deferred.push(Deferred::Lost { table, key, lost });
                Ok(())
            }
            ReferentialAction::NoAction => self.require_unreferenced(&mut link, &lost, true),
            ReferentialAction::Restrict => self.require_unreferenced(&mut link, &lost, false),
            ReferentialAction::SetNull => self.act(&link, &lost, deleted, action, rules),
            ReferentialAction::Cascade | ReferentialAction::SetDefault => {
                self.act(&link, &lost, deleted, action, rules)?;
                // A default may be the key that was lost, and a new key the old one in the other column's type. Nothing
                // changed then that would be checked.
                let may_stay = action == ReferentialAction::SetDefault || !deleted && !link.has_same_types();
                if may_stay { self.require_unreferenced(&mut link, &lost, true) } else { Ok(()) }
            }
        }
    }

    /// Checks what was deferred, of the foreign keys that `chosen` says.
    pub(super) fn check_deferred(&mut self, chosen: &dyn Fn(u32) -> bool) -> Result<()> {
        // It stays, for going back to a savepoint from before.
        let deferred = std::mem::take(&mut self.references.deferred);
        let checked = deferred.iter().try_for_each(|deferred| match deferred {
            Deferred::Written { table, key, rows } if chosen(*key) => match self.link(*table, *key)? {
                Some(mut link) => self.require_references(&mut link, rows),
                None => Ok(()),
            },
            Deferred::Lost { table, key, lost } if chosen(*key) => match self.link(*table, *key)? {
                Some(mut link) => self.require_unreferenced(&mut link, lost, true),
                None => Ok(()),
            },
            _ => Ok(()),
        });
        self.references.deferred = deferred;
        checked
    }

    /// 55006 where checks that wait for the transaction's end know a table's rows, or keys, as they are.
    pub(crate) fn check_nothing_pends(&self, table: &TableDef, what: &str) -> Result<()> {
        let state = self.state();
        let is_of = |whole: TableId| {
            let mut within = Some(table.id);
            while let Some(id) = within.filter(|id| *id != whole) {
                within = state.table_of_id(id).and_then(|table| table.def.partition_of);
            }
            within.is_some()
        };
        let refers = |child: TableId, key: u32| {
            let keys = state.table_of_id(child).map_or(&[][..], |child| &child.def.foreign_keys);
            keys.iter().any(|known| known.oid == key && is_of(known.referenced))
        };
        let pends = self.references.deferred.iter().any(|deferred| match deferred {
            Deferred::Written { table: child, .. } => *child == table.id,
            Deferred::Lost { table: child, key, .. } => is_of(*child) || refers(*child, *key),
        });
        if !pends {
            return Ok(());
        }
        Err(Error::new(
            SqlState::OBJECT_IN_USE,
            format!("cannot {what} \"{}\" because it has pending trigger events", table.name),
        ))
    }

    /// At the transaction's end: everything.
    pub(crate) fn check_all_references(&mut self) -> Result<()> {
        self.check_events(&())?;
        self.check_deferred(&|_| true)
    }

    /// Finds the row that each of these refers to, and locks it. 23503 when there is none.
    fn require_references(&mut self, link: &mut Link, rows: &[Rows]) -> Result<()> {
        let mut views = self.views()?;
        let mut known: HashSet<Vec<u8>> = HashSet::new();
        let mut key = Vec::new();
        let ids = rows.iter().flat_map(|rows| {
            let (first, count) = match *rows {
                Rows::One(row) => (row, 1),
                Rows::Range(range, count) => (RowId::new(range, 0), count),
            };
            (0..count as u64).map(move |place| RowId(first.0 + place))
        });
        let mut ids = ids.peekable();
        let patience = self.patience();
        while ids.peek().is_some() {
            patience.check()?;
            let part: Vec<RowId> = ids.by_ref().take(BATCH_ROWS).collect();
            // A row that is gone by now refers to nothing.
            let (found, columns) = read_columns(&link.leaves[0].rows, &views.now, &part, &link.positions)?;
            for row in 0..found.len() {
                match link.reference(&columns, row, &mut key)? {
                    Reference::Nothing => {}
                    Reference::Mixed => return Err(link.mixed()),
                    Reference::Nowhere => return Err(link.not_present(&columns, row)?),
                    Reference::Key if known.contains(&key) => {}
                    Reference::Key => {
                        self.open_parent(link, &key)?;
                        if !self.lock_referenced(link, &mut views, &key)? {
                            // Who goes on after a savepoint knows that the key is not there.
                            match link.place(&key)? {
                                Some(place) => self.read_all_of(&link.parent_at(place)?.table),
                                None => self.read_all_of(&link.parent),
                            }
                            return Err(link.not_present(&columns, row)?);
                        }
                        if known.len() == KEYS_KNOWN_MAX {
                            known.clear();
                        }
                        known.insert(key.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Locks the parent's row that has a key `FOR KEY SHARE`. False when there is none.
    fn lock_referenced(&mut self, link: &Link, views: &mut Views, key: &[u8]) -> Result<bool> {
        let mut is_fresh = false;
        loop {
            let Some(found) = link.referenced(&views.own, key)? else {
                // Somebody may have committed it since the view was drawn.
                if is_fresh || self.has_one_snapshot() {
                    return Ok(false);
                }
                *views = self.views()?;
                is_fresh = true;
                continue;
            };
            if self.has_one_snapshot() && link.referenced(&views.now, key)? != Some(found) {
                return Err(concurrent_update());
            }
            let (place, row) = found;
            let rows = &link.parent_at(place)?.table.rows;
            let (worker, writes) = self.writing();
            match rows.lock_row(worker, &views.now, writes, row, RowLock::KeyShare)? {
                Outcome::Written | Outcome::SelfModified => return Ok(true),
                Outcome::Conflict(tag) => self.wait(tag)?,
                Outcome::Newer { .. } | Outcome::Deleted => {}
            }
            *views = self.views()?;
            is_fresh = true;
        }
    }

    /// 23503 when a row refers to one of these keys, unless `may_return` and some row of the parent's has that key anew.
    fn require_unreferenced(&mut self, link: &mut Link, lost: &[Lost], may_return: bool) -> Result<()> {
        if may_return {
            lost.iter().try_for_each(|lost| self.open_parent(link, &lost.key))?;
        }
        let link = &*link;
        let mut views = self.views()?;
        let view = views.now.clone();
        let keys: HashMap<Vec<u8>, usize> =
            lost.iter().enumerate().map(|(number, lost)| (lost.key.clone(), number)).collect();
        let mut returned: HashMap<usize, bool> = HashMap::new();
        let patience = self.patience();
        link.children(&view, &keys, &*patience, &mut |leaf, found| {
            for (row, number) in found {
                let key = &lost[*number].key;
                if may_return {
                    let is_there = match returned.get(number) {
                        Some(is_there) => *is_there,
                        None => {
                            let is_there = match link.referenced(&views.now, key)? {
                                Some(_) => self.lock_referenced(link, &mut views, key)?,
                                None => false,
                            };
                            returned.insert(*number, is_there);
                            is_there
                        }
                    };
                    if is_there {
                        continue;
                    }
                }
                if self.still_refers(link, leaf, &mut views, *row, key)? {
                    self.read_all_of(&link.leaves[leaf]);
                    return Err(link.still_referenced(&self.state(), &lost[*number])?);
                }
            }
            Ok(())
        })
    }

    /// Whether a row that refers to a key does so once whoever is changing it is done.
    fn still_refers(&mut self, link: &Link, leaf: usize, views: &mut Views, row: RowId, key: &[u8]) -> Result<bool> {
        loop {
            if !link.refers(leaf, &views.now, row, key)? {
                return Ok(false);
            }
            let (worker, writes) = self.writing();
            match link.leaves[leaf].rows.lock_row(worker, &views.now, writes, row, RowLock::KeyShare)? {
                Outcome::Written | Outcome::SelfModified => return Ok(true),
                Outcome::Conflict(tag) => self.wait(tag)?,
                Outcome::Newer { .. } | Outcome::Deleted => {}
            }
            *views = self.views()?;
        }
    }
}
