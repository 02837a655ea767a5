//! What scans read, by column and by tablespace: counted everywhere, and charged for where the memory is paced.

use crate::ROW_GROUP_ROWS;
use crate::encoding::ints::by_block;
use crate::encoding::{Rows, packing::BLOCK};
use crate::rows::VERSION_HEADER_BYTES;
use crate::scan::{ColumnAccess, ScanMetrics, TablespaceRead};
use crate::segment::Opened;
use parking_lot::Mutex;
use std::sync::Arc;
use tidepool_base::TablespaceId;
use tidepool_device::{Access, PacingCounters, PacingTotals, Pattern};
use tidepool_tablespace::{Purpose, Tablespace};

/// Versions no further apart are read as if there were nothing between them.
const NEIGHBOURS_BYTES: usize = 256;

/// What a reader has been charged for of one segment. It comes by once, so what it has read of a row group is taken to
/// be in the cache when it comes back to it for the next predicate, or for the rows that passed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Charged {
    /// A bit a block.
    blocks: u128,
    /// The last block that was read of a run, and one more; 0: none.
    next: usize,
    /// Lines of what all rows share: the dictionary's values.
    shared_lines: f64,
}

const _: () = assert!(ROW_GROUP_ROWS / BLOCK <= u128::BITS as usize);

/// Lines expected to be touched by `picks` picks at random among `lines`.
fn distinct_lines(lines: f64, picks: f64) -> f64 {
    if lines < 1.0 || picks > 40.0 * lines {
        // No power is needed to tell that all are.
        lines
    } else {
        lines * (1.0 - (1.0 - 1.0 / lines).powf(picks))
    }
}

/// What pacing accounted for one purpose of a tablespace.
#[derive(Debug)]
pub(crate) struct Paced {
    pub tablespace: String,
    pub purpose: Purpose,
    pub totals: PacingTotals,
}

pub(crate) fn add_paced(paced: &mut Vec<Paced>, tablespace: &str, purpose: Purpose, spent: &PacingCounters) {
    match paced.iter().find(|paced| paced.tablespace == tablespace && paced.purpose == purpose) {
        Some(paced) => paced.totals.add(spent),
        None => {
            let totals = PacingTotals::default();
            totals.add(spent);
            paced.push(Paced { tablespace: tablespace.to_owned(), purpose, totals });
        }
    }
}

const LINE: f64 = LINE_BYTES as f64;
const LINE_BYTES: u64 = 64;

/// What happened since the last batch.
#[derive(Default)]
pub(crate) struct Tally {
    pub row_groups_skipped: u64,
    pub rows_scanned: u64,
    pub rows_produced: u64,
    pub threads_ns: u64,
    tablespaces: Vec<(TablespaceId, TablespaceRead)>,
    /// Of tablespaces that are paced.
    owed: Vec<Owed>,
    owed_bytes: u64,
    /// By position; columns after the last one touched are left out.
    columns: Vec<ColumnAccess>,
}

/// What was read in a tablespace and is not charged for yet, and what was charged since the last batch.
struct Owed {
    tablespace: Arc<Tablespace>,
    purpose: Purpose,
    bytes_sequential: u64,
    runs: u64,
    lines_random: u64,
    spent: PacingCounters,
}

/// Bytes that are charged for together: what prefetching a batch ahead has under way or in the cache.
const OWED_BYTES_MAX: u64 = 256 << 10;

/// Blocks of a segment that are read, as they come to be charged.
struct Touched {
    segment_rows: usize,
    row_bytes: f64,
    /// Of more rows of a block the whole block is read.
    singles_max: usize,
    shared_lines: f64,
    sequential_bytes: f64,
    runs: u64,
    random_lines: f64,
    picks: usize,
}

impl Touched {
    fn of(segment: &Opened) -> Touched {
        let (shared, own) = segment.payload().bytes();
        let segment_rows = segment.rows().max(1);
        Touched {
            segment_rows,
            row_bytes: (own + segment.validity().bytes()) as f64 / segment_rows as f64,
            singles_max: segment.payload().singles_max(),
            shared_lines: shared as f64 / LINE,
            sequential_bytes: 0.0,
            runs: 0,
            random_lines: 0.0,
            picks: 0,
        }
    }

