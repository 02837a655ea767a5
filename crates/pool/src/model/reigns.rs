//! Primaries that acknowledge, successors that end their terms, and what follows from where a term ended.

use super::engine::{Next, Run, Scenario, Step, View, content};
use super::leases::{DATA, host};
use super::{Subject, is_large};
use crate::layout::Layout;
use crate::memory::Memory;
use crate::words::{End, Extent, First, Host, Incarnation, Reign, Seal, Segment, Slot, Term, TermState};

const LAYOUT: Layout = Layout { slots: 4, databases: 1, extents: 0 };

/// Notes: blocks of term `t` that were acknowledged, that were applied, whose term it is, and how it was sealed.
const ACKNOWLEDGED: usize = 0;
const APPLIED: usize = 4;
const REIGNS: usize = 8;
const SEALED: usize = 12;
/// The newest term that was begun.
const NEWEST: usize = 16;
/// What a session has come to.
const SESSION: usize = 17;
const NOTES: usize = 22;

/// The log of term `t` is extent `t`: a block is one word there, 1 when it is whole.
fn terms(scenario: &mut Scenario, blocks: &[u32]) {
    let first = Reign::of(Term(1), TermState::Running, host(0));
    scenario.word("TERM", LAYOUT.term(DATA), first);
    for (term, count) in (1..).zip(blocks) {
        let (end, first) =
            if term == 1 { (Term(1), First::new(Term(1), 1)) } else { (before(term), First::new(before(term), 0)) };
        scenario.word(format!("FIRST {term}"), LAYOUT.first(DATA, Term(term)), first);
        let state = if term == 1 { End::Open } else { End::Empty };
        scenario.word(format!("SEAL {term}"), LAYOUT.seal(DATA, Term(term)), Seal::new(end, state));
        (0..*count).for_each(|block| scenario.content(term, block, 0));
    }
    scenario.notes = vec![0; NOTES];
    scenario.notes[REIGNS + 1] = 1;
    scenario.notes[NEWEST] = 1;
    scenario.invariant = Box::new(hold);
}

/// The term that had this line of the ring before.
fn before(term: u32) -> Term {
    Term(term.wrapping_sub(crate::layout::TERMS as u32))
}

/// Blocks before an end.
fn count(end: End) -> u64 {
    match end {
        End::At { offset, .. } => u64::from(offset) - 1,
        End::Empty | End::Open => 0,
    }
}

fn end_of(view: &View<'_>, term: usize) -> Option<End> {
    let seal = view.word(LAYOUT.seal(DATA, Term(term as u32)));
    (seal.is_of(Term(term as u32)) && seal.end != End::Open).then_some(seal.end)
}

