//! What serializable transactions read, and whether it is the same when they commit.
//!
//! A read is remembered as what it asked for, not as what it found, so that rows that would be found by now count, too:
//!
//! * a row by its id;
//! * a scan by its conditions on single columns. It holds still if of each row that others changed since the snapshot, neither the image that
//!   the snapshot shows nor the one at the commit meets all of them. Conditions that are left out make that stricter;
//! * a scan that went through an index by its ranges of keys, too. Each version that a snapshot can see has its entry, so only the rows that
//!   have entries there now are looked at;
//! * the whole table, where nothing of the kind can be told, or so much was read that remembering it would cost too much.
//!
//! Looking for rows that changed goes through the table's heads: nothing is counted or queued for it, by readers or by writers. What
//! was changed since the snapshot is still there, as the snapshot is open. A store whose table went over to another one
//! (it was emptied, moved or dropped) says since when, and so does that of a table that got or lost a partition: who read it cannot tell what
//! changed since.

use super::pod::Between;
use super::range::{Range, WORDS};
use super::store::RowRef;
use super::version::{Found, Kind};
use super::{RowStore, WriteSet};
use crate::filter::Predicate;
use crate::index::IndexAccess;
use crate::logical::Logical;
use crate::{ColumnFilter, Datum, RowGroup, bits};
use arrow_array::ArrayRef;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, RowId};
use tidepool_txn::{Reads, Standing, Validation};

/// What a transaction remembers of one table, in values of conditions, ranges of keys and rows: some megabyte.
const WEIGHT_MAX: usize = 16_384;

/// Images that conditions are tested on together.
const BATCH_IMAGES: usize = 1024;

/// A scan, as far as it is remembered.
#[derive(Clone, Debug)]
pub struct ScanRead {
    /// All of a row that the scan found are true of it, and perhaps of others.
    filters: Vec<ColumnFilter>,
    access: Option<IndexAccess>,
}

impl ScanRead {
    /// Copies what is to be kept: functions are not, as they may hold what belongs to their statement.
    pub fn new(filters: &[ColumnFilter], access: Option<&IndexAccess>) -> ScanRead {
        let keeps = |filter: &&ColumnFilter| !matches!(filter, ColumnFilter::Function { .. });
        ScanRead { filters: filters.iter().filter(keeps).cloned().collect(), access: access.cloned() }
    }

    fn is_whole(&self) -> bool {
        self.filters.is_empty() && self.access.is_none()
    }

    fn weight(&self) -> usize {
        let of_value = |value: &Datum| match value {
            Datum::Text(text) => 1 + text.len() / 64,
            Datum::Bytes(bytes) => 1 + bytes.len() / 64,
            _ => 1,
        };
        let of_filter = |filter: &ColumnFilter| match filter {
            ColumnFilter::Compare { value, .. } => of_value(value),
            ColumnFilter::In { values, .. } => values.iter().map(of_value).sum(),
            _ => 1,
        };
        let of_access = self.access.as_ref().map_or(0, |access| 2 * access.ranges());
        1 + self.filters.iter().map(of_filter).sum::<usize>() + of_access
    }
}

/// Where statements put down what they scan, whatever thread plans them.
#[derive(Debug, Default)]
pub struct ReadLog(Mutex<Vec<(Arc<RowStore>, ScanRead)>>);

impl ReadLog {
    pub(crate) fn push(&self, store: &Arc<RowStore>, read: ScanRead) {
        self.0.lock().push((Arc::clone(store), read));
    }
}

/// What one transaction read of one table.
#[derive(Default)]
pub(super) struct TableReads {
    is_whole: bool,
    weight: usize,
    rows: Vec<RowId>,
    scans: Vec<ScanRead>,
}

/// Rows for which a table's reads keep memory between transactions.
const ROWS_KEPT: usize = 256;

impl TableReads {
    /// Empties it, for another transaction's.
    pub fn clear(&mut self) {
        (self.is_whole, self.weight) = (false, 0);
        self.rows.clear();
        self.rows.shrink_to(ROWS_KEPT);
        self.scans.clear();
        self.scans.shrink_to(ROWS_KEPT);
    }

    /// Whether that much more is to be remembered one by one.
    fn takes(&mut self, weight: usize) -> bool {
        self.weight += weight;
        if self.weight > WEIGHT_MAX {
            self.read_whole();
        }
        !self.is_whole
    }

    fn read_whole(&mut self) {
        *self = TableReads { is_whole: true, ..TableReads::default() };
    }
}

impl WriteSet {
    /// Remembers, for a serializable transaction, that a row was read, or was not there.
    pub fn read_row(&mut self, store: &Arc<RowStore>, row: RowId) {
        self.read_rows(store, [row]);
    }

