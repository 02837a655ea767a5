//! Finding the manifest that is in force.

use super::reader::damaged;
use super::room::{read, shared_extents};
use super::{HEADER_BYTES, ManifestHeader, ManifestView};
use crate::durability::storage::Manifest;
use tidepool_base::{Error, Result, SqlState};
use tidepool_pool::member::Member;
use tidepool_pool::words::{Extent, Kind, Root};
use tidepool_tablespace::PoolPlace;

/// A manifest of the pool, which a host holds.
#[derive(Debug)]
pub(crate) struct FoundManifest {
    /// The root that was in force when it was looked for.
    pub root: Root,
    bytes: Vec<u8>,
    pub header: ManifestHeader,
    /// All but what tables have in memory.
    pub catalogue: Manifest,
    /// It is the one before the one in force, which is damaged.
    pub is_before: bool,
}

impl FoundManifest {
    /// The manifest in force of the member's database, or the one before, which the pool keeps as long, if that is damaged.
    /// `None`: there is no manifest yet. XX001 when none can be read.
    ///
    /// The member has held the root since it joined, or a later one, so nothing that this or a later root names is freed
    /// meanwhile.
    pub fn in_force(member: &Member) -> Result<Option<FoundManifest>> {
        loop {
            let root = member.root()?;
            if root.place == Root::NEW.place {
                return Ok(None);
            }
            let context = |error: Error| {
                let of = format!("pool \"{}\"", member.pool().location());
                if error.context().is_none() { error.with_context(of) } else { error }
            };
            let first = match FoundManifest::at(member, root, root.place) {
                Ok(found) => return Ok(Some(found)),
                Err(error) => context(error),
            };
            if member.root()? != root {
                // Another one came, and it went.
                continue;
            }
            if first.code() != SqlState::DATA_CORRUPTED {
                return Err(first);
            }
            let before = FoundManifest::before(member, root).map_err(context)?;
            if member.root()? != root {
                continue;
            }
            let Some(before) = before else {
                return Err(
                    first.with_hint("Restore the database from a backup, or from a host whose data folder has it.")
                );
            };
            tracing::error!(
                "{first}: the manifest before, of generation {}, takes its place, and the log has what came since",
                before.header.generation
            );
            return Ok(Some(FoundManifest { is_before: true, ..before }));
        }
    }

    fn at(member: &Member, root: Root, place: Extent) -> Result<FoundManifest> {
        let bytes = bytes_at(member, place)?;
        let view = ManifestView::read(&bytes)?;
        let header = *view.header();
        if header.generation > root.generation.0 || ManifestView::own_extents_in(&bytes).next() != Some(place) {
            return Err(damaged("it belongs elsewhere"));
        }
        let catalogue = serde_json::from_slice(view.catalogue())
            .map_err(|error| damaged(&format!("its catalogue cannot be understood: {error}")))?;
        Ok(FoundManifest { root, bytes, header, catalogue, is_before: false })
    }

    /// The newest of those that can be read before the one in force.
    fn before(member: &Member, root: Root) -> Result<Option<FoundManifest>> {
        let mut best: Option<FoundManifest> = None;
        for (extent, owner) in shared_extents(member)? {
            if owner.kind() != Some(Kind::Manifest) || extent == root.place {
                continue;
            }
            // Most do not begin one.
            if let Ok(found) = FoundManifest::at(member, root, extent)
                && best.as_ref().is_none_or(|best| best.header.generation < found.header.generation)
            {
                best = Some(found);
            }
        }
        Ok(best)
    }

    pub fn view(&self) -> Result<ManifestView<'_>> {
        ManifestView::read(&self.bytes)
    }
}

fn bytes_at(member: &Member, place: Extent) -> Result<Vec<u8>> {
    let extent_bytes = member.pool().extent_bytes() as usize;
    let of_first = |len: usize| read(member, &PoolPlace { extents: vec![place], offset: 0, len: len as u64 });
    let (len, count) = ManifestView::extent_of(&of_first(HEADER_BYTES)?)?;
    if len.div_ceil(extent_bytes as u64) != count as u64 {
        return Err(damaged("it has another length"));
    }
    let listed = HEADER_BYTES + (count * super::EXTENT_BYTES).next_multiple_of(8);
    if listed > extent_bytes {
        return Err(damaged("it has another length"));
    }
    let extents: Vec<Extent> = ManifestView::own_extents_in(&of_first(listed)?).collect();
    read(member, &PoolPlace { extents, offset: 0, len })
}
