//! Joins of many rows, and such as must not take for ever.

use super::*;

#[test]
fn many_rows_come_in_chunks() {
    let workers = Workers::start(2, 1 << 20, || {}).unwrap();
    let mut random = Random(11);
    for form in [Form::Narrow, Form::Wide, Form::Text] {
        for (probe_rows, build_rows, values) in
            [(3000, 300, 1), (5000, 5000, 4000), (40, 9000, 3), (1, 30_000, 2), (7000, 20_000, 100_000)]
        {
            let probe = Side::new(&mut random, &[form], probe_rows, values, false, false);
            let build = Side::new(&mut random, &[form], build_rows, values, build_rows < 6000, true);
            for kind in KINDS {
                for with_residual in [false, true] {
                    let mut join = join_of(kind, &[form], &probe, &build);
                    join.residual = with_residual.then(|| residual(1, &probe, &build));
                    let table = JoinTable::new(join.clone(), Arc::new(Never)).unwrap();
                    let (b, p) = (build.chunks(&mut random, CHUNK_ROWS), probe.chunks(&mut random, CHUNK_ROWS));
                    let chunks = by_run(&workers, &table, b, p);
                    let what = format!("{form:?} {kind:?} {probe_rows} {build_rows} {values} {with_residual}");
                    assert!(chunks.iter().all(|chunk| chunk.rows <= CHUNK_ROWS), "{what}");
                    let rows: usize = chunks.iter().map(|chunk| chunk.rows).sum();
                    assert_eq!(rows, count(&join, &probe, &build), "{what}");
                }
            }
        }
    }
}

/// How many rows come out.
fn count(join: &Join, probe: &Side, build: &Side) -> usize {
    let mut of_key: std::collections::HashMap<Cell, Vec<Cell>> = Default::default();
    build.rows.iter().for_each(|row| of_key.entry(row[0]).or_default().push(row[1]));
    let passes = |a: Cell, b: Cell| join.residual.is_none() || matches!((a, b), (Some(a), Some(b)) if a < b);
    let mut least: std::collections::HashMap<Cell, Option<Cell>> = Default::default();
    let (mut pairs, mut hits) = (0, 0);
    for row in &probe.rows {
        let found = of_key.get(&row[0]).map_or(0, |all| all.iter().filter(|other| passes(row[1], **other)).count());
        pairs += found;
        hits += usize::from(found > 0);
        let entry = least.entry(row[0]).or_default();
        *entry = Some(entry.unwrap_or(row[1]).min(row[1]));
    }
    let hit = |row: &&Vec<Cell>| {
        row[0].is_some() && least.get(&row[0]).copied().flatten().is_some_and(|least| passes(least, row[1]))
    };
    let build_hits = build.rows.iter().filter(hit).count();
    let (probe_rows, build_rows) = (probe.rows.len(), build.rows.len());
    match join.kind {
        JoinKind::Inner => pairs,
        JoinKind::Left => pairs + probe_rows - hits,
        JoinKind::Right => pairs + build_rows - build_hits,
        JoinKind::Full => pairs + probe_rows - hits + build_rows - build_hits,
        JoinKind::LeftSemi => hits,
        JoinKind::LeftAnti => probe_rows - hits,
        JoinKind::RightSemi => build_hits,
        JoinKind::RightAnti => build_rows - build_hits,
        JoinKind::LeftMark => probe_rows,
    }
}

/// Rows of one key on both sides, where pairs are not what is asked for.
#[test]
fn rows_that_are_known_to_match_are_not_looked_up_again() {
    let mut random = Random(5);
    let side = Side::new(&mut random, &[Form::Narrow], 60_000, 1, false, false);
    for form in [Form::Narrow, Form::Wide, Form::Text] {
        let mut side = side.clone();
        (side.forms[0], side.types[0]) = (form, ColumnType { nullable: false, ..form.of() });
        for (kind, rows) in [(JoinKind::RightSemi, 60_000), (JoinKind::RightAnti, 0), (JoinKind::LeftSemi, 60_000)] {
            let join = join_of(kind, &[form], &side, &side);
            let table = JoinTable::new(join, Arc::new(Never)).unwrap();
            let (b, p) = (side.chunks(&mut random, CHUNK_ROWS), side.chunks(&mut random, CHUNK_ROWS));
            let chunks = by_hand(&table, b, p);
            assert_eq!(chunks.iter().map(|chunk| chunk.rows).sum::<usize>(), rows, "{form:?} {kind:?}");
        }
    }
}