    /// As `read_row` of each.
    pub fn read_rows(&mut self, store: &Arc<RowStore>, rows: impl IntoIterator<Item = RowId>) {
        let reads = self.reads_of(store);
        for row in rows {
            if reads.takes(1) {
                reads.rows.push(row);
            }
        }
    }

    /// Remembers that all rows of a table were looked at.
    pub fn read_table(&mut self, store: &Arc<RowStore>) {
        self.reads_of(store).read_whole();
    }

    /// Remembers the scans that were put down, and takes them off.
    pub fn read_logged(&mut self, log: &ReadLog) {
        for (store, read) in std::mem::take(&mut *log.0.lock()) {
            self.read_scan(&store, read);
        }
    }

    pub fn read_scan(&mut self, store: &Arc<RowStore>, read: ScanRead) {
        let reads = self.reads_of(store);
        if read.is_whole() {
            reads.read_whole();
        } else if reads.takes(read.weight()) {
            reads.scans.push(read);
        }
    }
}

/// A table's reads, about to be asked about.
pub(super) struct Asked<'w> {
    pub store: &'w RowStore,
    pub reads: &'w TableReads,
    pub exists_as_of: CommitTs,
}

impl Reads for Asked<'_> {
    fn still_hold(&self, check: &Validation<'_>) -> Result<bool> {
        let Asked { store, reads, exists_as_of } = self;
        store.check_view(check.view());
        if store.is_redefined(check, *exists_as_of) {
            return Ok(false);
        }
        if reads.is_whole {
            return store.ranges_hold(check, &mut |row| Ok(store.change(check, row).is_none()));
        }
        for row in &reads.rows {
            let holds = match super::is_pod_row(*row) {
                true => store.holds_elsewhere(check, *row)?,
                false => store.change(check, *row).is_none(),
            };
            if !holds {
                return Ok(false);
            }
        }
        let mut walked = Vec::new();
        for scan in &reads.scans {
            let conditions = Conditions::new(store, scan)?;
            match scan.access.as_ref().and_then(|access| access.candidates(check.view())) {
                Some(rows) => {
                    let mut changes = Changes::new(store);
                    for row in rows {
                        changes.look(check, row);
                        if changes.is_many() && changes.meet(std::slice::from_ref(&conditions))? {
                            return Ok(false);
                        }
                    }
                    if changes.meet(&[conditions])? {
                        return Ok(false);
                    }
                }
                None => walked.push(conditions),
            }
        }
        if walked.is_empty() {
            return Ok(true);
        }
        let mut changes = Changes::new(store);
        let holds = store.ranges_hold(check, &mut |row| {
            changes.look(check, row);
            Ok(!changes.is_many() || !changes.meet(&walked)?)
        })?;
        Ok(holds && !changes.meet(&walked)?)
    }
}

/// A scan's conditions, to be tested.
struct Conditions(Vec<Predicate>);

impl Conditions {
    fn new(store: &RowStore, scan: &ScanRead) -> Result<Conditions> {
        let fields = store.layout().schema().fields();
        let predicate = |filter: &ColumnFilter| {
            let field = fields.get(filter.column()).ok_or_else(|| Error::internal("a scan's column is no more"))?;
            Predicate::new(filter, Logical::of(field.data_type())?)
        };
        Ok(Conditions(scan.filters.iter().map(predicate).collect::<Result<_>>()?))
    }

    /// Whether all are true of a row of those whose columns `array` gives.
    fn meet(&self, rows: usize, array: &mut dyn FnMut(usize) -> Result<ArrayRef>) -> Result<bool> {
        let mut words = bits::ones(rows);
        for predicate in &self.0 {
            predicate.and_array(&array(predicate.column)?, &mut words)?;
        }
        Ok(words.iter().any(|word| *word != 0))
    }
}

/// Rows as they were before others changed them, and as they are now.
struct Changes<'v> {
    store: &'v RowStore,
    images: Vec<&'v [u8]>,
    in_main: Vec<(&'v Arc<RowGroup>, usize)>,
}

