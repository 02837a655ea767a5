//! Databases: which host reigns, where a reign ended, which root is in force, and where the log is.
//!
//! * *Acknowledging.* The primary stores its block; then, after a fence, it looks whether `TERM` is still its own. The
//!   successor changes `TERM`; then it reads the log to its end, and that is the seal. At least one of the two sees the
//!   other: either the block is before the seal, or it is not acknowledged.
//! * *Sealing.* The seal is one word, changed once from open. Of several that end a term, the first decides; all ends that
//!   they can come to contain what was acknowledged.
//! * *Roots.* A successor stamps the root in force before it runs. A checkpoint that its predecessor publishes earlier is
//!   taken over, a later one fails.

use crate::layout::TERMS;
use crate::memory::{Books, Memory, Outcome};
use crate::words::{Database, End, Extent, First, Generation, Host, Reign, Root, Seal, Segment, Term, TermState};

impl<M: Memory> Books<M> {
    pub fn reign(&self, database: Database) -> Outcome<Reign, M> {
        self.load(self.layout.term(database))
    }

    /// Begins the term after `seen`, from a primary that is suspect, dead, or handed its work over. The term before is to
    /// be sealed next.
    pub fn take_over(&self, database: Database, host: Host, seen: Reign) -> Outcome<Option<Reign>, M> {
        let next = Reign::of(Term(seen.term.0 + 1), TermState::Sealing, host);
        Ok(self.swap(self.layout.term(database), seen, next)?.then_some(next))
    }

    /// The log of `term` ends at `end`, or where another host found it to end before: that is returned. `None`: the term is
    /// so long over that its line of the ring is a later one's.
    pub fn seal(&self, database: Database, term: Term, end: End) -> Outcome<Option<End>, M> {
        self.seal_after(database, term, end, End::Empty)
    }

    /// As `seal`, of a term before which the log had come to `before`: that is the end of a term which never began a log. So
    /// the newest seal says where the log of all terms ended, also when the line of the last that wrote is a later one's.
    pub fn seal_after(&self, database: Database, term: Term, end: End, before: End) -> Outcome<Option<End>, M> {
        let field = self.layout.seal(database, term);
        loop {
            let seal = self.load(field)?;
            let next = match seal.end {
                _ if seal.is_after(term) => return Ok(None),
                End::Open if seal.is_of(term) => Seal::new(term, end),
                end if seal.is_of(term) => return Ok(Some(end)),
                // The term's primary has not got as far as beginning a log, and never will.
                _ => Seal::new(term, before),
            };
            if self.swap(field, seal, next)? {
                return Ok(Some(next.end));
            }
        }
    }

    /// How `term` ended, if it did.
    pub fn end_of(&self, database: Database, term: Term) -> Outcome<Option<End>, M> {
        let seal = self.load(self.layout.seal(database, term))?;
        Ok((seal.is_of(term) && seal.end != End::Open).then_some(seal.end))
    }

    /// The last term that is sealed, and its seal.
    pub fn newest_seal(&self, database: Database) -> Outcome<Option<(Term, End)>, M> {
        let newest = self.reign(database)?.term;
        let mut found: Option<(Term, End)> = None;
        for line in 0..TERMS as u32 {
            let seal = self.load(self.layout.seal(database, Term(line)))?;
            let Some(term) = seal.term_up_to(newest).filter(|_| seal.end != End::Open) else { continue };
            if found.is_none_or(|(last, _)| last < term) {
                found = Some((term, seal.end));
            }
        }
        Ok(found)
    }

    /// Begins the log of a term at segment `number`. The terms before are sealed, so that where the log ended is in the seal
    /// of the last of them, too, and not only in this line of the ring, which was an earlier term's. False when the term has been ended already.
    ///
    /// The line is the term's once `SEAL` says so. `FIRST` is changed from what it was *before* that was seen, so that a
    /// host that sleeps here while the line becomes a later term's changes nothing of it.
    pub fn open_log(&self, database: Database, reign: Reign, number: u64) -> Outcome<bool, M> {
        let (first, seal) = (self.layout.first(database, reign.term), self.layout.seal(database, reign.term));
        loop {
            let before = self.load(first)?;
            let line = self.load(seal)?;
            if line.is_after(reign.term) || line.is_of(reign.term) && line.end != End::Open {
                return Ok(false);
            }
            if !line.is_of(reign.term) {
                self.swap(seal, line, Seal::new(reign.term, End::Open))?;
            } else if self.swap(first, before, First::new(reign.term, number))? {
                return Ok(true);
            }
        }
    }

