//! The views of schema `tidepool` over the pool that the server is a host of. Without a pool they are empty.

use super::relations::Rows;
use crate::facts::SessionFacts;
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;
use tidepool_base::Result;
use tidepool_database::PoolHost;
use tidepool_pool::check::usage;
use tidepool_pool::liveness::is_lock_held;
use tidepool_pool::pool::Pool;
use tidepool_pool::words::{Database, DeviceState, Extent, Owner};

/// Fills `rows` with what the view named `name` holds. Of damaged books it holds less: `tidepool pool check` names what is
/// damaged.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    let Some(host) = facts.planner.database().pool() else { return };
    let filled = match name {
        "hosts" => hosts(host, facts, rows),
        "pool" => devices(host, facts, rows),
        "pool_extents" => extents(host, facts, rows),
        "second_tier" => {
            second_tier(facts, rows);
            Ok(())
        }
        "copy" => {
            copy(facts, rows);
            Ok(())
        }
        _ => events(host.pool(), rows),
    };
    if let Err(error) = filled {
        tracing::warn!("tidepool.{name}: {error}");
    }
}

fn names(pool: &Pool) -> Result<BTreeMap<u8, String>> {
    Ok(pool.databases()?.into_iter().map(|view| (view.database.0, view.name)).collect())
}

fn hosts(host: &PoolHost, facts: &SessionFacts, rows: &mut Rows) -> Result<()> {
    let pool = host.pool();
    let holds = facts.planner.database().host_holds()?.unwrap_or_default();
    let names = names(pool)?;
    let mut owned: BTreeMap<u8, u64> = BTreeMap::new();
    for extent in pool.layout().all_extents() {
        let owner: Owner = pool.told(pool.books().load(pool.layout().owner(extent)))?;
        if let Some(writer) = owner.writer().filter(|_| !matches!(owner, Owner::Orphan { .. })) {
            *owned.entry(writer.slot.0).or_default() += 1;
        }
    }
    for view in pool.hosts()? {
        let role = pool.role_of(&view)?;
        let text = view.text.unwrap_or_default();
        let extents = owned.get(&view.host.slot.0).copied().unwrap_or(0);
        let is_live = view.ident.state.is_live();
        let held = holds.iter().find(|of| (of.slot, of.life) == (view.host.slot.0, view.host.incarnation.0));
        rows.push([
            ("slot", i64::from(view.host.slot.0).into()),
            ("name", text.name.into()),
            ("role", role.into()),
            ("state", view.ident.state.text().into()),
            ("life", i64::from(view.host.incarnation.0).into()),
            ("database", names.get(&view.ident.database.0).cloned().into()),
            ("process", (text.pid > 0).then(|| i64::from(text.pid)).into()),
            ("version", text.version.into()),
            ("address", (!text.address.is_empty()).then_some(text.address).into()),
            ("lock_held", is_lock_held(pool, view.host)?.into()),
            ("last_beat", DateTime::from_timestamp_micros(view.wall_us.0 as i64).filter(|_| view.wall_us.0 > 0).into()),
            ("bytes_owned", (extents * pool.extent_bytes()).into()),
            ("bytes_held", held.map(|held| held.main_bytes).into()),
            ("log_bytes_held", held.map(|held| held.log_bytes).into()),
            ("bytes_quarantined", (if is_live { 0 } else { extents * pool.extent_bytes() }).into()),
            ("is_this_server", (view.host == host.member().host()).into()),
        ]);
    }
    Ok(())
}

fn devices(host: &PoolHost, facts: &SessionFacts, rows: &mut Rows) -> Result<()> {
    let pool = host.pool();
    let (missing, generation) = (pool.missing(), host.member().root()?.generation);
    let displaced = pool.displaced();
    let limbo = facts.planner.database().pool_limbo()?;
    for device in 0..tidepool_pool::layout::DEVICES {
        let word = pool.told(pool.books().load(pool.layout().device(device)))?;
        if word.state == DeviceState::Absent {
            continue;
        }
        let text = pool.told(pool.books().read_text(pool.layout().device_text(device)))?.unwrap_or_default();
        let mut free = 0u64;
        let range = word.first.0..word.first.0 + word.extents;
        let here = |extents: &Vec<Extent>| extents.iter().filter(|extent| range.contains(&extent.0)).count() as u64;
        let limbo = limbo.as_ref().map(|extents| here(extents) * pool.extent_bytes());
        for extent in range {
            let owner = pool.told(pool.books().load(pool.layout().owner(Extent(extent))))?;
            free += u64::from(matches!(owner, Owner::Free { .. }));
        }
        let state = match missing.iter().any(|missing| missing.device == device) {
            true => "missing",
            false if displaced.contains(&device) => "removed",
            false => "open",
        };
        rows.push([
            ("device", (device as i64).into()),
            ("location", String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned().into()),
            ("state", state.into()),
            ("bytes_size", (u64::from(word.extents) * pool.extent_bytes()).into()),
            ("bytes_free", (free * pool.extent_bytes()).into()),
            ("extents", u64::from(word.extents).into()),
            ("extent_bytes", pool.extent_bytes().into()),
            ("bytes_limbo", limbo.into()),
            ("generation", u64::from(generation.0).into()),
        ]);
    }
    Ok(())
}

