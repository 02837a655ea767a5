//! That no id is there twice: in a manifest, and in what a start comes upon.

use super::manifest::{Manifest, SavedTable};
use crate::durability::ids::{Ids, NO_ID, NextIds, Object, check_objects, each_oid_of};
use std::collections::{BTreeMap, HashMap};
use tidepool_base::{Error, Result, RowGroupId, StoreId, TableId};

impl Ids {
    /// As a manifest has it: above all that it says, and all that it names.
    pub fn of(manifest: &Manifest) -> Ids {
        let ids = Ids::starting_at(&NextIds {
            oid: manifest.next_table_id,
            row_group: manifest.next_row_group_id,
            store: manifest.next_store_id,
            chunk: manifest.next_chunk_id,
        });
        for table in &manifest.tables {
            table.row_groups.iter().for_each(|file| ids.pass_row_group(RowGroupId(file.id)));
            table.delta.iter().for_each(|file| ids.pass_chunk(file.id));
            table.store.iter().for_each(|store| ids.pass_store(*store));
        }
        each_oid(manifest, &mut |oid, _| ids.pass_oid(oid));
        ids
    }

    /// As a data folder has it: also above what is in files that the manifest does not name. `files`: the names in folder `rows`;
    /// `positions`: what file `SEQUENCES` has.
    pub fn of_folder(manifest: &Manifest, files: &[String], positions: impl Iterator<Item = u32>) -> Ids {
        let ids = Ids::of(manifest);
        // A sequence's values are given, and how far, before what makes it is committed.
        positions.for_each(|position| ids.pass_oid(position));
        for name in files {
            let Some((kind, rest)) = name.split_once('-') else { continue };
            // Temporary files begin with the name that they were to have.
            let number = rest.split('.').next().and_then(|number| u64::from_str_radix(number, 16).ok());
            let number = number.filter(|number| *number < NO_ID);
            match (kind, number) {
                ("main", Some(id)) => ids.pass_row_group(RowGroupId(id)),
                ("delta", Some(id)) => ids.pass_chunk(id),
                _ => {}
            }
        }
        ids
    }
}

/// What names an id, while it is looked whether anything else does.
#[derive(Debug, Default)]
pub(crate) struct Census {
    row_groups: HashMap<u64, Named>,
    chunks: HashMap<u64, TableId>,
    stores: HashMap<StoreId, TableId>,
}

/// Whose a row group is: one store's, or that of several stores of a table, one after the other.
#[derive(Debug)]
struct Named {
    table: TableId,
    stores: Vec<StoreId>,
}

fn twice(what: &str, id: u64, one: TableId, other: TableId) -> Error {
    let whose = match one == other {
        true => format!("Both uses are by table {one}."),
        false => format!("It is used by tables {one} and {other}."),
    };
    Error::corrupted(format!("{what} {id} is there twice")).with_detail(whose)
}

impl Census {
    /// A store's row group. XX001 if the store has it already, or another table. The same rows may go from one store of a table to
    /// the next.
    pub fn row_group(&mut self, id: RowGroupId, table: TableId, store: StoreId) -> Result<()> {
        let named = self.row_groups.entry(id.0).or_insert_with(|| Named { table, stores: Vec::new() });
        if named.table != table || named.stores.contains(&store) {
            return Err(twice("row group", id.0, named.table, table));
        }
        named.stores.push(store);
        Ok(())
    }

    /// As `row_group`, of the rows that tables have at one time: it is nobody else's, and of no other store.
    pub fn present_row_group(&mut self, id: RowGroupId, table: TableId, store: StoreId) -> Result<()> {
        match self.row_groups.insert(id.0, Named { table, stores: vec![store] }) {
            Some(before) => Err(twice("row group", id.0, before.table, table)),
            None => Ok(()),
        }
    }

    pub fn store(&mut self, id: StoreId, table: TableId) -> Result<()> {
        match self.stores.insert(id, table) {
            Some(other) => Err(twice("store", id.0, other, table)),
            None => Ok(()),
        }
    }

    fn chunk(&mut self, id: u64, table: TableId) -> Result<()> {
        match self.chunks.insert(id, table) {
            Some(other) => Err(twice("delta file", id, other, table)),
            None => Ok(()),
        }
    }

    fn saved_table(&mut self, table: &SavedTable) -> Result<()> {
        let id = table.def.id;
        let store = table.store.unwrap_or(StoreId(0));
        if table.store.is_some() {
            self.store(store, id)?;
        }
        let mut ranges = BTreeMap::new();
        for (place, file) in table.row_groups.iter().enumerate() {
            let range = file.range.unwrap_or(place as u64);
            self.present_row_group(RowGroupId(file.id), id, store)?;
            if ranges.insert(range, file.id).is_some() {
                return Err(Error::corrupted(format!("range {range} of table {id} has two row groups")));
            }
        }
        table.delta.iter().try_for_each(|file| self.chunk(file.id, id))
    }
}

/// XX001 when a manifest names something twice. To be called when it was read, and before it is written.
pub(crate) fn check_manifest(manifest: &Manifest) -> Result<()> {
    let mut census = Census::default();
    manifest.tables.iter().try_for_each(|table| census.saved_table(table))?;
    check_objects(|take| each_oid(manifest, take))
}

/// XX000 unless all that a manifest names is below what it says may have been drawn: the next process would draw it again.
pub(crate) fn check_counters(manifest: &Manifest) -> Result<()> {
    let next = Ids::of(manifest).next();
    let says = NextIds {
        oid: manifest.next_table_id,
        row_group: manifest.next_row_group_id,
        store: manifest.next_store_id,
        chunk: manifest.next_chunk_id,
    };
    if next == says {
        return Ok(());
    }
    Err(Error::internal("a manifest would name ids that may be drawn again")
        .with_detail(format!("What it names is below {next:?}; it says {says:?}.")))
}

/// Every oid that a manifest names and that was drawn.
fn each_oid(manifest: &Manifest, take: &mut dyn FnMut(u32, Object)) {
    each_oid_of(
        manifest.tables.iter().map(|table| &table.def),
        manifest.views.iter().map(|view| view.id),
        manifest.sequences.iter().map(|sequence| &sequence.def),
        manifest.schemas.iter().flatten().map(|schema| schema.id),
        manifest.roles.iter().map(|role| role.id),
        take,
    );
}
