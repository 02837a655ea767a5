//! A host of this process as the primary of its database, or about to be.
//!
//! The order of a take-over: [`take_over`](Member::take_over); read the log to its end and [`seal`](Member::seal) the term;
//! [`adopt`](Member::adopt) what the predecessor left; [`open_log`](Member::open_log); [`run`](Member::run). The successor may
//! die or sleep between any two of these: the next one begins another term.

use crate::member::Member;
use crate::words::{Contents, End, EventKind, Extent, Generation, HostState, Owner, Reign, Root, Term};
use tidepool_base::{Result, crash_point};

impl Member {
    /// Which host reigns over this one's database, if one does.
    pub fn reign(&self) -> Result<Reign> {
        self.pool().told(self.pool().books().reign(self.database()))
    }

    /// Begins the term after `seen`, from a primary that is suspect, dead, or handed its work over. `None` where another
    /// host was first.
    pub fn take_over(&self, seen: Reign) -> Result<Option<Reign>> {
        let (pool, books) = (self.pool(), self.pool().books());
        if !pool.told(books.advance(self.host(), HostState::Promoting))? {
            return Err(self.fenced());
        }
        let taken = pool.told(books.take_over(self.database(), self.host(), seen))?;
        crash_point("pool.reign.taken");
        if let Some(reign) = taken {
            pool.record(EventKind::TookOver, self.host().slot, reign.term.0.into())?;
        }
        Ok(taken)
    }

    /// The log of `term` ends at `end`, or where another host found it to end before: that is returned. `None`: the term is
    /// so long over that the books do not say it any more.
    pub fn seal(&self, term: Term, end: End) -> Result<Option<End>> {
        let sealed = self.pool().told(self.pool().books().seal(self.database(), term, end))?;
        crash_point("pool.reign.sealed");
        self.pool().record(EventKind::Sealed, self.host().slot, term.0.into())?;
        Ok(sealed)
    }

    /// Makes what other primaries of the database were writing readable for good and writable for no host, and the root in
    /// force this host's. It starts from that root. `None` where another host has begun a term since: what it would find is
    /// that one's.
    pub fn adopt(&self) -> Result<Option<Root>> {
        let (pool, books) = (self.pool(), self.pool().books());
        let reigns = || Ok(books.reign(self.database())?.is_of(self.host()));
        if pool.told(books.orphan_others_while(self.host(), self.database(), reigns))?.is_none() {
            return Ok(None);
        }
        crash_point("pool.reign.orphaned");
        if !pool.told(reigns())? {
            return Ok(None);
        }
        pool.told(books.stamp_root(self.database())).map(Some)
    }

    /// Begins the log of the term at segment `number`. False where the term has been ended already.
    pub fn open_log(&self, reign: Reign, number: u64) -> Result<bool> {
        self.pool().told(self.pool().books().open_log(self.database(), reign, number))
    }

    /// The host is primary. `None` where another host has begun a term since.
    pub fn run(&self, reign: Reign) -> Result<Option<Reign>> {
        let (pool, books) = (self.pool(), self.pool().books());
        let running = pool.told(books.run(self.database(), reign))?;
        if running.is_some() && !pool.told(books.advance(self.host(), HostState::Primary))? {
            return Err(self.fenced());
        }
        Ok(running)
    }

    /// Puts the manifest that begins extent `place` in force, after root `from`. `None` where the host is no primary any
    /// more. The manifest is durable and covers no block that is not acknowledged.
    pub fn publish_root(&self, from: Root, place: Extent) -> Result<Option<Root>> {
        self.pool().told(self.pool().books().replace_root(self.database(), self.host(), from, place))
    }

    /// What was stored before this call is part of `term` for good: then it is acknowledged, or applied.
    pub fn is_settled(&self, term: Term) -> Result<bool> {
        self.pool().told(self.pool().books().is_settled(self.database(), term))
    }

    /// Frees an extent that no root from `since` on names, nor a record behind that root's position. False while a host may
    /// still read it, or while the one that wrote it may be alive. `found`: its word when that was found out; where it has
    /// another by now, it is another's, and stays.
    pub fn reclaim(&self, extent: Extent, found: Owner, since: Generation) -> Result<bool> {
        let (pool, books) = (self.pool(), self.pool().books());
        if !pool.told(books.return_shared(self.host(), self.database(), extent, found, since))? {
            return Ok(false);
        }
        pool.told(books.free(self.host(), extent, Contents::Of(self.database())))
    }

    /// Holds the root in force, and all of the log with it, for one that attaches. What it held before it needs no more.
    pub fn hold_root(&self) -> Result<Generation> {
        self.pool().told(self.pool().books().hold_root(self.host(), self.database()))
    }

    /// Every record up to root `generation` is applied, and no statement reads anything older.
    pub fn raise_hold(&self, generation: Generation) -> Result<()> {
        self.pool().told(self.pool().books().raise_hold(self.host(), generation))
    }

    /// Segments of the log before `number` are read by this host no more.
    pub fn need_log_from(&self, number: u64) -> Result<()> {
        self.pool().told(self.pool().books().need_log_from(self.host(), number))
    }

    /// Hands the term in: nothing follows.
    pub fn end_reign(&self, reign: Reign) -> Result<bool> {
        self.pool().told(self.pool().books().end_reign(self.database(), reign))
    }
}
