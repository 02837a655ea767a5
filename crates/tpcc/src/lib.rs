//! TPC-C (revision 5.11) within the database's process: the nine tables, their population, the five transactions and the
//! consistency conditions, through the embedded API. Terminals have no think time, as in the papers on Silo and MOT.
//!
//! Deliveries, which the specification lets be deferred, are carried out where they are asked for.

#![forbid(unsafe_code)]

mod check;
mod load;
mod pods;
mod random;
mod run;
mod schema;
mod transactions;
mod undelivered;

pub use check::check;
pub use load::load;
pub use pods::{PodPlan, PodRunResult, RemoteShares, run_pod};
pub use run::{KindResult, Mix, Plan, RunResult, run, run_counted};
pub use schema::{TABLES, Tables, Tablespaces, create, create_with};
pub use transactions::{KINDS, Kind};
