//! Records that are not of a transaction's rows, each committed by itself, so that the log's floor orders it among the others.
//!
//! A main that a merge made, for those who follow the log:
//!
//! | bytes | |
//! | --- | --- |
//! | 8 | store |
//! | 8 | range |
//! | 8 | horizon: of every row it has the newest version up to this timestamp |
//! | 8, 8 | row group and its rows; both zero when no row is left |
//! | 4, then 8 each | words of the positions that are no rows, if any is not |
//! | 4, then as many | where the row group is, for those who can reach it there |
//!
//! How far values of a sequence may have been given: 8 bytes with the number of its position, 8 with the value, 8 that are 1 when it was
//! given. It is durable before a value that it covers, or the answer of `setval`, is anybody's.

use crate::Database;
use crate::catalog::sequence::{KeptPositions, Position};
use crate::durability::redo::{MAIN, Redo, SEQUENCE, broken, bytes, number, point};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, RowGroupId, StoreId};
use tidepool_log::RecordKind;
use tidepool_table::RowGroup;
use tidepool_table::rows::NewMain;
use tidepool_txn::{Commit, Isolation, Worker};

/// A main whose record is in the log and which is not in its place yet.
pub(crate) type Told<'d> = parking_lot::RwLockReadGuard<'d, ()>;

/// Puts row groups that merges made where those who follow find them.
pub trait MainPlaces: Send + Sync {
    /// Where that is, as it will be in the log. The row group has to stay there until all who follow have another one.
    fn place(&self, store: StoreId, range: u64, main: &NewMain) -> Result<Vec<u8>>;