    /// Some rows of a block, and whether they are neighbours.
    fn block(&mut self, block: usize, rows: usize, neighbours: bool, charged: &mut Charged) {
        self.picks += rows;
        let bit = 1 << (block % u128::BITS as usize);
        if charged.blocks & bit != 0 {
            return;
        }
        let block_rows = BLOCK.min(self.segment_rows.saturating_sub(block * BLOCK)).max(1);
        let whole = rows >= block_rows || !neighbours && rows > self.singles_max;
        if !neighbours || whole {
            charged.blocks |= bit;
        }
        let block_lines = block_rows as f64 * self.row_bytes / LINE;
        let lines = match neighbours {
            _ if whole => block_lines,
            true => rows as f64 * self.row_bytes / LINE,
            false => distinct_lines(block_lines, rows as f64),
        };
        // Where every second line is wanted, prefetching brings all that are.
        if neighbours || lines * 2.0 >= block_lines {
            self.sequential_bytes += lines * LINE;
            // A run goes on where the one before ended, in this batch or an earlier one: what follows has been asked for.
            self.runs += u64::from(charged.next != block || block == 0);
            charged.next = block + 1;
        } else {
            self.random_lines += lines;
        }
    }
}

/// Reading the versions of some images, and their bytes.
pub(crate) fn read_of_versions(images: &[&[u8]]) -> (Access, u64) {
    let bytes = |image: &&[u8]| (image.len() + VERSION_HEADER_BYTES) as u64;
    let total: u64 = images.iter().map(bytes).sum();
    let lines: u64 = images.iter().map(|image| bytes(image).div_ceil(LINE_BYTES)).sum();
    let apart = |pair: &[&[u8]]| pair[0].as_ptr_range().end.addr().abs_diff(pair[1].as_ptr().addr()) > NEIGHBOURS_BYTES;
    let runs = images.windows(2).filter(|pair| apart(pair)).count() as u64 + u64::from(!images.is_empty());
    // Rows that were written one after the other lie so. Of others the heads say where they are, so that they do
    // not wait for one another.
    if runs * 4 <= lines {
        (Access { pattern: Pattern::Sequential { bytes: total, runs }, write: false }, total)
    } else {
        (ColumnAccess::random(lines), total)
    }
}

impl Tally {
    fn charge(&mut self, tablespace: &Arc<Tablespace>, purpose: Purpose, access: Access, bytes: u64) {
        self.read(tablespace).bytes += bytes;
        if tablespace.pacer().is_none() {
            return;
        }
        let is_same = |owed: &Owed| owed.purpose == purpose && owed.tablespace.id() == tablespace.id();
        let place = self.owed.iter().position(is_same).unwrap_or_else(|| {
            self.owed.push(Owed {
                tablespace: Arc::clone(tablespace),
                purpose,
                bytes_sequential: 0,
                runs: 0,
                lines_random: 0,
                spent: PacingCounters::default(),
            });
            self.owed.len() - 1
        });
        let owed = &mut self.owed[place];
        match access.pattern {
            Pattern::Sequential { bytes, runs } => {
                owed.bytes_sequential += bytes;
                owed.runs += runs;
            }
            Pattern::Random { lines, .. } => owed.lines_random += lines,
        }
        self.owed_bytes += bytes;
        if self.owed_bytes >= OWED_BYTES_MAX {
            self.pay();
        }
    }

    /// Charges for what was read.
    pub fn pay(&mut self) {
        self.owed_bytes = 0;
        let mut all = std::mem::take(&mut self.owed);
        for owed in &mut all {
            let (bytes, runs) = (std::mem::take(&mut owed.bytes_sequential), std::mem::take(&mut owed.runs));
            let lines = std::mem::take(&mut owed.lines_random);
            let sequential = Access { pattern: Pattern::Sequential { bytes, runs }, write: false };
            let accesses = [sequential, ColumnAccess::random(lines)];
            let of = match (bytes, lines) {
                (0, 0) => continue,
                (_, 0) => &accesses[..1],
                (0, _) => &accesses[1..],
                _ => &accesses[..],
            };
            let spent = owed.tablespace.spend(owed.purpose, of);
            owed.spent += spent;
            self.read(&owed.tablespace).stall_ns += spent.stall_ns;
        }
        self.owed = all;
    }

    pub fn read(&mut self, tablespace: &Tablespace) -> &mut TablespaceRead {
        let known = self.tablespaces.iter().position(|(id, _)| *id == tablespace.id());
        let place = known.unwrap_or_else(|| {
            let read = TablespaceRead { tablespace: tablespace.name().to_owned(), ..TablespaceRead::default() };
            self.tablespaces.push((tablespace.id(), read));
            self.tablespaces.len() - 1
        });
        &mut self.tablespaces[place].1
    }

    pub fn column(&mut self, column: usize) -> &mut ColumnAccess {
        if self.columns.len() <= column {
            self.columns.resize(column + 1, ColumnAccess::default());
        }
        &mut self.columns[column]
    }

