//! What an operator was seen to do, where somebody looks (`EXPLAIN (ANALYZE)`): how it went about it and why, and what it
//! held of the query heap, by tablespace.
//!
//! Who allocates memory that an operator keeps (a block of rows, a directory) keeps a [`Hold`] of it beside it, for as long.
//! Where nobody looks, holds are empty and no text is made.

use crate::vector::{Chunk, Values, Vector};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_heap::QueryHeap;
use tidepool_tablespace::Tablespace;

#[derive(Debug, Default)]
struct Gauge {
    bytes: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    fn add(&self, bytes: u64) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Told when it is shown.
type LateNote = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Of one operator, all of its executions within a statement together.
#[derive(Default)]
pub struct Observed {
    /// Of the statement's heap, in its order.
    spaces: Vec<(Arc<Tablespace>, Gauge)>,
    /// What lies in none of them.
    elsewhere: Gauge,
    notes: Mutex<Vec<String>>,
    late: Mutex<Vec<LateNote>>,
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("notes", &self.notes).finish_non_exhaustive()
    }
}

impl Observed {
    /// Of an operator over the heap that this thread is in.
    pub fn here() -> Arc<Observed> {
        let heap = QueryHeap::current();
        // It outlives the statement's heap.
        QueryHeap::outside(|| {
            let spaces = heap.iter().flat_map(|heap| heap.tablespaces());
            let spaces = spaces.map(|space| (Arc::clone(space), Gauge::default())).collect();
            Arc::new(Observed { spaces, ..Observed::default() })
        })
    }

    fn gauge(&self, place: usize) -> &Gauge {
        self.spaces.get(place).map_or(&self.elsewhere, |(_, gauge)| gauge)
    }

    /// What it held at most, in bytes, by tablespace, of those of which it held any; `None`: what the process gave. Peaks of
    /// two tablespaces need not be of one moment.
    pub fn peaks(&self) -> Vec<(Option<String>, u64)> {
        let of_spaces = self.spaces.iter().map(|(space, gauge)| (Some(space.name().to_owned()), gauge));
        let all = of_spaces.chain([(None, &self.elsewhere)]);
        let peaks = all.map(|(name, gauge)| (name, gauge.peak.load(Ordering::Relaxed)));
        peaks.filter(|(_, peak)| *peak > 0).collect()
    }

    /// How it went about its work, in lines for people.
    pub fn notes(&self) -> Vec<String> {
        let late: Vec<String> = self.late.lock().iter().filter_map(|note| note()).collect();
        self.notes.lock().iter().cloned().chain(late).collect()
    }

    fn note(&self, note: String) {
        QueryHeap::outside(|| {
            let mut notes = self.notes.lock();
            if !notes.contains(&note) {
                notes.push(note.as_str().to_owned());
            }
        });
    }
}

/// An operator, if anybody looks at it.
#[derive(Clone, Debug, Default)]
pub struct Observer(Option<Arc<Observed>>);

impl Observer {
    pub fn new(observed: Option<Arc<Observed>>) -> Observer {
        Observer(observed)
    }

    /// Of memory that the operator keeps from now on: `bytes` bytes from `address` on, in one block.
    pub fn hold(&self, address: usize, bytes: usize) -> Hold {
        let Some(observed) = self.0.as_ref().filter(|_| bytes > 0) else { return Hold::default() };
        let lies_in = |(space, _): &(Arc<Tablespace>, Gauge)| space.address_range().contains(&address);
        let place = observed.spaces.iter().position(lies_in).unwrap_or(usize::MAX);
        observed.gauge(place).add(bytes as u64);
        Hold(Some(Held { observed: Arc::clone(observed), place, bytes: bytes as u64 }))
    }

    /// Of all that a vector has allocated.
    pub fn hold_vec<T>(&self, vec: &Vec<T>) -> Hold {
        self.hold(vec.as_ptr().addr(), vec.capacity() * size_of::<T>())
    }

