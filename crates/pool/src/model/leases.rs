//! Hosts that take slots and extents, die, and are swept.

use super::Subject;
use super::engine::{Next, Run, Scenario, Step, content};
use crate::death::verdict_of_lock;
use crate::layout::{HostNumber, Layout};
use crate::memory::{At, Memory};
use crate::words::{
    Contents, Database, Entry, EntryState, Extent, Host, HostState, Ident, Incarnation, Kind, Number, Owner, Role, Slot,
};

pub const DATA: Database = Database(0);
pub const OTHER: Database = Database(1);

pub fn host(slot: u8) -> Host {
    Host { slot: Slot(slot), incarnation: Incarnation(1) }
}

pub fn ident(state: HostState, database: Database) -> Ident {
    Ident { incarnation: Incarnation(1), state, role: Role::Standby, database }
}

/// Slots of hosts of their first life, of databases, and a hold of an earlier life, as high as can be.
pub fn slots(scenario: &mut Scenario, databases: &[Database]) {
    for (slot, database) in databases.iter().enumerate() {
        let slot = Slot(slot as u8);
        scenario.word(format!("IDENT {}", slot.0), scenario.layout.ident(slot), ident(HostState::Attached, *database));
        let hold = scenario.layout.host_number(slot, HostNumber::GenHeld);
        scenario.word(format!("gen_held {}", slot.0), hold, Number(100));
        let needed = scenario.layout.host_number(slot, HostNumber::LogNeeded);
        scenario.word(format!("log_needed {}", slot.0), needed, Number(100));
    }
}

/// The entries of the directory, of nobody.
fn entries(scenario: &mut Scenario) {
    for database in scenario.layout.all_databases() {
        let entry = Entry { life: 1, state: EntryState::Live, by: Slot(63) };
        scenario.word(format!("ENTRY {}", database.0), scenario.layout.entry(database), entry);
    }
}

fn owner(scenario: &mut Scenario, extent: u32, owner: Owner) {
    scenario.word(format!("OWNER {extent}"), scenario.layout.owner(Extent(extent)), owner);
}

/// Stores to an extent that is its own and looks whether it stays so. The store has reached memory when it looks.
pub fn store_and_look(run: &Run<'_>, extent: u32, mark: u64) -> Step<()> {
    let memory: &Run<'_> = run;
    (&memory).store(content(extent, 0), mark)?;
    (&memory).fence()?;
    let found = (&memory).load(content(extent, 0))?;
    run.hold(found == mark, || format!("extent {extent} has two owners: {found} stands where {mark} was stored"));
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    /// A sweep frees whatever the slot owned, of any life.
    SweepOfAnyLife,
    /// Extents are freed upon suspicion.
    FreeOnSuspicion,
    /// What another database left is not zeroed.
    NotZeroed,
    /// The slot is given away before its extents are.
    SlotFirst,
}

