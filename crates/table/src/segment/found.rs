//! Segments that another process made: looked at when they are wanted first, in two steps.
//!
//! Opening one maps it, where it lies in a pool, and checks its header and its tree, which say what is in it. Before a value of it is
//! read, all of it is checked. What is damaged is replaced by its origin's copy, or told; both is so for good. What
//! fails for want of memory or of a device is tried again.

use super::Opened;
use crate::logical::Logical;
use crate::segment::State;
use crate::{Segment, blob};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_tablespace::{Claimed, PoolPlace, Tablespace};

/// From where segments that were found in memory can be had if they turn out to be damaged.
pub trait Origin: std::fmt::Debug + Send + Sync {
    /// Another copy of a row group's segment, checked. Allocates nothing in a query heap.
    fn segment(&self, column: usize) -> Result<Box<Segment>>;
}

/// A segment that another process made. A look at it is one at a word, once it has been checked.
#[derive(Debug)]
pub(super) struct Found {
    rows: usize,
    /// It, or what takes its place, once its contents have been checked.
    sound: OnceLock<Arc<Opened>>,
    opened: OnceLock<Arc<Opened>>,
    /// It is damaged, and there is no other copy.
    failed: OnceLock<Error>,
    /// Held by who opens or checks it: others wait for what comes of that.
    looking: Mutex<()>,
    space: Arc<Tablespace>,
    origin: Arc<dyn Origin>,
    column: usize,
    /// Of one that is opened when it is wanted: where it is.
    unopened: Option<Unopened>,
}

#[derive(Debug)]
struct Unopened {
    claimed: Claimed,
    head: u64,
    logical: Logical,
}

impl Found {
    pub fn opened_at_once(opened: Opened, origin: &Arc<dyn Origin>, column: usize) -> Found {
        let (rows, space) = (opened.rows(), Arc::clone(opened.tablespace()));
        let found = Found::new(rows, space, origin, column, None);
        Found { opened: OnceLock::from(Arc::new(opened)), ..found }
    }

    pub fn opened_later(
        claimed: Claimed,
        head: u64,
        rows: usize,
        logical: Logical,
        origin: &Arc<dyn Origin>,
        column: usize,
    ) -> Found {
        let space = Arc::clone(claimed.tablespace());
        Found::new(rows, space, origin, column, Some(Unopened { claimed, head, logical }))
    }

    fn new(
        rows: usize,
        space: Arc<Tablespace>,
        origin: &Arc<dyn Origin>,
        column: usize,
        unopened: Option<Unopened>,
    ) -> Found {
        Found {
            rows,
            sound: OnceLock::new(),
            opened: OnceLock::new(),
            failed: OnceLock::new(),
            looking: Mutex::default(),
            space,
            origin: Arc::clone(origin),
            column,
            unopened,
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn tablespace(&self) -> &Arc<Tablespace> {
        &self.space
    }

    /// What is read of it, as far as that is known.
    pub fn present(&self) -> Option<&Opened> {
        self.sound.get().or_else(|| self.opened.get()).map(|opened| &**opened)
    }

    /// All that it has in memory.
    pub fn all(&self) -> impl Iterator<Item = &Opened> {
        [&self.opened, &self.sound].into_iter().filter_map(|one| one.get()).map(|one| &**one)
    }

    /// Where it was when it was attached, if that is a pool, and the checksum of its head.
    pub fn claimed(&self) -> Option<(&PoolPlace, u64)> {
        self.unopened.as_ref().map(|unopened| (unopened.claimed.place(), unopened.head))
    }

    #[inline]
    pub fn sound(&self) -> Result<&Opened> {
        match self.sound.get() {
            Some(sound) => Ok(sound),
            None => self.check(),
        }
    }

    #[inline]
    pub fn opened(&self) -> Result<&Opened> {
        match self.sound.get().or_else(|| self.opened.get()) {
            Some(opened) => Ok(opened),
            None => self.open().map(|opened| &**opened),
        }
    }

    #[cold]
    fn open(&self) -> Result<&Arc<Opened>> {
        let _looking = self.looking.lock();
        self.opened_alone()
    }

    /// By who holds `looking`. What is made here outlives the statement that wants it.
    fn opened_alone(&self) -> Result<&Arc<Opened>> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let unopened = self.unopened.as_ref().ok_or_else(|| Error::internal("a segment is nowhere"))?;
        let opened = QueryHeap::outside(|| match unopened.open(self.rows) {
            Err(error) if error.code() == SqlState::DATA_CORRUPTED => self.other(&error),
            opened => opened.map(Arc::new),
        })?;
        Ok(self.opened.get_or_init(|| opened))
    }

    /// Takes another copy in its place.
    fn other(&self, why: &Error) -> Result<Arc<Opened>> {
        let is_it = |other: &Opened| -> Result<bool> {
            let head = self.claimed().map_or(Ok(true), |(_, head)| Ok(blob::head_checksum(other.bytes())? == head));
            Ok(head? && other.rows() == self.rows)
        };
        let other = self.origin.segment(self.column).and_then(|other| match other.state {
            State::Sound(opened) if is_it(&opened)? => Ok(Arc::new(opened)),
            _ => Err(Error::corrupted("the other copy of a segment is another one")),
        });
        match other {
            Ok(other) => Ok(Arc::clone(self.sound.get_or_init(|| other))),
            Err(error) => {
                let error = if error.detail().is_none() { error.with_detail(why.message().to_owned()) } else { error };
                if error.code() == SqlState::DATA_CORRUPTED {
                    return Err(self.failed.get_or_init(|| error).clone());
                }
                Err(error)
            }
        }
    }

    #[cold]
    fn check(&self) -> Result<&Opened> {
        let _looking = self.looking.lock();
        let opened = self.opened_alone()?;
        if let Some(sound) = self.sound.get() {
            return Ok(sound);
        }
        let sound = QueryHeap::outside(|| {
            opened.read_whole();
            match opened.check_contents() {
                Ok(()) => Ok(Arc::clone(opened)),
                Err(error) => self.other(&error),
            }
        })?;
        Ok(self.sound.get_or_init(|| sound))
    }
}

impl Unopened {
    fn open(&self, rows: usize) -> Result<Opened> {
        let opened = Opened::attach(self.claimed.attach()?, self.head, self.logical)?;
        if opened.rows() != rows {
            let message = format!("a row group has {} rows, where {rows} were expected", opened.rows());
            return Err(Error::corrupted(message));
        }
        Ok(opened)
    }
}