    /// Of values that the operator keeps and others made. What lies elsewhere than in a query heap (a table lends its bytes)
    /// does not count, nor what long texts lie in.
    pub fn hold_values(&self, vector: &Vector) -> Hold {
        if self.0.is_none() {
            return Hold::default();
        }
        let address = match &vector.values {
            Values::Int(values) => values.as_ptr().addr(),
            Values::Wide(values) => values.as_ptr().addr(),
            Values::Float(values) => values.as_ptr().addr(),
            Values::Bool(values) => values.words().as_ptr().addr(),
            Values::Text(texts) => texts.values().as_ptr().addr(),
            Values::Other(_) => return Hold::default(),
        };
        if is_in_heap(address) { self.hold(address, vector.bytes()) } else { Hold::default() }
    }

    /// Says something of how the operator works. The same is said once.
    pub fn note(&self, note: impl FnOnce() -> String) {
        if let Some(observed) = &self.0 {
            observed.note(note());
        }
    }

    /// As [`Observer::note`], of what is only known when the operator is done. `None`: nothing is to be said.
    pub fn note_late(&self, note: impl Fn() -> Option<String> + Send + Sync + 'static) {
        if let Some(observed) = &self.0 {
            QueryHeap::outside(|| observed.late.lock().push(Box::new(note)));
        }
    }
}

/// Whether the page is one of a query heap's.
fn is_in_heap(address: usize) -> bool {
    tidepool_heap::is_in_heap(std::ptr::without_provenance(address))
}

/// Chunks that an operator keeps as they came: what of them lies in the query heap, that of long texts once.
#[derive(Debug)]
pub struct Kept {
    observer: Observer,
    /// Where the buffers begin that texts of earlier chunks lie in.
    texts: HashSet<usize>,
    holds: Vec<Hold>,
    text_holds: Vec<Hold>,
}

impl Kept {
    pub fn new(observer: &Observer) -> Kept {
        let (texts, holds, text_holds) = Default::default();
        Kept { observer: observer.clone(), texts, holds, text_holds }
    }

    pub fn keep(&mut self, chunk: &Chunk) {
        if self.observer.0.is_none() {
            return;
        }
        for column in &chunk.columns {
            self.holds.push(self.observer.hold_values(column));
            let Values::Text(texts) = &column.values else { continue };
            for buffer in texts.owners().buffers() {
                let start = buffer.as_ptr().addr();
                if self.texts.insert(start) && is_in_heap(start) {
                    self.text_holds.push(self.observer.hold(start, buffer.capacity()));
                }
            }
        }
    }

    /// The chunks are gone; their texts may still be somebody's.
    pub fn drop_values(&mut self) {
        self.holds.clear();
    }
}

#[derive(Debug)]
struct Held {
    observed: Arc<Observed>,
    /// Among the tablespaces.
    place: usize,
    bytes: u64,
}

/// Memory counts as held until this is dropped.
#[derive(Debug, Default)]
pub struct Hold(Option<Held>);

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(Held { observed, place, bytes }) = &self.0 {
            observed.gauge(*place).subtract(*bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_most_is_kept() {
        let observed = Observed::here();
        let observer = Observer::new(Some(Arc::clone(&observed)));
        let first = observer.hold(0x10000, 100);
        let second = observer.hold_vec(&Vec::<u64>::with_capacity(5));
        drop(first);
        let third = observer.hold(0x10000, 60);
        assert_eq!(observed.peaks(), [(None, 140)]);
        drop((second, third));
        assert_eq!(observed.elsewhere.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(observed.peaks(), [(None, 140)]);
    }

    #[test]
    fn notes_are_said_once() {
        let observed = Observed::here();
        let observer = Observer::new(Some(Arc::clone(&observed)));
        observer.note_late(|| Some("late".to_owned()));
        observer.note_late(|| None);
        observer.note(|| "by hash".to_owned());
        observer.note(|| "by hash".to_owned());
        assert_eq!(observed.notes(), ["by hash", "late"]);
    }

    #[test]
    fn nothing_is_noted_for_nobody() {
        let observer = Observer::default();
        let _hold = observer.hold(0x10000, 100);
        observer.note(|| unreachable!("nobody looks"));
    }
}
