//! Ending terms: a successor reads what its predecessors wrote, and says where their logs ended.
//!
//! `TERM` names the successor when it begins to read. What a predecessor still writes it does not acknowledge, so the end that
//! the successor comes to has everything that was acknowledged; and so has each end that another successor comes to. The
//! first that is recorded counts, and all others take it over.

use crate::blocks::{Cursor, Source, Verdict, damaged};
use crate::format::LogPosition;
use crate::pool_device::{PoolHost, PoolSource, term_lost};
use crate::tail::Tail;
use tidepool_base::{Error, Result, crash_point};
use tidepool_pool::layout::TERMS;
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
/// Any other host may do so at once. 57P02 where another host has begun a later term.
pub fn seal_before<H: PoolHost>(tail: &Tail<PoolSource<H>>, reign: Reign) -> Result<Sealed> {
    let source = tail.source();
    let (host, books) = (&**source.host(), source.host().books());
    let database = host.database();
    let mut cursor = tail.cursor().clone();
    // Of terms before these the books say nothing any more; a log that is needed has none of them.
    let first = cursor.term.max(u64::from(reign.term.0).saturating_sub(TERMS as u64 - 1)).max(1);
    for term in first..u64::from(reign.term.0) {
        let of = Term(term as u32);
        let mut end = host.told(books.end_of(database, of))?;
        if end.is_none() {
            let mut ahead = cursor.clone();
            enter(&mut ahead, source, term, None)?;
            ahead.check_end(source)?;
            let found = match ahead.term == term && ahead.is_within() {
                true => End::at(ahead.number, ahead.position().offset()),
                false => End::Empty,
            };
            crash_point("log.sealing");
            end = host.told(books.seal(database, of, found))?;
            crash_point("log.sealed");
            if end.is_none() {
                return Err(term_lost(host, reign.term.0.into()));
            }
        }
        if end == Some(End::Empty) {
            continue;
        }
        let near = if cursor.term == term { cursor.number } else { 0 };
        let first = host.told(books.first_segment(database, of))?;
        let Verdict::Ended(Some(end)) = source.verdict(term, near.max(first.unwrap_or(0)))? else {
            return Err(Error::internal("a term that was sealed has not ended"));
        };
        enter(&mut cursor, source, term, Some(end))?;
        if (cursor.term, cursor.position()) != (term, end) {
            return Err(damaged(source, term, cursor.position())
                .with_detail(format!("The term ended at {end}, and there is no valid record before that.")));
        }
    }
    Ok(Sealed { term: if cursor.is_within() { cursor.term } else { 0 }, end: cursor.position() })
}

/// Goes to the end of a term, or to `limit`, if there is a block of it.
fn enter(cursor: &mut Cursor, source: &dyn Source, term: u64, limit: Option<LogPosition>) -> Result<()> {
    if cursor.term != term {
        // The terms between are empty, or this is their end.
        let mut buffer = Vec::new();
        let before = cursor.clone();
        match cursor.next_term(source, &mut buffer)? {
            Some(block) if block.term == term => {}
            _ => {
                *cursor = before;
                return Ok(());
            }
        }
    }
    cursor.run(source, limit)
}
