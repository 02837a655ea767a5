//! What hosts of a pod tell each other.
//!
//! A message is a kind, a request's number and fields one behind the other: numbers with their lowest byte first, bytes behind
//! their count. Each is written and read here alone. What cannot be read is refused, as a damaged pod would be.

use std::ops::Bound;
use tidepool_base::{CommitTs, Error, Result, RowId};
use tidepool_index::key::KeyBounds;

/// A range of an index of a table that another host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number that hosts know the table by.
    pub table: u32,
    /// Which of its indexes.
    pub way: u16,
    pub bounds: KeyBounds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Asks for the rows in a range to be in the pod, for a transaction that reads as of a snapshot.
    Find {
        request: u64,
        place: Place,
        snapshot: CommitTs,
    },
    /// Asks whether what a transaction read of a range is the same as of its commit.
    Holds {
        request: u64,
        place: Place,
        snapshot: CommitTs,
        own: u64,
        commit: CommitTs,
        round: u32,
    },
    /// Blocks that go home to the receiver.
    Blocks(Vec<u64>),
    Answer {
        request: u64,
        answer: Answer,
    },
}

/// Exhaustive and mutually exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Under these ids the rows are read and written.
    Rows(Vec<RowId>),
    Holds(bool),
    /// A transaction has a row: ask again.
    Busy,
    /// A row was changed after the snapshot.
    Newer,
    /// The pod has no place for them.
    Full,
    /// More rows than one answer has.
    TooMany,
    /// The host has no such table.
    Unknown,
}

/// Rows of one answer.
pub(super) const ROWS_MAX: usize = 512;

/// Blocks of one message.
pub(super) const BLOCKS_MAX: usize = 512;

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) -> &mut Writer {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn bound(&mut self, bound: &Bound<Vec<u8>>) -> &mut Writer {
        match bound {
            Bound::Unbounded => self.number(0),
            Bound::Included(key) => self.number(1).bytes(key),
            Bound::Excluded(key) => self.number(2).bytes(key),
        }
    }

    fn place(&mut self, place: &Place) -> &mut Writer {
        self.number(u64::from(place.table)).number(u64::from(place.way));
        self.bound(&place.bounds.lower).bound(&place.bounds.upper)
    }
}

struct Reader<'m>(&'m [u8]);

fn damaged() -> Error {
    Error::corrupted("a message of another host of the pod cannot be read")
}

impl Reader<'_> {
    fn number(&mut self) -> Result<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(damaged)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T> {
        T::try_from(self.number()?).map_err(|_| damaged())
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let count: usize = self.small()?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(bytes.to_vec())
    }

    fn bound(&mut self) -> Result<Bound<Vec<u8>>> {
        Ok(match self.number()? {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.bytes()?),
            2 => Bound::Excluded(self.bytes()?),
            _ => return Err(damaged()),
        })
    }

    fn place(&mut self) -> Result<Place> {
        let (table, way) = (self.small()?, self.small()?);
        Ok(Place { table, way, bounds: KeyBounds { lower: self.bound()?, upper: self.bound()? } })
    }

    fn numbers(&mut self, most: usize) -> Result<Vec<u64>> {
        let count: usize = self.small()?;
        if count > most {
            return Err(damaged());
        }
        (0..count).map(|_| self.number()).collect()
    }
}

impl Message {
    pub fn write(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(128));
        match self {
            Message::Find { request, place, snapshot } => {
                writer.number(1).number(*request).place(place).number(snapshot.0);
            }
            Message::Holds { request, place, snapshot, own, commit, round } => {
                writer.number(2).number(*request).place(place);
                writer.number(snapshot.0).number(*own).number(commit.0).number(u64::from(*round));
            }
            Message::Blocks(blocks) => {
                writer.number(3).number(blocks.len() as u64);
                blocks.iter().for_each(|block| {
                    writer.number(*block);
                });
            }
            Message::Answer { request, answer } => {
                writer.number(4).number(*request);
                match answer {
                    Answer::Rows(rows) => {
                        writer.number(1).number(rows.len() as u64);
                        rows.iter().for_each(|row| {
                            writer.number(row.0);
                        });
                    }
                    Answer::Holds(holds) => {
                        writer.number(2).number(u64::from(*holds));
                    }
                    Answer::Busy => drop(writer.number(3)),
                    Answer::Newer => drop(writer.number(4)),
                    Answer::Full => drop(writer.number(5)),
                    Answer::TooMany => drop(writer.number(6)),
                    Answer::Unknown => drop(writer.number(7)),
                }
            }
        }
        writer.0
    }

    /// XX001 for what is no message.
    pub fn read(bytes: &[u8]) -> Result<Message> {
        let mut reader = Reader(bytes);
        let message = match reader.number()? {
            1 => {
                let request = reader.number()?;
                Message::Find { request, place: reader.place()?, snapshot: CommitTs(reader.number()?) }
            }
            2 => Message::Holds {
                request: reader.number()?,
                place: reader.place()?,
                snapshot: CommitTs(reader.number()?),
                own: reader.number()?,
                commit: CommitTs(reader.number()?),
                round: reader.small()?,
            },
            3 => Message::Blocks(reader.numbers(BLOCKS_MAX)?),
            4 => {
                let request = reader.number()?;
                let answer = match reader.number()? {
                    1 => Answer::Rows(reader.numbers(ROWS_MAX)?.into_iter().map(RowId).collect()),
                    2 => Answer::Holds(reader.number()? != 0),
                    3 => Answer::Busy,
                    4 => Answer::Newer,
                    5 => Answer::Full,
                    6 => Answer::TooMany,
                    7 => Answer::Unknown,
                    _ => return Err(damaged()),
                };
                Message::Answer { request, answer }
            }
            _ => return Err(damaged()),
        };
        if !reader.0.is_empty() {
            return Err(damaged());
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_nothing_else_is() {
        let place = Place {
            table: 7,
            way: 2,
            bounds: KeyBounds { lower: Bound::Included(vec![1, 2, 3]), upper: Bound::Excluded(vec![9]) },
        };
        let everything = KeyBounds { lower: Bound::Unbounded, upper: Bound::Unbounded };
        let messages = [
            Message::Find { request: 5, place: place.clone(), snapshot: CommitTs(11) },
            Message::Find { request: 5, place: Place { bounds: everything, ..place.clone() }, snapshot: CommitTs(11) },
            Message::Holds { request: 6, place, snapshot: CommitTs(1), own: u64::MAX, commit: CommitTs(2), round: 3 },
            Message::Blocks(vec![1, 2, 3]),
            Message::Answer { request: 1, answer: Answer::Rows(vec![RowId(1), RowId(u64::MAX)]) },
            Message::Answer { request: 2, answer: Answer::Holds(true) },
        ];
        let others = [Answer::Busy, Answer::Newer, Answer::Full, Answer::TooMany, Answer::Unknown];
        let others = others.map(|answer| Message::Answer { request: 3, answer });
        for message in messages.into_iter().chain(others) {
            let bytes = message.write();
            assert_eq!(Message::read(&bytes).unwrap(), message);
            for cut in 0..bytes.len() {
                assert!(Message::read(&bytes[..cut]).is_err(), "{message:?} cut after {cut}");
            }
            assert!(Message::read(&[bytes, vec![0]].concat()).is_err());
        }
        assert!(Message::read(&[255; 64]).is_err());
    }
}
