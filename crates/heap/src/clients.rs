//! What clients make the process hold beside rows and statements' heaps: messages on their way in and out, prepared statements, portals, cursors,
//! settings, and plans that are kept. All of it is bounded by bytes.
//!
//! Half of the bound is dealt out: each connection has an equal share of it, whatever the others do, so that a client that takes all it can get keeps
//! nobody from working. The other half goes to whoever comes first, and no connection has more than half of that.
//!
//! What is large is also held against the memory that the process really has, as all kinds of memory end in the same limit.

use crate::machine;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{ByteSize, Error, Result, SqlState};

/// What clients make the process hold, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Messages that come in, and data of a `COPY` that is not loaded yet.
    Messages,
    /// Encoded rows that a client has not read yet.
    Results,
    /// Prepared statements, portals, cursors and settings, and what each connection needs.
    Sessions,
    /// Plans and programs that are kept for the next statement of the same text.
    Plans,
    /// Rows of loads that are not encoded yet.
    Loads,
}

impl Held {
    pub const ALL: [Held; 5] = [Held::Messages, Held::Results, Held::Sessions, Held::Plans, Held::Loads];

    pub fn name(self) -> &'static str {
        match self {
            Held::Messages => "messages",
            Held::Results => "results",
            Held::Sessions => "sessions",
            Held::Plans => "plans",
            Held::Loads => "loads",
        }
    }
}

/// From this size on it counts what the process really has: finding out takes microseconds.
const LARGE_BYTES: u64 = 1 << 20;

/// Kept free of the process's limit for what nobody counts.
const MARGIN_BYTES: u64 = 32 << 20;

/// One part in so many of the bound is for each of the caches of plans.
const CACHE_PART: u64 = 16;

/// The books of a process.
#[derive(Debug)]
pub struct ClientMemory {
    /// For all connections beyond their shares.
    common_max: u64,
    common: AtomicU64,
    /// Of each connection.
    share: u64,
    cache_max: u64,
    load_max: u64,
    process_limit: u64,
    held: [AtomicU64; Held::ALL.len()],
    peak: [AtomicU64; Held::ALL.len()],
}

/// One connection's part of it.
#[derive(Debug)]
pub struct ClientAccount {
    memory: Arc<ClientMemory>,
    held: AtomicU64,
}

/// Bytes that an account has been charged with, until dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<ClientAccount>,
    kind: Held,
    bytes: u64,
}

impl ClientMemory {
    /// `bytes`: the bound over all. `process_limit`: what the process may use in all.
    pub fn new(bytes: u64, connections_max: usize, process_limit: u64) -> Arc<ClientMemory> {
        let dealt = bytes / 2;
        Arc::new(ClientMemory {
            common_max: bytes - dealt,
            common: AtomicU64::new(0),
            share: dealt / connections_max.max(1) as u64,
            cache_max: bytes / CACHE_PART,
            load_max: bytes,
            process_limit,
            held: Default::default(),
            peak: Default::default(),
        })
    }

    pub fn account(self: &Arc<Self>) -> Arc<ClientAccount> {
        Arc::new(ClientAccount { memory: self.clone(), held: AtomicU64::new(0) })
    }

    /// The most that one cache of plans may hold.
    pub fn cache_bytes_max(&self) -> u64 {
        self.cache_max
    }

    /// From so many bytes on, loads encode what they have.
    pub fn load_bytes_max(&self) -> u64 {
        self.load_max
    }

    /// Of each kind, bytes now and at most so far.
    pub fn rows(&self) -> [(Held, u64, u64); Held::ALL.len()] {
        Held::ALL.map(|kind| {
            let load = |all: &[AtomicU64]| all[kind as usize].load(Ordering::Relaxed);
            (kind, load(&self.held), load(&self.peak))
        })
    }

    /// For what is bounded by itself, and only counted here. Returns how much there is now.
    pub fn note(&self, kind: Held, added: u64, removed: u64) -> u64 {
        let held = &self.held[kind as usize];
        if removed > 0 {
            held.fetch_sub(removed, Ordering::Relaxed);
        }
        let now = held.fetch_add(added, Ordering::Relaxed) + added;
        self.peak[kind as usize].fetch_max(now, Ordering::Relaxed);
        now
    }

    /// Whether the process can take so many bytes more.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let fits = || machine::process_bytes().is_none_or(|now| now + bytes + MARGIN_BYTES <= self.process_limit);
        if fits() {
            return true;
        }
        // What was freed may still be the process's.
        crate::release(crate::Release::All);
        fits()
    }

    /// Memory that the process has now and that is no file's; zero where it cannot be told.
    pub fn process_bytes(&self) -> u64 {
        machine::process_bytes().unwrap_or(0)
    }

    /// 53200 for `bytes` that there is no room for.
    pub fn refused(&self, bytes: u64) -> Error {
        let held: u64 = self.rows().iter().map(|(_, bytes, _)| bytes).sum();
        Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
            .with_detail(format!(
                "Failed on request of size {bytes}: clients make the server hold {} beside rows.",
                ByteSize(held)
            ))
            .with_hint(
                "Send shorter messages, close prepared statements, portals and cursors, or raise memory.clients in the configuration.",
            )
    }
}

