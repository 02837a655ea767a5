//! After the last chunk: the workers' groups become one.

use super::directory::{Directory, Fresh, HASH, PARTITION_BITS, check_heap, hash_of};
use super::local::LocalTable;
use super::ordered::{self, OrderedRows};
use super::output;
use super::plan::{Lookup, Plan};
use super::states::{Place, accumulate, merge};
use super::texts::TextStore;
use super::worker::{Groups, Worker};
use crate::hash;
use crate::observed::Hold;
use crate::pipeline::Task;
use crate::room;
use crate::rows::{FrozenRows, RowLayout, RowPtr};
use crate::text::Owners;
use crate::touch::{Pool, Touches};
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};

/// What the source reads.
#[derive(Debug)]
pub(super) struct Finished {
    groups: Vec<Vec<RowPtr>>,
    /// Pieces of `groups`: which, and from where.
    pub pieces: Vec<(u32, u32)>,
    owners: Owners,
    _rows: Vec<FrozenRows>,
    /// Of `groups`, and of texts.
    _holds: Vec<Hold>,
}

impl Finished {
    /// `holds`: of what the owners have beside the rows' own texts.
    fn new(
        groups: Vec<Vec<RowPtr>>,
        owners: Owners,
        rows: Vec<FrozenRows>,
        mut holds: Vec<Hold>,
        plan: &Plan,
    ) -> Finished {
        holds.extend(groups.iter().map(|groups| plan.meter.observer().hold_vec(groups)));
        let of_group = |(index, groups): (usize, &Vec<RowPtr>)| {
            (0..groups.len()).step_by(CHUNK_ROWS).map(move |start| (index as u32, start as u32))
        };
        let pieces = groups.iter().enumerate().flat_map(of_group).collect();
        Finished { groups, pieces, owners, _rows: rows, _holds: holds }
    }

    pub fn chunk(&self, plan: &Plan, piece: usize) -> Result<Chunk> {
        let (group, start) = self.pieces[piece];
        let rows = &self.groups[group as usize][start as usize..];
        // SAFETY: the rows are here with what they point to, and nobody writes them any more.
        unsafe { output::chunk(plan, &rows[..rows.len().min(CHUNK_ROWS)], &self.owners) }
    }
}

/// One partition's groups, with what they lie in.
type Merged = (Vec<RowPtr>, Vec<FrozenRows>);

#[derive(Default)]
enum Stage {
    #[default]
    Begin,
    /// Tables whose rows are being put to partitions: of each worker, its groups' and its sets'.
    Written(Vec<Arc<Mutex<Option<LocalTable>>>>),
    Merging(Arc<Vec<Mutex<Option<Merged>>>>),
}

/// How far the workers' groups are merged.
#[derive(Default)]
pub(super) struct Merging {
    stage: Stage,
    owners: Owners,
    /// Rows that only own texts.
    kept: Vec<FrozenRows>,
    /// Of accumulators' texts.
    holds: Vec<Hold>,
    /// Without keys: the row of all.
    one: Option<RowPtr>,
}

/// Merges what rows of one layout have into the first of them with the same key.
struct Merger<'a> {
    layout: &'a RowLayout,
    keys: usize,
    owners: &'a Owners,
    directory: Directory,
    groups: Vec<RowPtr>,
    touches: Touches,
    /// What the rows lie in.
    rows: &'a Pool,
}