/// A host leases and dies; two others confirm that and sweep, one of them joins in its slot and leases as well.
fn lease(mutant: Option<Lease>) -> Scenario {
    let mut scenario = Scenario::new("leases", Layout { slots: 3, databases: 2, extents: 1 });
    slots(&mut scenario, &[DATA, OTHER, OTHER]);
    entries(&mut scenario);
    owner(&mut scenario, 0, Owner::Free { holds: Contents::Of(OTHER) });
    scenario.content(0, 0, 5);
    scenario.notes = vec![1];
    scenario.actor("host", true, move |run, procedure, _| {
        let (books, me) = (run.books(), host(0));
        match procedure {
            0 => Ok(if books.lease(me, DATA, Extent(0), Kind::Heap)? { Next::Goto(1) } else { Next::End }),
            1 => {
                let found = books.memory.load(content(0, 0))?;
                run.hold(found == 0, || format!("{found} of another database is shown"));
                store_and_look(run, 0, 1)?;
                Ok(Next::Goto(2))
            }
            2 => Ok(if books.give_back(me, Extent(0))? { Next::Goto(3) } else { Next::End }),
            _ => {
                books.free(me, Extent(0), Contents::Of(DATA))?;
                Ok(Next::End)
            }
        }
    });
    if mutant == Some(Lease::NotZeroed) {
        scenario.actors.clear();
        scenario.actor("host", false, |run, procedure, _| {
            let (books, me) = (run.books(), host(0));
            if procedure == 0 {
                let field = books.layout.owner(Extent(0));
                let free = Owner::Free { holds: Contents::Of(OTHER) };
                let owned = Owner::Private { by: me, kind: Kind::Heap };
                return Ok(if books.swap(field, free, owned)? { Next::Goto(1) } else { Next::End });
            }
            let found = books.memory.load(content(0, 0))?;
            run.hold(found == 0, || format!("{found} of another database is shown"));
            Ok(Next::End)
        });
    }
    for (name, slot) in [("sweeper", 1u8), ("newcomer", 2)] {
        let joins = slot == 2;
        scenario.actor(name, false, move |run, procedure, locals| {
            let books = run.books();
            let newcomer = Host { slot: Slot(0), incarnation: Incarnation(locals[0] as u32) };
            match procedure {
                0 if mutant == Some(Lease::FreeOnSuspicion) => {
                    books.suspect(host(0))?;
                    Ok(Next::Goto(2))
                }
                0 => {
                    let death = run.death_of(0)?;
                    books.confirm(host(0), &death)?;
                    Ok(Next::Goto(if mutant == Some(Lease::SlotFirst) && joins { 3 } else { 1 }))
                }
                1 if mutant == Some(Lease::SweepOfAnyLife) && !joins => {
                    let field = books.layout.owner(Extent(0));
                    let owner = books.load(field)?;
                    if owner.writer().is_some_and(|writer| writer.slot == Slot(0)) {
                        books.swap(field, owner, Owner::Free { holds: Contents::Unknown })?;
                    }
                    Ok(Next::Goto(3))
                }
                1 => {
                    books.sweep(host(0))?;
                    Ok(Next::Goto(3))
                }
                2 => {
                    let field = books.layout.owner(Extent(0));
                    let owner = books.load(field)?;
                    if owner.writer() == Some(host(0)) {
                        books.swap(field, owner, Owner::Free { holds: Contents::Unknown })?;
                    }
                    Ok(if joins { Next::Goto(6) } else { Next::End })
                }
                3 => {
                    books.free_slot(host(0))?;
                    Ok(Next::Goto(if joins { 4 } else { 8 }))
                }
                8 => Ok(if books.lease(host(1), OTHER, Extent(0), Kind::Heap)? { Next::Goto(9) } else { Next::End }),
                9 => {
                    store_and_look(run, 0, 3)?;
                    Ok(Next::End)
                }
                4 => match books.join(Slot(0), Role::Reader, OTHER)? {
                    None => Ok(Next::End),
                    Some(joined) => {
                        locals[0] = u64::from(joined.incarnation.0);
                        Ok(Next::Goto(5))
                    }
                },
                5 => Ok(if books.lease(newcomer, OTHER, Extent(0), Kind::Heap)? { Next::Goto(7) } else { Next::End }),
                6 => Ok(if books.lease(host(2), OTHER, Extent(0), Kind::Heap)? { Next::Goto(7) } else { Next::End }),
                _ => {
                    store_and_look(run, 0, 2)?;
                    Ok(Next::End)
                }
            }
        });
    }
    scenario.invariant = Box::new(|view| {
        let ident = view.word(Layout::new(1).ident(Slot(0)));
        (ident.incarnation.0 > 2).then(|| "a slot had a life too many".to_owned())
    });
    // Unless the newcomer has it, a dead host's extent is free.
    scenario.end = Box::new(move |view| {
        let owner = view.word(Layout::new(1).owner(Extent(0)));
        let is_leaked = view.is_dead(0) && owner.writer() == Some(host(0));
        is_leaked.then(|| format!("an extent is lost: {owner:?}"))
    });
    scenario
}