/// Refuses to be asked more than some times.
struct Patience(AtomicUsize);

impl Interruption for Patience {
    fn check(&self) -> Result<()> {
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(tidepool_base::SqlState::QUERY_CANCELED, "enough")),
        }
    }
}

#[test]
fn a_chunk_of_endless_pairs_can_be_stopped() {
    let mut random = Random(3);
    let side = Side::new(&mut random, &[Form::Narrow], 20_000, 1, false, false);
    for (forms, with_residual) in [(&[][..], false), (&[][..], true), (&[Form::Narrow][..], false)] {
        for kind in [JoinKind::Inner, JoinKind::Full, JoinKind::LeftAnti, JoinKind::RightAnti] {
            let mut join = join_of(kind, forms, &side, &side);
            let compared = Expr::compare(
                CompareOp::Lt,
                Expr::column(1, side.types[1].clone()),
                Expr::column(4, side.types[1].clone()),
            );
            // No row's number is below itself, and all are its equals: it goes on to the end.
            let never = Expr::compare(
                CompareOp::Gt,
                Expr::column(2, side.types[2].clone()),
                Expr::literal(crate::expr::Scalar::Int(1 << 40), DataType::Int64),
            );
            join.residual = with_residual.then(|| Expr::and(vec![compared.unwrap(), never.unwrap()]));
            if !with_residual && !kind.pairs() {
                continue;
            }
            let table = JoinTable::new(join, Arc::new(Patience(AtomicUsize::new(10)))).unwrap();
            let sink = BuildSink::new(&table);
            let mut state = sink.worker().unwrap();
            side.chunks(&mut random, CHUNK_ROWS).into_iter().for_each(|chunk| state.push(chunk).unwrap());
            sink.finish(0, &mut vec![state]).unwrap().into_iter().for_each(|task| task().unwrap());
            let mut step = Probe::new(&table).worker().unwrap();
            let chunk = side.chunks(&mut random, CHUNK_ROWS).remove(0);
            let mut rows = 0;
            let stopped = step.push(chunk, &mut |chunk| {
                rows += chunk.rows;
                Ok(())
            });
            assert_eq!(stopped.unwrap_err().code().code(), "57014", "{forms:?} {kind:?}");
            // Each time, as many pairs as two chunks have rows at most.
            assert!(rows <= 22 * CHUNK_ROWS);
        }
    }
}

#[test]
fn what_is_no_join_is_refused() {
    let mut random = Random(1);
    let side = Side::new(&mut random, &[Form::Narrow], 3, 3, true, false);
    let text = Side::new(&mut random, &[Form::Text], 3, 3, true, false);
    let refused = |join: Join| JoinTable::new(join, Arc::new(Never)).is_err();
    let good = || join_of(JoinKind::LeftAnti, &[Form::Narrow], &side, &side);
    assert!(!refused(good()));
    assert!(refused(join_of(JoinKind::Inner, &[Form::Narrow], &side, &text)));
    assert!(refused(Join { kind: JoinKind::Inner, null_aware: true, ..good() }));
    assert!(refused(Join { keys: Vec::new(), null_aware: true, ..good() }));
    assert!(refused(Join { probe_output: vec![9], ..good() }));
    assert!(refused(Join { kind: JoinKind::Right, build_output: vec![9], ..good() }));
    let list = ColumnType::new(DataType::Interval(arrow_schema::IntervalUnit::DayTime), true);
    let build_types = [side.types.clone(), vec![list]].concat();
    assert!(refused(Join { kind: JoinKind::Inner, build_output: vec![3], build_types: build_types.clone(), ..good() }));
    assert!(!refused(Join { build_output: vec![3], build_types, ..good() }));
}
