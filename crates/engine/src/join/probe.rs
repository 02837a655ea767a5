//! The probe side: rows look theirs up a chunk at a time.
//!
//! A chunk's entries of the directory are fetched together, then the rows that they name, then keys are compared a
//! column at a time: what is far is waited for once a chunk rather than once a row. Pairs are handed on as soon as
//! there are enough for a chunk, so that rows with many matches take no more memory than others.

use super::JoinKind;
use super::ranked::Ranked;
use super::table::{ADDRESS, Built, Directory, JoinTable, MATCHED, tag};
use crate::hash;
use crate::mask::Mask;
use crate::pipeline::{Operator, Out, Step};
use crate::rows::RowPtr;
use crate::touch::Touches;
use crate::vector::{CHUNK_ROWS, Chunk, Values, Vector};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, Result};

/// Of rows still looking, so few that whole lists are walked at once.
const FEW_ROWS: usize = 64;

/// Looks rows of the probe side up. Hands on what [`super::Join::output`] says, where the kind has it come from here.
pub struct Probe(Arc<JoinTable>);

impl Probe {
    pub fn new(table: &Arc<JoinTable>) -> Probe {
        Probe(Arc::clone(table))
    }
}

impl Operator for Probe {
    fn worker(&self) -> Result<Box<dyn Step>> {
        self.0.built()?;
        Ok(Box::new(Prober::new(&self.0)))
    }
}

/// Rows of a chunk, and the stored row that goes with each.
#[derive(Default)]
pub(super) struct Pairs {
    pub rows: Vec<u32>,
    pub stored: Vec<RowPtr>,
}

impl Pairs {
    pub fn clear(&mut self) {
        self.rows.clear();
        self.stored.clear();
    }