const LEASE: Subject<Lease> = Subject {
    build: lease,
    mutants: &[
        ("a sweep frees the extents of a slot, whichever incarnation has them", Lease::SweepOfAnyLife),
        ("a suspect's extents are free, though it may wake", Lease::FreeOnSuspicion),
        ("an extent is handed out with another database's bytes", Lease::NotZeroed),
        ("a dead host's slot is given away before its extents", Lease::SlotFirst),
    ],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    /// A host that was primary before serves readers, too.
    TwoServe,
    /// A host is granted something while it gives something back.
    WhileItReturns,
}

/// A primary grants a reader an extent and takes it in, as often as the reader says so in its page; the reader dies, is swept, and a host
/// of another database takes what is free.
fn grants(mutant: Option<Grant>) -> Scenario {
    let mut scenario = Scenario::new("grants", Layout { slots: 4, databases: 2, extents: 1 });
    slots(&mut scenario, &[DATA, DATA, OTHER, DATA]);
    entries(&mut scenario);
    owner(&mut scenario, 0, Owner::Free { holds: Contents::Of(DATA) });
    scenario.content(0, 0, 0);
    let room = scenario.layout.host_number(Slot(1), HostNumber::Room);
    scenario.word("room 1", room, Number(0));
    let primaries: &[(&str, u8)] = match mutant {
        Some(Grant::TwoServe) => &[("primary", 0), ("one before", 3)],
        _ => &[("primary", 0)],
    };
    for (name, slot) in primaries.iter().copied() {
        scenario.actor(name, false, move |run, procedure, locals| {
            let (books, me) = (run.books(), host(slot));
            match procedure {
                0 => {
                    let returns = books.load(room)? == Number(1);
                    Ok(Next::Goto(if returns { 2 } else { 1 }))
                }
                1 => {
                    locals[0] += 1;
                    let is_granted = books.grant(me, host(1), DATA, Extent(0))?;
                    Ok(if is_granted { Next::Goto(3) } else { Next::End })
                }
                2 => {
                    books.take_in(me, host(1), DATA, Extent(0))?;
                    let grants = mutant == Some(Grant::WhileItReturns);
                    Ok(if locals[0] == 2 { Next::End } else { Next::Goto(if grants { 1 } else { 0 }) })
                }
                _ => Ok(if books.load(room)? == Number(1) { Next::Goto(2) } else { Next::End }),
            }
        });
    }
    scenario.actor("reader", true, move |run, procedure, locals| {
        let (books, me) = (run.books(), host(1));
        let is_own = || -> Step<bool> {
            let owner = books.load(books.layout.owner(Extent(0)))?;
            Ok(matches!(owner, Owner::Private { by, .. } if by == me))
        };
        match procedure {
            0 => Ok(if is_own()? { Next::Goto(1) } else { Next::End }),
            1 => {
                store_and_look(run, 0, 1)?;
                Ok(Next::Goto(2))
            }
            2 => {
                books.store(room, Number(1))?;
                Ok(Next::Goto(3))
            }
            3 => Ok(if is_own()? { Next::End } else { Next::Goto(4) }),
            _ => {
                books.store(room, Number(0))?;
                locals[0] += 1;
                Ok(if locals[0] < 2 { Next::Goto(0) } else { Next::End })
            }
        }
    });
    let reader = primaries.len();
    scenario.actor("sweeper", false, move |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 => {
                let death = run.death_of(reader)?;
                books.confirm(host(1), &death)?;
                Ok(Next::Goto(1))
            }
            1 => {
                books.sweep(host(1))?;
                Ok(Next::Goto(2))
            }
            _ => {
                books.free_slot(host(1))?;
                Ok(Next::End)
            }
        }
    });
    scenario.actor("thief", false, |run, procedure, _| match procedure {
        0 => {
            let is_leased = run.books().lease(host(2), OTHER, Extent(0), Kind::Heap)?;
            Ok(if is_leased { Next::Goto(1) } else { Next::End })
        }
        _ => {
            store_and_look(run, 0, 2)?;
            Ok(Next::End)
        }
    });
    scenario.end = Box::new(move |view| {
        let owner = view.word(Layout::new(1).owner(Extent(0)));
        let is_leaked = view.is_dead(reader) && owner.writer() == Some(host(1));
        is_leaked.then(|| format!("an extent is lost: {owner:?}"))
    });
    scenario
}

