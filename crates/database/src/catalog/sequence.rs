//! Sequences: numbers given out once, whatever becomes of the transaction that asked.
//!
//! A definition is part of the catalogue and changes as transactions do. Where a sequence stands is shared by all states of
//! it, and changes at once. In a data folder, file `SEQUENCES` says for each how far values may have been given: it is
//! written before a value beyond that is, some values ahead, as PostgreSQL's log does. After a kill the values in between
//! are lost; after a graceful stop none are.
//!
//! The lock is the sequence's own. It is held for as long as it takes to count, and once in many values for a write.

use crate::catalog::relation::RelationName;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SchemaId, SqlState, SqlType, TableId};

/// Values written ahead, PostgreSQL's number.
const AHEAD: u64 = 32;

/// No sequence runs further ahead than this: what a kill may cost.
const AHEAD_MAX: u64 = 1 << 16;

/// A sequence that used up what was written ahead sooner than this writes further ahead.
const AHEAD_LASTS: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceDef {
    pub id: TableId,
    pub schema: SchemaId,
    pub name: String,
    /// `smallint`, `integer` or `bigint`.
    pub data_type: SqlType,
    pub start: i64,
    pub increment: i64,
    pub min: i64,
    pub max: i64,
    /// Values that a session takes at a time.
    pub cache: i64,
    pub cycle: bool,
    pub owner: Option<SequenceOwner>,
    /// Names where it stands, in the data folder. Another with `RESTART`.
    pub position_id: u32,
}

/// The column that a sequence goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceOwner {
    pub table: TableId,
    pub column: u16,
    /// Made by `GENERATED … AS IDENTITY`: cannot go without the column.
    pub identity: bool,
}

impl From<&SequenceDef> for RelationName {
    fn from(def: &SequenceDef) -> RelationName {
        RelationName::new(def.schema, &def.name)
    }
}

impl SequenceDef {
    /// The value after `last`; 2200H when there is none and it does not cycle.
    fn after(&self, last: i64) -> Result<i64> {
        let next = last.checked_add(self.increment).filter(|next| (self.min..=self.max).contains(next));
        let (limit, bound) = match self.increment > 0 {
            true => ("maximum", self.max),
            false => ("minimum", self.min),
        };
        match next {
            Some(next) => Ok(next),
            None if self.cycle && self.increment > 0 => Ok(self.min),
            None if self.cycle => Ok(self.max),
            None => Err(Error::new(
                SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                format!("nextval: reached {limit} value of sequence \"{}\" ({bound})", self.name),
            )),
        }
    }
}

/// Where a sequence stands: the last value given, or, while none was, the first to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    pub last: i64,
    pub called: bool,
}

/// Where positions outlive the process: a data folder.
pub(crate) trait KeptPositions {
    /// Makes it durable that values of the sequence up to `position` may have been given.
    fn write_position(&self, id: u32, position: Position) -> Result<()>;
}

impl Position {
    fn next(self, def: &SequenceDef) -> Result<Position> {
        let last = if self.called { def.after(self.last)? } else { self.last };
        Ok(Position { last, called: true })
    }
}

#[derive(Debug)]
struct State {
    now: Position,
    /// As the data folder has it: `now`, or some values further.
    written: Position,
    /// Values that may be given before something must be written.
    left: u64,
    /// The increment that `left` counts by.
    increment: i64,
    ahead: u64,
    written_at: Option<Instant>,
}

/// A sequence: one state of its definition, and where it stands.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub def: SequenceDef,
    state: Arc<Mutex<State>>,
    /// Where `RESTART` had it begin.
    restart: Option<i64>,
}

/// What `SELECT * FROM sequence` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencePosition {
    pub last_value: i64,
    pub log_count: u64,
    pub is_called: bool,
}

impl Sequence {
    /// One that stands at its start.
    pub(crate) fn new(def: SequenceDef) -> Sequence {
        let start = Position { last: def.start, called: false };
        Sequence::at(def, start)
    }

    pub(crate) fn at(def: SequenceDef, now: Position) -> Sequence {
        let increment = def.increment;
        let state = State { now, written: now, left: 0, increment, ahead: AHEAD, written_at: None };
        Sequence { def, state: Arc::new(Mutex::new(state)), restart: None }
    }

    /// One that stands at a value that nobody was given.
    pub(crate) fn restarted(def: SequenceDef, value: i64) -> Sequence {
        let at = Sequence::at(def, Position { last: value, called: false });
        Sequence { restart: Some(value), ..at }
    }

    /// Where `RESTART` had it begin, under the position id that it has: for who does not know that one.
    pub(crate) fn restart(&self) -> Option<i64> {
        self.restart
    }

    /// The same sequence, standing where it stands, under another definition.
    pub(crate) fn with_def(&self, def: SequenceDef) -> Sequence {
        Sequence { def, state: self.state.clone(), restart: self.restart }
    }