    #[inline(always)]
    pub fn push(&mut self, row: u32, stored: RowPtr) {
        self.rows.push(row);
        self.stored.push(stored);
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    fn resize(&mut self, len: usize) {
        self.rows.resize(len, 0);
        self.stored.resize(len, RowPtr::NONE);
    }

    fn truncate(&mut self, len: usize) {
        self.rows.truncate(len);
        self.stored.truncate(len);
    }

    /// The rows that found one, instead of what it has.
    fn fill_found(&mut self, found: &[RowPtr]) {
        self.resize(found.len());
        let mut count = 0;
        for (row, stored) in found.iter().enumerate() {
            self.rows[count] = row as u32;
            self.stored[count] = *stored;
            count += usize::from(!stored.is_none());
        }
        self.truncate(count);
    }

    pub fn filter(&mut self, passing: &Mask) {
        if passing.is_all() {
            return;
        }
        let positions = passing.positions();
        for (place, from) in positions.iter().enumerate() {
            self.rows[place] = self.rows[*from as usize];
            self.stored[place] = self.stored[*from as usize];
        }
        self.truncate(positions.len());
    }
}

/// A worker's. The vectors are kept for their memory only.
pub(super) struct Prober {
    pub table: Arc<JoinTable>,
    hashes: Vec<u64>,
    /// Of a ranked directory.
    slots: Vec<usize>,
    entries: Vec<u64>,
    candidates: Pairs,
    rest: Pairs,
    keep: Vec<u8>,
    found: Vec<RowPtr>,
    pub pairs: Pairs,
    /// Of the chunk's rows: 1 for those that found a match.
    pub matched: Vec<u8>,
    /// 1 for those that NULL may make match.
    pub unknown: Vec<u8>,
    /// Every stored row is known to have found a match.
    pub has_marked_all: bool,
    pub touches: Touches,
}

impl Prober {
    fn new(table: &Arc<JoinTable>) -> Prober {
        Prober {
            table: Arc::clone(table),
            hashes: Vec::new(),
            slots: Vec::new(),
            entries: Vec::new(),
            candidates: Pairs::default(),
            rest: Pairs::default(),
            keep: Vec::new(),
            found: Vec::new(),
            pairs: Pairs::default(),
            matched: Vec::new(),
            unknown: Vec::new(),
            has_marked_all: false,
            touches: table.touches(),
        }
    }
}

impl Step for Prober {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let table = Arc::clone(&self.table);
        let (join, built) = (&table.join, table.built()?);
        let column_of = |key: &super::JoinKey| key.probe;
        let keyed = table.keyed(&chunk, column_of);
        if join.null_aware && join.kind == JoinKind::RightAnti {
            table.probe_came.store(true, Ordering::Relaxed);
            if keyed.is_some() {
                table.probe_null_came.store(true, Ordering::Relaxed);
            }
        }
        for filter in built.filters.iter().flatten() {
            self.touches.lines(&table.pools.filters, filter.take_tested(), false);
        }
        let keys = table.keys(&chunk, column_of);
        self.matched.clear();
        self.matched.resize(chunk.rows, 0);
        match &built.directory {
            Directory::Empty => {}
            Directory::Nested => self.all_pairs(&chunk, built, out)?,
            Directory::Bitmap { min, bits } => {
                let test = |key: i64| {
                    let bit = key.wrapping_sub(*min) as u64;
                    bits.get((bit / 64) as usize)
                        .is_some_and(|word| word.load(Ordering::Relaxed) >> (bit % 64) & 1 == 1)
                };
                let address = |key: &i64| directory_address(*key, *min, bits.len() * 64, 64);
                self.touches.look_up(&table.pools.directory, keys[0].as_ints()?.iter().map(address), 8, false);
                let found = Mask::of_values(keys[0].as_ints()?, test);
                let found = keyed.as_ref().map_or(found.clone(), |keyed| found.and(keyed));
                return self.hand_on_tested(chunk, built, keyed.as_ref(), found, None, out);
            }
            _ if table.is_set() || !built.has_duplicates.load(Ordering::Relaxed) => {
                self.find_one(&chunk, built, &keys, keyed.as_ref())?;
                self.hand_on_found(&chunk, built, out)?;
                if join.kind.pairs() {
                    return Ok(());
                }
            }
            _ if !join.kind.emits_probe() && join.residual.is_none() => {
                self.mark_all(&chunk, built, &keys, keyed.as_ref())?;
            }
            _ => self.find_all(&chunk, built, &keys, keyed.as_ref(), out)?,
        }
        if join.tries_nulls() {
            self.try_nulls(&chunk, built, keyed.as_ref(), out)?;
        }
        if join.kind.tests_probe() {
            let found = Mask::of_values(&self.matched, |matched| matched != 0);
            let unknown = join.tries_nulls().then(|| Mask::of_values(&self.unknown, |unknown| unknown != 0));
            self.hand_on_tested(chunk, built, keyed.as_ref(), found, unknown, out)?;
        } else if matches!(join.kind, JoinKind::Left | JoinKind::Full) {
            let rows = Mask::of_values(&self.matched, |matched| matched == 0).positions();
            if !rows.is_empty() {
                let missing = vec![RowPtr::NONE; rows.len()];
                self.hand_on_pairs(&chunk, built, Some(&rows), &missing, out)?;
            }
        }
        Ok(())
    }

    fn is_satisfied(&self) -> bool {
        let join = &self.table.join;
        let Ok(built) = self.table.built() else { return false };
        let is_empty = match built.directory {
            Directory::Empty => true,
            Directory::Nested => built.rows.is_empty(),
            _ => false,
        };
        let none_passes =
            join.kind == JoinKind::LeftAnti && join.null_aware && join.residual.is_none() && built.has_null;
        (is_empty && join.kind.drops_unmatched_probe() && !join.null_aware) || none_passes
    }
}

/// Where a directory of `len` objects, `per_word` of them in a word, has that of a key: as an address, for accounts. 0: nowhere.
fn directory_address(key: i64, min: i64, len: usize, per_word: u64) -> u64 {
    let place = key.wrapping_sub(min) as u64;
    if place < len as u64 { 64 + place / per_word * 8 } else { 0 }
}

/// Takes out the pairs whose entry passes. Its own loop: one that waits for entries must do nothing that depends on
/// them, or fewer are on their way at a time.
#[inline(always)]
fn choose(rows: Option<&[u32]>, entries: &[u64], passes: impl Fn(usize, u64) -> bool, into: &mut Pairs) {
    into.resize(entries.len());
    let mut count = 0;
    for (place, entry) in entries.iter().enumerate() {
        into.rows[count] = rows.map_or(place as u32, |rows| rows[place]);
        // SAFETY: entries have addresses of rows, or 0.
        into.stored[count] = unsafe { RowPtr::from_address(entry & ADDRESS) };
        count += usize::from(passes(place, *entry));
    }
    into.truncate(count);
}