/// What was acknowledged or applied is before the seal, a seal stays as it is, and terms grow.
fn hold(view: &View<'_>) -> Option<String> {
    for term in 1..=view.note(NEWEST) as usize {
        let sealed = view.note(SEALED + term);
        let Some(end) = end_of(view, term) else {
            if sealed > 0 {
                return Some(format!("the seal of term {term} is gone"));
            }
            continue;
        };
        for (what, note) in [("acknowledged", ACKNOWLEDGED), ("applied", APPLIED)] {
            if view.note(note + term) > count(end) {
                return Some(format!("a block of term {term} was {what} and is behind the seal"));
            }
        }
        if sealed > 0 && sealed != 1 + count(end) {
            return Some(format!("the seal of term {term} has moved"));
        }
    }
    let reign = view.word(LAYOUT.term(DATA));
    (u64::from(reign.term.0) < view.note(NEWEST)).then(|| format!("term {} came back", reign.term.0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reigns {
    /// A block is acknowledged without a look at `TERM`.
    NoLook,
    /// `TERM` is looked at before the block is stored.
    LookFirst,
    /// A follower applies what it has read.
    AppliesAtOnce,
    /// `TERM` is looked at before the snapshot is drawn.
    SnapshotLast,
    /// H6.
    TakesWithoutLog,
    /// H11.
    AnswersAtOnce,
    /// H12.
    ValueFirst,
    /// The tail is read before `TERM` is changed.
    ReadsFirst,
}

/// Appends block `index` of `term`, and acknowledges it if it is settled. False when the term is over.
fn append(run: &Run<'_>, term: u32, index: u32, mutant: Option<Reigns>) -> Step<bool> {
    let books = run.books();
    let looked = match mutant {
        Some(Reigns::LookFirst) => Some(books.is_settled(DATA, Term(term))?),
        _ => None,
    };
    books.memory.store(content(term, index), 1)?;
    let is_settled = match mutant {
        Some(Reigns::NoLook) => books.memory.load(content(term, index)).map(|_| true)?,
        Some(Reigns::LookFirst) => looked == Some(true) && books.memory.load(content(term, index))? == 1,
        _ => books.is_settled(DATA, Term(term))?,
    };
    if is_settled {
        run.note(|notes| {
            notes[ACKNOWLEDGED + term as usize] = u64::from(index) + 1;
            Ok(())
        });
    }
    Ok(is_settled)
}

/// A primary of term 1 that writes `blocks` blocks and then hands its term in, if `ends`.
fn primary(scenario: &mut Scenario, blocks: u32, ends: bool, mutant: Option<Reigns>) {
    scenario.actor("primary", false, move |run, _, locals| {
        let index = locals[0] as u32;
        if index == blocks {
            run.books().end_reign(DATA, Reign::of(Term(1), TermState::Running, host(0)))?;
            return Ok(Next::End);
        }
        locals[0] += 1;
        let goes_on = append(run, 1, index, mutant)?;
        Ok(if goes_on && (ends || index + 1 < blocks) { Next::Goto(1 - parity(index)) } else { Next::End })
    });
}

/// Two names for one procedure, so that a program is seen to go on.
fn parity(index: u32) -> u8 {
    (index % 2) as u8
}

/// The seal of every term before `term`.
fn seal_all(run: &Run<'_>, term: u32, blocks: &[u32], skipped: Option<u32>) -> Step<()> {
    let books = run.books();
    for (ended, written) in (1..term).zip(blocks) {
        if books.end_of(DATA, Term(ended))?.is_some() {
            continue;
        }
        let mut whole = 0;
        if skipped != Some(ended) {
            while whole < *written && books.memory.load(content(ended, whole))? == 1 {
                whole += 1;
            }
        }
        let end = books.seal(DATA, Term(ended), End::At { number_low: ended, offset: whole + 1 })?;
        run.note(|notes| {
            let Some(end) = end else { return Err("a line of the ring was taken too early".to_owned()) };
            notes[SEALED + ended as usize] = 1 + count(end);
            Ok(())
        });
    }
    Ok(())
}

/// Takes over from whoever reigns, seals, runs, and writes a block of its own.
fn successor(scenario: &mut Scenario, name: &'static str, slot: u8, blocks: &'static [u32], mutant: Option<Reigns>) {
    scenario.actor(name, false, move |run, procedure, locals| {
        let (books, me) = (run.books(), host(slot));
        let term = locals[0] as u32;
        let sealing = Reign::of(Term(term), TermState::Sealing, me);
        match procedure {
            0 => {
                let seen = books.reign(DATA)?;
                if seen.term.0 as usize >= blocks.len() {
                    return Ok(Next::End);
                }
                if mutant == Some(Reigns::ReadsFirst) {
                    let mut whole = 0;
                    while whole < blocks[0] && books.memory.load(content(1, whole))? == 1 {
                        whole += 1;
                    }
                    locals[1] = u64::from(whole) + 1;
                }
                let Some(taken) = books.take_over(DATA, me, seen)? else { return Ok(Next::Goto(3)) };
                run.note(|notes| {
                    let at = REIGNS + taken.term.0 as usize;
                    notes[NEWEST] = notes[NEWEST].max(u64::from(taken.term.0));
                    if std::mem::replace(&mut notes[at], 1) == 1 {
                        return Err(format!("term {} is two hosts'", taken.term.0));
                    }
                    Ok(())
                });
                locals[0] = u64::from(taken.term.0);
                Ok(Next::Goto(1))
            }
            // Another one was first: so there is another to take over from.
            3 => {
                let reign = books.reign(DATA)?;
                Ok(if reign.state == TermState::Running { Next::End } else { Next::Goto(0) })
            }
            1 => {
                if mutant == Some(Reigns::ReadsFirst) {
                    books.seal(DATA, Term(1), End::At { number_low: 1, offset: locals[1] as u32 })?;
                } else {
                    let skipped = (mutant == Some(Reigns::TakesWithoutLog)).then_some(term - 1);
                    seal_all(run, term, blocks, skipped)?;
                }
                Ok(Next::Goto(2))
            }
            2 => {
                if !books.open_log(DATA, sealing, 1)? {
                    return Ok(Next::End);
                }
                Ok(if books.run(DATA, sealing)?.is_some() { Next::Goto(4) } else { Next::End })
            }
            _ => {
                append(run, term, 0, None)?;
                Ok(Next::End)
            }
        }
    });
}

/// A primary and two successors, the one after the other or over each other.
fn take_over(mutant: Option<Reigns>) -> Scenario {
    const BLOCKS: &[u32] = &[2, 1, 1];
    let mut scenario = Scenario::new("take-over", LAYOUT);
    terms(&mut scenario, BLOCKS);
    primary(&mut scenario, if is_large() { 2 } else { 1 }, true, mutant);
    successor(&mut scenario, "successor", 1, BLOCKS, mutant);
    successor(&mut scenario, "second", 2, BLOCKS, mutant);
    if is_large() {
        successor(&mut scenario, "third", 3, BLOCKS, mutant);
    }
    scenario
}

/// A primary, its successor and a follower.
fn follow(mutant: Option<Reigns>) -> Scenario {
    const BLOCKS: &[u32] = &[2, 1];
    let mut scenario = Scenario::new("following", LAYOUT);
    terms(&mut scenario, BLOCKS);
    primary(&mut scenario, 2, false, mutant);
    successor(&mut scenario, "successor", 1, BLOCKS, mutant);
    scenario.actor("follower", false, move |run, _, locals| {
        let books = run.books();
        let index = locals[0] as u32;
        if index == 2 {
            books.reign(DATA)?;
            return Ok(Next::End);
        }
        run.until(content(1, index), "a whole block", |block| block == 1)?;
        if mutant != Some(Reigns::AppliesAtOnce) && !books.is_settled(DATA, Term(1))? {
            // It waits for the seal, and applies what is before it.
            let seal = LAYOUT.seal(DATA, Term(1));
            let bits = run.until(seal.at, "the seal", |bits| {
                crate::words::Word::read(bits).is_ok_and(|seal: Seal| seal.end != End::Open)
            })?;
            let end = <Seal as crate::words::Word>::read(bits).map_or(End::Open, |seal| seal.end);
            run.note(|notes| {
                notes[APPLIED + 1] = notes[APPLIED + 1].max(count(end));
                Ok(())
            });
            return Ok(Next::End);
        }
        run.note(|notes| {
            notes[APPLIED + 1] = u64::from(index) + 1;
            Ok(())
        });
        locals[0] += 1;
        Ok(Next::Goto(1 - parity(index)))
    });
    // A statement of the old primary: its snapshot, then whether it still reigns.
    scenario.actor("statement", false, move |run, _, _| {
        let books = run.books();
        let reign = Reign::of(Term(1), TermState::Running, host(0));
        let looked = match mutant {
            Some(Reigns::SnapshotLast) => Some(books.reigns(DATA, reign)?),
            _ => None,
        };
        books.memory.load(content(1, 0))?;
        run.note(|notes| {
            notes[SESSION] = u64::from(notes[ACKNOWLEDGED + 2] > 0);
            Ok(())
        });
        let answers = match looked {
            Some(looked) => looked && books.memory.load(content(1, 0)).map(|_| true)?,
            None => books.reigns(DATA, reign)?,
        };
        run.note(|notes| {
            if answers && notes[SESSION] == 1 {
                return Err("a statement of an old primary misses what its successor acknowledged".to_owned());
            }
            Ok(())
        });
        Ok(Next::End)
    });
    scenario
}

const TAKE_OVER: Subject<Reigns> = Subject {
    build: take_over,
    mutants: &[
        ("a block is acknowledged without a look at TERM", Reigns::NoLook),
        ("TERM is looked at before the block is stored", Reigns::LookFirst),
        ("a successor reads the log before it changes TERM", Reigns::ReadsFirst),
        ("H6: a host takes the next term without the log of the one before", Reigns::TakesWithoutLog),
    ],
};

const FOLLOW: Subject<Reigns> = Subject {
    build: follow,
    mutants: &[
        ("a follower applies a block without a look at TERM", Reigns::AppliesAtOnce),
        ("a statement looks at TERM before it draws its snapshot", Reigns::SnapshotLast),
    ],
};

/// What a statement met, or was given, and where the term ended. Extent 8: what is decided in the primary's own memory,
/// and how far the log is acknowledged.
fn answers(mutant: Option<Reigns>) -> Scenario {
    const BLOCKS: &[u32] = &[1, 1];
    let mut scenario = Scenario::new("answers", LAYOUT);
    terms(&mut scenario, BLOCKS);
    scenario.content(8, 0, 0);
    scenario.content(8, 1, 0);
    scenario.actor("primary", false, |run, procedure, _| {
        let books = run.books();
        if procedure == 0 {
            books.memory.store(content(8, 0), 1)?;
            return Ok(Next::Goto(1));
        }
        if append(run, 1, 0, None)? {
            books.memory.store(content(8, 1), 1)?;
        }
        Ok(Next::End)
    });
    successor(&mut scenario, "successor", 1, BLOCKS, None);
    scenario.actor("statement", false, move |run, procedure, _| {
        if procedure == 0 {
            // Of its own process: what the other thread stored reaches it in order.
            run.until(content(8, 0), "a commit that is decided", |decided| decided == 1)?;
            return Ok(Next::Goto(1));
        }
        if mutant == Some(Reigns::AnswersAtOnce) {
            run.books().reigns(DATA, Reign::of(Term(1), TermState::Running, host(0)))?;
        } else {
            run.until(content(8, 1), "that it is acknowledged", |acknowledged| acknowledged == 1)?;
        }
        run.note(|notes| {
            notes[SESSION] = 1;
            Ok(())
        });
        Ok(Next::End)
    });
    scenario.invariant = Box::new(|view| {
        let is_taken_back = view.note(SESSION) == 1 && end_of(view, 1).is_some_and(|end| count(end) == 0);
        is_taken_back.then(|| "a client was told what the take-over took back".to_owned()).or_else(|| hold(view))
    });
    scenario
}

/// A sequence: value 1 is given by a primary once its record is acknowledged; a successor goes on from the records before
/// the seal.
fn sequences(mutant: Option<Reigns>) -> Scenario {
    const BLOCKS: &[u32] = &[1, 1];
    let mut scenario = Scenario::new("sequences", LAYOUT);
    terms(&mut scenario, BLOCKS);
    let give = |run: &Run<'_>, value: usize| {
        run.note(|notes| {
            if std::mem::replace(&mut notes[SESSION + value], 1) == 1 {
                return Err(format!("value {value} was given twice"));
            }
            Ok(())
        });
    };
    scenario.actor("primary", false, move |run, procedure, _| {
        let books = run.books();
        if mutant == Some(Reigns::ValueFirst) && procedure == 0 {
            if books.reigns(DATA, Reign::of(Term(1), TermState::Running, host(0)))? {
                give(run, 1);
                return Ok(Next::Goto(1));
            }
            return Ok(Next::End);
        }
        if append(run, 1, 0, None)? && mutant.is_none() {
            give(run, 1);
        }
        Ok(Next::End)
    });
    successor(&mut scenario, "successor", 1, BLOCKS, None);
    scenario.actor("its client", false, move |run, _, _| {
        let books = run.books();
        run.until(content(2, 0), "that the successor runs", |block| block == 1)?;
        let end = books.end_of(DATA, Term(1))?.unwrap_or(End::Empty);
        give(run, 1 + count(end) as usize);
        Ok(Next::End)
    });
    scenario
}

/// Tier 2: extents 4 and 5 are the blocks of terms 1 and 2 in files that both write, extent 6 the seal there. The pool is
/// lost at any moment and the files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// H7.
    SealInPoolAlone,
    /// The reader decides where term 1 ended before it looks for term 2.
    DecidesFirst,
}

fn second_tier(mutant: Option<Tier>) -> Scenario {
    const BLOCKS: &[u32] = &[1, 1];
    let mut scenario = Scenario::new("second tier", LAYOUT);
    terms(&mut scenario, BLOCKS);
    [4, 5, 6].into_iter().for_each(|extent| scenario.content(extent, 0, 0));
    scenario.actor("primary", false, |run, procedure, _| {
        let books = run.books();
        if procedure == 0 {
            append(run, 1, 0, None)?;
            return Ok(Next::Goto(1));
        }
        // The tee, which knows nothing of terms.
        books.memory.store(content(4, 0), 1)?;
        Ok(Next::End)
    });
    scenario.actor("successor", false, move |run, procedure, _| {
        let (books, me) = (run.books(), host(1));
        match procedure {
            0 => {
                let seen = books.reign(DATA)?;
                if books.take_over(DATA, me, seen)?.is_none() {
                    return Ok(Next::End);
                }
                Ok(Next::Goto(1))
            }
            1 => {
                seal_all(run, 2, BLOCKS, None)?;
                Ok(Next::Goto(2))
            }
            2 => {
                let end = books.end_of(DATA, Term(1))?.unwrap_or(End::Open);
                if mutant != Some(Tier::SealInPoolAlone) {
                    books.memory.store(content(6, 0), 1 + count(end))?;
                    books.memory.fence()?;
                }
                Ok(Next::Goto(3))
            }
            _ => {
                books.memory.store(content(5, 0), 1)?;
                Ok(Next::End)
            }
        }
    });
    scenario.actor("reader", false, move |run, _, _| {
        let books = run.books();
        let early = match mutant {
            Some(Tier::DecidesFirst) => Some((books.memory.load(content(6, 0))?, books.memory.load(content(4, 0))?)),
            _ => None,
        };
        let is_next_there = books.memory.load(content(5, 0))? == 1;
        let (seal, block) = match early {
            Some(early) => early,
            None => (books.memory.load(content(6, 0))?, books.memory.load(content(4, 0))?),
        };
        let taken = match seal {
            0 => block,
            seal => block.min(seal - 1),
        };
        run.note(|notes| {
            if is_next_there && taken > notes[SEALED + 1].saturating_sub(1) {
                return Err("files are read past a seal that stood in the pool alone".to_owned());
            }
            Ok(())
        });
        Ok(Next::End)
    });
    scenario
}

const SECOND_TIER: Subject<Tier> = Subject {
    build: second_tier,
    mutants: &[
        (
            "H7: the seal stands in the pool alone when the next term's first block goes to tier 2",
            Tier::SealInPoolAlone,
        ),
        ("who reads tier 2 decides where a term ended before it looks for the next", Tier::DecidesFirst),
    ],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    /// H5.
    ByNumber,
}

/// The log table: a primary sleeps before it enters its segment, the successor begins one elsewhere; the first segment is
/// forgotten and its place used again, while the sleeper would forget it, too.
fn log_table(mutant: Option<Table>) -> Scenario {
    let mut scenario = Scenario::new("log table", LAYOUT);
    let field = LAYOUT.segment(DATA, 8);
    scenario.word("SEGMENT 8", field, Segment { term: Term(1), extent: Extent(3) });
    scenario.word("SEGMENT 9", LAYOUT.segment(DATA, 9), Segment::NONE);
    scenario.notes = vec![0; 2];
    let later = 8 + crate::layout::SEGMENTS as u64;
    for (name, term, extent) in [("primary", 1, 4u32), ("successor", 2, 5)] {
        scenario.actor(name, false, move |run, procedure, locals| {
            let books = run.books();
            let segment = Segment { term: Term(term), extent: Extent(extent) };
            match procedure {
                0 => {
                    books.forget_segment(DATA, 8, Segment { term: Term(1), extent: Extent(3) })?;
                    Ok(Next::Goto(1))
                }
                _ => {
                    let number = if procedure == 1 { 9 } else { later };
                    let entered = if mutant == Some(Table::ByNumber) {
                        books.store(books.layout.segment(DATA, number), segment)?;
                        books.fence()?;
                        true
                    } else {
                        books.enter_segment(DATA, number, segment)?
                    };
                    run.note(|notes| {
                        if entered {
                            notes[usize::from(procedure) - 1] = u64::from(term) << 32 | u64::from(extent);
                        }
                        Ok(())
                    });
                    locals[0] = 1;
                    Ok(if procedure == 1 && !entered { Next::Goto(2) } else { Next::End })
                }
            }
        });
    }
    scenario.invariant = Box::new(move |view| {
        [9, later].into_iter().enumerate().find_map(|(index, number)| {
            let segment = view.word(LAYOUT.segment(DATA, number));
            let noted = view.note(index);
            let is_there = u64::from(segment.term.0) << 32 | u64::from(segment.extent.0) == noted;
            (noted != 0 && !is_there).then(|| format!("the entry of segment {number} has changed"))
        })
    });
    scenario
}

const LOG_TABLE: Subject<Table> = Subject {
    build: log_table,
    mutants: &[("H5: entries are keyed by the segment's number alone, and stored", Table::ByNumber)],
};

/// The ring of terms: the primary of term 1 and one that seals it sleep while 32 terms go by.
fn ring(_: Option<()>) -> Scenario {
    let mut scenario = Scenario::new("ring of terms", LAYOUT);
    scenario.word("FIRST", LAYOUT.first(DATA, Term(1)), First::new(before(1), 0));
    scenario.word("SEAL", LAYOUT.seal(DATA, Term(1)), Seal::new(before(1), End::Empty));
    scenario.notes = vec![0; 2];
    for (name, term, number) in [("sleeper", 1, 10u64), ("primary", 33, 90)] {
        scenario.actor(name, false, move |run, _, _| {
            let books = run.books();
            let of = Host { slot: Slot(0), incarnation: Incarnation(1) };
            let opened = books.open_log(DATA, Reign::of(Term(term), TermState::Sealing, of), number)?;
            run.note(|notes| {
                notes[0] |= u64::from(opened && term == 33);
                if term == 33 && !opened { Err("a later term cannot begin".to_owned()) } else { Ok(()) }
            });
            Ok(Next::End)
        });
    }
    for name in ["sealer", "other sealer"] {
        scenario.actor(name, false, |run, _, _| {
            run.books().seal(DATA, Term(1), End::At { number_low: 10, offset: 5 })?;
            Ok(Next::End)
        });
    }
    scenario.invariant = Box::new(|view| {
        let (first, seal) = (view.word(LAYOUT.first(DATA, Term(1))), view.word(LAYOUT.seal(DATA, Term(1))));
        let is_right = first == First::new(Term(33), 90) && seal == Seal::new(Term(33), End::Open);
        (view.note(0) == 1 && !is_right).then(|| format!("the line of term 33 says {first:?}, {seal:?}"))
    });
    scenario
}

/// H20: a client's socket that two processes hold (extent 8: who wrote last).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sockets {
    ServesAtOnce,
}