    fn sequential(&mut self, tablespace: &Arc<Tablespace>, purpose: Purpose, bytes: u64, runs: u64) {
        let access = Access { pattern: Pattern::Sequential { bytes, runs }, write: false };
        self.charge(tablespace, purpose, access, bytes);
    }

    /// Reading some rows of a segment.
    // None of what accounts is inlined, so that a profiler can tell what it costs where nothing is paced.
    #[inline(never)]
    pub fn rows(&mut self, column: usize, segment: &Opened, rows: &Rows<'_>, charged: &mut Charged) {
        let mut touched = Touched::of(segment);
        match rows {
            Rows::Range(range) => {
                let mut start = range.start;
                while start < range.end {
                    let end = range.end.min((start / BLOCK + 1) * BLOCK);
                    touched.block(start / BLOCK, end - start, true, charged);
                    start = end;
                }
            }
            Rows::List(list) => by_block(list, |block, rows| touched.block(block, rows.len(), false, charged)),
        }
        self.touched(column, segment, touched, charged);
    }

    /// Reading some blocks of a segment: each with its number and how many of its rows, which are neighbours.
    #[inline(never)]
    pub fn blocks(
        &mut self,
        column: usize,
        segment: &Opened,
        blocks: impl Iterator<Item = (usize, usize)>,
        charged: &mut Charged,
    ) {
        let mut touched = Touched::of(segment);
        blocks.for_each(|(block, rows)| touched.block(block, rows, true, charged));
        self.touched(column, segment, touched, charged);
    }

    fn touched(&mut self, column: usize, segment: &Opened, touched: Touched, charged: &mut Charged) {
        let Touched { shared_lines, sequential_bytes, runs, mut random_lines, picks, .. } = touched;
        let wanted = distinct_lines((shared_lines - charged.shared_lines).max(0.0), picks as f64);
        charged.shared_lines += wanted;
        random_lines += wanted;
        let (bytes, lines) = (sequential_bytes.round() as u64, random_lines.round() as u64);
        if bytes > 0 {
            self.sequential(segment.tablespace(), Purpose::Main, bytes, runs);
        }
        if lines > 0 {
            self.charge(segment.tablespace(), Purpose::Main, ColumnAccess::random(lines), lines * LINE_BYTES);
        }
        let access = self.column(column);
        access.rows += picks as u64;
        access.bytes_sequential += bytes;
        access.runs += runs;
        access.lines_random += lines;
    }

    /// Reading versions, for the columns `wanted`: a row's image comes as a whole.
    #[inline(never)]
    pub fn versions(&mut self, tablespace: &Arc<Tablespace>, images: &[&[u8]], wanted: &[usize]) {
        let (access, bytes) = read_of_versions(images);
        if bytes == 0 {
            return;
        }
        self.charge(tablespace, Purpose::Delta, access, bytes);
        for (place, column) in wanted.iter().enumerate() {
            let access = self.column(*column);
            // The first has what cannot be divided.
            let rest = if place == 0 { bytes % wanted.len() as u64 } else { 0 };
            access.delta_bytes += bytes / wanted.len() as u64 + rest;
            access.delta_runs += 1;
        }
    }

    /// Adds all of it, after `pay`, to what is told of the scan. Returns the bytes that were read.
    #[inline(never)]
    pub fn flush(&mut self, metrics: &Mutex<ScanMetrics>, paced: &Mutex<Vec<Paced>>) -> u64 {
        let mut all_owed = std::mem::take(&mut self.owed);
        let tally = std::mem::take(self);
        if !all_owed.is_empty() {
            let mut paced = paced.lock();
            for owed in &mut all_owed {
                let spent = std::mem::take(&mut owed.spent);
                if spent != PacingCounters::default() {
                    add_paced(&mut paced, owed.tablespace.name(), owed.purpose, &spent);
                }
            }
        }
        self.owed = all_owed;
        let mut metrics = metrics.lock();
        metrics.row_groups_skipped += tally.row_groups_skipped;
        metrics.rows_scanned += tally.rows_scanned;
        metrics.rows_produced += tally.rows_produced;
        let stalled_ns: u64 = tally.tablespaces.iter().map(|(_, read)| read.stall_ns).sum();
        metrics.threads_ns += tally.threads_ns.saturating_sub(stalled_ns);
        for (total, read) in metrics.columns.iter_mut().zip(tally.columns) {
            *total += read;
        }
        let mut bytes_read = 0;
        for (_, read) in tally.tablespaces {
            bytes_read += read.bytes;
            read.add_to(&mut metrics.tablespaces);
        }
        bytes_read
    }
}
