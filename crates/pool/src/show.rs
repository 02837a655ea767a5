//! A pool in words, for people.

use crate::check::usage;
use crate::liveness::is_lock_held;
use crate::pool::{HostView, Pool};
use crate::slices::DealtPool;
use crate::system;
use crate::words::{DeviceState, EventKind, HoldState, Slot, TermState};
use std::collections::BTreeMap;
use std::fmt::Write;
use tidepool_base::{ByteSize, Result};

/// Rows under headings, in columns.
fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.len()).collect();
    for row in rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            let room = width - cell.chars().count();
            line.push_str("  ");
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', room));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut headings.iter().copied());
    rows.iter().for_each(|row| line(&mut row.iter().map(String::as_str)));
    text
}

/// A number with a comma for each thousand.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A moment, in UTC.
pub fn utc(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, from 1970 on.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

fn name_of(view: &HostView) -> &str {
    view.text.as_ref().map_or("?", |text| text.name.as_str())
}

/// A pool that is dealt out: who has which slice.
pub fn slices(dealt: &DealtPool) -> Result<String> {
    let superblock = dealt.superblock();
    let label = if superblock.label.is_empty() { String::new() } else { format!(" \"{}\"", superblock.label) };
    let mut text = format!(
        "Pool{label} in {}, made {} UTC\n  dealt out to {} hosts, which do not see each other's stores; extents of {}\n\nSlices\n",
        dealt.location(),
        utc(superblock.made_us),
        dealt.machines(),
        ByteSize(superblock.extent_bytes),
    );
    let rows: Vec<_> = dealt
        .slices()?
        .into_iter()
        .map(|view| {
            let (holder, state) = match view.holder {
                Some((machine, hold)) => (format!("host {}", u32::from(machine.0) + 1), hold.state.text()),
                None => (String::new(), HoldState::Free.text()),
            };
            let size = ByteSize(dealt.slice_bytes()).to_string();
            vec![(u32::from(view.slice.0) + 1).to_string(), size, state.to_owned(), holder]
        })
        .collect();
    text.push_str(&table(&["#", "size", "state", "by"], &rows));
    Ok(text)
}

/// What is in a pool: devices, databases, hosts, extents.
pub fn list(pool: &Pool) -> Result<String> {
    let superblock = pool.superblock();
    let identity: String = superblock.identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = String::new();
    let label = if pool.label().is_empty() { String::new() } else { format!(" \"{}\"", pool.label()) };
    let line = format!(
        "Pool{label} in {}, made {} UTC\n  identity {identity}, extents of {}, room for {}\n",
        pool.location(),
        utc(superblock.made_us),
        ByteSize(pool.extent_bytes()),
        ByteSize(u64::from(superblock.extents_max) * pool.extent_bytes()),
    );
    text.push_str(&line);
    if let Some(open) = pool.slice() {
        text.push_str(&format!("  slice {} of {}\n", u32::from(open.slice().0) + 1, superblock.machines));
    }
    let mut section = |name: &str, table: String| {
        // Writing to text cannot fail.
        let _ = write!(text, "\n{name}\n{table}");
    };
    section("Devices", table(&["#", "location", "size", "extents", "state"], &devices(pool)?));
    let databases = databases(pool)?;
    if !databases.is_empty() {
        section("Databases", table(&["#", "name", "state", "term", "primary", "root", "quota"], &databases));
    }
    let hosts = hosts(pool)?;
    if !hosts.is_empty() {
        let headings = ["slot", "name", "role", "state", "life", "database", "process", "lock", "last beat (UTC)"];
        section("Hosts", table(&headings, &hosts));
    }
    section("Extents", table(&["state", "kind", "database", "count", "size"], &extents(pool)?));
    Ok(text)
}

fn devices(pool: &Pool) -> Result<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    for device in 0..crate::layout::DEVICES {
        let word = pool.told(pool.books().load(pool.layout().device(device)))?;
        if word.state == DeviceState::Absent {
            continue;
        }
        let text = pool.told(pool.books().read_text(pool.layout().device_text(device)))?.unwrap_or_default();
        let state = match pool.missing().iter().find(|missing| missing.device == device) {
            Some(missing) => format!("missing: {}", missing.error.message()),
            None => "open".to_owned(),
        };
        rows.push(vec![
            device.to_string(),
            String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned(),
            ByteSize(u64::from(word.extents) * pool.extent_bytes()).to_string(),
            format!("{} to {}", word.first.0, (word.first.0 + word.extents).saturating_sub(1)),
            state,
        ]);
    }
    Ok(rows)
}