impl Prober {
    /// Rows that may have a match, and the first of the stored rows to look at.
    fn begin(&mut self, chunk: &Chunk, built: &Built, keys: &[Vector], keyed: Option<&Mask>) -> Result<()> {
        let positions = keyed.map(Mask::positions);
        let rows = positions.as_deref();
        self.entries.clear();
        match &built.directory {
            Directory::Dense { min, slots } => {
                let entry = |key: i64| {
                    let slot = slots.get(key.wrapping_sub(*min) as u64 as usize);
                    slot.map_or(0, |slot| slot.load(Ordering::Relaxed))
                };
                let keys = keys[0].as_ints()?;
                let address = |key: &i64| directory_address(*key, *min, slots.len(), 1);
                self.touches.look_up(&self.table.pools.directory, keys.iter().map(address), 8, false);
                match rows {
                    None => self.entries.extend(keys.iter().map(|key| entry(*key))),
                    Some(rows) => self.entries.extend(rows.iter().map(|row| entry(keys[*row as usize]))),
                }
                choose(rows, &self.entries, |_, entry| entry != 0, &mut self.candidates);
                Ok(())
            }
            Directory::Ranked(ranked) => {
                self.rank(ranked, keys[0].as_ints()?, rows)?;
                let slots = ranked.slots()?;
                let entry = |place: &usize| slots[*place].load(Ordering::Relaxed);
                self.entries.extend(self.slots.iter().map(entry));
                choose(rows, &self.entries, |_, entry| entry != 0, &mut self.candidates);
                Ok(())
            }
            Directory::Hash { shift, slots } => {
                hash::of_columns_into(&keys.iter().collect::<Vec<_>>(), chunk.rows, &mut self.hashes)?;
                if let Some(rows) = rows {
                    for (place, row) in rows.iter().enumerate() {
                        self.hashes[place] = self.hashes[*row as usize];
                    }
                    self.hashes.truncate(rows.len());
                }
                let address = |hash: &u64| 64 + (hash >> shift) * 8;
                self.touches.look_up(&self.table.pools.directory, self.hashes.iter().map(address), 8, false);
                let entry = |hash: &u64| slots[(hash >> shift) as usize].load(Ordering::Relaxed);
                self.entries.extend(self.hashes.iter().map(entry));
                let passes = |place: usize, entry: u64| {
                    let tag = tag(self.hashes[place]);
                    entry & tag == tag
                };
                choose(rows, &self.entries, passes, &mut self.candidates);
                Ok(())
            }
            _ => Err(Error::internal("a look into a directory that has no rows")),
        }
    }

    /// The slots of keys in a ranked directory, of all or of those of some rows.
    fn rank(&mut self, ranked: &Ranked, keys: &[i64], rows: Option<&[u32]>) -> Result<()> {
        let directory = &self.table.pools.directory;
        let slots = ranked.slots()?;
        self.touches.look_up(directory, keys.iter().map(|key| ranked.address(*key)), 16, false);
        self.slots.clear();
        match rows {
            None => self.slots.extend(keys.iter().map(|key| ranked.place(*key, slots))),
            Some(rows) => self.slots.extend(rows.iter().map(|row| ranked.place(keys[*row as usize], slots))),
        }
        // Those that are no keys all come to the last.
        let address = |place: &usize| if place + 1 < slots.len() { 64 + *place as u64 * 8 } else { 0 };
        self.touches.look_up(directory, self.slots.iter().map(address), 8, false);
        Ok(())
    }

    /// Which of some pairs have equal keys, into `keep`.
    fn compare(&mut self, built: &Built, keys: &[Vector], pairs: &Pairs) -> Result<()> {
        self.keep.clear();
        self.keep.resize(pairs.len(), 1);
        if built.looks_at_rows() {
            self.touch_rows(&pairs.stored);
        }
        if let Directory::Dense { .. } | Directory::Ranked(_) = built.directory {
            return Ok(());
        }
        for ((key, field), values) in self.table.join.keys.iter().zip(&self.table.key_fields).zip(keys) {
            let layout = &self.table.layout;
            // SAFETY: the stored rows are the table's, which is complete and keeps what their texts lie in.
            unsafe { layout.compare(*field, values, &pairs.rows, &pairs.stored, key.nulls_equal, &mut self.keep)? };
        }
        Ok(())
    }

