//! The PostgreSQL protocol over sessions: start-up, authentication, TLS, both query protocols, COPY, cancel, metrics.
//!
//! A [`Service`] is one a process: a planner with what all connections share. A [`Server`] is a service that listens.
//! One task is one connection; a panic in it ends it alone. Rows go from Arrow batches straight into one output buffer
//! which is sent as it fills, and the next batch is asked for only once the client took the last: a slow client slows
//! its own statement and nothing piles up.
//!
//! While a statement runs, its connection keeps listening: a client that is gone ends its statement, and what a
//! pipelining client sends ahead is kept up to a bound.
//!
//! Leaves to others: everything that SQL means (`tidepool-planner`).

mod auth;
mod connection;
mod doorway;
mod encode;
mod failures;
mod handover;
mod health;
mod incoming;
mod kept;
mod listener;
mod local;
mod metrics;
mod parameters;
mod passing;
mod portal;
mod protocol;
mod records;
mod routing;
mod secured;
mod service;
mod startup;
mod strangers;
mod succession;
mod threads;
mod tls;
mod wire;

pub use doorway::Doorway;
pub use listener::{Server, ShutdownHandle};
pub use service::{Service, ServiceOptions};

/// The one database.
pub const DATABASE_NAME: &str = "tidepool";
/// The superuser that a database begins with.
pub const ROLE_NAME: &str = "tidepool";

/// Where [`tidepool_base::crash_point`] can end the process in this crate, in a switch-over: the old primary, and the new one.
pub const SWITCHOVER_CRASH_POINTS: [&[&str]; 2] =
    [&["switchover.stopped", "switchover.session"], &["switchover.held", "switchover.going_on"]];
