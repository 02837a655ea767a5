//! The placement advisor: which columns of main and which indexes to keep near, given how much near memory they may take,
//! so that the recorded workload would have waited least.
//!
//! What such a part costs in a tablespace is what the cost model makes of its recorded accesses there, beyond local
//! memory: waits for first lines and for single rows always; the link's time as far as the scanning threads' own work
//! does not cover it. That last part depends on what else shares the link; each column and each index is taken to wait for
//! its share of what would be waited for if all of its table were there, so that they can be weighed one by one.
//! Totals are then made by the exact rule.

mod knapsack;
mod parts;
#[cfg(test)]
mod tests;

pub use knapsack::{Choice, Item, solve};
pub use parts::index_excess;

use crate::{Database, Workload};
use parts::{Place, Table};
use std::collections::BTreeMap;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{CostModel, Excess, Profile, local_profile};
use tidepool_tablespace::Tablespace;

/// The tablespace whose memory is limited.
const NEAR: &str = "near";

/// What an advisor is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// What tables and indexes may take of `near`, bytes.
    pub near_limit_bytes: u64,
    /// Where the rest goes.
    pub far: String,
    /// What `far` costs, if it has no profile of its own.
    pub profile: Option<Profile>,
}

/// What of a table can be placed by itself, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Column(String),
    /// In the table's schema.
    Index(String),
}

/// What an advice says of one part of a table. Times are over the whole recorded workload.
#[derive(Clone, Debug, PartialEq)]
pub struct PartAdvice {
    /// `None`: public.
    pub schema: Option<String>,
    pub table: String,
    pub part: Part,
    /// Of a column encoded, main only; of an index the memory that it holds.
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

/// `ALTER … SET TABLESPACE`, of a table, one column or an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// `None`: public.
    pub schema: Option<String>,
    pub table: String,
    /// `None`: all columns, delta, and those indexes that have no tablespace of their own.
    pub part: Option<Part>,
    pub tablespace: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Columns that have rows in main, and indexes of tables with rows: those to be moved far, then near, then those that
    /// stay; the costliest first.
    pub parts: Vec<PartAdvice>,
    pub placements: Placements,
    /// From where all is now to `placements`, in an order in which room is made before it is needed.
    pub moves: Vec<Move>,
    /// Bytes of main, delta and indexes in `near`.
    pub near_bytes_now: u64,
    pub near_bytes_advised: u64,
    /// All threads added up, ns.
    pub stall_now_ns: f64,
    pub stall_advised_ns: f64,
    /// No placement within the limit stalls less than this: `stall_advised_ns`, unless the search was cut short.
    pub stall_bound_ns: f64,
}

/// Which tablespace each of a table's parts is in. Of a table without rows in main there are no columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePlacement {
    pub columns: Vec<String>,
    /// In the order in which they are in the table's definition.
    pub indexes: Vec<String>,
}

impl TablePlacement {
    fn at(&self, place: Place) -> Option<&str> {
        match place {
            Place::Column(column) => self.columns.get(column).map(String::as_str),
            Place::Index(index) => self.indexes.get(index).map(String::as_str),
        }
    }

    fn set(&mut self, place: Place, tablespace: &str) {
        let at = match place {
            Place::Column(column) => self.columns.get_mut(column),
            Place::Index(index) => self.indexes.get_mut(index),
        };
        if let Some(at) = at {
            tablespace.clone_into(at);
        }
    }
}

/// By table name, with the schema before it unless that is public.
pub type Placements = BTreeMap<String, TablePlacement>;