const GRANTS: Subject<Grant> = Subject {
    build: grants,
    mutants: &[
        ("a host that was primary before serves readers beside the primary", Grant::TwoServe),
        ("a host that gives an extent back is granted one before it knows", Grant::WhileItReturns),
    ],
};

/// Two hosts want one slot and one extent; a third suspects whoever has the slot, late.
fn join(_: Option<()>) -> Scenario {
    let mut scenario = Scenario::new("joins", Layout { slots: 1, databases: 1, extents: 1 });
    entries(&mut scenario);
    scenario.word("IDENT 0", scenario.layout.ident(Slot(0)), Ident::NEW);
    owner(&mut scenario, 0, Owner::Free { holds: Contents::Of(DATA) });
    scenario.content(0, 0, 0);
    // Who has which life; whether a life was suspected; the highest life so far.
    scenario.notes = vec![0; 8];
    for (name, mark) in [("first", 1u64), ("second", 2)] {
        scenario.actor(name, true, move |run, procedure, locals| {
            let books = run.books();
            let me = Host { slot: Slot(0), incarnation: Incarnation(locals[0] as u32) };
            match procedure {
                0 => {
                    let Some(joined) = books.join(Slot(0), Role::Reader, DATA)? else { return Ok(Next::End) };
                    let life = joined.incarnation.0 as usize;
                    run.note(|notes| {
                        let before = std::mem::replace(&mut notes[life], mark);
                        if before == 0 { Ok(()) } else { Err(format!("life {life} of the slot is two hosts'")) }
                    });
                    locals[0] = life as u64;
                    Ok(Next::Goto(1))
                }
                1 => {
                    let goes_on = books.advance(me, HostState::Attached)?;
                    run.note(|notes| {
                        let is_suspect = goes_on && notes[4 + me.incarnation.0 as usize] == 1;
                        if is_suspect { Err("a host that is suspect goes on".to_owned()) } else { Ok(()) }
                    });
                    Ok(if goes_on { Next::Goto(2) } else { Next::Goto(4) })
                }
                2 => Ok(if books.lease(me, DATA, Extent(0), Kind::Heap)? { Next::Goto(3) } else { Next::End }),
                3 => {
                    store_and_look(run, 0, mark)?;
                    Ok(Next::End)
                }
                // It has unmapped all and knows that of itself.
                _ => {
                    books.confirm(me, &crate::death::Death::by(crate::death::Evidence::Itself))?;
                    Ok(Next::End)
                }
            }
        });
    }
    for name in ["watcher", "late watcher"] {
        scenario.actor(name, false, |run, procedure, _| {
            let (books, life) = (run.books(), host(0));
            match procedure {
                0 => {
                    let suspected = books.suspect(life)?;
                    run.note(|notes| {
                        if suspected {
                            notes[5] = 1;
                        }
                        Ok(())
                    });
                    Ok(Next::Goto(1))
                }
                1 => {
                    books.mark_fenced(life)?;
                    Ok(Next::Goto(2))
                }
                2 => {
                    let is_dead = [run.is_dead(0)?, run.is_dead(1)?];
                    // Either may have this life.
                    Ok(if is_dead == [true, true] { Next::Goto(3) } else { Next::End })
                }
                3 => {
                    books.confirm(life, &crate::death::Death::by(crate::death::Evidence::ProcessEnded))?;
                    Ok(Next::Goto(4))
                }
                4 => {
                    books.sweep(life)?;
                    Ok(Next::Goto(5))
                }
                _ => {
                    books.free_slot(life)?;
                    Ok(Next::End)
                }
            }
        });
    }
    scenario.deaths = 2;
    scenario
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    /// The receiver stores before its swap.
    StoresFirst,
    /// The giver stores after its swap.
    GiverGoesOn,
    /// Another database's bytes are kept.
    Kept,
}