fn databases(pool: &Pool) -> Result<Vec<Vec<String>>> {
    let rows = pool.databases()?.into_iter().map(|view| {
        let primary = match view.reign.state {
            TermState::Ended => String::new(),
            TermState::Sealing => format!("slot {} takes over", view.reign.slot.0),
            TermState::Running => format!("slot {}", view.reign.slot.0),
        };
        vec![
            view.database.0.to_string(),
            view.name,
            view.entry.state.text().to_owned(),
            view.reign.term.0.to_string(),
            primary,
            view.root.generation.0.to_string(),
            if view.quota.0 == 0 { String::new() } else { ByteSize(view.quota.0 * pool.extent_bytes()).to_string() },
        ]
    });
    Ok(rows.collect())
}

fn hosts(pool: &Pool) -> Result<Vec<Vec<String>>> {
    let names: BTreeMap<_, _> = pool.databases()?.into_iter().map(|view| (view.database, view.name)).collect();
    let mut rows = Vec::new();
    for view in pool.hosts()? {
        // Locks are each kernel's own.
        let is_here = view.text.as_ref().is_some_and(|text| text.boot_id == system::boot_id());
        let lock = match is_lock_held(pool, view.host)? {
            true => "held",
            false if is_here => "free",
            false => "unknown",
        };
        rows.push(vec![
            view.host.slot.0.to_string(),
            name_of(&view).to_owned(),
            pool.role_of(&view)?.to_owned(),
            view.ident.state.text().to_owned(),
            view.host.incarnation.0.to_string(),
            names.get(&view.ident.database).cloned().unwrap_or_default(),
            view.text.as_ref().map_or(String::new(), |text| text.pid.to_string()),
            lock.to_owned(),
            if view.wall_us.0 == 0 { String::new() } else { utc(view.wall_us.0) },
        ]);
    }
    Ok(rows)
}

fn extents(pool: &Pool) -> Result<Vec<Vec<String>>> {
    let names: BTreeMap<_, _> = pool.databases()?.into_iter().map(|view| (view.database.0, view.name)).collect();
    let rows = usage(pool)?.into_iter().map(|((state, kind, database), count)| {
        vec![
            state.to_owned(),
            kind.to_owned(),
            database.map_or(String::new(), |database| names.get(&database).cloned().unwrap_or_default()),
            thousands(count),
            ByteSize(count * pool.extent_bytes()).to_string(),
        ]
    });
    Ok(rows.collect())
}

/// The last `count` events, oldest first.
pub fn events(pool: &Pool, count: usize) -> Result<String> {
    let events = pool.told(pool.books().events())?;
    let rows: Vec<_> = events[events.len().saturating_sub(count)..]
        .iter()
        .map(|event| {
            let about = match event.kind {
                EventKind::Joined | EventKind::Left | EventKind::Suspected | EventKind::Fenced => "life",
                EventKind::Died | EventKind::Forgotten => "life",
                EventKind::Swept => "extents",
                EventKind::DatabaseMade | EventKind::DatabaseDropped => "database",
                EventKind::TookOver | EventKind::Sealed => "term",
                EventKind::DeviceAdded => "device",
                EventKind::SliceTaken => "machine",
                EventKind::Created | EventKind::Finalized => "",
            };
            let detail = if about.is_empty() { String::new() } else { format!("{about} {}", event.detail) };
            vec![
                event.sequence.to_string(),
                utc(event.wall_ms * 1000),
                format!("slot {}", event.slot.0),
                event.kind.text().to_owned(),
                detail,
            ]
        })
        .collect();
    Ok(table(&["#", "time (UTC)", "by or of", "event", "about"], &rows))
}

/// The host of this name, or in this slot. 42704 where there is none, 42710 where several have the name.
pub fn find_host(pool: &Pool, name: &str) -> Result<HostView> {
    use tidepool_base::{Error, SqlState};
    let slot = name.parse::<u8>().ok().map(Slot);
    let mut found: Vec<_> = pool.hosts()?.into_iter().filter(|view| name_of(view) == name).collect();
    if found.is_empty() {
        found = pool.hosts()?.into_iter().filter(|view| Some(view.host.slot) == slot).collect();
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Error::new(
            SqlState::UNDEFINED_OBJECT,
            format!("host \"{name}\" does not exist in pool \"{}\"", pool.location()),
        )
        .with_hint("Name a host, or its slot, as tidepool pool list shows them.")),
        _ => Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("several hosts are named \"{name}\""))
            .with_hint("Name its slot, as tidepool pool list shows it.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_numbers_are_shown() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_795_737_599_999_999), "2026-11-26 23:59:59");
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(table(&["a", "bb"], &[vec!["xyz".into(), "1".into()]]), "  a    bb\n  xyz  1\n");
    }
}