    /// Rows of the build side are read, and noted as matched where that is asked for.
    fn touch_rows(&mut self, stored: &[RowPtr]) {
        let marks = self.table.join.kind.emits_build();
        let addresses = stored.iter().map(|row| row.address());
        self.touches.look_up(&self.table.pools.rows, addresses, self.table.layout.width(), marks);
    }

    /// The stored rows that follow in their lists, of those that are not the last.
    fn follow(&mut self, pairs: &mut Pairs) {
        // SAFETY: of rows of the table's; headers are used as shared everywhere.
        let header = |row: &RowPtr| unsafe { row.header() }.load(Ordering::Relaxed);
        self.entries.clear();
        self.entries.extend(pairs.stored.iter().map(header));
        choose(Some(&pairs.rows), &self.entries, |_, header| header & ADDRESS != 0, &mut self.rest);
        std::mem::swap(pairs, &mut self.rest);
    }

    /// For each row the first match that is found, or none, into `found`.
    fn find_one(&mut self, chunk: &Chunk, built: &Built, keys: &[Vector], keyed: Option<&Mask>) -> Result<()> {
        self.found.clear();
        if let (Directory::Dense { min, slots }, Values::Int(keys), None) = (&built.directory, &keys[0].values, keyed) {
            let address = |key: &i64| directory_address(*key, *min, slots.len(), 1);
            self.touches.look_up(&self.table.pools.directory, keys.iter().map(address), 8, false);
            self.found.extend(keys.iter().map(|key| {
                let slot = slots.get(key.wrapping_sub(*min) as u64 as usize);
                // SAFETY: words have addresses of rows, or 0.
                unsafe { RowPtr::from_address(slot.map_or(0, |slot| slot.load(Ordering::Relaxed))) }
            }));
            return Ok(());
        }
        if let (Directory::Ranked(ranked), Values::Int(keys), None) = (&built.directory, &keys[0].values, keyed) {
            self.rank(ranked, keys, None)?;
            let slots = ranked.slots()?;
            // SAFETY: words have addresses of rows, or 0.
            let row = |place: &usize| unsafe { RowPtr::from_address(slots[*place].load(Ordering::Relaxed)) };
            self.found.extend(self.slots.iter().map(row));
            return Ok(());
        }
        self.found.resize(chunk.rows, RowPtr::NONE);
        self.begin(chunk, built, keys, keyed)?;
        let mut pairs = std::mem::take(&mut self.candidates);
        while pairs.len() > 0 {
            self.compare(built, keys, &pairs)?;
            let mut left = 0;
            for place in 0..pairs.len() {
                let (row, stored, is_found) = (pairs.rows[place], pairs.stored[place], self.keep[place] != 0);
                self.found[row as usize] = if is_found { stored } else { RowPtr::NONE };
                (pairs.rows[left], pairs.stored[left]) = (row, stored);
                left += usize::from(!is_found);
            }
            pairs.truncate(left);
            self.follow(&mut pairs);
        }
        self.candidates = pairs;
        Ok(())
    }

    /// All that becomes of `found`, but for what is told of rows without a match.
    fn hand_on_found(&mut self, chunk: &Chunk, built: &Built, out: Out<'_>) -> Result<()> {
        let table = Arc::clone(&self.table);
        let kind = table.join.kind;
        let mut found = std::mem::take(&mut self.found);
        let mut pairs = std::mem::take(&mut self.pairs);
        if !built.looks_at_rows() && (kind.emits_build() || table.residual.is_some() || !table.output_fields.is_empty())
        {
            self.touch_rows(&found);
        }
        if let Some(residual) = &table.residual
            && found.iter().any(|stored| !stored.is_none())
        {
            pairs.fill_found(&found);
            // SAFETY: what is found are rows of the table's.
            let passing = unsafe { residual.passing(&table, &built.owners, chunk, &pairs.rows, &pairs.stored)? };
            pairs.filter(&passing);
            found.fill(RowPtr::NONE);
            pairs.rows.iter().zip(&pairs.stored).for_each(|(row, stored)| found[*row as usize] = *stored);
        }
        if kind.tests_probe() {
            self.matched.iter_mut().zip(&found).for_each(|(matched, stored)| *matched = u8::from(!stored.is_none()));
        } else if matches!(kind, JoinKind::Inner | JoinKind::Left) && !found.iter().any(|stored| stored.is_none()) {
            self.hand_on_pairs(chunk, built, None, &found, out)?;
        } else {
            if kind != JoinKind::Left {
                pairs.fill_found(&found);
            }
            if kind.emits_build() {
                // SAFETY: as above.
                unsafe { JoinTable::mark_matched(&pairs.stored) };
            }
            if matches!(kind, JoinKind::Left | JoinKind::Full) {
                self.hand_on_pairs(chunk, built, None, &found, out)?;
            } else if kind.pairs() && pairs.len() > 0 {
                self.hand_on_pairs(chunk, built, Some(&pairs.rows), &pairs.stored, out)?;
            }
        }
        (self.found, self.pairs) = (found, pairs);
        Ok(())
    }