/// One host hands an extent to another, either dies, a third sweeps and leases what is free.
fn hand(mutant: Option<Hand>, giver: Database) -> Scenario {
    let name = if giver == DATA { "hand-over" } else { "hand-over between databases" };
    let mut scenario = Scenario::new(name, Layout { slots: 3, databases: 2, extents: 1 });
    slots(&mut scenario, &[giver, DATA, OTHER]);
    entries(&mut scenario);
    owner(&mut scenario, 0, Owner::Private { by: host(0), kind: Kind::Delta });
    scenario.content(0, 0, 7);
    scenario.deaths = 2;
    scenario.actor("giver", true, move |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 => {
                let is_handed = books.hand(host(0), Extent(0), Slot(1))?;
                Ok(match is_handed {
                    true if mutant == Some(Hand::GiverGoesOn) => Next::Goto(2),
                    true => Next::Goto(1),
                    false => Next::End,
                })
            }
            1 => Ok(if books.take_back(host(0), Extent(0))? { Next::Goto(2) } else { Next::End }),
            _ => {
                store_and_look(run, 0, 1)?;
                Ok(Next::End)
            }
        }
    });
    scenario.actor("receiver", true, move |run, procedure, locals| {
        let (books, me) = (run.books(), host(1));
        match procedure {
            0 if mutant == Some(Hand::StoresFirst) => {
                let field = books.layout.owner(Extent(0));
                let owner = books.load(field)?;
                if !matches!(owner, Owner::Handed { .. }) {
                    return Ok(Next::End);
                }
                books.memory.store(content(0, 0), 2)?;
                books.swap(field, owner, Owner::Private { by: me, kind: Kind::Delta })?;
                Ok(Next::End)
            }
            0 if mutant == Some(Hand::Kept) => {
                let field = books.layout.owner(Extent(0));
                let owner = books.load(field)?;
                let is_mine = matches!(owner, Owner::Handed { .. })
                    && books.swap(field, owner, Owner::Private { by: me, kind: Kind::Delta })?;
                Ok(if is_mine { Next::Goto(1) } else { Next::End })
            }
            0 => {
                let Some(holds) = books.take(me, DATA, Extent(0))? else { return Ok(Next::End) };
                locals[0] = u64::from(holds == Contents::Of(DATA));
                Ok(Next::Goto(1))
            }
            _ => {
                let found = books.memory.load(content(0, 0))?;
                let is_right = if locals[0] == 1 { found == 7 || found == 1 } else { found == 0 };
                run.hold(is_right, || format!("{found} was handed over"));
                store_and_look(run, 0, 2)?;
                Ok(Next::End)
            }
        }
    });
    scenario.actor("sweeper", false, move |run, procedure, locals| {
        let books = run.books();
        let whose = locals[0] as usize;
        match procedure {
            0 => {
                let death = run.death_of(whose)?;
                books.confirm(host(whose as u8), &death)?;
                Ok(Next::Goto(1))
            }
            1 => {
                books.sweep(host(whose as u8))?;
                Ok(Next::Goto(2))
            }
            2 => {
                books.free_slot(host(whose as u8))?;
                Ok(Next::Goto(3))
            }
            3 => {
                let is_mine = books.lease(host(2), OTHER, Extent(0), Kind::Heap)?;
                Ok(match (is_mine, whose) {
                    (true, _) => Next::Goto(4),
                    (false, 0) => {
                        locals[0] = 1;
                        Next::Goto(0)
                    }
                    _ => Next::End,
                })
            }
            _ => {
                store_and_look(run, 0, 3)?;
                Ok(Next::End)
            }
        }
    });
    scenario.end = Box::new(|view| {
        let owner = view.word(Layout::new(1).owner(Extent(0)));
        let is_leaked =
            view.is_dead(0) && view.is_dead(1) && !matches!(owner, Owner::Free { .. } | Owner::Private { .. });
        is_leaked.then(|| format!("an extent is lost: {owner:?}"))
    });
    scenario
}

