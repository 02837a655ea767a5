//! The placement advisor: which columns of main to keep near, given how much near memory they may take, so that the
//! recorded workload would have waited least.
//!
//! What a column costs in a tablespace is what the cost model makes of its recorded accesses there, beyond local
//! memory: waits for first lines and for single rows always; the link's time as far as the scanning threads' own work
//! does not cover it. That last part depends on which other columns share the link; each column is taken to wait for
//! its share of what would be waited for if all of its table were there, so that columns can be weighed one by one.
//! Totals are then made by the exact rule.

mod knapsack;
#[cfg(test)]
mod tests;

pub use knapsack::{Choice, Item, solve};

use crate::{Database, TableRecord, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState};
use tidepool_device::{CostModel, Excess, Profile, local_profile};
use tidepool_table::{ColumnUsage, TableVersion};
use tidepool_tablespace::Tablespace;

/// The tablespace whose memory is limited.
const NEAR: &str = "near";

/// What an advisor is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// What tables may take of `near`, bytes.
    pub near_limit_bytes: u64,
    /// Where the rest goes.
    pub far: String,
    /// What `far` costs, if it has no profile of its own.
    pub profile: Option<Profile>,
}

/// One column's part of an advice. Times are over the whole recorded workload.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnAdvice {
    /// `None`: public.
    pub schema: Option<String>,
    pub table: String,
    pub column: String,
    /// Encoded, main only.
    pub bytes: u64,
    pub tablespace: String,
    pub advised: String,
    /// Its accesses alone, by one thread, with nothing to cover them, ns.
    pub near_ns: f64,
    pub far_ns: f64,
    /// What threads would wait beyond local memory if it were far, and wait where it is now, ns, all threads added up.
    pub stall_far_ns: f64,
    pub stall_now_ns: f64,
}

/// `ALTER TABLE … SET TABLESPACE`, of a table or of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// `None`: public.
    pub schema: Option<String>,
    pub table: String,
    pub column: Option<String>,
    pub tablespace: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Columns that have rows in main: those to be moved far, then near, then those that stay; the costliest first.
    pub columns: Vec<ColumnAdvice>,
    /// In an order in which room is made before it is needed.
    pub moves: Vec<Move>,
    /// Bytes of main and delta in `near`.
    pub near_bytes_now: u64,
    pub near_bytes_advised: u64,
    /// All threads added up, ns.
    pub stall_now_ns: f64,
    pub stall_advised_ns: f64,
    /// No placement within the limit stalls less than this: `stall_advised_ns`, unless the search was cut short.
    pub stall_bound_ns: f64,
}

/// Which tablespace each column of each table is in, by table name, with the schema before it unless that is public.
pub type Placements = BTreeMap<String, Vec<String>>;

/// The recorded workload on the tables as they are, and what tablespaces cost.
pub struct Advisor {
    tables: Vec<Table>,
    models: BTreeMap<String, CostModel>,
}

struct Table {
    version: Arc<TableVersion>,
    schema: Option<String>,
    /// With the schema's.
    name: String,
    record: TableRecord,
    usage: Vec<ColumnUsage>,
}

impl Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn excess(&self, column: usize, model: &CostModel) -> Excess {
        model.excess_of(&self.record.column(column).access.main())
    }

    /// What is waited for of the time that the link needs, if all columns are in one place: between 0 and 1.
    fn exposed(&self, model: &CostModel) -> f64 {
        let transfer_ns: f64 = (0..self.usage.len()).map(|column| self.excess(column, model).transfer_ns).sum();
        if transfer_ns > 0.0 { (1.0 - self.record.work_ns as f64 / transfer_ns).max(0.0) } else { 0.0 }
    }

    /// A column's own part of what its table waits for.
    fn stall_ns(&self, column: usize, model: &CostModel) -> f64 {
        let excess = self.excess(column, model);
        excess.wait_ns + excess.transfer_ns * self.exposed(model)
    }

    fn delta_bytes(&self) -> u64 {
        self.version.delta_bytes()
    }
}

/// What a tablespace costs: its own profile, or local memory (which paged memory is taken for while the cache holds
/// it).
pub fn model_of(space: &Tablespace) -> Result<CostModel> {
    match space.pacer() {
        Some(pacer) => Ok(pacer.model().clone()),
        None => CostModel::on_this_machine(local_profile()?),
    }
}

