//! Executions above this crate that need no more than some words to be told: following, and restarts.
//!
//! Not here, as nothing wrong is *done* in them: H16 (an index build is a barrier for apply: a question of time), H18 (a
//! stopped primary closes no socket: clients wait) and H19 (a device is lost).

use super::Subject;
use super::engine::{Next, Scenario, content};
use crate::layout::Layout;
use crate::memory::Memory;

const LAYOUT: Layout = Layout { slots: 1, databases: 1, extents: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopts {
    /// H9.
    InOneStep,
}

/// A follower adopts a main that has a row which stood in delta: bytes 0 and 1 of extent 1 are that main and the row's
/// head; byte 2 says that a statement runs.
fn adopt(mutant: Option<Adopts>) -> Scenario {
    let mut scenario = Scenario::new("adopting a main", LAYOUT);
    scenario.content(1, 0, 0);
    scenario.content(1, 1, 1);
    scenario.content(1, 2, 0);
    scenario.actor("apply", false, move |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 => {
                books.memory.store(content(1, 0), 1)?;
                books.memory.fence()?;
                Ok(Next::Goto(if mutant.is_some() { 2 } else { 1 }))
            }
            1 => {
                run.until(content(1, 2), "no statement over the old main", |runs| runs == 0)?;
                Ok(Next::Goto(2))
            }
            _ => {
                books.memory.store(content(1, 1), 0)?;
                Ok(Next::End)
            }
        }
    });
    scenario.actor("statement", false, |run, procedure, _| {
        let books = run.books();
        if procedure == 0 {
            books.memory.store(content(1, 2), 1)?;
            books.memory.fence()?;
            return Ok(Next::Goto(1));
        }
        if procedure == 1 {
            let in_main = books.memory.load(content(1, 0))?;
            let in_delta = books.memory.load(content(1, 1))?;
            run.hold(in_main + in_delta > 0, || "a statement misses a row".to_owned());
            return Ok(Next::Goto(2));
        }
        books.memory.store(content(1, 2), 0)?;
        Ok(Next::End)
    });
    scenario
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restarts {
    /// H10.
    AsRead,
}

/// A restart: a row's version of timestamp 1, and a main that has its version of timestamp 2. Byte 0 of extent 1 is the
/// row's head, byte 1 is main, byte 2 says that rows up to main's horizon are applied.
fn restart(mutant: Option<Restarts>) -> Scenario {
    let mut scenario = Scenario::new("a restart", LAYOUT);
    (0..3).for_each(|index| scenario.content(1, index, 0));
    scenario.actor("rows", false, |run, procedure, _| {
        let books = run.books();
        books.memory.store(content(1, if procedure == 0 { 0 } else { 2 }), 1)?;
        Ok(if procedure == 0 { Next::Goto(1) } else { Next::End })
    });
    scenario.actor("main", false, move |run, procedure, _| {
        let books = run.books();
        match procedure {
            0 if mutant.is_none() => {
                run.until(content(1, 2), "that older rows are applied", |applied| applied == 1)?;
                Ok(Next::Goto(1))
            }
            0 | 1 => {
                books.memory.store(content(1, 1), 2)?;
                Ok(Next::Goto(2))
            }
            _ => {
                // Heads up to its horizon are in it.
                let head = books.memory.load(content(1, 0))?;
                if head <= 2 {
                    books.memory.store(content(1, 0), 0)?;
                }
                Ok(Next::End)
            }
        }
    });
    scenario.end = Box::new(|view| {
        let shown = if view.content(1, 0) > 0 { view.content(1, 0) } else { view.content(1, 1) };
        (shown != 2).then(|| format!("a restart shows version {shown} of a row"))
    });
    scenario
}

#[test]
fn a_main_and_the_heads_that_it_replaces() {
    let about = "H9: a follower takes heads out in the step of the swap";
    Subject { build: adopt, mutants: &[(about, Adopts::InOneStep)] }.hold();
    let about = "H10: a restart applies records as it reads them";
    Subject { build: restart, mutants: &[(about, Restarts::AsRead)] }.hold();
}