const HAND: Subject<Hand> = Subject {
    build: |mutant| hand(mutant, DATA),
    mutants: &[
        ("a receiver stores before the extent is its own", Hand::StoresFirst),
        ("a giver goes on storing to what it handed over", Hand::GiverGoesOn),
    ],
};

const HAND_BETWEEN: Subject<Hand> = Subject {
    build: |mutant| hand(mutant, OTHER),
    mutants: &[("what is handed to another database keeps its bytes", Hand::Kept)],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    FreeIsDead,
}

/// H8: the watcher has another file of the same name, in which nobody holds a lock.
fn lock(mutant: Option<Lock>) -> Scenario {
    const LOCK: At = At(1 << 30);
    let mut scenario = Scenario::new("a lock of another kernel", Layout { slots: 2, databases: 1, extents: 1 });
    slots(&mut scenario, &[DATA, DATA]);
    entries(&mut scenario);
    owner(&mut scenario, 0, Owner::Private { by: host(0), kind: Kind::Heap });
    scenario.content(0, 0, 0);
    scenario.word("the watcher's lock", crate::memory::Field::new(LOCK), Number(0));
    scenario.actor("host", false, |run, _, _| {
        store_and_look(run, 0, 1)?;
        Ok(Next::End)
    });
    scenario.actor("watcher", false, move |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 => {
                let is_held = books.load::<Number>(crate::memory::Field::new(LOCK))?.0 == 1;
                let was_seen_held = mutant == Some(Lock::FreeIsDead);
                let Some(death) = verdict_of_lock(was_seen_held, is_held) else { return Ok(Next::End) };
                books.confirm(host(0), &death)?;
                Ok(Next::Goto(1))
            }
            1 => {
                books.sweep(host(0))?;
                Ok(Next::Goto(2))
            }
            2 => Ok(if books.lease(host(1), DATA, Extent(0), Kind::Heap)? { Next::Goto(3) } else { Next::End }),
            _ => {
                store_and_look(run, 0, 2)?;
                Ok(Next::End)
            }
        }
    });
    scenario
}

const LOCK: Subject<Lock> = Subject {
    build: lock,
    mutants: &[("H8: a lock that looks free is a death, though nobody saw it held", Lock::FreeIsDead)],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// A host takes its slot before its lock.
    SlotFirst,
    /// The watcher looks at the lock before it looks at the slot.
    LockFirst,
    /// A host releases its lock before it is done.
    ReleasedEarly,
}