impl<'a> Merger<'a> {
    /// For the rows of `pieces`.
    fn new(
        plan: &'a Plan,
        layout: &'a RowLayout,
        keys: usize,
        pieces: &[Piece],
        owners: &'a Owners,
    ) -> Result<Merger<'a>> {
        let directory = Directory::for_rows(pieces.iter().map(Piece::len).sum(), plan.meter.observer())?;
        let touches = plan.meter.touches();
        Ok(Merger { layout, keys, owners, directory, groups: Vec::new(), touches, rows: &plan.groups })
    }

    /// # Safety
    ///
    /// The rows are of the layout, and nobody else has them. `owners` hold what they point to.
    unsafe fn add(&mut self, plan: Option<&Plan>, rows: &[RowPtr]) -> Result<()> {
        let mut found = Vec::with_capacity(CHUNK_ROWS);
        let (mut into, mut from) = (Vec::new(), Vec::new());
        for batch in rows.chunks(CHUNK_ROWS) {
            found.clear();
            // SAFETY: the caller's word, here and below; rows of the directory were given before.
            unsafe {
                let hashes: Vec<u64> = batch.iter().map(|row| hash_of(*row)).collect();
                let keys: Vec<Vector> =
                    (0..self.keys).map(|column| self.layout.gather(column, batch, self.owners)).collect();
                let keys: Vec<&Vector> = keys.iter().collect();
                room::grow(&mut self.groups, batch.len())?;
                self.directory
                    .make_room(batch.len(), || room::collected(self.groups.len(), self.groups.iter().copied()))?;
                let fresh = Fresh::Given(batch, &mut self.groups);
                self.directory.locate(self.layout, &keys, &hashes, fresh, &mut found)?;
            }
            let width = self.layout.width();
            self.touches.read(self.rows, batch.len() * width);
            let Some(plan) = plan else { continue };
            into.clear();
            from.clear();
            for (group, row) in found.iter().zip(batch).filter(|(group, row)| group != row) {
                into.push(*group);
                from.push(*row);
            }
            if !into.is_empty() {
                self.touches.write(self.rows, into.len() * width);
                for accumulator in &plan.accumulators {
                    // SAFETY: as above; a group is none of the rows that are merged into others.
                    unsafe { merge(accumulator, &into, &from) };
                }
            }
        }
        Ok(())
    }
}

/// What one worker's table has in a partition.
enum Piece {
    /// All rows of these.
    Whole(FrozenRows),
    /// Some of a table's rows, which somebody else keeps.
    Picked(Arc<Vec<RowPtr>>, Range<usize>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Whole(rows) => rows.len(),
            Piece::Picked(_, range) => range.len(),
        }
    }

    fn pointers(&self) -> Result<Cow<'_, [RowPtr]>> {
        match self {
            Piece::Whole(rows) => rows.pointers().map(Cow::Owned),
            Piece::Picked(rows, range) => Ok(Cow::Borrowed(&rows[range.clone()])),
        }
    }

    fn into_whole(self) -> Option<FrozenRows> {
        match self {
            Piece::Whole(rows) => Some(rows),
            Piece::Picked(..) => None,
        }
    }
}

/// Adds a set's values to the groups' accumulators.
///
/// # Safety
///
/// Nobody else has the groups. `owners` hold what rows point to.
unsafe fn add_set(
    plan: &Plan,
    index: usize,
    pieces: &[Piece],
    groups: Result<&mut Merger<'_>, RowPtr>,
    owners: &Owners,
) -> Result<()> {
    let set = &plan.sets[index];
    let keys = plan.keys.len();
    let mut unique = Merger::new(plan, &set.layout, keys + 1, pieces, owners)?;
    for piece in pieces {
        // SAFETY: the set's rows; the rest is the caller's word.
        unsafe { unique.add(None, &piece.pointers()?)? };
    }
    let mut texts = TextStore::default();
    let (mut groups, mut found) = (groups, Vec::new());
    for batch in unique.groups.chunks(CHUNK_ROWS) {
        // SAFETY: as above.
        let columns: Vec<Vector> =
            (0..=keys).map(|column| unsafe { set.layout.gather(column, batch, owners) }).collect();
        found.clear();
        let place = match &mut groups {
            Ok(merger) => {
                let columns: Vec<&Vector> = columns[..keys].iter().collect();
                let hashes = hash::of_columns(&columns, batch.len())?;
                // SAFETY: the merger's rows, of the plan's layout, are there.
                unsafe { merger.directory.locate(&plan.layout, &columns, &hashes, Fresh::Never, &mut found)? };
                Place { rows: None, ends: None, groups: &found }
            }
            Err(one) => {
                found.push(*one);
                Place { rows: None, ends: Some(vec![batch.len() as u32].into()), groups: &found }
            }
        };
        for accumulator in plan.accumulators.iter().filter(|of| of.set == Some(index)) {
            // SAFETY: the caller's word.
            unsafe { accumulate(accumulator, columns.last(), &place, &mut texts, &plan.has_infinite)? };
        }
    }
    Ok(())
}