impl<'v> Changes<'v> {
    fn new(store: &'v RowStore) -> Changes<'v> {
        Changes { store, images: Vec::new(), in_main: Vec::new() }
    }

    fn look(&mut self, check: &'v Validation<'_>, row: RowId) {
        let Some(Change { before, after }) = self.store.change(check, row) else { return };
        for image in [before, after].into_iter().flatten() {
            match image {
                RowRef::Version(image) => self.images.push(image),
                RowRef::Main { group, position } => self.in_main.push((group, position)),
            }
        }
    }

    fn is_many(&self) -> bool {
        self.images.len() + self.in_main.len() >= BATCH_IMAGES
    }

    /// Whether all of some scan's conditions are true of one; and lets go of them.
    fn meet(&mut self, scans: &[Conditions]) -> Result<bool> {
        let (images, in_main) = (std::mem::take(&mut self.images), std::mem::take(&mut self.in_main));
        let mut columns: BTreeMap<usize, ArrayRef> = BTreeMap::new();
        let mut of_images = |column: usize| {
            if let Some(known) = columns.get(&column) {
                return Ok(Arc::clone(known));
            }
            let decoded = self.store.layout().decode(&images, &[column])?;
            let array =
                decoded.into_iter().next().ok_or_else(|| Error::internal("a column is decoded as one array"))?;
            columns.insert(column, Arc::clone(&array));
            Ok(array)
        };
        for scan in scans {
            if !images.is_empty() && scan.meet(images.len(), &mut of_images)? {
                return Ok(true);
            }
            for (group, position) in &in_main {
                let mut value = |column: usize| group.segments()[column].take(&[*position as u32]);
                if scan.meet(1, &mut value)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// What others made of a row between a transaction's snapshot and its commit: what each of the two shows, if anything.
struct Change<'v> {
    before: Option<RowRef<'v>>,
    after: Option<RowRef<'v>>,
}

impl RowStore {
    /// Whether its table is, by another's doing and as of the commit, not what it was when the transaction found it.
    fn is_redefined(&self, check: &Validation<'_>, found_as_of: CommitTs) -> bool {
        match check.standing(&self.redefined) {
            Standing::Own | Standing::Later => false,
            Standing::Conflict => true,
            // Perhaps after it was found, as the snapshot is drawn after that. A tag is above all timestamps.
            Standing::Seen => self.redefined.load(Ordering::Acquire) > found_as_of.0,
        }
    }

    /// `None`: nothing, or it is not there.
    fn change<'v>(&'v self, check: &'v Validation<'_>, row: RowId) -> Option<Change<'v>> {
        let range = self.directory.get(row.range())?;
        let mut found = range.head(check.view(), row.position()).map(|head| head.load());
        // As of the commit, once it is known to be another's.
        let mut after: Option<Option<RowRef<'v>>> = None;
        while let Some(Found::Pod(tuple)) = found {
            match self.between_in_pod(check, tuple, None) {
                Ok(Between::Same) => return None,
                Ok(Between::Changed { before, after }) => {
                    let [before, after] = [before, after].map(|image| Some(RowRef::Version(image)));
                    return Some(Change { before, after });
                }
                Ok(Between::Beneath { after: changed, base }) => {
                    after = changed.map(|image| Some(RowRef::Version(image)));
                    found = base.map(Found::Version);
                    break;
                }
                // It has gone home meanwhile.
                Ok(Between::Left) => found = range.head(check.view(), row.position()).map(|head| head.load()),
                // Remembered, so that nothing is committed.
                Err(_) => return None,
            }
        }
        while let Some(Found::Version(version)) = found {
            // SAFETY: from a head under the transaction's snapshot, and then from versions after it: see the module.
            let header = unsafe { version.header::<'v>() };
            // SAFETY: as above.
            let image = || (header.kind() == Kind::Row).then(|| RowRef::Version(unsafe { version.image::<'v>() }));
            if header.kind() != Kind::Lock {
                match check.standing(&header.begin) {
                    // What it replaced was the newest.
                    Standing::Own => return None,
                    Standing::Seen => return after.map(|after| Change { before: image(), after }),
                    Standing::Conflict => after = after.or_else(|| Some(image())),
                    Standing::Later => {}
                }
            }
            found = header.older().map(Found::Version);
        }
        let in_main = || {
            let main = range.main(check.view()).filter(|main| main.has(row.position()))?;
            Some(RowRef::Main { group: &main.group, position: row.position() })
        };
        match check.standing(&range.begin) {
            Standing::Own | Standing::Later => after.map(|after| Change { before: None, after }),
            Standing::Seen => after.map(|after| Change { before: in_main(), after }),
            Standing::Conflict => Some(Change { before: None, after: after.unwrap_or_else(in_main) }),
        }
    }

    /// Asks `holds` about each row that may have versions. False where it says so, and where others loaded a range.
    fn ranges_hold(&self, check: &Validation<'_>, holds: &mut dyn FnMut(RowId) -> Result<bool>) -> Result<bool> {
        for number in 0..self.directory.len() {
            let Some(range) = self.directory.get(number) else { break };
            if check.standing(&range.begin) == Standing::Conflict || !headed_hold(number, range, holds)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn headed_hold(number: u64, range: &Range, holds: &mut dyn FnMut(RowId) -> Result<bool>) -> Result<bool> {
    if !range.has_marks() {
        return Ok(true);
    }
    for word in 0..WORDS {
        let mut headed = range.headed(word);
        while headed != 0 {
            let position = word * 64 + headed.trailing_zeros() as usize;
            headed &= headed - 1;
            if !holds(RowId::new(number, position))? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
