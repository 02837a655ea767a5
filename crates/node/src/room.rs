//! What one database has at a node: memory, writes that wait to be published, and the root that is in force.
//!
//! A room outlives the process that filled it. The next one, which comes with a newer epoch or as another client, finds
//! what the one before registered, and either goes on with it or gives it back ([`Place::OTHERS`]).

use crate::arena::Arena;
use std::collections::BTreeMap;
use std::ops::Range;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_wire::{Allocation, Extent, Identity, Place};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of writes that may wait to be published, of one room.
pub const STAGED_BYTES_MAX: u64 = 64 << 20;

/// Bytes that can be read at [`Place::ROOT`].
pub const ROOT_BYTES: usize = 32;

#[derive(Debug, Default)]
pub struct Room {
    /// By where each begins.
    allocations: BTreeMap<u64, Held>,
    /// By stage.
    staged: BTreeMap<u32, Vec<Write>>,
    staged_bytes: u64,
    published: Published,
}

/// Where bytes are to go, and they.
type Write = (u64, Box<[u8]>);

#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u64,
    purpose: u16,
    by: Identity,
}

/// What a `PUBLISH` put in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    pub root: u64,
    /// Of the publication; zero: there was none.
    pub number: u64,
}

impl Published {
    /// Root, number, then XXH3-64 of both, then zeroes.
    pub fn encode(&self) -> [u8; ROOT_BYTES] {
        let mut bytes = [0; ROOT_BYTES];
        bytes[..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        let checksum = xxh3_64(&bytes[..16]);
        bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// What a write that waits to be published takes of the node's own memory. One of no bytes is not free.
fn staged_cost(bytes: usize) -> u64 {
    bytes as u64 + 64
}

fn outside(extent: &Extent) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("{} bytes at place {} are not registered", extent.bytes, extent.place.0),
    )
}

impl Room {
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty() && self.published == Published::default()
    }

    /// Runs of memory that it has.
    pub fn runs(&self) -> usize {
        self.allocations.len()
    }

    /// By purpose, as the compute process numbers them.
    pub fn bytes_by_purpose(&self) -> BTreeMap<u16, u64> {
        let mut sums = BTreeMap::new();
        for held in self.allocations.values() {
            *sums.entry(held.purpose).or_default() += held.bytes;
        }
        sums
    }

