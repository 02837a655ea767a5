//! Ending terms: a successor reads what its predecessors wrote, and says where their logs ended.
//!
//! `TERM` names the successor when it begins to read. What a predecessor still writes it does not acknowledge, so the end that
//! the successor comes to has everything that was acknowledged; and so has each end that another successor comes to. The
//! first that is recorded counts, and all others take it over.

use crate::blocks::{Cursor, Source, Verdict, damaged};
use crate::format::{LogPosition, SEGMENT_HEADER_BYTES};
use crate::pool_device::{PoolHost, PoolSource, term_lost};
use crate::tail::Tail;
use tidepool_base::{Result, crash_point};
use tidepool_pool::layout::{SEGMENTS, TERMS};
use tidepool_pool::words::{End, Reign, Term};

/// Where the terms before a new one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The last term that has a block, 0 if none has.
    pub term: u64,
    pub end: LogPosition,
}

/// Seals all terms before the one that `reign` began, from the place on that `tail` has come to. The tail then gives out the
/// rest, up to [`Sealed::end`].
///
/// Any other host may do so at once. 57P02 where another host has begun a later term, XX001 where the log is damaged.
pub fn seal_before<H: PoolHost>(tail: &Tail<PoolSource<H>>, reign: Reign) -> Result<Sealed> {
    let host = tail.source().host();
    match seal_all(tail, reign) {
        // What is there by now is others'.
        Err(error) if !host.told(host.books().is_settled(host.database(), reign.term))? => {
            tracing::debug!(%error, "the term was lost while the terms before were sealed");
            Err(term_lost(&**host, reign.term.0.into()))
        }
        sealed => sealed,
    }
}

fn seal_all<H: PoolHost>(tail: &Tail<PoolSource<H>>, reign: Reign) -> Result<Sealed> {
    let source = tail.source();
    let (host, books) = (&**source.host(), source.host().books());
    let database = host.database();
    let mut cursor = tail.cursor().clone();
    // The lines of terms before these may be later ones'. Those terms are sealed, as all are before a line is taken again.
    let first_in_ring = u64::from(reign.term.0.saturating_sub(TERMS as u32)).max(1);
    let first = pass_old(&mut cursor, source, first_in_ring)?;
    for term in first..u64::from(reign.term.0) {
        let of = Term(term as u32);
        if host.told(books.end_of(database, of))?.is_none() {
            let before = end_at(&cursor);
            let mut ahead = cursor.clone();
            ahead.looks_everywhere = true;
            if ahead.term != term {
                enter(&mut ahead, source, term)?;
            }
            if ahead.term == term {
                ahead.run_and_persist(source)?;
            }
            let found = match ahead.is_within() && ahead.term == term {
                true => {
                    ahead.check_end(source)?;
                    end_at(&ahead)
                }
                false => {
                    check_empty(&ahead, source, of)?;
                    if cursor.term == term {
                        return Err(damaged(source, term, LogPosition::new(cursor.number, SEGMENT_HEADER_BYTES))
                            .with_detail(
                                "A checkpoint says that the log is needed from there, and there is no valid record.",
                            ));
                    }
                    before
                }
            };
            crash_point("log.sealing");
            let end = host.told(books.seal_after(database, of, found, before))?;
            crash_point("log.sealed");
            if end.is_none() {
                return Err(term_lost(host, reign.term.0.into()));
            }
        }
        let near = if cursor.term == term { cursor.number } else { 0 };
        let Some(end) = source.end_of(term, near)? else { return Err(term_lost(host, reign.term.0.into())) };
        if let Some(end) = end {
            go_to_end(&mut cursor, source, term, end)?;
        }
    }
    Ok(Sealed { term: if cursor.is_within() { cursor.term } else { 0 }, end: cursor.position() })
}

/// What a seal says of a place.
fn end_at(cursor: &Cursor) -> End {
    match cursor.is_within() {
        true => End::at(cursor.number, cursor.position().offset()),
        false => End::Empty,
    }
}

/// Goes to the end of the last term before `first_in_ring` that has a block. Returns the term from which on the ring is to be
/// asked: an earlier one where that is not sealed, as then none after it has begun a log, and no line was taken again.
fn pass_old<H: PoolHost>(cursor: &mut Cursor, source: &PoolSource<H>, first_in_ring: u64) -> Result<u64> {
    let mut term = cursor.term;
    while term < first_in_ring {
        if term > 0 {
            match source.verdict(term, cursor.number)? {
                Verdict::Ended(Some(end)) => go_to_end(cursor, source, term, end)?,
                Verdict::Ended(None) => break,
                Verdict::Ending | Verdict::Settled => return Ok(term),
            }
        }
        match source.next_terms(cursor.term)?.first() {
            Some((next, _)) => term = *next,
            None => break,
        }
    }
    Ok(first_in_ring.max(cursor.term))
}

/// Goes to the first block of a term, if there is one.
fn enter(cursor: &mut Cursor, source: &dyn Source, term: u64) -> Result<()> {
    let before = cursor.clone();
    // The terms between are empty, or this is their end.
    match cursor.next_term(source, &mut Vec::new())? {
        Some(block) if block.term == term => {}
        _ => *cursor = before,
    }
    Ok(())
}

/// Goes to the end of a term that has a block.
fn go_to_end(cursor: &mut Cursor, source: &dyn Source, term: u64, end: LogPosition) -> Result<()> {
    if cursor.term != term {
        enter(cursor, source, term)?;
    }
    cursor.run(source, Some(end))?;
    if (cursor.term, cursor.position()) == (term, end) {
        return Ok(());
    }
    Err(damaged(source, term, cursor.position())
        .with_detail(format!("The term ended at {end}, and there is no valid record before that.")))
}

/// XX001 where a term that seems to have no block has one behind its first.
fn check_empty<H: PoolHost>(cursor: &Cursor, source: &PoolSource<H>, term: Term) -> Result<()> {
    let (host, books) = (&**source.host(), source.host().books());
    for place in 0..SEGMENTS as u64 {
        let entry = host.told(books.load(books.layout.segment(host.database(), place)))?;
        if entry.term == term
            && term.0 > 0
            && let Some(segment) = source.segment(term.0.into(), place)?
        {
            cursor.look_for_newer(source, &*segment, term.0.into(), place, SEGMENT_HEADER_BYTES)?;
        }
    }
    Ok(())
}
