//! Attaching to what a manifest names: main where it lies, and what of tables main does not show.
//!
//! Nothing of main is touched: what is left of its size is a look at each place in the manifest, some 2 µs. What decides whether the pool has the database is
//! looked at: the manifest as a whole, by its checksums; that every place that it names makes sense; and that the books of the pool
//! still have every extent that it names for this database. A segment is looked at when something of it is wanted first: what is
//! damaged then is told to whoever wants it, as damage behind a segment's head always was.

use super::found::FoundManifest;
use super::room::read;
use super::{ManifestView, TableView, reader::damaged};
use crate::catalog::relation::RelationName;
use crate::catalog::state::{Catalog, DatabaseState};
use crate::durability::ids;
use crate::durability::storage::{SavedTable, restore_delta_bytes};
use crate::roles::places::PoolPlaces;
use crate::{Database, Sequence};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Result, TableId};
use tidepool_pool::member::Member;
use tidepool_pool::words::{Kind, Owner};
use tidepool_table::rows::RowStore;
use tidepool_table::{ROW_GROUP_ROWS, Table, TableDef};
use tidepool_txn::Worker;

/// What attaching came upon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attached {
    pub tables: usize,
    pub ranges: usize,
    pub image_rows: u64,
    pub took: Duration,
}

/// XX001 unless the pool's books have for the database what a manifest names. The host holds the root that names it.
fn check_named(member: &Member, view: &ManifestView<'_>) -> Result<()> {
    let (pool, books) = (member.pool(), member.pool().books());
    for extent in view.named_extents() {
        if extent.0 >= books.layout.extents {
            return Err(damaged("an extent that it names is not the pool's"));
        }
        match pool.told(books.load(books.layout.owner(extent)))? {
            Owner::Shared { database, .. } | Owner::Orphan { database, .. } if database == member.database() => {}
            // A host that lives goes on filling it. Of a device that is away it is told where something there is read.
            Owner::Filling { kind: Kind::Main, .. } | Owner::Absent => {}
            owner => return Err(damaged(&format!("extent {}, which it names, is {}", extent.0, owner.text()))),
        }
    }
    Ok(())
}

impl Database {
    /// Makes what a manifest names the present state, as of its timestamp, for a database that follows and has nothing yet. Tables have
    /// all of their indexes then, from the first record on that is applied; those of large ones are filled meanwhile.
    pub(crate) fn attach(
        self: &Arc<Self>,
        member: &Member,
        groups: &PoolPlaces,
        found: &FoundManifest,
    ) -> Result<Attached> {
        let begun = Instant::now();
        let mut attached = Attached::default();
        let ts = found.header.commit_ts;
        let view = found.view()?;
        check_named(member, &view)?;
        let tables: HashMap<TableId, TableView<'_>> =
            view.tables().map(|table| table.map(|table| (table.id, table))).collect::<Result<_>>()?;
        let worker = self.transactions().worker()?;
        let mut made = BTreeMap::new();
        for saved in &found.catalogue.tables {
            let of = tables.get(&saved.def.id).filter(|of| Some(of.store) == saved.store);
            let of = of.ok_or_else(|| damaged("a table of its catalogue is missing"))?;
            let table = self.attach_table(member, groups, &worker, saved, of, ts, &mut attached).map_err(|error| {
                let of = format!("table \"{}\"", saved.def.name);
                if error.context().is_none() { error.with_context(of) } else { error }
            })?;
            made.insert(RelationName::from(&*table.def), Arc::new(table));
        }
        let catalogue = &found.catalogue;
        let sequences = catalogue.sequences.iter();
        let catalog = Catalog {
            schemas: catalogue.schemas(),
            views: (catalogue.views.iter()).map(|view| (RelationName::from(view), Arc::new(view.clone()))).collect(),
            sequences: sequences
                .map(|saved| {
                    (RelationName::from(&saved.def), Arc::new(Sequence::at(saved.def.clone(), saved.position)))
                })
                .collect(),
            comments: (catalogue.comments.iter())
                .map(|(about, text)| (about.clone(), Arc::from(text.as_str())))
                .collect(),
            roles: catalogue.roles(),
            access: (catalogue.access.iter())
                .map(|(object, access)| (object.clone(), Arc::new(access.clone())))
                .collect(),
        };
        let mut state = DatabaseState::new(ts, made, Arc::new(catalog));
        state.forget_access_to_missing();
        ids::check_state(&state, &self.ids)?;
        self.set_state(state);
        worker.rest();
        self.index_tables()?;
        attached.took = begun.elapsed();
        Ok(attached)
    }

    #[expect(clippy::too_many_arguments, reason = "what attaching has at hand")]
    fn attach_table(
        self: &Arc<Self>,
        member: &Member,
        groups: &PoolPlaces,
        worker: &Worker,
        saved: &SavedTable,
        of: &TableView<'_>,
        ts: CommitTs,
        attached: &mut Attached,
    ) -> Result<Table> {
        let mut def = TableDef::clone(&saved.def);
        def.number_columns();
        let def = Arc::new(def);
        let rows: Arc<RowStore> = self.rows_of_store(of.store, &def, &saved.placement)?;
        let view = worker.snapshot_now();
        for image in of.images() {
            let image = image?;
            let bytes = read(member, &image.place.at)?;
            restore_delta_bytes(&def, image.number, image.rows, &bytes, &rows, &view, ts)?;
            attached.image_rows += image.rows;
        }
        for range in of.ranges() {
            let range = range?;
            let count = usize::try_from(range.rows).ok().filter(|rows| (1..=ROW_GROUP_ROWS).contains(rows));
            let count = count.ok_or_else(|| damaged("a row group has an impossible number of rows"))?;
            let places = (0..of.columns).map(|column| range.segment(column));
            let group = groups.attach(self, &def, &saved.placement, range.group, count, places)?;
            rows.restore_main_made_at(worker, range.number, group, range.dead()?, range.made_at)?;
            attached.ranges += 1;
        }
        rows.end_restoring(&view);
        // The log brings rows to any place; those that this process writes one day go to new ranges.
        rows.seal();
        attached.tables += 1;
        Ok(Table::new(def, saved.placement.clone(), rows))
    }
}
