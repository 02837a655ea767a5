//! A table's columns and indexes as the advisor sees them: what each takes, was read for, and costs in a tablespace.

use super::{ColumnFacts, Move, Part, TablePlacement};
use crate::{DatabaseVersion, IndexRecord, TableRecord, Workload};
use std::sync::Arc;
use tidepool_base::SchemaId;
use tidepool_device::{Access, CostModel, Excess, Pattern};
use tidepool_index::IndexMemory;
use tidepool_table::{ColumnUsage, IndexDef, IndexUse, TableVersion};

/// Of a table, one of what can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// By position.
    Column(usize),
    /// By its place in the definition.
    Index(usize),
}

pub(super) struct Table {
    version: Arc<TableVersion>,
    schema: Option<String>,
    /// With the schema's.
    name: String,
    record: TableRecord,
    /// Empty where main has no rows: nothing is there to be placed.
    columns: Vec<ColumnUsage>,
    indexes: Vec<Index>,
}

struct Index {
    def: IndexDef,
    memory: IndexMemory,
    tablespace: String,
    record: IndexRecord,
}

/// What an index's use costs beyond local memory. Lines that are read one by one are transferred beneath the waits for them;
/// only what takes longer than these is the link's own.
pub fn index_excess(model: &CostModel, used: &IndexUse, memory: IndexMemory) -> Excess {
    let accesses = used.touched.accesses(memory);
    let mut excess = model.excess_of(&accesses);
    let is_random = |access: &&Access| matches!(access.pattern, Pattern::Random { .. });
    let waits_ns: f64 = accesses.iter().filter(is_random).map(|access| model.excess_of(&[*access]).wait_ns).sum();
    excess.transfer_ns = (excess.transfer_ns - waits_ns).max(0.0);
    excess
}

impl Table {
    /// `None` where nothing is to be placed.
    pub fn of(database: &DatabaseVersion, version: Arc<TableVersion>, workload: &Workload) -> Option<Table> {
        let record = workload.tables.get(&version.def.id).cloned().unwrap_or_default();
        let has_main = !version.row_groups.is_empty();
        let index = |def: &IndexDef| {
            let table = version.table();
            Some(Index {
                memory: table.index(def.id)?.tree().memory(),
                tablespace: table.index_tablespace(def).to_owned(),
                record: record.index(def.id),
                def: def.clone(),
            })
        };
        let indexes: Vec<Index> = match version.rows_max() {
            0 => Vec::new(),
            _ => version.def.indexes.iter().filter_map(index).collect(),
        };
        let def = &version.def;
        (has_main || !indexes.is_empty()).then(|| Table {
            schema: (def.schema != SchemaId::PUBLIC).then(|| database.schema_name(def.schema).to_owned()),
            name: database.shown_name(def),
            columns: if has_main { version.column_usage() } else { Vec::new() },
            indexes,
            record,
            version: version.clone(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn schema(&self) -> Option<String> {
        self.schema.clone()
    }

    /// Without the schema's.
    pub fn table_name(&self) -> String {
        self.version.def.name.clone()
    }

    pub fn columns(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.columns.len()).map(Place::Column)
    }

    pub fn indexes(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.indexes.len()).map(Place::Index)
    }

    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        self.columns().chain(self.indexes())
    }

    pub fn part(&self, place: Place) -> Part {
        match place {
            Place::Column(column) => Part::Column(self.version.def.columns[column].name.clone()),
            Place::Index(index) => Part::Index(self.indexes[index].def.name.clone()),
        }
    }

    pub fn bytes(&self, place: Place) -> u64 {
        match place {
            Place::Column(column) => self.columns[column].encoded_bytes,
            Place::Index(index) => self.indexes[index].memory.held_bytes,
        }
    }

    /// Where it is now.
    pub fn tablespace(&self, place: Place) -> &str {
        match place {
            Place::Column(column) => self.version.placement.column(column),
            Place::Index(index) => &self.indexes[index].tablespace,
        }
    }

    /// What was recorded of it.
    pub fn accesses(&self, place: Place) -> Vec<Access> {
        match place {
            Place::Column(column) => self.record.column(column).access.main().to_vec(),
            Place::Index(index) => {
                let Index { memory, record, .. } = &self.indexes[index];
                record.used.touched.accesses(*memory).to_vec()
            }
        }
    }

    pub fn facts(&self, place: Place) -> ColumnFacts {
        let (scans, rows_read) = match place {
            Place::Column(column) => {
                let record = self.record.column(column);
                (record.scans, record.access.rows)
            }
            Place::Index(index) => {
                let record = self.indexes[index].record;
                (record.scans, record.used.entries)
            }
        };
        ColumnFacts { bytes: self.bytes(place), scans, rows_read }
    }

    pub fn excess(&self, place: Place, model: &CostModel) -> Excess {
        match place {
            Place::Column(column) => model.excess_of(&self.record.column(column).access.main()),
            Place::Index(index) => {
                let Index { memory, record, .. } = &self.indexes[index];
                index_excess(model, &record.used, *memory)
            }
        }
    }

    /// Time in which scanning threads worked, ns.
    pub fn work_ns(&self) -> f64 {
        self.record.work_ns as f64
    }

    /// What is waited for of the time that the link needs, if all is in one place: between 0 and 1.
    fn exposed(&self, model: &CostModel) -> f64 {
        let transfer_ns: f64 = self.places().map(|place| self.excess(place, model).transfer_ns).sum();
        if transfer_ns > 0.0 { (1.0 - self.work_ns() / transfer_ns).max(0.0) } else { 0.0 }
    }

    /// A part's own share of what its table waits for.
    pub fn stall_ns(&self, place: Place, model: &CostModel) -> f64 {
        let excess = self.excess(place, model);
        excess.wait_ns + excess.transfer_ns * self.exposed(model)
    }

    pub fn delta_bytes_in(&self, tablespace: &str) -> u64 {
        if self.version.placement.delta == tablespace { self.version.delta_bytes() } else { 0 }
    }

    /// What leads from where its parts are to where they are wanted: all moves away from a tablespace may come before those
    /// into it.
    pub fn moves_to(&self, wanted: &TablePlacement, moves: &mut Vec<Move>) {
        let step = |part: Option<Part>, tablespace: &str| Move {
            schema: self.schema.clone(),
            table: self.version.def.name.clone(),
            part,
            tablespace: tablespace.to_owned(),
        };
        let now = &self.version.placement;
        let different: Vec<usize> =
            (0..wanted.columns.len()).filter(|column| now.column(*column) != wanted.columns[*column]).collect();
        let mut delta = now.delta.as_str();
        match different.first().map(|first| &wanted.columns[*first]) {
            Some(one) if wanted.columns.iter().all(|tablespace| tablespace == one) => {
                moves.push(step(None, one));
                delta = one;
            }
            _ => {
                let columns = different.into_iter();
                moves.extend(
                    columns.map(|column| step(Some(self.part(Place::Column(column))), &wanted.columns[column])),
                );
            }
        }
        for (index, wanted) in self.indexes.iter().zip(&wanted.indexes) {
            // One without a tablespace of its own goes with the table; to stay behind, it is given one.
            if index.def.tablespace.as_deref().unwrap_or(delta) != wanted {
                moves.push(step(Some(Part::Index(index.def.name.clone())), wanted));
            }
        }
    }
}
