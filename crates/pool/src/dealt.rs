//! Pools that are dealt out: memory that several machines map without seeing each other's stores, as behind a switch of
//! CXL 2.0.
//!
//! No swap between machines means anything there, so that no word of the books is shared. The pool is divided when it is
//! made: each machine has a *slice*, which is a pool of its own, with books of its own. All that is between machines is who has which slice:
//! for each slice and each machine a line that this machine alone writes. A machine *holds* the slice that is its own, or
//! one whose machine gave it up, or is known to be dead.
//!
//! > A slice is another machine's only when the caches of the one before have nothing of it: that one has written all back, or
//! > is known to be dead as a whole. And nothing is read of it before what the new one's caches have of it is gone.
//!
//! A process that was killed leaves its stores in its machine's caches, which may write them back at any time. So a slice
//! stays its *machine's* when its processes end: within one machine everything is as in any pool.
//!
//! | offset in the first extent | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4,096 | superblock; never changed |
//! | 4,096 | a page for each slice | 256 bytes for each machine: `HOLD`; from byte 64 on, of each machine the last tenure of it that this one was told to be over |
//!
//! Taking a slice is Dekker's: a machine says that it takes it, and then looks whether another says so, and both back off where they
//! meet. Every look takes the line out of the own caches first, every word is written back before the next step. A tenure
//! that is over stays over: machines count theirs, and what one was told is about a number.

use crate::memory::{At, Trouble};
use crate::words::{Hold, HoldState, Number, Word};
use tidepool_base::crash_point;

/// Of one pool. Each has a line in each slice's page.
pub const MACHINES_MAX: u8 = 16;

const PAGE: u32 = 4096;
const MACHINE_BYTES: u32 = 256;
const TOLD_AT: u32 = 64;

/// One of the machines that a pool is dealt out to, from 0 on. People count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Machine(pub u8);

/// A part of a pool that is dealt out, from 0 on. People count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice(pub u8);

/// Words that machines see each other's stores to only by way of the memory, and what a machine can do to its caches.
pub trait Lines {
    type Stop;

    /// From the caches, where they have it.
    fn load(&self, at: At) -> Result<u64, Self::Stop>;

    /// Into the caches. It reaches the memory at any time after that, or never.
    fn store(&self, at: At, bits: u64) -> Result<(), Self::Stop>;

    /// Begins to write back the line of a word.
    fn write_back(&self, at: At) -> Result<(), Self::Stop>;

    /// Begins to take the line of a word out of the caches.
    fn drop_line(&self, at: At) -> Result<(), Self::Stop>;

    /// Ends what was begun, before anything that follows.
    fn fence(&self) -> Result<(), Self::Stop>;

    /// Writes back all that the caches have of a slice, and takes it out of them, to the end.
    fn drop_slice(&self, slice: Slice) -> Result<(), Self::Stop>;
}

type Outcome<T, M> = Result<T, Trouble<<M as Lines>::Stop>>;

/// What came of taking a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// The machine has it already, from this start on: its caches are right.
    Kept(u32),
    /// It is to be looked through for what machines before left, and then to be [kept](Deals::keep).
    Taken(u32),
    /// This machine has it, or takes it.
    Refused(Machine),
}

/// Who has which slice.
#[derive(Debug)]
pub struct Deals<M> {
    pub memory: M,
    pub machines: u8,
}

pub(crate) fn hold_at(slice: Slice, machine: Machine) -> At {
    At(PAGE * (1 + u32::from(slice.0)) + MACHINE_BYTES * u32::from(machine.0))
}

/// What `by` was told of a machine.
pub(crate) fn told_at(slice: Slice, by: Machine, of: Machine) -> At {
    At(hold_at(slice, by).0 + TOLD_AT + 8 * u32::from(of.0))
}

impl<M: Lines> Deals<M> {
    pub fn all_machines(&self) -> impl Iterator<Item = Machine> {
        (0..self.machines).map(Machine)
    }

    pub fn all_slices(&self) -> impl Iterator<Item = Slice> {
        (0..self.machines).map(Slice)
    }

    /// A word as the memory has it now.
    fn fetch<W: Word>(&self, at: At) -> Outcome<W, M> {
        self.memory.drop_line(at)?;
        self.memory.fence()?;
        W::read(self.memory.load(at)?).map_err(|fault| Trouble::Damaged { at, fault })
    }