/// The lock of a slot on memory of one kernel: two lives of a slot, the kernel, which releases the lock of the dead, and a
/// watcher that never saw the lock held.
fn watch(mutant: Option<Watch>) -> Scenario {
    const LOCK: crate::memory::Field<Number> = crate::memory::Field::new(At(1 << 30));
    let mut scenario = Scenario::new("locks", Layout { slots: 2, databases: 1, extents: 1 });
    entries(&mut scenario);
    scenario.word("IDENT 0", scenario.layout.ident(Slot(0)), Ident::NEW);
    scenario.word("IDENT 1", scenario.layout.ident(Slot(1)), ident(HostState::Attached, DATA));
    owner(&mut scenario, 0, Owner::Free { holds: Contents::Of(DATA) });
    scenario.content(0, 0, 0);
    scenario.word("the lock", LOCK, Number(0));
    scenario.deaths = 2;
    for (name, mark) in [("first", 1u64), ("second", 2)] {
        scenario.actor(name, true, move |run, procedure, locals| {
            let books = run.books();
            let me = Host { slot: Slot(0), incarnation: Incarnation(locals[0] as u32) };
            match procedure {
                0 if mutant == Some(Watch::SlotFirst) => match books.join(Slot(0), Role::Reader, DATA)? {
                    None => Ok(Next::End),
                    Some(joined) => {
                        locals[0] = u64::from(joined.incarnation.0);
                        Ok(Next::Goto(1))
                    }
                },
                0 | 1 => {
                    let is_mine = books.swap(LOCK, Number(0), Number(mark))?;
                    let next = if procedure == 1 { 3 } else { 2 };
                    Ok(if is_mine { Next::Goto(next) } else { Next::End })
                }
                2 => match books.join(Slot(0), Role::Reader, DATA)? {
                    None => Ok(Next::Goto(8)),
                    Some(joined) => {
                        locals[0] = u64::from(joined.incarnation.0);
                        Ok(Next::Goto(3))
                    }
                },
                3 => {
                    let is_mine = books.lease(me, DATA, Extent(0), Kind::Heap)?;
                    Ok(match (is_mine, mutant) {
                        (false, _) => Next::Goto(5),
                        (true, Some(Watch::ReleasedEarly)) => Next::Goto(9),
                        (true, _) => Next::Goto(4),
                    })
                }
                4 => {
                    store_and_look(run, 0, mark)?;
                    Ok(Next::Goto(5))
                }
                // It leaves.
                5 => {
                    books.confirm(me, &crate::death::Death::by(crate::death::Evidence::Itself))?;
                    Ok(Next::Goto(6))
                }
                6 => {
                    books.sweep(me)?;
                    Ok(Next::Goto(7))
                }
                7 => {
                    books.free_slot(me)?;
                    Ok(Next::Goto(8))
                }
                8 => {
                    books.swap(LOCK, Number(mark), Number(0))?;
                    Ok(Next::End)
                }
                _ => {
                    books.swap(LOCK, Number(mark), Number(0))?;
                    Ok(Next::Goto(4))
                }
            }
        });
    }
    for (name, whose) in [("kernel", 0usize), ("kernel again", 1)] {
        scenario.actor(name, false, move |run, procedure, _| {
            if procedure == 0 {
                run.death_of(whose)?;
                return Ok(Next::Goto(1));
            }
            run.books().swap(LOCK, Number(whose as u64 + 1), Number(0))?;
            Ok(Next::End)
        });
    }
    scenario.actor("watcher", false, move |run, procedure, locals| {
        let books = run.books();
        let watched = Host { slot: Slot(0), incarnation: Incarnation(locals[0] as u32) };
        match procedure {
            0 => {
                let early = match mutant {
                    Some(Watch::LockFirst) => Some(books.load(LOCK)?),
                    _ => None,
                };
                let ident = books.load(books.layout.ident(Slot(0)))?;
                if !ident.state.is_live() {
                    return Ok(Next::End);
                }
                let lock = match early {
                    Some(lock) => lock,
                    None => books.load(LOCK)?,
                };
                locals[0] = u64::from(ident.incarnation.0);
                Ok(if verdict_of_lock(true, lock.0 != 0).is_some() { Next::Goto(1) } else { Next::End })
            }
            1 => {
                books.confirm(watched, &crate::death::Death::by(crate::death::Evidence::LockReleased))?;
                Ok(Next::Goto(2))
            }
            2 => {
                books.sweep(watched)?;
                Ok(Next::Goto(3))
            }
            3 => {
                books.free_slot(watched)?;
                Ok(Next::Goto(4))
            }
            4 => Ok(if books.lease(host(1), DATA, Extent(0), Kind::Heap)? { Next::Goto(5) } else { Next::End }),
            _ => {
                store_and_look(run, 0, 3)?;
                Ok(Next::End)
            }
        }
    });
    scenario
}

const WATCH: Subject<Watch> = Subject {
    build: watch,
    mutants: &[
        ("a host takes its slot before its lock", Watch::SlotFirst),
        ("a watcher looks at the lock before the slot", Watch::LockFirst),
        ("a host releases its lock before it is done", Watch::ReleasedEarly),
    ],
};