    /// As `place`, of a row group that a transaction loaded. `None`: those who follow find its file.
    fn place_loaded(&self, group: &Arc<RowGroup>) -> Result<Option<Vec<u8>>> {
        let _ = group;
        Ok(None)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MainRecord {
    pub store: StoreId,
    pub range: u64,
    pub horizon: CommitTs,
    pub group: Option<(RowGroupId, u64)>,
    pub dead: Vec<u64>,
    pub places: Vec<u8>,
}

impl MainRecord {
    pub fn to_bytes(&self) -> Vec<u8> {
        let (group, rows) = self.group.map_or((0, 0), |(group, rows)| (group.0, rows));
        let numbers = [self.store.0, self.range, self.horizon.0, group, rows];
        let mut record: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        record.extend((self.dead.len() as u32 * 8).to_le_bytes());
        record.extend(self.dead.iter().flat_map(|word| word.to_le_bytes()));
        record.extend((self.places.len() as u32).to_le_bytes());
        record.extend(&self.places);
        record
    }

    /// XX001 when it is none.
    pub fn from_bytes(record: &[u8]) -> Result<MainRecord> {
        let rest = &mut &*record;
        let (store, range, horizon) = (StoreId(number(rest)?), number(rest)?, CommitTs(number(rest)?));
        let (group, rows) = (number(rest)?, number(rest)?);
        let (words, odd) = bytes(rest)?.as_chunks::<8>();
        let places = bytes(rest)?.to_vec();
        if !odd.is_empty() || !rest.is_empty() {
            return Err(broken("a main"));
        }
        let dead = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let group = (rows > 0).then_some((RowGroupId(group), rows));
        Ok(MainRecord { store, range, horizon, group, dead, places })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceRecord {
    pub position_id: u32,
    pub position: Position,
}

impl SequenceRecord {
    pub fn to_bytes(self) -> Vec<u8> {
        let Position { last, called } = self.position;
        let numbers = [self.position_id.into(), last.cast_unsigned(), called.into()];
        numbers.iter().flat_map(|number: &u64| number.to_le_bytes()).collect()
    }

    /// XX001 when it is none.
    pub fn from_bytes(record: &[u8]) -> Result<SequenceRecord> {
        let rest = &mut &*record;
        let (id, last, called) = (number(rest)?, number(rest)?.cast_signed(), number(rest)?);
        match u32::try_from(id) {
            Ok(position_id) if rest.is_empty() && called <= 1 => {
                Ok(SequenceRecord { position_id, position: Position { last, called: called == 1 } })
            }
            _ => Err(broken("a sequence's position")),
        }
    }
}

impl KeptPositions for Database {
    /// In the data folder, if there is one, and, where somebody may follow the log, there.
    fn write_position(&self, position_id: u32, position: Position) -> Result<()> {
        // In a pool the log has it, and so has its copy.
        if let Some(storage) = self.storage.as_ref().filter(|_| self.roles.is_none()) {
            storage.write_position(position_id, position)?;
        }
        if let Some(log) = self.log.get()
            && (self.main_places.get().is_some() || self.roles.is_some() || self.archive.get().is_some())
        {
            let ts = self.commit_small(SEQUENCE, &SequenceRecord { position_id, position }.to_bytes())?;
            log.wait_durable(ts, || Ok(()))?;
        }
        Ok(())
    }
}

struct Small<'r>(&'r mut Redo);

impl Commit for Small<'_> {
    fn reserve(&mut self) -> Result<()> {
        Ok(())
    }

    fn append(&mut self, ts: CommitTs) {
        self.0.append(ts);
    }

    fn stamp(&mut self, _: CommitTs, _: &Worker) {}
}

impl Database {
    /// From now on somebody may follow the log: it says of each merge what it made, and where that is; and of sequences how far they
    /// have come.
    pub fn place_mains(&self, places: Arc<dyn MainPlaces>) -> Result<()> {
        self.main_places.set(places).map_err(|_| Error::internal("mains have places already"))
    }

    /// Writes of a main that is about to take its place, if somebody may follow. The main is in its place when what this returns is
    /// dropped.
    pub(crate) fn log_main(&self, store: StoreId, range: u64, main: &NewMain) -> Result<Option<Told<'_>>> {
        let Some(places) = self.main_places.get() else { return Ok(None) };
        let places = places.place(store, range, main)?;
        let group = main.group.as_ref().map(|group| (group.id(), group.rows() as u64));
        let record = MainRecord { store, range, horizon: main.horizon, group, dead: main.dead.clone(), places };
        let mut told = None;
        self.commit_small_after(MAIN, &record.to_bytes(), &mut || told = Some(self.told.read()))?;
        point("main.told");
        Ok(told)
    }

    /// Commits a record by itself. Does not wait until it is durable. 53100 and 58030 as of a transaction.
    pub(crate) fn commit_small(&self, kind: RecordKind, payload: &[u8]) -> Result<CommitTs> {
        self.commit_small_after(kind, payload, &mut || ())
    }

    /// As `commit_small`. `before` is called when nothing is waited for any more.
    fn commit_small_after(&self, kind: RecordKind, payload: &[u8], before: &mut dyn FnMut()) -> Result<CommitTs> {
        let mut seat = self.take_seat()?;
        let committed = match &mut seat.redo {
            None => Err(Error::internal("a record for a log that is not there")),
            Some(redo) => redo.prepare_small(kind, payload).and_then(|()| {
                before();
                seat.worker.begin(Isolation::ReadCommitted)?;
                seat.worker.tag_to_write();
                seat.worker.commit(&mut Small(redo))
            }),
        };
        if committed.is_err() {
            seat.worker.abort(|_| ());
            seat.redo.iter_mut().for_each(Redo::abandon);
        }
        self.give_back(seat);
        committed?.ok_or_else(|| Error::internal("a record without a timestamp"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written_and_nothing_else_is_one() {
        for (last, called) in [(i64::MIN, true), (-1, false), (7, true)] {
            let position = SequenceRecord { position_id: u32::MAX, position: Position { last, called } };
            let record = position.to_bytes();
            assert_eq!(SequenceRecord::from_bytes(&record).unwrap(), position);
            for cut in 0..record.len() {
                assert!(SequenceRecord::from_bytes(&record[..cut]).is_err());
            }
            assert!(SequenceRecord::from_bytes(&[u8::MAX; 24]).is_err());
        }
    }

    #[test]
    fn a_main_is_read_as_it_was_written_and_nothing_else_is_one() {
        let whole = MainRecord {
            store: StoreId(7),
            range: 3,
            horizon: CommitTs(99),
            group: Some((RowGroupId(12), 70)),
            dead: vec![5, u64::MAX],
            places: b"somewhere".to_vec(),
        };
        let none = MainRecord {
            group: None,
            dead: Vec::new(),
            places: Vec::new(),
            ..MainRecord::from_bytes(&whole.to_bytes()).unwrap()
        };
        for main in [whole, none] {
            let record = main.to_bytes();
            assert_eq!(MainRecord::from_bytes(&record).unwrap(), main);
            for cut in 0..record.len() {
                assert!(MainRecord::from_bytes(&record[..cut]).is_err());
            }
            assert!(MainRecord::from_bytes(&[&record[..], &[0]].concat()).is_err());
        }
    }
}
