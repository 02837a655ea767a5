//! The books read through: what is damaged, what contradicts itself, what is lost. Others may be at work meanwhile.
//!
//! Every word of the books carries a check, texts and superblocks have checksums, and everything else is zero: so any bit that
//! turned is found, but for those of the words that hosts' threads hold, which are the kernel's (`liveness.rs`) and decide nothing. The contents of shared extents are compared with their checksums if that is asked for.

use crate::layout::{DEVICES, EVENTS, HostNumber, SEGMENTS, TERMS};
use crate::mapped::first_page;
use crate::memory::{At, Field, Memory};
use crate::pool::Pool;
use crate::superblock::Superblock;
use crate::words::{DATABASES, Database, EntryState, Extent, Fault, HostState, Ident, Owner, SLOTS, Slot, Term, Word};
use std::collections::BTreeMap;
use tidepool_base::Result;

/// What a look at the books came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is damaged or lost.
    pub faults: Vec<String>,
    /// What is no fault where a host was killed, and may be one elsewhere.
    pub remarks: Vec<String>,
    pub words: u64,
    /// Extents whose contents were compared, and their bytes.
    pub compared: u64,
    pub compared_bytes: u64,
    /// Extents that hosts may store to of which no host knows whether they are dead.
    pub quarantined: u64,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }
}

struct Reader<'a> {
    pool: &'a Pool,
    report: Report,
}

impl Reader<'_> {
    fn bits(&mut self, at: At) -> u64 {
        self.report.words += 1;
        let Ok(bits) = self.pool.books().memory.load(at);
        bits
    }

    fn word<W: Word>(&mut self, field: Field<W>, name: impl FnOnce() -> String) -> Option<W> {
        match W::read(self.bits(field.at)) {
            Ok(word) => Some(word),
            Err(Fault { bits }) => {
                self.report.faults.push(format!("{} is damaged: {bits:#018x} at byte {}", name(), field.at.0));
                None
            }
        }
    }

    fn text(&mut self, text: crate::layout::Text, may_be_half: bool, name: impl FnOnce() -> String) {
        self.report.words += text.bytes as u64 / 8;
        let Ok(None) = self.pool.books().read_text(text) else { return };
        let line = format!("{} does not have its checksum", name());
        if may_be_half { self.report.remarks.push(line) } else { self.report.faults.push(line) }
    }
}

/// Reads all books. `deep`: what shared extents hold, too.
pub fn check(pool: &Pool, deep: bool) -> Result<Report> {
    let layout = pool.layout();
    let mut reader = Reader { pool, report: Report::default() };
    for device in 0..DEVICES {
        let word = reader.word(layout.device(device), || format!("the word of device {device}"));
        reader.text(layout.device_text(device), false, || format!("the location of device {device}"));
        if let Some(part) = pool.books().memory.part(device) {
            for fault in Superblock::faults(&first_page(&part.mapping, part.base)) {
                reader.report.faults.push(format!("{fault} of device {device} is damaged"));
            }
            if word.is_some_and(|word| (word.first, word.extents) != (part.first, part.extents)) {
                reader.report.faults.push(format!("the books and device {device} do not agree on its extents"));
            }
        }
    }
    for missing in pool.missing() {
        reader.report.faults.push(format!("device \"{}\" is missing: {}", missing.location, missing.error.message()));
    }
    let live = databases(&mut reader);
    let idents = hosts(&mut reader);
    events(&mut reader);
    for gap in layout.gaps() {
        for offset in gap.step_by(8) {
            let bits = reader.bits(At(offset as u32));
            if bits != 0 {
                reader.report.faults.push(format!("byte {offset} of the books is not zero: {bits:#018x}"));
            }
        }
    }
    for extent in layout.all_extents() {
        let owner = reader.word(layout.owner(extent), || format!("the owner of extent {}", extent.0));
        let sum = reader.word(layout.sum(extent), || format!("the checksum of extent {}", extent.0));
        let (Some(owner), Some(sum)) = (owner, sum) else { continue };
        look_at(&mut reader, extent, owner, &live, &idents);
        if deep && let Owner::Shared { .. } = owner {
            compare(&mut reader, extent, owner, sum.0);
        }
    }
    Ok(reader.report)
}

fn databases(reader: &mut Reader<'_>) -> Vec<bool> {
    let layout = reader.pool.layout();
    let mut live = vec![false; DATABASES];
    for database in (0..DATABASES as u8).map(Database) {
        let name = |what: &str| format!("{what} of database {}", database.0);
        let entry = reader.word(layout.entry(database), || name("the entry"));
        reader.word(layout.term(database), || name("TERM"));
        reader.word(layout.root(database), || name("ROOT"));
        reader.word(layout.quota(database), || name("the quota"));
        // One that is being made, or was, when its maker was killed.
        let may_be_half = entry.is_none_or(|entry| entry.state != EntryState::Live);
        reader.text(layout.database_text(database), may_be_half, || name("the name"));
        live[usize::from(database.0)] = entry.is_none_or(|entry| entry.state != EntryState::Free);
        for term in 0..TERMS as u32 {
            reader.word(layout.first(database, Term(term)), || name("the first segment of a term"));
            reader.word(layout.seal(database, Term(term)), || name("the seal of a term"));
        }
        for number in 0..SEGMENTS as u64 {
            reader.word(layout.segment(database, number), || name("the log table"));
        }
    }
    live
}