/// A maker of a database dies; its entry is free again, once.
fn entry(_: Option<()>) -> Scenario {
    let mut scenario = Scenario::new("entries", Layout { slots: 2, databases: 1, extents: 0 });
    slots(&mut scenario, &[DATA, DATA]);
    let making = Entry { life: 1, state: EntryState::Creating, by: Slot(0) };
    scenario.word("ENTRY 0", scenario.layout.entry(DATA), making);
    scenario.actor("maker", true, |run, _, _| {
        run.until(run.scenario.layout.entry(DATA).at, "the entry", |_| true)?;
        Ok(Next::End)
    });
    for name in ["sweeper", "other sweeper"] {
        scenario.actor(name, false, |run, procedure, _| {
            let books = run.books();
            let field = books.layout.entry(DATA);
            match procedure {
                0 => {
                    let death = run.death_of(0)?;
                    books.confirm(host(0), &death)?;
                    Ok(Next::Goto(1))
                }
                1 => {
                    books.sweep(host(0))?;
                    Ok(Next::Goto(2))
                }
                _ => {
                    let entry = books.load(field)?;
                    if entry.state == EntryState::Free {
                        let next = Entry { life: entry.life + 1, state: EntryState::Creating, by: Slot(1) };
                        let is_mine = books.swap(field, entry, next)?;
                        run.note(|notes| {
                            notes[0] += u64::from(is_mine);
                            if notes[0] > 1 { Err("two make one database".to_owned()) } else { Ok(()) }
                        });
                    }
                    Ok(Next::End)
                }
            }
        });
    }
    scenario.notes = vec![0];
    scenario
}

/// An operator forgets a host that only sleeps, and is wrong. What it goes on doing to the books fails.
fn forgotten(_: Option<()>) -> Scenario {
    let mut scenario = Scenario::new("a host that was forgotten", Layout { slots: 2, databases: 1, extents: 1 });
    slots(&mut scenario, &[DATA, DATA]);
    entries(&mut scenario);
    owner(&mut scenario, 0, Owner::Free { holds: Contents::Of(DATA) });
    scenario.content(0, 0, 0);
    scenario.actor("sleeper", false, |run, procedure, _| {
        let (books, me) = (run.books(), host(0));
        let goes_on = match procedure {
            0 | 3 => books.lease(me, DATA, Extent(0), Kind::Heap)?,
            1 => books.give_back(me, Extent(0))?,
            2 => books.free(me, Extent(0), Contents::Of(DATA))?,
            _ => books.hand(me, Extent(0), Slot(0))?,
        };
        Ok(if goes_on && procedure < 4 { Next::Goto(procedure + 1) } else { Next::End })
    });
    scenario.actor("operator", false, |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 => {
                books.confirm(host(0), &crate::death::Death::by(crate::death::Evidence::Operator))?;
                Ok(Next::Goto(1))
            }
            1 => {
                books.sweep(host(0))?;
                Ok(Next::Goto(2))
            }
            _ => {
                let is_mine = books.lease(host(1), DATA, Extent(0), Kind::Heap)?;
                run.note(|notes| {
                    notes[0] = u64::from(is_mine);
                    Ok(())
                });
                Ok(Next::End)
            }
        }
    });
    scenario.notes = vec![0];
    scenario.invariant = Box::new(|view| {
        let owner = view.word(Layout::new(1).owner(Extent(0)));
        let is_taken = view.note(0) == 1 && owner.writer() != Some(host(1));
        is_taken.then(|| format!("an extent is taken away from its owner: {owner:?}"))
    });
    scenario
}

pub fn scenarios() -> Vec<Scenario> {
    vec![
        forgotten(None),
        lease(None),
        join(None),
        hand(None, DATA),
        hand(None, OTHER),
        lock(None),
        entry(None),
        grants(None),
    ]
}

#[test]
fn an_extent_has_one_writer() {
    LEASE.hold();
    GRANTS.hold();
    HAND.hold();
    HAND_BETWEEN.hold();
    LOCK.hold();
    WATCH.hold();
    Subject { build: forgotten, mutants: &[] }.hold();
}

#[test]
fn a_slot_has_one_host_at_a_time() {
    Subject { build: join, mutants: &[] }.hold();
    Subject { build: entry, mutants: &[] }.hold();
}
