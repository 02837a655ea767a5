//! The rows of PostgreSQL's views of replication and archiving: the hosts that follow this one, and the one that this one follows.

use super::objects::{DATABASE, OWNER};
use super::relations::Rows;
use super::roles::owner_name;
use super::value::Value;
use crate::facts::SessionFacts;
use chrono::{DateTime, Utc};
use datafusion::arrow::datatypes::IntervalMonthDayNano;
use std::time::{Duration, SystemTime};
use tidepool_database::{AccessObject, ArchiveState};

/// Fills `rows` with what the view named `name` holds.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    match name {
        "pg_stat_archiver" => archiver(facts, rows),
        "pg_stat_replication" => followers(facts, rows),
        "pg_stat_wal_receiver" => upstream(facts, rows),
        // No statement of a standby has had to end for what was applied.
        _ => rows.push([
            ("datid", DATABASE.into()),
            ("datname", facts.database.into()),
            ("confl_tablespace", 0.into()),
            ("confl_lock", 0.into()),
            ("confl_snapshot", 0.into()),
            ("confl_bufferpin", 0.into()),
            ("confl_deadlock", 0.into()),
        ]),
    }
}

fn time(time: Option<SystemTime>) -> Value {
    time.map(DateTime::<Utc>::from).into()
}

fn interval(lag: Option<Duration>) -> Value {
    lag.map_or(Value::Null, |lag| {
        let nanoseconds = i64::try_from(lag.as_micros()).unwrap_or(i64::MAX / 1_000).saturating_mul(1_000);
        Value::Interval(IntervalMonthDayNano::new(0, 0, nanoseconds))
    })
}

/// The host and the port of an address, where it has these.
fn split(address: &str) -> (Option<String>, Option<i64>) {
    match address.rsplit_once(':') {
        Some((host, port)) => (Some(host.trim_matches(['[', ']']).to_owned()), port.parse().ok()),
        None => ((!address.is_empty()).then(|| address.to_owned()), None),
    }
}

/// What a host writes to the memory of a pool another one reads there: what is written is sent, and all that is sent is
/// received.
fn followers(facts: &SessionFacts, rows: &mut Rows) {
    let database = facts.planner.database();
    let written = database.written_lsn();
    for standby in database.standbys() {
        let (host, port) = split(&standby.address);
        let written = written.max(standby.replayed).to_string();
        rows.push([
            ("pid", standby.process.into()),
            ("usesysid", OWNER.into()),
            ("usename", owner_name(facts, &AccessObject::Database).into()),
            ("application_name", standby.name.into()),
            ("client_addr", host.into()),
            ("client_port", port.into()),
            ("state", if standby.is_following { "streaming" } else { "catchup" }.into()),
            ("sent_lsn", written.clone().into()),
            ("write_lsn", written.clone().into()),
            ("flush_lsn", written.into()),
            ("replay_lsn", standby.replayed.to_string().into()),
            ("replay_lag", interval(standby.lag)),
            ("sync_priority", (standby.sync_priority as u64).into()),
            ("sync_state", standby.sync_state.name().into()),
            ("reply_time", time(standby.heard)),
        ]);
    }
}

/// One row, as in PostgreSQL, also where nothing is archived.
fn archiver(facts: &SessionFacts, rows: &mut Rows) {
    let log = facts.planner.database().archiver().map(|archive| archive.log).unwrap_or_default();
    rows.push([
        ("archived_count", log.segments.into()),
        ("last_archived_wal", log.last_segment.map(ArchiveState::name_of).into()),
        ("last_archived_time", time(log.archived_at)),
        ("failed_count", log.failures.into()),
        ("last_failed_wal", log.failed_segment.map(ArchiveState::name_of).into()),
        ("last_failed_time", time(log.failed_at)),
    ]);
}

fn upstream(facts: &SessionFacts, rows: &mut Rows) {
    let database = facts.planner.database();
    if let (Some(copy), Some(progress)) = (database.copy(), database.follow_progress()) {
        let received = database.lsn_of(progress.received);
        let end = database.lsn_of(copy.end).max(received).to_string();
        let received = received.to_string();
        rows.push([
            ("pid", std::process::id().into()),
            ("status", if copy.failure.is_some() { "waiting" } else { "streaming" }.into()),
            ("receive_start_tli", progress.term.into()),
            ("written_lsn", received.clone().into()),
            ("flushed_lsn", received.into()),
            ("received_tli", progress.term.into()),
            ("last_msg_send_time", time(copy.written_at)),
            ("last_msg_receipt_time", time(copy.looked_at)),
            ("latest_end_lsn", end.into()),
            ("latest_end_time", time(copy.looked_at)),
            ("conninfo", format!("copy_from={}", copy.folder.display()).into()),
        ]);
        return;
    }
    let (Some(upstream), Some(progress)) = (database.upstream(), database.follow_progress()) else { return };
    let received = database.lsn_of(progress.received).to_string();
    let (host, port) = split(&upstream.address);
    rows.push([
        ("pid", std::process::id().into()),
        ("status", "streaming".into()),
        ("receive_start_tli", progress.term.into()),
        ("written_lsn", received.clone().into()),
        ("flushed_lsn", received.clone().into()),
        ("received_tli", progress.term.into()),
        ("last_msg_send_time", time(upstream.heard)),
        ("last_msg_receipt_time", time(upstream.heard)),
        ("latest_end_lsn", received.into()),
        ("latest_end_time", time(upstream.heard)),
        ("sender_host", host.into()),
        ("sender_port", port.into()),
        ("conninfo", format!("application_name={}", upstream.name).into()),
    ]);
}
