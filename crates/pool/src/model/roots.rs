//! Roots, the extents that they name, and when those are free.

use super::Subject;
use super::engine::{Next, Run, Scenario, Step, content};
use super::leases::{DATA, OTHER, host, slots, store_and_look};
use crate::layout::{HostNumber, Layout};
use crate::memory::Memory;
use crate::words::{
    Contents, End, Entry, Extent, First, Generation, Host, HostState, Ident, Incarnation, Kind, Number, Owner, Reign,
    Role, Root, Seal, Slot, Term, TermState, Word,
};

fn root(place: u32, generation: u32) -> Root {
    Root { place: Extent(place), generation: Generation(generation) }
}

fn shared(generation: u32) -> Owner {
    Owner::Shared { database: DATA, kind: Kind::Main, generation: Generation(generation) }
}

/// Extents 0 to 2: the books, what the old root names, what the new one names.
fn ground(name: &'static str, hosts: &[crate::words::Database]) -> Scenario {
    let slots_there = hosts.len() as u8;
    let mut scenario = Scenario::new(name, Layout { slots: slots_there, databases: 1, extents: 3 });
    slots(&mut scenario, hosts);
    scenario.word("ROOT", scenario.layout.root(DATA), root(1, 1));
    scenario.word("OWNER 0", scenario.layout.owner(Extent(0)), Owner::Control);
    for extent in [1, 2] {
        scenario.word(format!("sum of extent {extent}"), scenario.layout.sum(Extent(extent)), Number(0));
    }
    scenario
}