/// A partition of each worker's groups and sets, or all of them.
struct Part {
    main: Vec<Piece>,
    sets: Vec<Vec<Piece>>,
    /// Whether no two rows of `main` have the same key.
    is_unique: bool,
}

impl Part {
    fn rows(&self) -> usize {
        self.main.iter().chain(self.sets.iter().flatten()).map(Piece::len).sum()
    }

    fn merged(mut self, plan: &Plan, owners: &Owners) -> Result<Merged> {
        check_heap()?;
        if let Lookup::One = plan.lookup {
            // Of the sets alone: a row that is merged into that of all.
            let (mut rows, mut made) = (plan.rows(), Vec::new());
            rows.reserve(1, &mut made)?;
            for (index, set) in self.sets.iter().enumerate() {
                // SAFETY: the row was made just now.
                unsafe { add_set(plan, index, set, Err(made[0]), owners)? };
            }
            return Ok((made, vec![rows.freeze()]));
        }
        if self.is_unique && self.sets.is_empty() {
            let mut groups = room::of_capacity(self.rows())?;
            for piece in &self.main {
                groups.extend_from_slice(&piece.pointers()?);
            }
            return Ok((groups, self.into_main()));
        }
        // So that most of what is merged into another is the smaller part.
        self.main.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
        let mut merger = Merger::new(plan, &plan.layout, plan.keys.len(), &self.main, owners)?;
        for piece in &self.main {
            // SAFETY: this part's rows, which nobody else has.
            unsafe { merger.add(Some(plan), &piece.pointers()?)? };
        }
        for (index, set) in self.sets.iter().enumerate() {
            // SAFETY: as above.
            unsafe { add_set(plan, index, set, Ok(&mut merger), owners)? };
        }
        let groups = merger.groups;
        Ok((groups, self.into_main()))
    }

    /// What its groups lie in, but for rows that others keep.
    fn into_main(self) -> Vec<FrozenRows> {
        self.main.into_iter().filter_map(Piece::into_whole).collect()
    }
}

impl Merging {
    /// What [`crate::pipeline::Sink::finish`] does.
    pub fn next(&mut self, plan: &Arc<Plan>, workers: Vec<Worker>, out: &Arc<OnceLock<Finished>>) -> Result<Vec<Task>> {
        match std::mem::take(&mut self.stage) {
            Stage::Begin => self.begin(plan, workers, out),
            Stage::Written(tables) => self.merge(plan, tables),
            Stage::Merging(merged) => {
                let mut groups = Vec::with_capacity(merged.len());
                let mut rows = std::mem::take(&mut self.kept);
                for merged in merged.iter() {
                    let Some((part, of_part)) = merged.lock().take() else {
                        return Err(Error::internal("a part of the groups was not merged"));
                    };
                    match self.one {
                        Some(one) => plan.accumulators.iter().filter(|of| of.set.is_some()).for_each(|accumulator| {
                            // SAFETY: rows of the plan's layout, which nobody else has.
                            unsafe { merge(accumulator, &[one], &part) };
                        }),
                        None => groups.push(part),
                    }
                    rows.extend(of_part);
                }
                groups.extend(self.one.map(|one| vec![one]));
                self.over(plan, groups, rows, out)
            }
        }
    }