    /// Notes all stored rows of the chunk's keys as matched, when that is all there is to do.
    fn mark_all(&mut self, chunk: &Chunk, built: &Built, keys: &[Vector], keyed: Option<&Mask>) -> Result<()> {
        self.begin(chunk, built, keys, keyed)?;
        let mut pairs = std::mem::take(&mut self.candidates);
        while pairs.len() > 0 {
            self.compare(built, keys, &pairs)?;
            let mut left = 0;
            for place in 0..pairs.len() {
                let (row, stored) = (pairs.rows[place], pairs.stored[place]);
                // SAFETY: a row of the table's; headers are used as shared everywhere.
                let header = unsafe { stored.header() };
                let mut old = header.load(Ordering::Relaxed);
                if self.keep[place] != 0 {
                    if old & MATCHED == 0 {
                        old = header.fetch_or(MATCHED, Ordering::Relaxed);
                    }
                    if old & MATCHED != 0 {
                        // Whoever noted this one goes on to the others of its key.
                        continue;
                    }
                }
                if old & ADDRESS != 0 {
                    // SAFETY: headers have addresses of rows.
                    let next = unsafe { RowPtr::from_address(old & ADDRESS) };
                    next.prefetch();
                    (pairs.rows[left], pairs.stored[left]) = (row, next);
                    left += 1;
                }
            }
            pairs.truncate(left);
        }
        self.candidates = pairs;
        Ok(())
    }

    /// Every pair, handed on as they are found.
    fn find_all(
        &mut self,
        chunk: &Chunk,
        built: &Built,
        keys: &[Vector],
        keyed: Option<&Mask>,
        out: Out<'_>,
    ) -> Result<()> {
        self.begin(chunk, built, keys, keyed)?;
        let mut pairs = std::mem::take(&mut self.pairs);
        let (mut now, mut rest) = (std::mem::take(&mut self.candidates), std::mem::take(&mut self.rest));
        pairs.clear();
        // SAFETY: of a row of the table's, which is complete.
        let next = |row: RowPtr| unsafe { JoinTable::next(row) };
        while now.len() > 0 {
            rest.clear();
            if now.len() < FEW_ROWS {
                // As many of each list as there is room for.
                for (row, first) in now.rows.drain(..).zip(now.stored.drain(..)).collect::<Vec<_>>() {
                    let mut stored = first;
                    while !stored.is_none() && now.len() < CHUNK_ROWS {
                        now.push(row, stored);
                        stored = next(stored);
                    }
                    if !stored.is_none() {
                        rest.push(row, stored);
                    }
                }
                self.compare(built, keys, &now)?;
            } else {
                self.compare(built, keys, &now)?;
                // SAFETY: of rows of the table's; headers are used as shared everywhere.
                let header = |row: &RowPtr| unsafe { row.header() }.load(Ordering::Relaxed);
                self.entries.clear();
                self.entries.extend(now.stored.iter().map(header));
                choose(Some(&now.rows), &self.entries, |_, header| header & ADDRESS != 0, &mut rest);
            }
            let mut count = pairs.len();
            pairs.resize(count + now.len());
            for ((row, stored), keep) in now.rows.iter().zip(&now.stored).zip(&self.keep) {
                (pairs.rows[count], pairs.stored[count]) = (*row, *stored);
                count += usize::from(*keep);
            }
            pairs.truncate(count);
            std::mem::swap(&mut now, &mut rest);
            if pairs.len() >= CHUNK_ROWS || now.len() == 0 {
                self.take_pairs(chunk, built, &mut pairs, false, out)?;
                self.table.check()?;
                if self.table.join.kind.tests_probe() {
                    let is_open = Mask::of_values(&now.rows, |row| self.matched[row as usize] == 0);
                    now.filter(&is_open);
                }
            }
        }
        (self.candidates, self.rest, self.pairs) = (now, rest, pairs);
        Ok(())
    }