/// A host of another database takes whatever is free of the extents and writes there.
fn thief(scenario: &mut Scenario, slot: u8, extents: &'static [u32]) {
    scenario.actor("thief", false, move |run, procedure, locals| {
        let books = run.books();
        match procedure {
            0 | 1 => {
                let Some(extent) = extents.get(locals[0] as usize) else {
                    books.load(books.layout.ident(Slot(slot)))?;
                    return Ok(Next::End);
                };
                locals[0] += 1;
                locals[1] = u64::from(*extent);
                let is_mine = books.lease(host(slot), OTHER, Extent(*extent), Kind::Heap)?;
                Ok(if is_mine { Next::Goto(2) } else { Next::Goto(1 - procedure) })
            }
            _ => {
                store_and_look(run, locals[1] as u32, 9)?;
                Ok(Next::End)
            }
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaim {
    /// A host that joins holds a root without looking at it again.
    NoSecondLook,
    /// What hosts hold is not looked at.
    HoldsIgnored,
    /// Holds are looked at before the root is published.
    HoldsFirst,
    /// A shared extent that was filled anew is taken for what it was.
    AnyGeneration,
}

/// A primary replaces what root 1 names and returns it; a host joins meanwhile and reads. Or a predecessor that has found out
/// that the same goes back wakes late, and the primary has filled it anew by then. Somebody of another database takes what is free.
fn reclaim(mutant: Option<Reclaim>, has_zombie: bool) -> Scenario {
    let name = if has_zombie { "returns" } else { "reclaim" };
    let mut scenario = ground(name, &[DATA, DATA, OTHER, DATA]);
    scenario.word("OWNER 1", scenario.layout.owner(Extent(1)), shared(1));
    scenario.word("OWNER 2", scenario.layout.owner(Extent(2)), shared(1));
    scenario.content(1, 0, 7);
    scenario.content(2, 0, 8);
    let since = Generation(2);
    scenario.actor("primary", false, move |run, procedure, _| {
        let (books, me) = (run.books(), host(0));
        match procedure {
            0 if mutant == Some(Reclaim::HoldsFirst) => {
                for slot in books.layout.all_slots() {
                    let ident = books.load(books.layout.ident(slot))?;
                    let held = books.load(books.layout.host_number(slot, HostNumber::GenHeld))?;
                    if ident.state != HostState::Free && ident.database == DATA && held.0 < 2 {
                        return Ok(Next::End);
                    }
                }
                books.publish_root(DATA, root(1, 1), Extent(2))?;
                Ok(Next::Goto(4))
            }
            0 => {
                let published = books.publish_root(DATA, root(1, 1), Extent(2))?;
                run.hold(published.is_some(), || "nobody else publishes".to_owned());
                Ok(Next::Goto(if mutant == Some(Reclaim::HoldsIgnored) { 4 } else { 1 }))
            }
            1 | 2 => {
                let returns = books.return_shared(me, DATA, Extent(1), shared(1), since)?;
                Ok(match (returns, procedure) {
                    (true, _) => Next::Goto(3),
                    (false, 1) => Next::Goto(2),
                    _ => Next::End,
                })
            }
            3 => {
                books.free(me, Extent(1), Contents::Of(DATA))?;
                Ok(if has_zombie { Next::Goto(5) } else { Next::End })
            }
            4 => {
                let field = books.layout.owner(Extent(1));
                let owner = books.load(field)?;
                let returns = books.swap(field, owner, Owner::Returning { by: me })?;
                Ok(if returns { Next::Goto(3) } else { Next::End })
            }
            // It fills the same extent again, and root 3 names it.
            5 => {
                let is_mine = books.lease(me, DATA, Extent(1), Kind::Main)?;
                Ok(if is_mine { Next::Goto(6) } else { Next::End })
            }
            6 => {
                store_and_look(run, 1, 7)?;
                Ok(Next::Goto(7))
            }
            7 => {
                let is_there = books.publish(me, DATA, Extent(1), since, Number(7))?;
                Ok(if is_there { Next::Goto(8) } else { Next::End })
            }
            _ => {
                books.publish_root(DATA, root(2, 2), Extent(1))?;
                Ok(Next::End)
            }
        }
    });
    if has_zombie {
        scenario.actor("zombie", false, move |run, procedure, _| {
            let (books, me) = (run.books(), host(3));
            if procedure == 1 {
                books.free(me, Extent(1), Contents::Of(DATA))?;
                return Ok(Next::End);
            }
            // It found that out before it slept.
            let found = match mutant {
                Some(Reclaim::AnyGeneration) => books.load(books.layout.owner(Extent(1)))?,
                _ => shared(1),
            };
            let returns = books.return_shared(me, DATA, Extent(1), found, since)?;
            Ok(if returns { Next::Goto(1) } else { Next::End })
        });
    } else {
        // Its slot had a life in another database, whose roots are higher.
        scenario.actor("joiner", false, move |run, procedure, locals| {
            let books = run.books();
            let me = Host { slot: Slot(1), incarnation: Incarnation(2) };
            match procedure {
                0 => {
                    let field = books.layout.ident(Slot(1));
                    let joining = Ident {
                        incarnation: Incarnation(2),
                        state: HostState::Joining,
                        role: Role::Reader,
                        database: DATA,
                    };
                    let free = Ident { incarnation: Incarnation(1), ..Ident::NEW };
                    books.swap(field, free, joining)?;
                    Ok(Next::Goto(1))
                }
                1 => {
                    let held = if mutant == Some(Reclaim::NoSecondLook) {
                        let root = books.load(books.layout.root(DATA))?;
                        books.raise_hold(me, root.generation)?;
                        books.fence()?;
                        root.generation
                    } else {
                        books.hold_root(me, DATA)?
                    };
                    locals[0] = u64::from(held.0);
                    Ok(Next::Goto(2))
                }
                _ => {
                    let (extent, value) = if locals[0] == 1 { (1, 7) } else { (2, 8) };
                    let found = books.memory.load(content(extent, 0))?;
                    run.hold(found == value, || format!("a reader finds {found} for {value}: its extent was reused"));
                    Ok(Next::End)
                }
            }
        });
        let free = Ident { incarnation: Incarnation(1), ..Ident::NEW };
        scenario.replace(scenario.layout.ident(Slot(1)), free);
    }
    thief(&mut scenario, 2, &[1]);
    if has_zombie {
        scenario.invariant = Box::new(|view| {
            let root = view.word(Layout::new(3).root(DATA));
            let owner = view.word(Layout::new(3).owner(Extent(1)));
            let is_named = root.generation.0 == 3 && matches!(owner, Owner::Returning { .. } | Owner::Free { .. });
            is_named.then(|| "an extent that the root in force names is given away".to_owned())
        });
    }
    scenario
}

const RECLAIM: Subject<Reclaim> = Subject {
    build: |mutant| reclaim(mutant, false),
    mutants: &[
        ("a host that joins does not look at the root again", Reclaim::NoSecondLook),
        ("an extent is returned though a host holds its root", Reclaim::HoldsIgnored),
        ("holds are looked at before the root is published", Reclaim::HoldsFirst),
    ],
};

const RETURNS: Subject<Reclaim> = Subject {
    build: |mutant| reclaim(mutant, true),
    mutants: &[("an extent that was filled anew is returned for what it was before", Reclaim::AnyGeneration)],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    /// H4.
    RaisedByRoot,
}

/// Two records of main between two roots: the first names extent 2, the second replaces it by extent 1 (extent 9: whether
/// they are written).
fn records(mutant: Option<Records>) -> Scenario {
    let mut scenario = ground("records of main", &[DATA, DATA, OTHER]);
    scenario.replace(scenario.layout.host_number(Slot(1), HostNumber::GenHeld), Number(1));
    scenario.word("OWNER 1", scenario.layout.owner(Extent(1)), shared(1));
    scenario.word("OWNER 2", scenario.layout.owner(Extent(2)), shared(1));
    scenario.content(1, 0, 7);
    scenario.content(2, 0, 8);
    scenario.content(9, 0, 0);
    scenario.content(9, 1, 0);
    scenario.actor("primary", false, |run, procedure, _| {
        let (books, me) = (run.books(), host(0));
        match procedure {
            0 | 1 => {
                books.memory.store(content(9, procedure.into()), 1)?;
                Ok(Next::Goto(procedure + 1))
            }
            2 => {
                books.publish_root(DATA, root(1, 1), Extent(1))?;
                Ok(Next::Goto(3))
            }
            3 => {
                let returns = books.return_shared(me, DATA, Extent(2), shared(1), Generation(2))?;
                Ok(if returns { Next::Goto(4) } else { Next::End })
            }
            _ => {
                books.free(me, Extent(2), Contents::Of(DATA))?;
                Ok(Next::End)
            }
        }
    });
    scenario.actor("follower", false, move |run, procedure, _| {
        let (books, me) = (run.books(), host(1));
        match procedure {
            0 => {
                run.until(content(9, 0), "the first record", |record| record == 1)?;
                if mutant == Some(Records::RaisedByRoot) {
                    let root = books.load(books.layout.root(DATA))?;
                    books.raise_hold(me, root.generation)?;
                }
                Ok(Next::Goto(1))
            }
            1 => {
                let found = books.memory.load(content(2, 0))?;
                run.hold(found == 8, || {
                    format!("a follower applies a record and finds {found} in the extent it names")
                });
                Ok(Next::Goto(2))
            }
            2 => {
                run.until(content(9, 1), "the second record", |record| record == 1)?;
                Ok(Next::Goto(3))
            }
            3 => {
                let root = books.load(books.layout.root(DATA))?;
                books.raise_hold(me, root.generation)?;
                Ok(Next::Goto(4))
            }
            _ => {
                let found = books.memory.load(content(1, 0))?;
                run.hold(found == 7, || format!("a follower finds {found} in main"));
                Ok(Next::End)
            }
        }
    });
    thief(&mut scenario, 2, &[2]);
    scenario
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checkpoint {
    /// H3.
    Unacknowledged,
    NoStamp,
}

/// A primary that writes two blocks and a checkpoint after each; successors that seal, stamp, run and publish.
fn checkpoints(mutant: Option<Checkpoint>) -> Scenario {
    const LAYOUT: Layout = Layout { slots: 3, databases: 1, extents: 0 };
    const RUNS: usize = 0;
    const LAST: usize = 1;
    let mut scenario = Scenario::new("checkpoints", LAYOUT);
    scenario.word("TERM", LAYOUT.term(DATA), Reign::of(Term(1), TermState::Running, host(0)));
    scenario.word("FIRST 1", LAYOUT.first(DATA, Term(1)), First::new(Term(1), 1));
    scenario.word("SEAL 1", LAYOUT.seal(DATA, Term(1)), Seal::new(Term(1), End::Open));
    // A root at extent 10 + n covers n blocks of term 1.
    scenario.word("ROOT", LAYOUT.root(DATA), root(10, 1));
    scenario.content(1, 0, 0);
    scenario.content(1, 1, 0);
    scenario.notes = vec![0, root(10, 1).bits()];
    // The roots are a chain.
    let chained = |run: &Run<'_>, from: Root, to: Root| {
        run.note(|notes| {
            let before = std::mem::replace(&mut notes[LAST], to.bits());
            if before == from.bits() { Ok(()) } else { Err("a root was published and is lost".to_owned()) }
        });
    };
    scenario.actor("primary", false, move |run, procedure, locals| {
        let books = run.books();
        let block = locals[0];
        match procedure {
            0 | 2 => {
                books.memory.store(content(1, block as u32), 1)?;
                if mutant != Some(Checkpoint::Unacknowledged) && !books.is_settled(DATA, Term(1))? {
                    return Ok(Next::End);
                }
                Ok(Next::Goto(procedure + 1))
            }
            _ => {
                let from = root(10 + block as u32, block as u32 + 1);
                let published = books.publish_root(DATA, from, Extent(11 + block as u32))?;
                let Some(to) = published else { return Ok(Next::End) };
                run.note(
                    |notes| {
                        if notes[RUNS] == 1 { Err("a zombie's checkpoint is in force".to_owned()) } else { Ok(()) }
                    },
                );
                chained(run, from, to);
                locals[0] += 1;
                Ok(if block == 0 { Next::Goto(2) } else { Next::End })
            }
        }
    });
    for (name, slot) in [("successor", 1u8), ("second", 2)] {
        scenario.actor(name, false, move |run, procedure, locals| {
            let (books, me) = (run.books(), host(slot));
            match procedure {
                0 => {
                    let seen = books.reign(DATA)?;
                    let Some(taken) = books.take_over(DATA, me, seen)? else { return Ok(Next::End) };
                    locals[0] = u64::from(taken.term.0);
                    Ok(Next::Goto(1))
                }
                1 => {
                    let mut whole = 0;
                    while whole < 2 && books.memory.load(content(1, whole))? == 1 {
                        whole += 1;
                    }
                    books.seal(DATA, Term(1), End::At { number_low: 1, offset: whole + 1 })?;
                    locals[1] = u64::from(whole);
                    Ok(Next::Goto(if mutant == Some(Checkpoint::NoStamp) { 3 } else { 2 }))
                }
                2 => {
                    let stamped = books.stamp_root(DATA)?;
                    chained(run, root(stamped.place.0, stamped.generation.0 - 1), stamped);
                    locals[2] = stamped.bits();
                    Ok(Next::Goto(3))
                }
                3 => {
                    let sealing = Reign::of(Term(locals[0] as u32), TermState::Sealing, me);
                    let runs = books.run(DATA, sealing)?.is_some();
                    run.note(|notes| {
                        notes[RUNS] |= u64::from(runs);
                        Ok(())
                    });
                    Ok(if runs && locals[2] != 0 { Next::Goto(4) } else { Next::End })
                }
                _ => {
                    let Ok(from) = Root::read(locals[2]) else { return Ok(Next::End) };
                    if let Some(to) = books.publish_root(DATA, from, from.place)? {
                        chained(run, from, to);
                    }
                    Ok(Next::End)
                }
            }
        });
    }
    scenario.invariant = Box::new(|view| {
        let covered = view.word(LAYOUT.root(DATA)).place.0 - 10;
        match view.word(LAYOUT.seal(DATA, Term(1))).end {
            End::At { offset, .. } if covered > offset - 1 => {
                Some("the root in force covers a block behind the seal".to_owned())
            }
            _ => None,
        }
    });
    scenario
}

const CHECKPOINTS: Subject<Checkpoint> = Subject {
    build: checkpoints,
    mutants: &[
        ("H3: a checkpoint covers a block that is not acknowledged", Checkpoint::Unacknowledged),
        ("a successor does not stamp the root", Checkpoint::NoStamp),
    ],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Orphans {
    /// H1.
    FreedWithTheDead,
    /// H2.
    SharedInstead,
    /// An orphan is returned though its writer is not known to be dead.
    ReturnedEarly,
}

/// A primary that is copying into extent 2, and whose log is extent 1, dies or sleeps. Its successor makes orphans, reads
/// both, publishes a root that names neither, and returns them. A sweeper confirms the death whenever it is one.
fn orphans(mutant: Option<Orphans>) -> Scenario {
    let mut scenario = ground("orphans", &[DATA, DATA, OTHER]);
    scenario.word("OWNER 1", scenario.layout.owner(Extent(1)), Owner::Log { by: host(0) });
    let filling = Owner::Filling { by: host(0), kind: Kind::Main };
    scenario.word("OWNER 2", scenario.layout.owner(Extent(2)), filling);
    scenario.content(1, 0, 7);
    scenario.content(2, 0, 7);
    scenario.word("ENTRY", scenario.layout.entry(DATA), Entry::NEW);
    scenario.actor("primary", true, |run, procedure, _| {
        let books = run.books();
        if procedure == 0 {
            books.memory.store(content(2, 0), 7)?;
            return Ok(Next::Goto(1));
        }
        books.publish(host(0), DATA, Extent(2), Generation(1), Number(7))?;
        Ok(Next::End)
    });
    scenario.actor("successor", false, move |run, procedure, locals| {
        let (books, me) = (run.books(), host(1));
        match procedure {
            0 if mutant == Some(Orphans::SharedInstead) => {
                let field = books.layout.owner(Extent(2));
                let owner = books.load(field)?;
                if matches!(owner, Owner::Filling { .. }) {
                    books.swap(field, owner, shared(1))?;
                }
                Ok(Next::Goto(1))
            }
            0 => {
                books.orphan_others(me, DATA)?;
                Ok(Next::Goto(1))
            }
            1 => {
                books.stamp_root(DATA)?;
                Ok(Next::Goto(2))
            }
            2 => {
                let found = [books.memory.load(content(1, 0))?, books.memory.load(content(2, 0))?];
                run.hold(found == [7, 7], || format!("a successor reads {found:?} of its predecessor"));
                Ok(Next::Goto(3))
            }
            3 => {
                books.publish_root(DATA, root(1, 2), Extent(0))?;
                Ok(Next::Goto(4))
            }
            // Extent 2 and then extent 1.
            4 | 6 => {
                let extent = Extent(if procedure == 4 { 2 } else { 1 });
                let returns = if mutant == Some(Orphans::ReturnedEarly) {
                    let field = books.layout.owner(extent);
                    let owner = books.load(field)?;
                    matches!(owner, Owner::Orphan { .. }) && books.swap(field, owner, Owner::Returning { by: me })?
                } else {
                    let found = books.load(books.layout.owner(extent))?;
                    books.return_shared(me, DATA, extent, found, Generation(3))?
                };
                locals[0] = u64::from(extent.0);
                Ok(match (returns, procedure) {
                    (true, _) => Next::Goto(procedure + 1),
                    (false, 4) => Next::Goto(6),
                    _ => Next::End,
                })
            }
            _ => {
                books.free(me, Extent(locals[0] as u32), Contents::Of(DATA))?;
                Ok(if procedure == 5 { Next::Goto(6) } else { Next::End })
            }
        }
    });
    scenario.actor("sweeper", false, move |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 => {
                let death = run.death_of(0)?;
                books.confirm(host(0), &death)?;
                Ok(Next::Goto(1))
            }
            1 if mutant == Some(Orphans::FreedWithTheDead) => {
                free_all(run)?;
                Ok(Next::Goto(2))
            }
            1 => {
                books.sweep(host(0))?;
                Ok(Next::Goto(2))
            }
            _ => {
                books.free_slot(host(0))?;
                Ok(Next::End)
            }
        }
    });
    thief(&mut scenario, 2, &[1, 2]);
    scenario.invariant = Box::new(|view| {
        let is_needed = view.word(Layout::new(3).root(DATA)).generation.0 < 3;
        let lost = [1, 2].into_iter().find(|extent| view.content(*extent, 0) != 7);
        lost.filter(|_| is_needed).map(|extent| format!("extent {extent} is overwritten, and no root is without it"))
    });
    scenario.end = Box::new(|view| {
        // Whoever died: nothing of it is left but what the successor may still read.
        let left = [1, 2].into_iter().find_map(|extent| match view.word(Layout::new(3).owner(Extent(extent))) {
            owner @ (Owner::Log { .. } | Owner::Filling { .. }) => Some(owner),
            _ => None,
        });
        left.filter(|_| view.is_dead(0)).map(|owner| format!("an extent is lost: {owner:?}"))
    });
    scenario
}

fn free_all(run: &Run<'_>) -> Step<()> {
    let books = run.books();
    for extent in [1, 2] {
        let field = books.layout.owner(Extent(extent));
        let owner = books.load(field)?;
        if owner.writer() == Some(host(0)) {
            books.swap(field, owner, Owner::Free { holds: Contents::Unknown })?;
        }
    }
    Ok(())
}

const ORPHANS: Subject<Orphans> = Subject {
    build: orphans,
    mutants: &[
        ("H1: the extents of a dead primary are free before a root is without them", Orphans::FreedWithTheDead),
        ("H2: a successor makes a filling extent shared, and it is returned", Orphans::SharedInstead),
        ("an orphan is returned though its writer may wake", Orphans::ReturnedEarly),
    ],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segments {
    /// What hosts need of the log is not looked at.
    NeedIgnored,
    /// A host that joins leaves what its slot's life before needed.
    StaleNeed,
    /// The segment of a zombie is returned.
    ReturnedEarly,
    /// A reader that is suspect uses what it found in the log.
    SuspectReads,
}

/// Extent 1 is segment 5 of the log, which root 1 needs and root 2 does not. A host joins and reads it; a successor makes it an
/// orphan and returns it, too; a host of another database takes what is free.
fn segments(mutant: Option<Segments>) -> Scenario {
    let mut scenario = ground("segments", &[DATA, DATA, OTHER, DATA]);
    scenario.word("OWNER 1", scenario.layout.owner(Extent(1)), Owner::Log { by: host(0) });
    scenario.word("OWNER 2", scenario.layout.owner(Extent(2)), shared(1));
    scenario.content(1, 0, 7);
    let since = Generation(2);
    scenario.actor("primary", true, move |run, procedure, locals| {
        let (books, me) = (run.books(), host(0));
        match procedure {
            0 => {
                if mutant == Some(Segments::ReturnedEarly) {
                    books.memory.store(content(1, 0), 7)?;
                    return Ok(Next::Goto(0));
                }
                books.publish_root(DATA, root(1, 1), Extent(2))?;
                locals[0] = Owner::Log { by: me }.bits();
                Ok(Next::Goto(if mutant == Some(Segments::NeedIgnored) { 2 } else { 1 }))
            }
            1 => {
                let is_over = books.nobody_needs_segment(me, DATA, 5, since)?;
                locals[0] = books.load(books.layout.owner(Extent(1)))?.bits();
                Ok(if is_over { Next::Goto(2) } else { Next::End })
            }
            2 => {
                let Ok(found) = Owner::read(locals[0]) else { return Ok(Next::End) };
                let returns = books.return_log(me, DATA, Extent(1), found)?;
                Ok(if returns { Next::Goto(3) } else { Next::End })
            }
            _ => {
                books.free(me, Extent(1), Contents::Of(DATA))?;
                Ok(Next::End)
            }
        }
    });
    let joining = Ident { incarnation: Incarnation(2), state: HostState::Joining, role: Role::Reader, database: DATA };
    let me = Host { slot: Slot(1), incarnation: Incarnation(2) };
    scenario.actor("reader", false, move |run, procedure, locals| {
        let books = run.books();
        match procedure {
            0 => {
                books.swap(
                    books.layout.ident(Slot(1)),
                    Ident { incarnation: Incarnation(1), ..Ident::NEW },
                    joining,
                )?;
                Ok(Next::Goto(1))
            }
            1 => {
                locals[0] = u64::from(books.hold_root(me, DATA)?.0);
                if mutant == Some(Segments::StaleNeed) {
                    books.need_log_from(me, 100)?;
                }
                Ok(Next::Goto(2))
            }
            2 if locals[0] == 1 => {
                let found = books.memory.load(content(1, 0))?;
                if mutant != Some(Segments::SuspectReads) && !books.is_current(me)? {
                    return Ok(Next::End);
                }
                run.hold(found == 7, || format!("a reader finds {found} for 7: its segment was reused"));
                Ok(Next::Goto(3))
            }
            _ => {
                books.need_log_from(me, 6)?;
                Ok(Next::End)
            }
        }
    });
    scenario.replace(scenario.layout.ident(Slot(1)), Ident { incarnation: Incarnation(1), ..Ident::NEW });
    thief(&mut scenario, 2, &[1]);
    scenario.actor("suspector", false, move |run, _, _| {
        run.books().suspect(me)?;
        Ok(Next::End)
    });
    scenario.actor("successor", false, move |run, procedure, locals| {
        let (books, me) = (run.books(), host(3));
        match procedure {
            0 => {
                books.orphan_others(me, DATA)?;
                Ok(Next::Goto(1))
            }
            1 => {
                if mutant == Some(Segments::ReturnedEarly) {
                    return Ok(Next::Goto(4));
                }
                let is_over = books.nobody_needs_segment(me, DATA, 5, since)?;
                locals[0] = books.load(books.layout.owner(Extent(1)))?.bits();
                Ok(if is_over { Next::Goto(2) } else { Next::End })
            }
            2 => {
                let Ok(found) = Owner::read(locals[0]) else { return Ok(Next::End) };
                let returns = books.return_log(me, DATA, Extent(1), found)?;
                Ok(if returns { Next::Goto(3) } else { Next::End })
            }
            4 => {
                let field = books.layout.owner(Extent(1));
                let owner = books.load(field)?;
                let is_orphan = matches!(owner, Owner::Orphan { .. });
                let returns = is_orphan && books.swap(field, owner, Owner::Returning { by: me })?;
                Ok(if returns { Next::Goto(3) } else { Next::End })
            }
            _ => {
                books.free(me, Extent(1), Contents::Of(DATA))?;
                Ok(Next::End)
            }
        }
    });
    scenario
}

const SEGMENTS: Subject<Segments> = Subject {
    build: segments,
    mutants: &[
        ("a segment is returned though a host needs it", Segments::NeedIgnored),
        ("a host that joins leaves what its slot's life before needed of the log", Segments::StaleNeed),
        ("a segment is returned though its writer may wake", Segments::ReturnedEarly),
        ("a reader that is suspect uses what it found in the log", Segments::SuspectReads),
    ],
};

pub fn scenarios() -> Vec<Scenario> {
    vec![reclaim(None, false), reclaim(None, true), records(None), checkpoints(None), orphans(None), segments(None)]
}

#[test]
fn no_reader_meets_an_extent_that_was_freed() {
    RECLAIM.hold();
    RETURNS.hold();
    let about = "H4: a follower raises what it holds by a look at ROOT";
    Subject { build: records, mutants: &[(about, Records::RaisedByRoot)] }.hold();
}

#[test]
fn a_segment_is_there_as_long_as_a_host_needs_it() {
    SEGMENTS.hold();
}

#[test]
fn a_root_covers_what_was_acknowledged() {
    CHECKPOINTS.hold();
}

#[test]
fn what_a_primary_left_is_there_until_a_root_is_without_it() {
    ORPHANS.hold();
}