    fn begin(&mut self, plan: &Arc<Plan>, workers: Vec<Worker>, out: &Arc<OnceLock<Finished>>) -> Result<Vec<Task>> {
        let (mut tables, mut direct) = (Vec::new(), Vec::new());
        let mut all_ordered: Vec<OrderedRows> = Vec::new();
        let mut buffers = Vec::new();
        for worker in workers {
            let Worker { groups, ordered, sets, texts, .. } = worker;
            let (of_texts, holds) = texts.freeze();
            buffers.extend(of_texts);
            self.holds.extend(holds);
            match groups {
                Groups::One(rows, group) => {
                    match self.one {
                        None => self.one = Some(group),
                        Some(one) => plan.accumulators.iter().for_each(|accumulator| {
                            // SAFETY: rows of the plan's layout, one of each worker; nobody else has them.
                            unsafe { merge(accumulator, &[one], &[group]) };
                        }),
                    }
                    self.kept.push(rows.freeze());
                }
                Groups::Direct(table) => direct.push(table.rows.freeze()),
                Groups::Hashed(table) => {
                    all_ordered.extend(ordered);
                    tables.push(*table);
                }
            }
            tables.extend(sets);
        }
        self.owners.join(&Owners::of(buffers));
        if !matches!(plan.lookup, Lookup::Hashed) && plan.sets.is_empty() {
            plan.note_method();
        }
        if let Lookup::One = plan.lookup
            && self.one.is_none()
        {
            let (mut rows, mut made) = (plan.rows(), Vec::new());
            rows.reserve(1, &mut made)?;
            self.one = made.pop();
            self.kept.push(rows.freeze());
        }
        if let Lookup::Direct(numbering) = &plan.lookup {
            for rows in &direct {
                self.owners.join(rows.owners());
            }
            let mut groups: Vec<RowPtr> = Vec::new();
            let mut known = room::filled(RowPtr::NONE, if direct.len() > 1 { numbering.size } else { 0 })?;
            let (mut into, mut from) = (Vec::new(), Vec::new());
            for rows in &direct {
                if direct.len() == 1 {
                    groups = rows.pointers()?;
                    break;
                }
                for row in rows.pointers()? {
                    // SAFETY: rows of direct tables have their number in the header.
                    let number = unsafe { row.read::<u64>(HASH) } as usize;
                    if known[number].is_none() {
                        known[number] = row;
                        groups.push(row);
                    } else {
                        into.push(known[number]);
                        from.push(row);
                    }
                }
            }
            for accumulator in &plan.accumulators {
                // SAFETY: rows of the plan's layout, which nobody else has; a group is none of those that are merged into others.
                unsafe { merge(accumulator, &into, &from) };
            }
            return self.over(plan, vec![groups], direct, out);
        }
        // Sets keep workers from having rows in order, so tables are one for each worker.
        if !all_ordered.is_empty() {
            if all_ordered.len() == tables.len()
                && let Some(seams) = ordered::seams(&all_ordered, plan.keys.len())
            {
                plan.note_method();
                return self.join_ordered(plan, all_ordered, seams, out);
            }
            plan.note_disorder(all_ordered.iter().map(|ordered| ordered.rows.len()).sum());
            // Those whose workers have none of their own.
            let mut empty = tables.iter_mut().filter(|table| table.rows.is_empty() && table.partitions.is_empty());
            for ordered in all_ordered {
                if let Some(table) = empty.next() {
                    table.absorb(ordered.rows, &plan.groups)?;
                }
            }
        }
        if tables.is_empty() {
            let groups = self.one.map(|one| vec![one]);
            let kept = std::mem::take(&mut self.kept);
            return self.over(plan, groups.into_iter().collect(), kept, out);
        }
        plan.note_hashed(&tables);
        let rows: usize = tables.iter().map(|table| table.rows.len()).sum();
        let is_small = rows <= plan.limits.merged_rows || tables.len() == 1;
        let is_written = tables.iter().any(|table| !table.partitions.is_empty());
        let tables: Vec<_> = tables.into_iter().map(|table| Arc::new(Mutex::new(Some(table)))).collect();
        if !is_written && is_small {
            return self.merge(plan, tables);
        }
        let bits = (rows / plan.limits.merged_rows).next_power_of_two().ilog2().clamp(1, PARTITION_BITS);
        let put = |table: &Arc<Mutex<Option<LocalTable>>>| {
            let (table, plan) = (Arc::clone(table), Arc::clone(plan));
            let put = move || match table.lock().as_mut() {
                Some(table) if is_written => table.write_out(&plan.groups),
                Some(table) => table.share_out(bits),
                None => Ok(()),
            };
            Box::new(put) as Task
        };
        let tasks = tables.iter().map(put).collect();
        self.stage = Stage::Written(tables);
        Ok(tasks)
    }

    fn over(
        &mut self,
        plan: &Plan,
        groups: Vec<Vec<RowPtr>>,
        rows: Vec<FrozenRows>,
        out: &OnceLock<Finished>,
    ) -> Result<Vec<Task>> {
        let (owners, holds) = (std::mem::take(&mut self.owners), std::mem::take(&mut self.holds));
        let finished = Finished::new(groups, owners, rows, holds, plan);
        out.set(finished).map_err(|_| Error::internal("groups were merged twice"))?;
        Ok(Vec::new())
    }