    /// What becomes of pairs with equal keys, which are taken. `unknown`: NULL may make them equal.
    pub(super) fn take_pairs(
        &mut self,
        chunk: &Chunk,
        built: &Built,
        pairs: &mut Pairs,
        unknown: bool,
        out: Out<'_>,
    ) -> Result<()> {
        let table = Arc::clone(&self.table);
        let kind = table.join.kind;
        if !kind.emits_probe() {
            // SAFETY: the stored rows are the table's; headers are used as shared everywhere.
            let is_open = |row: RowPtr| unsafe { row.header() }.load(Ordering::Relaxed) & MATCHED == 0;
            pairs.filter(&Mask::of_values(&pairs.stored, is_open));
        }
        if let Some(residual) = &table.residual
            && pairs.len() > 0
        {
            // SAFETY: the stored rows are the table's.
            let passing = unsafe { residual.passing(&table, &built.owners, chunk, &pairs.rows, &pairs.stored)? };
            pairs.filter(&passing);
        }
        let hits = if unknown { &mut self.unknown } else { &mut self.matched };
        pairs.rows.iter().for_each(|row| hits[*row as usize] = 1);
        if kind.emits_build() {
            // SAFETY: as above.
            unsafe { JoinTable::mark_matched(&pairs.stored) };
        }
        if kind.pairs() {
            for (rows, stored) in pairs.rows.chunks(CHUNK_ROWS).zip(pairs.stored.chunks(CHUNK_ROWS)) {
                self.hand_on_pairs(chunk, built, Some(rows), stored, out)?;
            }
        }
        pairs.clear();
        Ok(())
    }

    /// Pairs as they come out; a stored row that is not there is NULL. `None`: all rows of the chunk, in order.
    fn hand_on_pairs(
        &self,
        chunk: &Chunk,
        built: &Built,
        rows: Option<&[u32]>,
        stored: &[RowPtr],
        out: Out<'_>,
    ) -> Result<()> {
        let table = &self.table;
        let is_all = |rows: &&[u32]| {
            rows.len() == chunk.rows && rows.iter().enumerate().all(|(place, row)| place == *row as usize)
        };
        let rows = rows.filter(|rows| !is_all(rows));
        let mut columns = Vec::with_capacity(table.join.probe_output.len() + table.output_fields.len());
        for column in &table.join.probe_output {
            let column = &chunk.columns[*column];
            columns.push(rows.map_or_else(|| Ok(column.clone()), |rows| column.gather(rows))?);
        }
        for field in &table.output_fields {
            // SAFETY: the stored rows are the table's, which is complete.
            columns.push(unsafe { table.layout.gather(*field, stored, &built.owners) });
        }
        out(Chunk::new(stored.len(), columns))
    }

    /// Rows of the probe side, by whether they found a match. `unknown`: where NULL may make one, if that was tried row
    /// by row.
    fn hand_on_tested(
        &self,
        chunk: Chunk,
        built: &Built,
        keyed: Option<&Mask>,
        found: Mask,
        unknown: Option<Mask>,
        out: Out<'_>,
    ) -> Result<()> {
        let join = &self.table.join;
        let columns = join.probe_output.iter().map(|column| chunk.columns[*column].clone()).collect();
        let mut chunk = Chunk::new(chunk.rows, columns);
        let unknown = match unknown {
            Some(unknown) => Some(unknown),
            None if !join.null_aware || built.total == 0 => None,
            None if built.has_null => Some(Mask::all(chunk.rows)),
            None => keyed.map(Mask::not),
        };
        let passing = match join.kind {
            JoinKind::LeftSemi => found,
            JoinKind::LeftAnti => unknown.map_or(found.clone(), |unknown| found.or(&unknown)).not(),
            _ => {
                let known = unknown.map(|unknown| found.or(&unknown.not()));
                chunk.columns.push(Vector { values: Values::Bool(found), valid: None }.with_valid(known));
                return out(chunk);
            }
        };
        if passing.is_none() { Ok(()) } else { out(chunk.keep(&passing)?) }
    }
}