fn extents(host: &PoolHost, facts: &SessionFacts, rows: &mut Rows) -> Result<()> {
    let pool = host.pool();
    let names = names(pool)?;
    let own_database = host.member().database();
    let mut own: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for space in facts.planner.database().tablespaces().list() {
        for (state, kind, extents, used) in space.leases() {
            let sum = own.entry((state, kind)).or_default();
            *sum = (sum.0 + extents, sum.1 + used);
        }
    }
    for ((state, kind, database), count) in usage(pool)? {
        let is_own = database.map(Database) == Some(own_database);
        let (own_extents, used) = own.get(&(state, kind)).copied().filter(|_| is_own).unwrap_or_default();
        rows.push([
            ("state", state.into()),
            ("kind", (!kind.is_empty()).then(|| kind.to_owned()).into()),
            ("database", database.and_then(|database| names.get(&database).cloned()).into()),
            ("extents", count.into()),
            ("bytes", (count * pool.extent_bytes()).into()),
            ("bytes_of_server", (own_extents * pool.extent_bytes()).into()),
            ("bytes_used", used.into()),
        ]);
    }
    Ok(())
}

/// The data folder of a primary.
fn second_tier(facts: &SessionFacts, rows: &mut Rows) {
    let database = facts.planner.database();
    let (Some(tier), Some(folder)) = (database.second_tier(), &database.config().data_dir) else { return };
    let copied = database.lsn_of(tier.copied);
    rows.push([
        ("folder", folder.display().to_string().into()),
        ("complete", tier.is_complete.into()),
        ("copied_lsn", Some(copied.to_string()).filter(|_| copied.0 > 0).into()),
        ("lag_bytes", database.written_lsn().0.saturating_sub(copied.0).into()),
        ("checkpoint_at", tier.checkpoint_at.map(DateTime::<Utc>::from).into()),
        ("failure", tier.failure.map(|error| error.to_string()).into()),
    ]);
}

/// What this server is a copy of, and how far behind that.
fn copy(facts: &SessionFacts, rows: &mut Rows) {
    let database = facts.planner.database();
    let (Some(copy), Some(progress)) = (database.copy(), database.follow_progress()) else { return };
    let (end, replayed) = (database.lsn_of(copy.end), database.lsn_of(progress.replayed));
    let shown = |lsn: tidepool_database::Lsn| Some(lsn.to_string()).filter(|_| lsn.0 > 0);
    let age_ms = copy.age().map(|age| age.as_secs_f64() * 1000.0);
    rows.push([
        ("folder", copy.folder.display().to_string().into()),
        ("term", (progress.term > 0).then_some(progress.term).into()),
        ("end_lsn", shown(end).into()),
        ("replayed_lsn", shown(replayed).into()),
        ("lag_bytes", end.0.saturating_sub(replayed.0).into()),
        ("written_at", copy.written_at.map(DateTime::<Utc>::from).into()),
        ("age_ms", age_ms.into()),
        ("begun_anew", copy.begun_anew.into()),
        ("failure", copy.failure.map(|error| error.to_string()).into()),
    ]);
}

fn events(pool: &Pool, rows: &mut Rows) -> Result<()> {
    for event in pool.told(pool.books().events())? {
        rows.push([
            ("event", event.sequence.into()),
            ("time", DateTime::from_timestamp_millis(event.wall_ms as i64).into()),
            ("slot", i64::from(event.slot.0).into()),
            ("kind", event.kind.text().into()),
            ("about", event.detail.into()),
        ]);
    }
    Ok(())
}