    /// Puts a word of this machine's own into the memory.
    fn put<W: Word>(&self, at: At, word: W) -> Outcome<(), M> {
        self.memory.store(at, word.bits())?;
        self.memory.write_back(at)?;
        Ok(self.memory.fence()?)
    }

    /// Of a pool that is being made.
    pub fn format(&self) -> Outcome<(), M> {
        for slice in self.all_slices() {
            for machine in self.all_machines() {
                self.put(hold_at(slice, machine), Hold::NEW)?;
                for of in self.all_machines() {
                    self.put(told_at(slice, machine, of), Number(0))?;
                }
            }
        }
        Ok(())
    }

    pub fn hold(&self, slice: Slice, machine: Machine) -> Outcome<Hold, M> {
        self.fetch(hold_at(slice, machine))
    }

    /// Some machine was told that this tenure is over.
    pub fn is_over(&self, slice: Slice, of: Machine, tenure: u32) -> Outcome<bool, M> {
        for by in self.all_machines() {
            if self.fetch::<Number>(told_at(slice, by, of))?.0 >= u64::from(tenure) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a machine has of a slice, unless that is over.
    pub fn standing(&self, slice: Slice, machine: Machine) -> Outcome<Option<Hold>, M> {
        let hold = self.hold(slice, machine)?;
        let stands = hold.state != HoldState::Free && !self.is_over(slice, machine, hold.tenure)?;
        Ok(stands.then_some(hold))
    }

    /// Another machine that has a slice, or takes it.
    fn other(&self, slice: Slice, me: Machine) -> Outcome<Option<Machine>, M> {
        for machine in self.all_machines().filter(|machine| *machine != me) {
            if self.standing(slice, machine)?.is_some() {
                return Ok(Some(machine));
            }
        }
        Ok(None)
    }

    /// Takes a slice. `start` tells this start of the machine from others. One process of a machine at a time does that.
    pub fn take(&self, slice: Slice, me: Machine, start: u32) -> Outcome<Taking, M> {
        let own = self.hold(slice, me)?;
        if let Some(hold) = self.standing(slice, me)? {
            if hold.start != start & Hold::START_MASK {
                // Another machine uses this one's number, or this one was started anew.
                return Ok(Taking::Refused(me));
            }
            if hold.state == HoldState::Held {
                return Ok(Taking::Kept(hold.tenure));
            }
        }
        if let Some(other) = self.other(slice, me)? {
            return Ok(Taking::Refused(other));
        }
        let tenure = own.tenure + 1;
        self.put(hold_at(slice, me), Hold { tenure, start, state: HoldState::Taking })?;
        crash_point("pool.slice.claimed");
        // Of two that come here at once, each has said so before it looks: one of them sees the other at least.
        if let Some(other) = self.other(slice, me)? {
            self.put(hold_at(slice, me), Hold { tenure, start, state: HoldState::Free })?;
            return Ok(Taking::Refused(other));
        }
        // What the caches have is of a tenure before, or was fetched by a look.
        self.memory.drop_slice(slice)?;
        crash_point("pool.slice.taken");
        Ok(Taking::Taken(tenure))
    }

    /// What machines before left in a slice that was taken is in order.
    pub fn keep(&self, slice: Slice, me: Machine, start: u32, tenure: u32) -> Outcome<(), M> {
        self.put(hold_at(slice, me), Hold { tenure, start, state: HoldState::Held })
    }

    /// Gives a slice up that the machine holds. No process of the machine stores to it any more. False where it does not hold it.
    pub fn give_up(&self, slice: Slice, me: Machine, start: u32) -> Outcome<bool, M> {
        let Some(hold) = self.standing(slice, me)? else { return Ok(false) };
        if hold.start != start & Hold::START_MASK {
            return Ok(false);
        }
        self.memory.drop_slice(slice)?;
        crash_point("pool.slice.flushed");
        self.put(hold_at(slice, me), Hold { state: HoldState::Free, ..hold })?;
        crash_point("pool.slice.given");
        Ok(true)
    }

    /// Notes what `by` was told: a machine that had this tenure is dead as a whole, or has been started anew since. False where
    /// that tenure does not stand. One process of a machine at a time does that.
    pub fn note_over(&self, slice: Slice, by: Machine, of: Machine, tenure: u32) -> Outcome<bool, M> {
        if self.standing(slice, of)?.is_none_or(|hold| hold.tenure != tenure) {
            return Ok(false);
        }
        self.put(told_at(slice, by, of), Number(tenure.into()))?;
        Ok(true)
    }
}
