//! Attaching to what a manifest names: main where it lies, and what of tables main does not show.

use super::found::FoundManifest;
use super::room::read;
use super::{TableView, reader::damaged};
use crate::catalog::relation::RelationName;
use crate::catalog::state::{Catalog, DatabaseState};
use crate::durability::ids;
use crate::durability::storage::{SavedTable, parallel, restore_delta_bytes};
use crate::roles::places::{PoolPlaces, put};
use crate::{Database, Sequence};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, TableId};
use tidepool_pool::member::Member;
use tidepool_table::rows::RowStore;
use tidepool_table::{Table, TableDef};
use tidepool_txn::Worker;

/// What attaching came upon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attached {
    pub tables: usize,
    pub ranges: usize,
    pub image_rows: u64,
    pub took: Duration,
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
        &self,
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
        let ranges = of.ranges().collect::<Result<Vec<_>>>()?;
        let open = |range: &super::RangeView<'_>| {
            let mut places = Vec::new();
            for column in 0..of.columns {
                let place = range.segment(column)?;
                put(&mut places, &place.at, place.head);
            }
            let group = groups.attach(self, &def, &saved.placement, range.group, &places)?;
            if group.rows() as u64 != range.rows {
                let (has, says) = (group.rows(), range.rows);
                return Err(Error::corrupted(format!("a row group has {has} rows, the manifest says {says}")));
            }
            Ok((group, range.dead()?))
        };
        let opened = parallel(&ranges, self.config().threads, open)?;
        let view = worker.snapshot_now();
        for image in of.images() {
            let image = image?;
            let bytes = read(member, &image.place.at)?;
            restore_delta_bytes(&def, image.number, image.rows, &bytes, &rows, &view, ts)?;
            attached.image_rows += image.rows;
        }
        for (range, (group, dead)) in ranges.iter().zip(opened) {
            rows.restore_main_made_at(worker, range.number, group, dead, range.made_at)?;
        }
        rows.end_restoring(&view);
        // The log brings rows to any place; those that this process writes one day go to new ranges.
        rows.seal();
        attached.tables += 1;
        attached.ranges += ranges.len();
        Ok(Table::new(def, saved.placement.clone(), rows))
    }
}