impl Advisor {
    /// 42704 for a tablespace that does not exist; 55000 for one of which nobody says what it costs.
    pub fn new(database: &Database, workload: &Workload, far: &str, profile: Option<Profile>) -> Result<Advisor> {
        let spaces = database.tablespaces();
        let far = spaces.get(far)?;
        let mut models = BTreeMap::new();
        for space in spaces.list() {
            models.insert(space.name().to_owned(), model_of(&space)?);
        }
        if far.name() == NEAR {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the far tablespace cannot be \"near\""));
        }
        match (far.pacer(), profile) {
            (None, Some(profile)) => {
                models.insert(far.name().to_owned(), CostModel::on_this_machine(profile)?);
            }
            (None, None) if far.paged().is_some() => {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("tablespace \"{}\" is paged", far.name()),
                )
                .with_detail(
                    "What an access costs there depends on what the local cache holds, which the cost model does not follow.",
                )
                .with_hint("Name the profile of a device that it might be instead, as in tidepool.profiles."));
            }
            (None, None) => {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("tablespace \"{}\" has no profile that says what it costs", far.name()),
                )
                .with_hint("Name one: a preset or one of the configuration file, as in tidepool.profiles."));
            }
            (Some(_), Some(_)) => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("tablespace \"{}\" has a profile already", far.name()),
                ));
            }
            (Some(_), None) => {}
        }
        let version = database.version();
        let tables = version.versions().filter(|table| !table.row_groups.is_empty()).map(|table| Table {
            record: workload.tables.get(&table.def.id).cloned().unwrap_or_default(),
            usage: table.column_usage(),
            schema: (table.def.schema != SchemaId::PUBLIC).then(|| version.schema_name(table.def.schema).to_owned()),
            name: version.shown_name(&table.def),
            version: table.clone(),
        });
        Ok(Advisor { tables: tables.collect(), models })
    }

    fn model(&self, tablespace: &str) -> Result<&CostModel> {
        self.models.get(tablespace).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_OBJECT, format!("tablespace \"{tablespace}\" does not exist"))
        })
    }

    /// Where the columns are now.
    pub fn placements(&self) -> Placements {
        let of = |table: &Table| {
            (0..table.usage.len()).map(|column| table.version.placement.column(column).to_owned()).collect()
        };
        self.tables.iter().map(|table| (table.name().to_owned(), of(table))).collect()
    }

    /// Stalls of the recorded workload in a placement, ns, all threads added up.
    pub fn stall_ns(&self, placements: &Placements) -> Result<f64> {
        let mut total = 0.0;
        for table in &self.tables {
            let Some(columns) = placements.get(table.name()) else { continue };
            let mut excess: BTreeMap<&str, Excess> = BTreeMap::new();
            for (column, tablespace) in columns.iter().enumerate() {
                *excess.entry(tablespace).or_default() += table.excess(column, self.model(tablespace)?);
            }
            total += excess.values().map(|excess| excess.stall_ns(table.record.work_ns as f64)).sum::<f64>();
        }
        Ok(total)
    }

    /// Encoded bytes of main in one tablespace.
    pub fn bytes_in(&self, placements: &Placements, tablespace: &str) -> u64 {
        let columns = self.columns();
        columns
            .filter(|(table, column)| {
                placements.get(table.name()).and_then(|columns| columns.get(*column)).is_some_and(|it| it == tablespace)
            })
            .map(|(table, column)| table.usage[column].encoded_bytes)
            .sum()
    }

    /// All of main.
    pub fn bytes(&self) -> u64 {
        self.columns().map(|(table, column)| table.usage[column].encoded_bytes).sum()
    }

    fn columns(&self) -> impl Iterator<Item = (&Table, usize)> {
        self.tables.iter().flat_map(|table| (0..table.usage.len()).map(move |column| (table, column)))
    }

    /// The placement that fills `near` by falling score, column by column as they fit; the rest is far. For comparison
    /// with [`Advisor::advise`]: a score sees bytes, and rows and bytes read of a column.
    pub fn place_by(&self, near_bytes: u64, far: &str, score: impl Fn(ColumnFacts) -> f64) -> Placements {
        let mut order: Vec<(f64, &Table, usize)> = (self.columns())
            .map(|(table, column)| {
                let record = table.record.column(column);
                let facts = ColumnFacts {
                    bytes: table.usage[column].encoded_bytes,
                    scans: record.scans,
                    rows_read: record.access.rows,
                };
                (score(facts), table, column)
            })
            .collect();
        order.sort_by(|left, right| right.0.total_cmp(&left.0));
        let mut placements = self.everywhere(far);
        let mut room = near_bytes;
        for (_, table, column) in order {
            let bytes = table.usage[column].encoded_bytes;
            if bytes <= room
                && let Some(columns) = placements.get_mut(table.name())
            {
                room -= bytes;
                columns[column] = NEAR.to_owned();
            }
        }
        placements
    }

    /// All columns in one tablespace.
    pub fn everywhere(&self, tablespace: &str) -> Placements {
        let of = |table: &Table| vec![tablespace.to_owned(); table.usage.len()];
        self.tables.iter().map(|table| (table.name().to_owned(), of(table))).collect()
    }

    /// The statements that lead from where columns are to `placements`.
    pub fn moves(&self, placements: &Placements) -> Vec<Move> {
        let mut moves = Vec::new();
        for table in &self.tables {
            let Some(wanted) = placements.get(table.name()) else { continue };
            let now = &table.version.placement;
            let differ = |column: &usize| now.column(*column) != wanted[*column];
            let different: Vec<usize> = (0..wanted.len()).filter(differ).collect();
            let Some(&first) = different.first() else { continue };
            if wanted.iter().all(|tablespace| *tablespace == wanted[first]) {
                moves.push(Move {
                    schema: table.schema.clone(),
                    table: table.version.def.name.clone(),
                    column: None,
                    tablespace: wanted[first].clone(),
                });
                continue;
            }
            moves.extend(different.into_iter().map(|column| Move {
                schema: table.schema.clone(),
                table: table.version.def.name.clone(),
                column: Some(table.version.def.columns[column].name.clone()),
                tablespace: wanted[column].clone(),
            }));
        }
        // Stable: by table within.
        moves.sort_by_key(|step| step.tablespace == NEAR);
        moves
    }

    /// The placement that stalls least with at most `near_limit_bytes` of tables in `near`. A column that would wait
    /// for nothing goes far: near memory is what is scarce. Rows not yet merged stay where they are and count against
    /// the limit.
    pub fn advise(&self, near_limit_bytes: u64, far: &str) -> Result<Advice> {
        let (near_model, far_model) = (self.model(NEAR)?, self.model(far)?);
        let all: Vec<(&Table, usize)> = self.columns().collect();
        let gain = |(table, column): &(&Table, usize)| {
            table.stall_ns(*column, far_model) - table.stall_ns(*column, near_model)
        };
        let items: Vec<Item> =
            (all.iter()).map(|at| Item { value: gain(at), weight: at.0.usage[at.1].encoded_bytes }).collect();
        let in_near = |table: &&Table| table.version.placement.delta == NEAR;
        let delta_bytes: u64 = self.tables.iter().filter(in_near).map(Table::delta_bytes).sum();
        let choice = solve(&items, near_limit_bytes.saturating_sub(delta_bytes));

        let mut placements = self.everywhere(far);
        let mut columns = Vec::with_capacity(all.len());
        for ((table, column), taken) in all.into_iter().zip(&choice.taken) {
            let advised = if *taken { NEAR } else { far };
            if let Some(columns) = placements.get_mut(table.name()) {
                columns[column] = advised.to_owned();
            }
            let now = table.version.placement.column(column);
            let accesses = table.record.column(column).access.main();
            columns.push(ColumnAdvice {
                schema: table.schema.clone(),
                table: table.version.def.name.clone(),
                column: table.version.def.columns[column].name.clone(),
                bytes: table.usage[column].encoded_bytes,
                tablespace: now.to_owned(),
                advised: advised.to_owned(),
                near_ns: near_model.device_ns_of(&accesses, 1),
                far_ns: far_model.device_ns_of(&accesses, 1),
                stall_far_ns: table.stall_ns(column, far_model),
                stall_now_ns: table.stall_ns(column, self.model(now)?),
            });
        }
        let rank = |column: &ColumnAdvice| match (column.tablespace == column.advised, column.advised == NEAR) {
            (false, false) => 0,
            (false, true) => 1,
            (true, _) => 2,
        };
        columns.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.stall_far_ns.total_cmp(&a.stall_far_ns)));
        let now = self.placements();
        let stall_advised_ns = self.stall_ns(&placements)?;
        Ok(Advice {
            columns,
            moves: self.moves(&placements),
            near_bytes_now: self.bytes_in(&now, NEAR) + delta_bytes,
            near_bytes_advised: self.bytes_in(&placements, NEAR) + delta_bytes,
            stall_now_ns: self.stall_ns(&now)?,
            stall_advised_ns,
            stall_bound_ns: stall_advised_ns - (choice.bound - choice.value),
        })
    }
}

/// What [`Advisor::place_by`] scores.
#[derive(Clone, Copy, Debug)]
pub struct ColumnFacts {
    pub bytes: u64,
    pub scans: u64,
    pub rows_read: u64,
}

impl Database {
    /// Advice over the recorded workload. Errors as in [`Advisor::new`]; 55000 when nothing is recorded.
    pub fn advise(&self, request: &Request) -> Result<Advice> {
        let workload = self.access_log().workload();
        if workload.statements == 0 {
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "no workload is recorded")
                .with_hint("Run the queries that matter first; tidepool.access shows what they read."));
        }
        Advisor::new(self, &workload, &request.far, request.profile.clone())?
            .advise(request.near_limit_bytes, &request.far)
    }
}