    pub fn position(&self) -> SequencePosition {
        let state = self.state.lock();
        SequencePosition { last_value: state.now.last, log_count: state.left, is_called: state.now.called }
    }

    /// As the data folder should have it.
    pub(crate) fn written(&self) -> Position {
        self.state.lock().written
    }

    /// Gives out `count` values, which nobody else gets. 2200H when there are not as many, unless `partial` and there is one.
    pub(crate) fn take(&self, kept: Option<&dyn KeptPositions>, count: u64, partial: bool) -> Result<Vec<i64>> {
        let mut state = self.state.lock();
        let mut values = Vec::new();
        let mut next = state.now;
        for taken in 0..count {
            next = match next.next(&self.def) {
                Ok(next) => next,
                Err(_) if partial && taken > 0 => break,
                Err(error) => return Err(error),
            };
            values.push(next.last);
        }
        let taken = values.len() as u64;
        if let Some(kept) = kept {
            if state.increment != self.def.increment {
                state.left = 0;
            }
            if taken > state.left {
                let hurried = state.written_at.is_some_and(|at| at.elapsed() < AHEAD_LASTS);
                state.ahead = if hurried { (state.ahead * 2).min(AHEAD_MAX) } else { AHEAD };
                let (mut written, mut left) = (next, 0);
                while left < state.ahead
                    && let Ok(further) = written.next(&self.def)
                {
                    written = further;
                    left += 1;
                }
                kept.write_position(self.def.position_id, written)?;
                (state.written, state.left, state.increment) = (written, left, self.def.increment);
                state.written_at = Some(Instant::now());
            } else {
                state.left -= taken;
            }
        }
        state.now = next;
        Ok(values)
    }

    /// `setval`. 22003 when the value is out of the sequence's bounds.
    pub(crate) fn set(&self, kept: Option<&dyn KeptPositions>, value: i64, called: bool) -> Result<()> {
        let SequenceDef { min, max, name, .. } = &self.def;
        if !(*min..=*max).contains(&value) {
            return Err(Error::new(
                SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
                format!("setval: value {value} is out of bounds for sequence \"{name}\" ({min}..{max})"),
            ));
        }
        let mut state = self.state.lock();
        let now = Position { last: value, called };
        if let Some(kept) = kept {
            kept.write_position(self.def.position_id, now)?;
        }
        (state.now, state.written, state.left) = (now, now, 0);
        Ok(())
    }

    /// It stands there, as another process's log says: values up to there may have been given.
    pub(crate) fn follow(&self, position: Position) {
        let mut state = self.state.lock();
        (state.now, state.written, state.left) = (position, position, 0);
    }

    /// Gives up what was written ahead, so that the next start goes on without a gap. Returns where it stands.
    pub(crate) fn settle(&self) -> Position {
        let mut state = self.state.lock();
        (state.written, state.left) = (state.now, 0);
        state.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn def(increment: i64, min: i64, max: i64, start: i64, cycle: bool) -> SequenceDef {
        SequenceDef {
            id: TableId(20000),
            schema: SchemaId::PUBLIC,
            name: "s".to_owned(),
            data_type: SqlType::BigInt,
            start,
            increment,
            min,
            max,
            cache: 1,
            cycle,
            owner: None,
            position_id: 20001,
        }
    }

    #[test]
    fn values_go_up_and_down_and_round() {
        let up = Sequence::new(def(3, 1, 10, 1, false));
        assert_eq!(up.take(None, 4, false).unwrap(), [1, 4, 7, 10]);
        assert_eq!(up.take(None, 1, false).unwrap_err().code().code(), "2200H");
        let down = Sequence::new(def(-2, -4, -1, -1, true));
        assert_eq!(down.take(None, 4, false).unwrap(), [-1, -3, -1, -3]);
        let edge = Sequence::new(def(i64::MAX, i64::MIN, i64::MAX, i64::MAX - 1, false));
        assert_eq!(edge.take(None, 5, true).unwrap(), [i64::MAX - 1]);
    }

    #[test]
    fn setting_goes_on_from_the_value_or_with_it() {
        let sequence = Sequence::new(def(1, 1, 100, 1, false));
        sequence.set(None, 50, true).unwrap();
        assert_eq!(sequence.take(None, 1, false).unwrap(), [51]);
        sequence.set(None, 50, false).unwrap();
        assert_eq!(sequence.take(None, 2, false).unwrap(), [50, 51]);
        assert_eq!(sequence.set(None, 101, true).unwrap_err().code().code(), "22003");
        assert_eq!(sequence.position(), SequencePosition { last_value: 51, log_count: 0, is_called: true });
    }

    #[test]
    fn threads_get_different_values() {
        let sequence = Sequence::new(def(1, 1, i64::MAX, 1, false));
        let taken: Vec<i64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope
                        .spawn(|| (1..200).flat_map(|n| sequence.take(None, n % 7, false).unwrap()).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=taken.len() as i64).collect::<Vec<_>>());
    }
}