    /// The number of the first segment of a term's log, if it began one.
    pub fn first_segment(&self, database: Database, term: Term) -> Outcome<Option<u64>, M> {
        let first = self.load(self.layout.first(database, term))?;
        Ok(first.is_of(term).then_some(first.number))
    }

    /// The predecessors' ends are sealed and their extents are orphans: the host is primary. False when it is not any more.
    pub fn run(&self, database: Database, reign: Reign) -> Outcome<Option<Reign>, M> {
        let running = Reign { state: TermState::Running, ..reign };
        Ok(self.swap(self.layout.term(database), reign, running)?.then_some(running))
    }

    /// Hands a term in: all of it is durable and nothing follows.
    pub fn end_reign(&self, database: Database, reign: Reign) -> Outcome<bool, M> {
        self.swap(self.layout.term(database), reign, Reign { state: TermState::Ended, ..reign })
    }

    /// What was stored before this call is part of the term for good. A primary asks before it acknowledges a block, a
    /// follower before it applies one that it has read.
    pub fn is_settled(&self, database: Database, term: Term) -> Outcome<bool, M> {
        self.fence()?;
        Ok(self.reign(database)?.term == term)
    }

    /// No host has begun another term. A statement asks after it drew its snapshot, which was then the newest.
    pub fn reigns(&self, database: Database, reign: Reign) -> Outcome<bool, M> {
        Ok(self.reign(database)? == reign)
    }

    /// Puts a root in force, also where another host has stamped the one before meanwhile and `host` still reigns: it lost
    /// the term earlier and woke. The manifest is durable, and covers no block that is not acknowledged. `None` where the
    /// host does not reign any more.
    ///
    /// A successor takes the term before it stamps. So one whose stamp is seen here is seen in `TERM`, too.
    pub fn replace_root(&self, database: Database, host: Host, from: Root, place: Extent) -> Outcome<Option<Root>, M> {
        let mut from = from;
        loop {
            if let Some(root) = self.publish_root(database, from, place)? {
                return Ok(Some(root));
            }
            let found = self.load(self.layout.root(database))?;
            if found.place != from.place || !self.reign(database)?.is_of(host) {
                return Ok(None);
            }
            from = found;
        }
    }

    /// Puts a root in force. The manifest is durable, and covers no block that is not acknowledged.
    pub fn publish_root(&self, database: Database, from: Root, place: Extent) -> Outcome<Option<Root>, M> {
        let root = Root { place, generation: Generation(from.generation.0 + 1) };
        Ok(self.swap(self.layout.root(database), from, root)?.then_some(root))
    }

    /// Makes the root in force the successor's own, so that a predecessor's late checkpoint fails.
    pub fn stamp_root(&self, database: Database) -> Outcome<Root, M> {
        let field = self.layout.root(database);
        loop {
            let root = self.load(field)?;
            let stamped = Root { generation: Generation(root.generation.0 + 1), ..root };
            if self.swap(field, root, stamped)? {
                return Ok(stamped);
            }
        }
    }

    /// Enters where segment `number` of a term's log is. False when the place is taken, by a predecessor's late entry or by
    /// a segment that is still needed: the log goes on with the next number.
    pub fn enter_segment(&self, database: Database, number: u64, segment: Segment) -> Outcome<bool, M> {
        self.swap(self.layout.segment(database, number), Segment::NONE, segment)
    }

    /// Where segment `number` of `term` is.
    pub fn segment(&self, database: Database, number: u64, term: Term) -> Outcome<Option<Extent>, M> {
        let segment = self.load(self.layout.segment(database, number))?;
        Ok((segment.term == term && term.0 > 0).then_some(segment.extent))
    }

    /// Takes a segment that no host needs out of the table.
    pub fn forget_segment(&self, database: Database, number: u64, segment: Segment) -> Outcome<bool, M> {
        self.swap(self.layout.segment(database, number), segment, Segment::NONE)
    }
}