/// The recorded workload on the tables as they are, and what tablespaces cost.
pub struct Advisor {
    tables: Vec<Table>,
    models: BTreeMap<String, CostModel>,
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
        let tables = version.versions().filter_map(|table| Table::of(&version, table, workload)).collect();
        Ok(Advisor { tables, models })
    }

    fn model(&self, tablespace: &str) -> Result<&CostModel> {
        self.models.get(tablespace).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_OBJECT, format!("tablespace \"{tablespace}\" does not exist"))
        })
    }

    /// Where all is now.
    pub fn placements(&self) -> Placements {
        self.place_each(|table, place| table.tablespace(place))
    }

    /// All in one tablespace.
    pub fn everywhere(&self, tablespace: &str) -> Placements {
        self.place_each(|_, _| tablespace)
    }

    fn place_each<'a>(&'a self, tablespace: impl Fn(&'a Table, Place) -> &'a str) -> Placements {
        let of = |table: &'a Table| TablePlacement {
            columns: table.columns().map(|place| tablespace(table, place).to_owned()).collect(),
            indexes: table.indexes().map(|place| tablespace(table, place).to_owned()).collect(),
        };
        self.tables.iter().map(|table| (table.name().to_owned(), of(table))).collect()
    }

    /// Stalls of the recorded workload in a placement, ns, all threads added up.
    pub fn stall_ns(&self, placements: &Placements) -> Result<f64> {
        let mut total = 0.0;
        for table in &self.tables {
            let Some(placement) = placements.get(table.name()) else { continue };
            let mut excess: BTreeMap<&str, Excess> = BTreeMap::new();
            for place in table.places() {
                let Some(tablespace) = placement.at(place) else { continue };
                *excess.entry(tablespace).or_default() += table.excess(place, self.model(tablespace)?);
            }
            total += excess.values().map(|excess| excess.stall_ns(table.work_ns())).sum::<f64>();
        }
        Ok(total)
    }

    /// Encoded bytes of main in one tablespace.
    pub fn bytes_in(&self, placements: &Placements, tablespace: &str) -> u64 {
        self.sum_in(placements, tablespace, |place| matches!(place, Place::Column(_)))
    }

    fn sum_in(&self, placements: &Placements, tablespace: &str, counts: impl Fn(Place) -> bool) -> u64 {
        let is_in = |table: &Table, place: Place| {
            placements.get(table.name()).and_then(|placement| placement.at(place)) == Some(tablespace)
        };
        let each = self.tables.iter().flat_map(|table| table.places().map(move |place| (table, place)));
        each.filter(|(table, place)| counts(*place) && is_in(table, *place))
            .map(|(table, place)| table.bytes(place))
            .sum()
    }

    /// All of main.
    pub fn bytes(&self) -> u64 {
        self.columns().map(|(table, place)| table.bytes(place)).sum()
    }

    fn columns(&self) -> impl Iterator<Item = (&Table, Place)> {
        self.tables.iter().flat_map(|table| table.columns().map(move |place| (table, place)))
    }

    /// The placement that fills `near` by falling score, column by column as they fit; the rest, and all indexes, are far.
    /// For comparison with [`Advisor::advise`]: a score sees bytes, and rows and bytes read of a column.
    pub fn place_by(&self, near_bytes: u64, far: &str, score: impl Fn(ColumnFacts) -> f64) -> Placements {
        let mut order: Vec<(f64, &Table, Place)> =
            self.columns().map(|(table, place)| (score(table.facts(place)), table, place)).collect();
        order.sort_by(|left, right| right.0.total_cmp(&left.0));
        let mut placements = self.everywhere(far);
        let mut room = near_bytes;
        for (_, table, place) in order {
            let bytes = table.bytes(place);
            if bytes <= room
                && let Some(placement) = placements.get_mut(table.name())
            {
                room -= bytes;
                placement.set(place, NEAR);
            }
        }
        placements
    }

    /// The statements that lead from where all is to `placements`.
    pub fn moves(&self, placements: &Placements) -> Vec<Move> {
        let mut moves = Vec::new();
        for table in &self.tables {
            if let Some(wanted) = placements.get(table.name()) {
                table.moves_to(wanted, &mut moves);
            }
        }
        // Stable: by table within.
        moves.sort_by_key(|step| step.tablespace == NEAR);
        moves
    }

    /// The placement that stalls least with at most `near_limit_bytes` of tables and indexes in `near`. What would wait
    /// for nothing goes far: near memory is what is scarce. Rows not yet merged stay where they are and count against the
    /// limit.
    pub fn advise(&self, near_limit_bytes: u64, far: &str) -> Result<Advice> {
        let (near_model, far_model) = (self.model(NEAR)?, self.model(far)?);
        let all: Vec<(&Table, Place)> =
            self.tables.iter().flat_map(|table| table.places().map(move |place| (table, place))).collect();
        let gain =
            |(table, place): &(&Table, Place)| table.stall_ns(*place, far_model) - table.stall_ns(*place, near_model);
        let items: Vec<Item> = (all.iter()).map(|at| Item { value: gain(at), weight: at.0.bytes(at.1) }).collect();
        let delta_bytes: u64 = self.tables.iter().map(|table| table.delta_bytes_in(NEAR)).sum();
        let choice = solve(&items, near_limit_bytes.saturating_sub(delta_bytes));

        let mut placements = self.everywhere(far);
        let mut parts = Vec::with_capacity(all.len());
        for ((table, place), taken) in all.into_iter().zip(&choice.taken) {
            let advised = if *taken { NEAR } else { far };
            if let Some(placement) = placements.get_mut(table.name()) {
                placement.set(place, advised);
            }
            let now = table.tablespace(place);
            let accesses = table.accesses(place);
            parts.push(PartAdvice {
                schema: table.schema(),
                table: table.table_name(),
                part: table.part(place),
                bytes: table.bytes(place),
                tablespace: now.to_owned(),
                advised: advised.to_owned(),
                near_ns: near_model.device_ns_of(&accesses, 1),
                far_ns: far_model.device_ns_of(&accesses, 1),
                stall_far_ns: table.stall_ns(place, far_model),
                stall_now_ns: table.stall_ns(place, self.model(now)?),
            });
        }
        let moves = self.moves(&placements);
        // An index that stays where it is while its table leaves is told to before that.
        let is_told = |part: &PartAdvice| {
            let is_its = |step: &Move| step.table == part.table && step.schema == part.schema;
            moves.iter().any(|step| is_its(step) && step.part.as_ref() == Some(&part.part))
        };
        let rank = |part: &PartAdvice| match (part.tablespace != part.advised || is_told(part), part.advised == NEAR) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => 2,
        };
        parts.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.stall_far_ns.total_cmp(&a.stall_far_ns)));
        let now = self.placements();
        let stall_advised_ns = self.stall_ns(&placements)?;
        let near_bytes = |placements: &Placements| self.sum_in(placements, NEAR, |_| true) + delta_bytes;
        Ok(Advice {
            parts,
            moves,
            near_bytes_now: near_bytes(&now),
            near_bytes_advised: near_bytes(&placements),
            stall_now_ns: self.stall_ns(&now)?,
            stall_advised_ns,
            stall_bound_ns: stall_advised_ns - (choice.bound - choice.value),
            placements,
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
        let workload = self.workload();
        if workload.statements == 0 {
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "no workload is recorded")
                .with_hint("Run the queries that matter first; tidepool.access shows what they read."));
        }
        Advisor::new(self, &workload, &request.far, request.profile.clone())?
            .advise(request.near_limit_bytes, &request.far)
    }
}