impl ClientAccount {
    pub fn memory(&self) -> &Arc<ClientMemory> {
        &self.memory
    }

    /// What the connection holds.
    pub fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// 53200 where there is no room.
    pub fn reserve(self: &Arc<Self>, kind: Held, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.nothing(kind);
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// A reservation of no bytes, to be resized.
    pub fn nothing(self: &Arc<Self>, kind: Held) -> Reservation {
        Reservation { account: self.clone(), kind, bytes: 0 }
    }

    fn grow(&self, kind: Held, bytes: u64) -> Result<()> {
        let memory = &self.memory;
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let beyond = |held: u64| held.saturating_sub(memory.share);
        let common = beyond(before + bytes) - beyond(before);
        if common > 0 {
            let now = memory.common.fetch_add(common, Ordering::Relaxed) + common;
            let own = beyond(before + bytes);
            let fits = now <= memory.common_max && own <= memory.common_max / 2;
            if !fits || (bytes >= LARGE_BYTES && !memory.has_room_for(bytes)) {
                self.held.fetch_sub(bytes, Ordering::Relaxed);
                memory.common.fetch_sub(common, Ordering::Relaxed);
                return Err(memory.refused(bytes));
            }
        }
        memory.note(kind, bytes, 0);
        Ok(())
    }

    fn shrink(&self, kind: Held, bytes: u64) {
        let memory = &self.memory;
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        let beyond = |held: u64| held.saturating_sub(memory.share);
        memory.common.fetch_sub(beyond(before) - beyond(before - bytes), Ordering::Relaxed);
        memory.note(kind, 0, bytes);
    }
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// 53200 where there is no room for more; then it is as it was.
    pub fn resize(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            self.account.grow(self.kind, bytes - self.bytes)?;
        } else if bytes < self.bytes {
            self.account.shrink(self.kind, self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// All of it, out of this one.
    pub fn take(&mut self) -> Reservation {
        let bytes = std::mem::take(&mut self.bytes);
        Reservation { account: self.account.clone(), kind: self.kind, bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.shrink(self.kind, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Arc<ClientMemory> {
        // Shares of 100 bytes, and 1,000 for all.
        ClientMemory::new(2_000, 10, u64::MAX)
    }

    fn held(memory: &ClientMemory) -> u64 {
        memory.rows().iter().map(|(_, bytes, _)| bytes).sum()
    }

    #[test]
    fn each_connection_has_its_share_whatever_others_take() {
        let memory = memory();
        let greedy: Vec<_> = (0..3).map(|_| memory.account()).collect();
        // Share and half of what is common; the third finds nothing left.
        let kept: Vec<_> = greedy[..2].iter().map(|account| account.reserve(Held::Messages, 600).unwrap()).collect();
        assert_eq!(greedy[2].reserve(Held::Messages, 101).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
        let share = greedy[2].reserve(Held::Messages, 100).unwrap();
        let other = memory.account();
        let own = other.reserve(Held::Sessions, 100).unwrap();
        assert_eq!(held(&memory), 1_400);
        drop((kept, share, own));
        assert_eq!((held(&memory), memory.common.load(Ordering::Relaxed)), (0, 0));
        assert_eq!(memory.rows()[0], (Held::Messages, 0, 1_300));
    }

    #[test]
    fn nobody_has_more_than_half_of_what_is_common() {
        let memory = memory();
        let account = memory.account();
        let error = account.reserve(Held::Sessions, 601).unwrap_err();
        assert!(error.hint().unwrap().contains("memory.clients"), "{error:?}");
        assert_eq!(account.bytes(), 0);
        let mut reservation = account.reserve(Held::Sessions, 600).unwrap();
        assert!(reservation.resize(601).is_err());
        assert_eq!((reservation.bytes(), held(&memory)), (600, 600));
        reservation.resize(50).unwrap();
        let taken = reservation.take();
        assert_eq!((reservation.bytes(), taken.bytes(), held(&memory)), (0, 50, 50));
    }

    #[test]
    fn what_is_large_needs_room_in_the_process() {
        let memory = ClientMemory::new(1 << 40, 1, 64 << 20);
        let account = memory.account();
        // Only beyond the share is anything found out.
        assert!(account.reserve(Held::Messages, (1 << 39) + (1 << 30)).is_err());
        assert_eq!(held(&memory), 0);
    }

    #[test]
    fn books_come_out_with_many_threads() {
        let memory = memory();
        let account = memory.account();
        std::thread::scope(|scope| {
            for seed in 1..5u64 {
                let account = &account;
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..1_000 {
                        kept.extend(account.reserve(Held::Results, round * seed % 97).ok());
                        if kept.len() > 5 {
                            kept.remove((round % 5) as usize);
                        }
                    }
                });
            }
        });
        assert_eq!((account.bytes(), held(&memory), memory.common.load(Ordering::Relaxed)), (0, 0, 0));
    }
}