    /// Takes memory for all of the allocations, or for none: 53200 if there is too little.
    pub fn register(&mut self, arena: &Arena, by: Identity, wanted: &[Allocation]) -> Result<Vec<Place>> {
        let mut places = Vec::with_capacity(wanted.len());
        let mut failure = None;
        for allocation in wanted {
            match arena.take(allocation.bytes) {
                Ok(Some(run)) => {
                    let held = Held { bytes: run.end - run.start, purpose: allocation.purpose, by };
                    self.allocations.insert(run.start, held);
                    places.push(Place(run.start));
                }
                Ok(None) => {
                    let asked: u64 = wanted.iter().map(|allocation| allocation.bytes).fold(0, u64::saturating_add);
                    let free: u64 =
                        arena.free_bytes() + places.iter().map(|place| self.held_bytes(*place)).sum::<u64>();
                    failure = Some(
                        Error::new(SqlState::OUT_OF_MEMORY, "the memory node is full")
                            .with_detail(format!(
                                "{} were asked for, and {} of {} are free.",
                                ByteSize(asked),
                                ByteSize(free),
                                ByteSize(arena.bytes())
                            ))
                            .with_hint("Give the node more memory, or name a smaller size."),
                    );
                    break;
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        match failure {
            None => Ok(places),
            Some(error) => {
                for place in places {
                    self.give(arena, place);
                }
                Err(error)
            }
        }
    }

    fn held_bytes(&self, place: Place) -> u64 {
        self.allocations.get(&place.0).map_or(0, |held| held.bytes)
    }

    /// Gives places back: all of them, or none if one is not this room's. Returns how many bytes that was.
    pub fn deregister(&mut self, arena: &Arena, by: Identity, places: &[Place]) -> Result<u64> {
        let mut given: Vec<Place> = Vec::with_capacity(places.len());
        for place in places {
            if *place == Place::OTHERS {
                given.extend(self.allocations.iter().filter(|(_, held)| held.by != by).map(|(start, _)| Place(*start)));
            } else if self.allocations.contains_key(&place.0) {
                given.push(*place);
            } else {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("place {} is not registered", place.0),
                ));
            }
        }
        Ok(given.into_iter().map(|place| self.give(arena, place)).sum())
    }

    /// Twice the same place is given back once.
    fn give(&mut self, arena: &Arena, place: Place) -> u64 {
        let Some(held) = self.allocations.remove(&place.0) else { return 0 };
        arena.give(place.0..place.0 + held.bytes);
        held.bytes
    }

    /// Fails unless the extent lies inside of one allocation.
    pub fn find(&self, extent: &Extent) -> Result<Range<u64>> {
        let end = extent.place.0.checked_add(extent.bytes.into()).ok_or_else(|| outside(extent))?;
        let allocation = self.allocations.range(..=extent.place.0).next_back();
        match allocation {
            Some((start, held)) if end <= start + held.bytes => Ok(extent.place.0..end),
            _ => Err(outside(extent)),
        }
    }

    /// Keeps bytes until their stage is published. All of them, or none.
    pub fn stage(&mut self, stage: u32, writes: &[(Extent, &[u8])]) -> Result<()> {
        if u64::from(stage) <= self.published.number {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("stage {stage} is over: {} is published", self.published.number),
            ));
        }
        let mut bytes = 0;
        for (extent, _) in writes {
            self.find(extent)?;
            bytes += staged_cost(extent.bytes as usize);
        }
        if self.staged_bytes + bytes > STAGED_BYTES_MAX {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "too many writes wait to be published")
                .with_detail(format!("The limit is {}.", ByteSize(STAGED_BYTES_MAX))));
        }
        self.staged_bytes += bytes;
        let staged = writes.iter().map(|(extent, bytes)| (extent.place.0, Box::from(*bytes)));
        self.staged.entry(stage).or_default().extend(staged);
        Ok(())
    }

    /// Writes bytes at once. By `&self`: those who write different places need not wait for each other.
    pub fn write(&self, arena: &Arena, writes: &[(Extent, &[u8])]) -> Result<()> {
        for (extent, _) in writes {
            self.find(extent)?;
        }
        for (extent, bytes) in writes {
            arena.write(extent.place.0, bytes);
        }
        Ok(())
    }

    /// Puts a root in force together with all writes of the stage of that number. The caller has the room to itself: no
    /// reader sees a part of it.
    pub fn publish(&mut self, arena: &Arena, root: u64, number: u64) -> Result<u64> {
        let stage = u32::try_from(number).ok().filter(|stage| *stage > 0).ok_or_else(|| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("{number} is no number of a publication"))
                .with_detail(format!("It is a whole number from 1 to {}.", u32::MAX))
        })?;
        if number <= self.published.number {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("publication {number} comes too late: {} is in force", self.published.number),
            ));
        }
        // What was registered when it was staged may have been given back since.
        let staged = self.staged.remove(&stage).unwrap_or_default();
        let extent = |place: u64, bytes: &[u8]| Extent { place: Place(place), bytes: bytes.len() as u32 };
        let found = staged.iter().try_for_each(|(place, bytes)| self.find(&extent(*place, bytes)).map(drop));
        self.staged_bytes -= staged.iter().map(|(_, bytes)| staged_cost(bytes.len())).sum::<u64>();
        found?;
        for (place, bytes) in &staged {
            arena.write(*place, bytes);
        }
        self.published = Published { root, number };
        // Earlier stages can be published no more.
        self.staged = self.staged.split_off(&stage.saturating_add(1));
        self.staged_bytes = self.staged.values().flatten().map(|(_, bytes)| staged_cost(bytes.len())).sum();
        Ok(staged.iter().map(|(_, bytes)| bytes.len() as u64).sum())
    }

    /// Forgets what waits to be published: whoever staged it is gone.
    pub fn drop_staged(&mut self) {
        self.staged.clear();
        self.staged_bytes = 0;
    }

    pub fn published(&self) -> Published {
        self.published
    }

    /// Forgets the root along with the memory that it was about.
    pub fn forget_root(&mut self) {
        self.published = Published::default();
    }
}
