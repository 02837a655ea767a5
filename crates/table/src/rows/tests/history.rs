//! Histories of several sessions against a model that knows what must come of each step.

use super::*;

/// What a model knows of a row: its states by commit timestamp.
type History = BTreeMap<RowId, Vec<(CommitTs, Option<(i64, i64)>)>>;

fn at(history: &History, row: RowId, ts: CommitTs) -> Option<(i64, i64)> {
    history.get(&row)?.iter().rev().find(|(since, _)| *since <= ts)?.1
}

struct Modelled {
    session: Session,
    /// By row, and in the order of writing.
    pending: Vec<(RowId, Option<(i64, i64)>)>,
    savepoints: Vec<(Savepoint, usize)>,
    isolation: Isolation,
}

impl Modelled {
    fn sees(&self, history: &History, row: RowId, ts: CommitTs) -> Option<(i64, i64)> {
        let own = self.pending.iter().rev().find(|(written, _)| *written == row);
        own.map_or_else(|| at(history, row, ts), |(_, state)| *state)
    }

    fn has(&self, row: RowId) -> bool {
        self.pending.iter().any(|(written, _)| *written == row)
    }
}

/// Several sessions, one step at a time, so that the model knows what must come of each.
pub(super) fn run_history(seed: u64, steps: usize, fixture: Fixture) {
    let mut next = noise(seed);
    let mut history = History::new();
    let mut rows: Vec<RowId> = Vec::new();
    let mut sessions: Vec<Modelled> = (0..4)
        .map(|_| Modelled {
            session: fixture.session(),
            pending: Vec::new(),
            savepoints: Vec::new(),
            isolation: Isolation::ReadCommitted,
        })
        .collect();
    let merger = fixture.all.worker().unwrap();
    let mut held: Vec<tidepool_txn::HeldSnapshot> = Vec::new();
    for step in 0..steps {
        let who = next() as usize % sessions.len();
        let others: Vec<(Tag, Vec<RowId>)> = (sessions.iter().enumerate())
            .filter(|(other, _)| *other != who)
            .map(|(_, other)| (other.session.worker.tag(), other.pending.iter().map(|(row, _)| *row).collect()))
            .collect();
        let me = &mut sessions[who];
        let row = if rows.is_empty() { RowId::new(0, 0) } else { rows[next() as usize % rows.len()] };
        if !me.session.worker.is_active() {
            me.isolation = if next().is_multiple_of(2) { Isolation::ReadCommitted } else { Isolation::RepeatableRead };
            me.session.begin(me.isolation);
        }
        let value = next() as i64 % 100_000;
        match next() % 32 {
            0..=7 => match me.session.insert(step as i64, value) {
                Ok(row) => {
                    rows.push(row);
                    me.pending.push((row, Some((step as i64, value))));
                    me.session.next();
                }
                Err(error) => assert_eq!(error.code(), SqlState::OUT_OF_MEMORY),
            },
            8..=19 => {
                let ts = me.session.worker.snapshot().ts();
                let seen = me.sees(&history, row, ts);
                let deletes = next().is_multiple_of(4);
                let id = seen.map_or(-1, |(id, _)| id);
                let outcome = if deletes { me.session.delete(row) } else { me.session.update(row, id, value) };
                let outcome = match outcome {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                        continue;
                    }
                };
                let holder = others.iter().find(|(_, written)| written.contains(&row));
                let newest = history.get(&row).and_then(|states| states.last());
                let expected = if let Some((tag, _)) = holder {
                    Outcome::Conflict(*tag)
                } else if me.has(row) {
                    if seen.is_some() { Outcome::Written } else { Outcome::Deleted }
                } else {
                    match newest {
                        Some((since, state)) if *since > ts => Outcome::Newer { ts: *since, deleted: state.is_none() },
                        Some((_, Some(_))) => Outcome::Written,
                        _ => Outcome::Deleted,
                    }
                };
                // Of a row that is gone for everybody nothing may be left to tell since when.
                let gone = matches!(expected, Outcome::Newer { deleted: true, .. }) && outcome == Outcome::Deleted;
                assert!(outcome == expected || gone, "step {step}: {outcome:?} in the place of {expected:?}");
                if outcome == Outcome::Written {
                    me.pending.push((row, (!deletes).then_some((id, value))));
                    me.session.next();
                }
            }
            20 => me.savepoints.push((me.session.writes.savepoint(), me.pending.len())),
            21 => {
                if let Some((savepoint, len)) = me.savepoints.pop() {
                    me.session.writes.undo_to(savepoint, &me.session.worker);
                    me.pending.truncate(len);
                }
            }
            22..=23 => {
                let ts = me.session.worker.snapshot().ts();
                assert_eq!(me.session.read(row), me.sees(&history, row, ts), "step {step}");
            }
            24 => {
                let view = me.session.worker.snapshot();
                let expected: BTreeMap<RowId, (i64, i64)> = (rows.iter())
                    .filter_map(|row| me.sees(&history, *row, view.ts()).map(|state| (*row, state)))
                    .collect();
                assert_eq!(scan(&me.session.store, &view), expected, "step {step}");
            }
            25..=27 => {
                if let Some(ts) = me.session.commit().unwrap() {
                    let last: BTreeMap<RowId, _> = me.pending.drain(..).collect();
                    for (row, state) in last {
                        history.entry(row).or_default().push((ts, state));
                    }
                }
                me.savepoints.clear();
                me.pending.clear();
            }
            28 => {
                me.session.abort();
                me.savepoints.clear();
                me.pending.clear();
            }
            29 => {
                for number in 0..fixture.store.ranges() {
                    if let Err(error) = fixture.merge(&merger, number) {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                    }
                }
            }
            30 => {
                for number in 0..fixture.store.ranges() {
                    fixture.store.finish_merge(&merger, number);
                }
                merger.collect();
            }
            _ => {
                if held.len() < 3 {
                    // Without the holder's own rows.
                    held.push(merger.hold());
                } else {
                    let snapshot = held.swap_remove(next() as usize % 3);
                    let expected: BTreeMap<RowId, (i64, i64)> = (rows.iter())
                        .filter_map(|row| at(&history, *row, snapshot.ts()).map(|state| (*row, state)))
                        .collect();
                    assert_eq!(scan(&fixture.store, &snapshot), expected, "step {step}");
                }
            }
        }
        if next().is_multiple_of(200) {
            fixture.store.seal();
        }
    }
    held.clear();
    drop((sessions, merger));
    fixture.check_empty();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn histories_of_several_sessions_agree_with_a_model() {
    for seed in 0..6 {
        run_history(seed, STEPS, Fixture::new());
    }
}

#[test]
fn histories_agree_with_a_model_when_memory_runs_out() {
    for seed in if cfg!(miri) { 100..102 } else { 100..104 } {
        run_history(seed, STEPS, Fixture::tiny());
    }
}
