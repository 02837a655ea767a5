//! The checker on histories made by hand: one for each thing that it is to find, and some in which there is nothing.

use super::checker::check;
use super::history::{History, Key, Level, Op, Step, Transaction};
use Level::{ReadCommitted, RepeatableRead, Serializable};

const X: Key = Key { table: "t", group: 0, id: 1 };
const Y: Key = Key { table: "t", group: 0, id: 2 };

/// Committed, at the same time as all others.
fn transaction(level: Level, ops: impl IntoIterator<Item = Op>) -> Transaction {
    let steps = ops.into_iter().map(|op| Step { op, undone: false }).collect();
    Transaction { session: 0, level, began: 0, ended: 100, committed: true, steps }
}

fn append(key: Key, value: i64) -> Op {
    Op::Append { key, value }
}

fn list(key: Key, values: &[i64]) -> Op {
    Op::List { key, values: values.to_vec() }
}

fn write(key: Key, before: impl Into<Option<i64>>, value: impl Into<Option<i64>>) -> Op {
    Op::Write { key, before: before.into(), value: value.into() }
}

fn row(key: Key, value: impl Into<Option<i64>>) -> Op {
    Op::Row { key, value: value.into() }
}

/// Lists x and y as they were in the end, read long after.
fn end(x: &[i64], y: &[i64]) -> Transaction {
    Transaction { began: 1000, ended: 1001, ..transaction(Serializable, [list(X, x), list(Y, y)]) }
}

/// At each level, what is found with all transactions at it.
fn found(history: &History) -> Vec<Option<&'static str>> {
    let at = |level| -> History { history.iter().map(|known| Transaction { level, ..known.clone() }).collect() };
    Level::ALL.map(|level| check(&at(level)).first().map(|anomaly| anomaly.name)).into()
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let history = vec![
        transaction(Serializable, [append(X, 1), append(Y, 2), list(X, &[1])]),
        transaction(Serializable, [list(X, &[1]), append(X, 3), list(Y, &[2])]),
        transaction(Serializable, [write(Key { id: 3, ..X }, None, 4), write(Key { id: 3, ..X }, 4, 5)]),
        transaction(Serializable, [row(Key { id: 3, ..X }, 5), write(Key { id: 3, ..X }, 5, None)]),
        end(&[1, 3], &[2]),
    ];
    assert_eq!(found(&history), [None; 3]);
    assert_eq!(found(&Vec::new()), [None; 3]);
}

#[test]
fn dirty_writes() {
    // Each has the last word on one of two.
    let history = vec![
        transaction(ReadCommitted, [append(X, 1), append(Y, 2)]),
        transaction(ReadCommitted, [append(X, 3), append(Y, 4)]),
        end(&[1, 3], &[4, 2]),
    ];
    assert_eq!(found(&history), [Some("G0"); 3]);
}

#[test]
fn aborted_reads() {
    let mut aborted = transaction(ReadCommitted, [append(X, 1)]);
    aborted.committed = false;
    let history = vec![aborted, transaction(ReadCommitted, [list(X, &[1])])];
    assert_eq!(found(&history), [Some("G1a"); 3]);
    let mut undone = transaction(ReadCommitted, [write(X, None, 1)]);
    undone.steps[0].undone = true;
    let history = vec![undone, transaction(ReadCommitted, [row(X, 1)])];
    assert_eq!(found(&history), [Some("G1a"); 3]);
    let history = vec![transaction(ReadCommitted, [row(X, 1)])];
    assert_eq!(found(&history), [Some("a value from nowhere"); 3]);
}

#[test]
fn intermediate_reads() {
    let history = vec![
        transaction(ReadCommitted, [append(X, 1), append(X, 2)]),
        transaction(ReadCommitted, [list(X, &[1])]),
        end(&[1, 2], &[]),
    ];
    assert_eq!(found(&history), [Some("G1b"); 3]);
    let history =
        vec![transaction(ReadCommitted, [write(X, None, 1), write(X, 1, 2)]), transaction(ReadCommitted, [row(X, 1)])];
    assert_eq!(found(&history), [Some("G1b"); 3]);
}

#[test]
fn circular_information_flow() {
    let history = vec![
        transaction(ReadCommitted, [append(X, 1), list(Y, &[2])]),
        transaction(ReadCommitted, [append(Y, 2), list(X, &[1])]),
    ];
    assert_eq!(found(&history), [Some("G1c"); 3]);
}

#[test]
fn stale_reads_at_every_level() {
    let first = Transaction { ended: 10, ..transaction(ReadCommitted, [append(X, 1)]) };
    let second = Transaction { began: 20, ..transaction(ReadCommitted, [append(Y, 2)]) };
    // Whoever reads the later one and not the earlier one has no moment at which that was so.
    let history =
        vec![first.clone(), second, transaction(ReadCommitted, [list(X, &[]), list(Y, &[2])]), end(&[1], &[2])];
    assert_eq!(found(&history), [None, Some("G-SI in real time"), Some("G-SI in real time")]);
    // What was acknowledged before it began is not there.
    let stale = Transaction { began: 20, ..transaction(ReadCommitted, [list(X, &[])]) };
    assert_eq!(found(&vec![first, stale]), [Some("a lost append"); 3]);
}

#[test]
fn fuzzy_reads() {
    let history =
        vec![transaction(ReadCommitted, [list(X, &[]), list(X, &[1])]), transaction(ReadCommitted, [append(X, 1)])];
    assert_eq!(found(&history), [None, Some("G-single"), Some("G-single")]);
}

