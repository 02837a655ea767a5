//! SQL to plan to rows. The only crate that names DataFusion: what leaves it is Arrow batches and [`Outcome`]s.
//!
//! [`Planner`] is one a process; [`Session`] is one a connection.

mod session;

pub use session::{
    BatchStream, CancelHandle, CopyIn, CopyOut, Description, Notice, Outcome, Planner, ResultColumn, Session,
    Statement, TransactionStatus,
};