    /// Rows that all came in order: next to nothing is left to do.
    fn join_ordered(
        &mut self,
        plan: &Plan,
        workers: Vec<OrderedRows>,
        seams: Vec<(RowPtr, RowPtr)>,
        out: &OnceLock<Finished>,
    ) -> Result<Vec<Task>> {
        let (into, from): (Vec<RowPtr>, Vec<RowPtr>) = seams.into_iter().unzip();
        for accumulator in &plan.accumulators {
            // SAFETY: rows of the plan's layout, which nobody else has. None is merged into one that was merged itself: seams
            // name the first row of a key.
            unsafe { merge(accumulator, &into, &from) };
        }
        let mut merged: Vec<u64> = from.iter().map(|row| row.address()).collect();
        merged.sort_unstable();
        let rows: Vec<FrozenRows> = workers.into_iter().map(|worker| worker.rows.freeze()).collect();
        let mut groups = rows.iter().map(FrozenRows::pointers).collect::<Result<Vec<Vec<RowPtr>>>>()?;
        if !merged.is_empty() {
            for groups in &mut groups {
                groups.retain(|row| merged.binary_search(&row.address()).is_err());
            }
        }
        rows.iter().for_each(|rows| self.owners.join(rows.owners()));
        self.over(plan, groups, rows, out)
    }

    /// Tasks for the partitions, if the rows were put to some, else for all.
    fn merge(&mut self, plan: &Arc<Plan>, tables: Vec<Arc<Mutex<Option<LocalTable>>>>) -> Result<Vec<Task>> {
        let mains = usize::from(!matches!(plan.lookup, Lookup::One));
        let mut parts: Vec<Part> = Vec::new();
        let tables_each = mains + plan.sets.len();
        let mut main_tables = 0;
        let mut repeats = false;
        for (number, table) in tables.iter().enumerate() {
            let Some(table) = table.lock().take() else { return Err(Error::internal("a table is gone")) };
            let LocalTable { rows, partitions, shares, repeats: has_repeats, .. } = table;
            let set = (number % tables_each).checked_sub(mains);
            if set.is_none() && (!rows.is_empty() || !partitions.is_empty()) {
                main_tables += 1;
                repeats |= has_repeats;
            }
            let rows = rows.freeze();
            self.owners.join(rows.owners());
            let pieces: Vec<Piece> = if let Some((sorted, ends)) = shares {
                self.kept.push(rows);
                let sorted = Arc::new(sorted);
                let starts = std::iter::once(0).chain(ends.iter().copied());
                starts.zip(&ends).map(|(start, end)| Piece::Picked(Arc::clone(&sorted), start..*end)).collect()
            } else if partitions.is_empty() {
                vec![Piece::Whole(rows)]
            } else {
                self.kept.push(rows);
                partitions.into_iter().map(|rows| Piece::Whole(rows.freeze())).collect()
            };
            if parts.len() < pieces.len() {
                let new = || Part {
                    main: Vec::new(),
                    sets: plan.sets.iter().map(|_| Vec::new()).collect(),
                    is_unique: false,
                };
                parts.resize_with(pieces.len(), new);
            }
            for (part, piece) in parts.iter_mut().zip(pieces) {
                match set {
                    None => part.main.push(piece),
                    Some(set) => part.sets[set].push(piece),
                }
            }
        }
        let is_unique = main_tables <= 1 && !repeats;
        let mut merged: Vec<(usize, Part)> = parts.into_iter().enumerate().collect();
        let slots: Arc<Vec<Mutex<Option<Merged>>>> = Arc::new(merged.iter().map(|_| Mutex::new(None)).collect());
        // The last is taken first.
        merged.sort_by_key(|(_, part)| part.rows());
        let mut tasks: Vec<Task> = Vec::new();
        for (index, mut part) in merged {
            part.is_unique = is_unique;
            let (plan, slots, owners) = (Arc::clone(plan), Arc::clone(&slots), self.owners.clone());
            tasks.push(Box::new(move || {
                let merged = part.merged(&plan, &owners)?;
                *slots[index].lock() = Some(merged);
                Ok(())
            }));
        }
        self.stage = Stage::Merging(slots);
        Ok(tasks)
    }
}
