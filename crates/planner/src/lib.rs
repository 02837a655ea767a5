//! SQL to plan to rows. The only crate that names DataFusion: what leaves it is Arrow batches and [`Outcome`]s.
//!
//! [`Planner`] is one a process; [`Session`] is one a connection. A statement goes down this list: `statement` (text to
//! syntax), `session` (which transaction, which snapshot), then `ddl`, `insert`, `copy` or `query` (syntax to plan) and
//! `execute` (plan to rows), with `scan` at the bottom of every plan, `heap` around its execution, and `casts` and
//! `optimizer` between. `catalog` answers what clients ask about the database itself.

#![forbid(unsafe_code)]

pub mod baseline;

mod advisory;
mod ahead;
mod arithmetic;
mod average;
mod casts;
mod catalog;
mod change;
mod charge;
mod coerced;
mod column_reads;
mod conversions;
mod copy;
mod correlated;
mod ddl;
mod dependents;
mod direct;
mod engine;
mod errors;
mod execute;
mod explain;
mod facts;
mod float_range;
mod generic;
mod group_keys;
mod group_sets;
mod growth;
mod guard;
mod heap;
mod insert;
mod interrupt;
mod intervals;
mod keys;
mod late_outputs;
mod letter_case;
mod literal_rows;
mod locking;
mod merge;
mod merged_columns;
mod misplaced;
mod moments;
mod names;
mod numbers;
mod numerics;
mod operators;
mod optimizer;
mod order_names;
mod origins;
mod outer_aggregates;
mod parameters;
mod partitions;
mod pass;
mod placement;
mod plain;
mod plan_cache;
mod planner;
mod planning;
mod portable;
mod privileges;
mod queries;
mod query;
mod read_only;
mod real_sums;
mod references;
mod resolve;
mod rewrites;
mod room;
mod rounding;
mod row_counts;
mod row_expressions;
mod row_types;
mod samples;
mod scan;
mod sequences;
mod session;
mod set_names;
mod settings;
mod shifts;
mod sliding;
mod statement;
mod terms;
mod types;
mod unlike;
mod upsert;
mod view;
mod walk;
mod windows;
mod with_queries;
mod workload;

pub use ahead::{LookedAt, StatementInUse};
pub use casts::read_array_items;
pub use catalog::function_names;
pub use direct::RowSink;
pub use direct::datum::Datum;
pub use placement::statement_of;
pub use plain::error as plain_error;
pub use plan_cache::PlanCounts;
pub use planner::Planner;
pub use portable::{
    PortableBlock, PortableBlockState, PortableCursor, PortableKey, PortableLock, PortablePortal, PortablePrepared,
    PortableSession, PortableStatement, PortableTls, PortableTraffic, PortableTransaction,
};
pub use queries::{QueryInfo, QueryState};
pub use session::{
    BatchStream, CancelHandle, CopyIn, CopyOut, Description, DirectDone, DirectStatement, Notice, Outcome,
    PreparedStatement, ReadAhead, ResultColumn, Routed, RoutedText, Session, TransactionStatus, share_commits,
};
pub use settings::POSTGRES_VERSION_NUMBER;
pub use statement::{Statement, Unfinished, parse};
pub use tidepool_table::arrow_type;
pub use workload::{Class, ClassRow};
