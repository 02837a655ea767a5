//! A host becomes primary, with the log that its predecessors left: what a database calls.
//!
//! The order is that of `tidepool_pool`: the term is taken, the terms before are sealed, the rest of the log is read, what
//! the predecessors were writing is adopted, the new term's log begins, and the host runs. It may die or lose the term
//! between any two of these.

use crate::config::LogConfig;
use crate::format::DatabaseIdentity;
use crate::log::{Floor, Log};
use crate::pool_device::{PoolDevice, PoolSource, term_lost};
use crate::seal::{Sealed, seal_before};
use crate::tail::{Batch, Begun, Next, Tail};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result};
use tidepool_pool::member::Member;
use tidepool_pool::words::Reign;

/// The log of a database in a pool, as a host of it reads it.
pub type PoolTail = Tail<PoolSource<Member>>;

impl PoolTail {
    /// The log of the member's database from where a checkpoint says that it is needed, or from its oldest segment on. The
    /// member holds the checkpoint's root. Records up to `after` are passed over.
    pub fn attach(
        member: Arc<Member>,
        identity: DatabaseIdentity,
        from: Option<(u64, u64)>,
        after: CommitTs,
    ) -> Result<PoolTail> {
        let source = PoolSource::new(member.clone());
        if from.is_none() {
            // Of a life as primary, it may have said that it needs nothing.
            member.hold_root()?;
        }
        let from = if from.is_some() { from } else { source.oldest(identity)? };
        let mut tail = Tail::open(source, identity, from);
        tail.skip_to(after);
        member.need_log_from(from.map_or(0, |(_, number)| number))?;
        Ok(tail)
    }

    /// Has the memory of segments mapped that a take-over would look at first, where there are such: two at a time. To be called
    /// now and then by a host that may take over. False: there was nothing to do.
    pub fn map_ahead(&mut self) -> Result<bool> {
        let (term, position) = self.position();
        let mut mapped = std::mem::take(&mut self.mapped);
        let done = self.source().map_ahead(term, position.segment(), &mut mapped);
        self.mapped = mapped;
        done
    }
}

/// A host that has taken the term, and is not primary yet.
#[derive(Debug)]
pub struct TakeOver {
    member: Arc<Member>,
    reign: Reign,
    tail: PoolTail,
    sealed: Sealed,
}

impl TakeOver {
    /// Takes the term after the one in force, whoever has that, and seals all before it. The caller has reason to: its
    /// primary is dead, or suspect, or handed its work over. 57P02 where another host was quicker.
    pub fn begin(tail: PoolTail) -> Result<TakeOver> {
        let member = tail.source().host().clone();
        let seen = member.reign()?;
        let taken = TakeOver::begin_after(tail, seen)?;
        taken.map_err(|_| term_lost(&*member, seen.term.0.into()))
    }

    /// As `begin`, after the term that the caller has reason to end: where another one is in force by now, nothing is taken,
    /// and the tail comes back to be read on.
    pub fn begin_after(tail: PoolTail, seen: Reign) -> Result<std::result::Result<TakeOver, Box<PoolTail>>> {
        let member = tail.source().host().clone();
        let Some(reign) = member.take_over(seen)? else { return Ok(Err(Box::new(tail))) };
        let sealed = seal_before(&tail, reign)?;
        Ok(Ok(TakeOver { member, reign, tail, sealed }))
    }

    pub fn reign(&self) -> Reign {
        self.reign
    }

    /// Where the terms before ended.
    pub fn sealed(&self) -> Sealed {
        self.sealed
    }

    /// What is still to be applied. `None`: that was all.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        while self.tail.position().1 != self.sealed.end {
            match self.tail.read()? {
                Next::Batch(batch) => return Ok(Some(batch)),
                // Blocks that complete no record.
                Next::Nothing | Next::AtSeal if self.tail.position().1 == self.sealed.end => {}
                Next::Nothing | Next::AtSeal => {
                    return Err(Error::internal("the log ends before the place at which it was sealed"));
                }
            }
        }
        Ok(None)
    }

    /// For the payloads of a batch's records.
    pub fn tail(&mut self) -> &mut PoolTail {
        &mut self.tail
    }

    /// Begins the log of the term: the host is primary. `floor` is as for [`Recovery::into_log`](crate::Recovery::into_log).
    /// 57P02 where another host has begun a later term, 53100 where there is no room for a segment.
    pub fn into_log(mut self, config: LogConfig, floor: Floor) -> Result<Primary> {
        while self.next_batch()?.is_some() {}
        let TakeOver { member, reign, tail, .. } = self;
        let term = u64::from(reign.term.0);
        let root = member.adopt()?.ok_or_else(|| term_lost(&*member, term))?;
        let before = tail.into_before();
        // As primary it reads nothing of it, but for what its second tier lacks, which the device knows.
        member.need_log_from(before.end.segment())?;
        let device = Arc::new(PoolDevice::new(member.clone(), reign, before.end.segment()));
        let first = device.begin(reign)?;
        let reign = member.run(reign)?.ok_or_else(|| term_lost(&*member, term))?;
        let begun = Begun { term, first, before };
        let log = Log::begin(device.clone(), config, begun, floor)?;
        Ok(Primary { log, device, reign, root, first })
    }
}

/// What a primary has of the pool's log.
#[derive(Clone, Debug)]
pub struct Primary {
    pub log: Arc<Log>,
    pub device: Arc<PoolDevice<Member>>,
    pub reign: Reign,
    /// In force, and this host's to replace.
    pub root: tidepool_pool::words::Root,
    /// The first segment of its term.
    pub first: u64,
}

impl Primary {
    /// The term and number of the segment from which on a reader needs the log that has everything up to `ts`: what a
    /// checkpoint's manifest says.
    pub fn needed_from(&self, ts: CommitTs) -> Result<Option<(u64, u64)>> {
        match self.log.needed_from(ts) {
            0 => Ok(None),
            number => Ok(Some((self.device.term_of(number)?, number))),
        }
    }
}