fn sockets(mutant: Option<Sockets>) -> Scenario {
    let mut scenario = Scenario::new("sockets", LAYOUT);
    terms(&mut scenario, &[0, 0]);
    scenario.content(8, 0, 0);
    scenario.notes.resize(NOTES, 0);
    scenario.actor("primary", true, |run, _, _| {
        let books = run.books();
        // Between two looks it may sleep for as long as it likes.
        if !books.reigns(DATA, Reign::of(Term(1), TermState::Running, host(0)))? {
            return Ok(Next::End);
        }
        books.memory.store(content(8, 0), 1)?;
        books.memory.fence()?;
        run.note(|notes| if notes[SESSION] == 1 { Err("a zombie writes to a client".to_owned()) } else { Ok(()) });
        Ok(Next::End)
    });
    scenario.actor("successor", false, move |run, procedure, _| {
        let books = run.books();
        if procedure == 0 {
            let seen = books.reign(DATA)?;
            books.take_over(DATA, host(1), seen)?;
            return Ok(Next::Goto(1));
        }
        if mutant != Some(Sockets::ServesAtOnce) {
            run.death_of(0)?;
        }
        books.memory.store(content(8, 0), 2)?;
        books.memory.fence()?;
        run.note(|notes| {
            notes[SESSION] = 1;
            Ok(())
        });
        Ok(Next::End)
    });
    scenario.invariant = Box::new(|_| None);
    scenario
}

pub fn scenarios() -> Vec<Scenario> {
    vec![take_over(None), follow(None), log_table(None), ring(None)]
}

#[test]
fn what_was_acknowledged_is_before_the_seal() {
    TAKE_OVER.hold();
}

#[test]
fn followers_and_statements_see_what_counts() {
    FOLLOW.hold();
    let about = "H11: a statement answers from a commit that is decided and not acknowledged";
    Subject { build: answers, mutants: &[(about, Reigns::AnswersAtOnce)] }.hold();
    let about = "H12: a sequence's value leaves before its record is acknowledged";
    Subject { build: sequences, mutants: &[(about, Reigns::ValueFirst)] }.hold();
}

#[test]
fn a_segment_and_a_term_have_one_place() {
    LOG_TABLE.hold();
    Subject { build: ring, mutants: &[] }.hold();
}

#[test]
fn the_second_tier_ends_where_the_first_does() {
    SECOND_TIER.hold();
}

#[test]
fn a_client_hears_one_server() {
    let about = "H20: a successor serves the sockets of a primary that may wake";
    Subject { build: sockets, mutants: &[(about, Sockets::ServesAtOnce)] }.hold();
}
