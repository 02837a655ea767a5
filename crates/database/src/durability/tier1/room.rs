//! Bytes in extents of the pool that are written once: of manifests and of images.

use std::collections::HashMap;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_pool::member::Member;
use tidepool_pool::memory::Bytes;
use tidepool_pool::words::{Extent, Kind, Owner};
use tidepool_tablespace::PoolPlace;

/// Bytes one behind the other on extents that are leased for them. What is not published when it is dropped goes back.
#[derive(Debug)]
pub(super) struct Run {
    member: Arc<Member>,
    kind: Kind,
    extents: Vec<Extent>,
    len: usize,
}

impl Run {
    pub fn new(member: &Arc<Member>, kind: Kind) -> Run {
        Run { member: Arc::clone(member), kind, extents: Vec::new(), len: 0 }
    }

    /// Has room for so many extents. 53100 when the pool is full.
    pub fn lease(&mut self, count: usize) -> Result<()> {
        self.extents.extend(self.member.lease(self.kind, count)?);
        Ok(())
    }

    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Adds bytes, and says where they are. 53100 when the pool is full.
    pub fn add(&mut self, bytes: &[u8]) -> Result<PoolPlace> {
        let extent_bytes = self.member.pool().extent_bytes() as usize;
        let start = self.len;
        let end = start + bytes.len();
        let missing = end.div_ceil(extent_bytes).saturating_sub(self.extents.len());
        self.lease(missing)?;
        let memory = &self.member.pool().books().memory;
        let (mut rest, mut at) = (bytes, start);
        while !rest.is_empty() {
            let (extent, within) = (self.extents[at / extent_bytes], at % extent_bytes);
            let (now, later) = rest.split_at(rest.len().min(extent_bytes - within));
            let (words, odd) = now.split_at(now.len() / 8 * 8);
            let mut last = [0; 8];
            last[..odd.len()].copy_from_slice(odd);
            let is_there = memory.write_bytes(extent, within, words)
                && (odd.is_empty() || memory.write_bytes(extent, within + words.len(), &last));
            if !is_there {
                return Err(not_there(&self.member, extent));
            }
            (rest, at) = (later, at + now.len());
        }
        self.len = end.next_multiple_of(8);
        let within = start / extent_bytes..end.div_ceil(extent_bytes).max(start / extent_bytes + 1);
        let extents = self.extents.get(within).unwrap_or_default().to_vec();
        Ok(PoolPlace { extents, offset: (start % extent_bytes) as u64, len: bytes.len() as u64 })
    }

    /// All of it was written, for good: other hosts may read it.
    pub fn publish(mut self) -> Result<Vec<Extent>> {
        let generation = self.member.root()?.generation;
        let mut published = Vec::with_capacity(self.extents.len());
        while let Some(extent) = self.extents.pop() {
            if let Err(error) = self.member.publish(extent, generation) {
                self.extents.push(extent);
                return Err(error);
            }
            published.push(extent);
        }
        published.reverse();
        Ok(published)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for extent in self.extents.drain(..) {
            if let Err(error) = self.member.give_back(extent) {
                tracing::warn!(extent = extent.0, %error, "an extent was not given back to the pool");
            }
        }
    }
}

fn not_there(member: &Member, extent: Extent) -> Error {
    match member.extent(extent) {
        Err(error) => error,
        Ok(_) => Error::internal(format!("extent {} cannot be reached", extent.0)),
    }
}

/// The bytes at a place. XX001 when it is none, 58030 where its device is away.
pub(super) fn read(member: &Member, place: &PoolPlace) -> Result<Vec<u8>> {
    let no_place = || Error::corrupted("bytes in the pool lie at no place of it");
    let extent_bytes = member.pool().extent_bytes() as usize;
    let (Ok(offset), Ok(len)) = (usize::try_from(place.offset), usize::try_from(place.len)) else {
        return Err(no_place());
    };
    let end = offset.checked_add(len).ok_or_else(no_place)?;
    let is_place = offset.is_multiple_of(8)
        && offset < extent_bytes
        && end.div_ceil(extent_bytes) <= place.extents.len()
        && place.extents.iter().all(|extent| extent.0 < member.pool().layout().extents);
    if !is_place {
        return Err(no_place());
    }
    let mut bytes = vec![0; len.next_multiple_of(8)];
    let (mut done, mut at) = (0, offset);
    while done < bytes.len() {
        let (extent, within) = (place.extents[at / extent_bytes], at % extent_bytes);
        let count = (bytes.len() - done).min(extent_bytes - within);
        if !member.pool().books().memory.read_bytes(extent, within, &mut bytes[done..done + count]) {
            return Err(not_there(member, extent));
        }
        (done, at) = (done + count, at + count);
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// What of the pool is the database's for several hosts to read, but for its log, with what the books say of it: an extent
/// that goes back and is used anew has another word.
pub(crate) fn shared_extents(member: &Member) -> Result<HashMap<Extent, Owner>> {
    let mut shared = HashMap::new();
    for extent in member.pool().layout().all_extents() {
        let owner = member.owner(extent)?;
        match owner {
            Owner::Shared { database, kind, .. } | Owner::Orphan { database, kind, .. }
                if database == member.database() && kind != Kind::Log =>
            {
                shared.insert(extent, owner);
            }
            _ => {}
        }
    }
    Ok(shared)
}