#[test]
fn read_skew() {
    let history = vec![
        transaction(ReadCommitted, [list(X, &[]), list(Y, &[2])]),
        transaction(ReadCommitted, [append(X, 1), append(Y, 2)]),
        end(&[1], &[2]),
    ];
    assert_eq!(found(&history), [None, Some("G-single"), Some("G-single")]);
}

#[test]
fn lost_updates() {
    // Both read it empty, and one follows on the other.
    let history = vec![
        transaction(ReadCommitted, [list(X, &[]), append(X, 1)]),
        transaction(ReadCommitted, [list(X, &[]), append(X, 2)]),
        end(&[1, 2], &[]),
    ];
    assert_eq!(found(&history), [None, Some("G-single"), Some("G-single")]);
    // A write took the place of one that it never saw.
    let history = vec![
        transaction(ReadCommitted, [write(X, None, 1)]),
        transaction(ReadCommitted, [write(X, 1, 2)]),
        transaction(ReadCommitted, [write(X, 1, 3)]),
    ];
    assert_eq!(found(&history), [Some("a lost update"); 3]);
    let history = vec![transaction(ReadCommitted, [append(X, 1)]), end(&[], &[])];
    assert_eq!(found(&history), [Some("a lost append"); 3]);
}

#[test]
fn write_skew() {
    let history = vec![
        transaction(ReadCommitted, [list(Y, &[]), append(X, 1)]),
        transaction(ReadCommitted, [list(X, &[]), append(Y, 2)]),
        end(&[1], &[2]),
    ];
    assert_eq!(found(&history), [None, None, Some("G2")]);
    // One of the two being serializable is not enough; nor does it hurt.
    let mut mixed = history.clone();
    (mixed[0].level, mixed[1].level) = (Serializable, RepeatableRead);
    assert!(check(&mixed).is_empty());
}

#[test]
fn phantoms() {
    let group = |rows: &[(i64, i64)]| Op::Group { table: "t", group: 0, rows: rows.to_vec() };
    // The same predicate twice.
    let history = vec![
        transaction(ReadCommitted, [group(&[]), group(&[(1, 7)])]),
        transaction(ReadCommitted, [write(X, None, 7)]),
    ];
    assert_eq!(found(&history), [None, Some("G-single"), Some("G-single")]);
    // Each adds a row that the other did not find.
    let history = vec![
        transaction(ReadCommitted, [group(&[]), write(X, None, 1)]),
        transaction(ReadCommitted, [group(&[]), write(Y, None, 2)]),
    ];
    assert_eq!(found(&history), [None, None, Some("G2")]);
    // Each takes away one of the two rows that it counted.
    let made = Transaction { ended: 1, ..transaction(ReadCommitted, [write(X, None, 1), write(Y, None, 2)]) };
    let both = group(&[(1, 1), (2, 2)]);
    let taker =
        |key, value| Transaction { began: 10, ..transaction(ReadCommitted, [both.clone(), write(key, value, None)]) };
    assert_eq!(found(&vec![made.clone(), taker(X, 1), taker(Y, 2)]), [None, None, Some("G2")]);
    // A count tells as much as the list.
    let history = vec![
        transaction(ReadCommitted, [Op::Length { key: Y, length: 0 }, append(X, 1)]),
        transaction(ReadCommitted, [Op::Length { key: X, length: 0 }, append(Y, 2)]),
        end(&[1], &[2]),
    ];
    assert_eq!(found(&history), [None, None, Some("G2")]);
    // A row that is gone and one that is not there yet are told by when they were.
    let gone = Transaction { began: 200, ended: 210, ..transaction(ReadCommitted, [write(X, 1, None)]) };
    let after = Transaction { began: 300, ended: 310, ..transaction(ReadCommitted, [row(X, None), row(Y, 2)]) };
    assert_eq!(found(&vec![made.clone(), gone.clone(), after]), [None; 3]);
    let stale = Transaction { began: 300, ended: 310, ..transaction(RepeatableRead, [row(X, 1)]) };
    assert_eq!(check(&vec![made, gone, stale])[0].name, "G-SI in real time");
}

/// Fekete, O'Neil and O'Neil, A Read-Only Transaction Anomaly Under Snapshot Isolation, SIGMOD Record 2004.
#[test]
fn read_only_transaction_anomaly() {
    let history = vec![
        // Withdraws, and charges, as it saw no deposit.
        transaction(ReadCommitted, [list(X, &[]), list(Y, &[]), append(X, 1)]),
        // Deposits.
        transaction(ReadCommitted, [list(Y, &[]), append(Y, 2)]),
        // Looks between the two.
        transaction(ReadCommitted, [list(X, &[]), list(Y, &[2])]),
        end(&[1], &[2]),
    ];
    assert_eq!(found(&history), [None, None, Some("G2")]);
}

#[test]
fn what_a_transaction_wrote_itself() {
    let history = vec![transaction(ReadCommitted, [append(X, 1), list(X, &[])]), end(&[1], &[])];
    assert_eq!(found(&history), [Some("a missed write of its own"); 3]);
    let history = vec![transaction(ReadCommitted, [write(X, None, 1), write(X, 1, 2), row(X, 1)])];
    assert_eq!(found(&history), [Some("a missed write of its own"); 3]);
}

#[test]
fn lists_that_contradict_one_another() {
    let history = vec![
        transaction(ReadCommitted, [append(X, 1)]),
        transaction(ReadCommitted, [append(X, 2)]),
        transaction(ReadCommitted, [list(X, &[2])]),
        end(&[1, 2], &[]),
    ];
    assert_eq!(found(&history), [Some("incompatible orders"); 3]);
    let history = vec![transaction(ReadCommitted, [append(X, 1)]), end(&[1, 1], &[])];
    assert_eq!(found(&history)[0], Some("a duplicate"));
}