fn hosts(reader: &mut Reader<'_>) -> Vec<Option<Ident>> {
    let layout = reader.pool.layout();
    let mut idents = Vec::with_capacity(SLOTS);
    for slot in (0..SLOTS as u8).map(Slot) {
        let ident = reader.word(layout.ident(slot), || format!("IDENT of slot {}", slot.0));
        for number in HostNumber::ALL {
            reader.word(layout.host_number(slot, *number), || format!("{number:?} of slot {}", slot.0));
        }
        // The lower half is the kernel's from the first host on. Asked for after it: a host takes its slot before it holds the word.
        let held = reader.bits(layout.thread_word(slot));
        let is_unused = held != 0 && reader.pool.books().load(layout.ident(slot)) == Ok(Ident::NEW);
        if held >> 32 != 0 || is_unused {
            reader
                .report
                .faults
                .push(format!("the word that the thread of slot {} holds is damaged: {held:#018x}", slot.0));
        }
        let is_attached = ident.is_some_and(|ident| ident.state.is_live() && ident.state != HostState::Joining);
        reader.text(layout.host_text(slot), !is_attached, || format!("the page of slot {}", slot.0));
        idents.push(ident);
    }
    idents
}

fn events(reader: &mut Reader<'_>) {
    let layout = reader.pool.layout();
    reader.word(layout.event_next(), || "the number of the next event".to_owned());
    for sequence in 0..EVENTS as u64 {
        let (head, time, about) = layout.event(sequence);
        let name = || format!("event {sequence} of the ring");
        let head = reader.word(head, name);
        let parts = [reader.word(time, name), reader.word(about, name)];
        let (Some(head), [Some(time), Some(about)]) = (head, parts) else { continue };
        if [time, about].iter().any(|part| part.sequence_low != head.sequence as u8) {
            reader.report.remarks.push(format!("{} was written half", name()));
        }
    }
}

/// An owner against what else the books say.
fn look_at(reader: &mut Reader<'_>, extent: Extent, owner: Owner, live: &[bool], idents: &[Option<Ident>]) {
    let pool = reader.pool;
    let is_on_device = pool.is_there(extent)
        || pool
            .missing()
            .iter()
            .any(|missing| (missing.first.0..missing.first.0 + missing.extents).contains(&extent.0));
    let wrong = match owner {
        Owner::Absent if is_on_device => Some("no device is there, it says".to_owned()),
        Owner::Absent => None,
        _ if !is_on_device => Some(format!("it is {} where no device is", owner.text())),
        Owner::Shared { database, .. } | Owner::Orphan { database, .. } if !live[usize::from(database.0)] => {
            Some(format!("it is {} of database {}, which does not exist", owner.text(), database.0))
        }
        Owner::Orphan { .. } => None,
        _ => owner.writer().and_then(|writer| {
            let ident = idents[usize::from(writer.slot.0)]?;
            if ident.incarnation == writer.incarnation && ident.state != HostState::Free {
                if matches!(ident.state, HostState::Suspect | HostState::Fenced | HostState::Dead) {
                    reader.report.quarantined += 1;
                }
                return None;
            }
            // Taken, or freed, since the host was looked at: then its word is another now.
            let field = pool.layout().owner(extent);
            let now = pool.told(pool.books().load(field)).ok()?;
            let ident = pool.told(pool.books().load(pool.layout().ident(writer.slot))).ok()?;
            let is_over = ident.incarnation != writer.incarnation || ident.state == HostState::Free;
            let is_handed = matches!(owner, Owner::Handed { .. });
            (now == owner && is_over && !is_handed)
                .then(|| format!("it is {} of {writer}, which is over", owner.text()))
        }),
    };
    if let Some(wrong) = wrong {
        reader.report.faults.push(format!("extent {}: {wrong}", extent.0));
    }
}

#[allow(unsafe_code, reason = "the word says that no host stores to the extent")]
fn compare(reader: &mut Reader<'_>, extent: Extent, owner: Owner, expected: u64) {
    let pool = reader.pool;
    // SAFETY: it is shared, so no host stores there until a root is without it and it is returned; what is read while that
    // happens is not used.
    let Some(found) = (unsafe { pool.books().memory.sum(extent) }) else { return };
    let is_still = pool.told(pool.books().load(pool.layout().owner(extent))).is_ok_and(|now| now == owner);
    if !is_still {
        return;
    }
    reader.report.compared += 1;
    reader.report.compared_bytes += pool.extent_bytes();
    if found != expected {
        let line = format!("extent {}: its contents do not have their checksum", extent.0);
        reader.report.faults.push(line);
    }
}

/// What an extent is counted under: its state, its kind, and its database, as far as it has them.
pub type UsageKey = (&'static str, &'static str, Option<u8>);

/// How many extents are in which state, of which kind, of which database.
pub fn usage(pool: &Pool) -> Result<BTreeMap<UsageKey, u64>> {
    let mut usage = BTreeMap::new();
    let books = pool.books();
    for extent in pool.layout().all_extents() {
        let owner = pool.told(books.load(pool.layout().owner(extent)))?;
        let database = match owner {
            Owner::Absent => continue,
            Owner::Shared { database, .. } | Owner::Orphan { database, .. } => Some(database.0),
            _ => match owner.writer() {
                Some(writer) => {
                    let ident = pool.told(books.load(pool.layout().ident(writer.slot)))?;
                    Some(ident.database).filter(|of| *of != Database::NONE).map(|of| of.0)
                }
                None => None,
            },
        };
        let kind = owner.kind().map_or("", |kind| kind.text());
        *usage.entry((owner.text(), kind, database)).or_default() += 1;
    }
    Ok(usage)
}
