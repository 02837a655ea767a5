//! Joins against one that tries every pair.

mod many;

use super::*;
use crate::expr::Expr;
use crate::mask::Mask;
use crate::pipeline::{Next, Operator, Pipeline, Reader, Sink, SinkState, Source, Task, states_of};
use crate::run::{Interruption, Run};
use crate::schedule::Workers;
use crate::touch::Meter;
use crate::vector::{CHUNK_ROWS, Chunk, Values, Vector};
use arrow_array::{ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, StringViewArray};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use tidepool_table::CompareOp;

struct Never;

impl Interruption for Never {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        crate::hash::of_int(self.0 as i64)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Narrow,
    Wide,
    /// Of 128 bits.
    Decimal,
    Float,
    Bool,
    Text,
}

type Cell = Option<i64>;

impl Form {
    fn of(self) -> ColumnType {
        ColumnType::new(
            match self {
                Form::Narrow | Form::Wide => DataType::Int64,
                Form::Decimal => DataType::Decimal128(38, 0),
                Form::Float => DataType::Float64,
                Form::Bool => DataType::Boolean,
                Form::Text => DataType::Utf8View,
            },
            true,
        )
    }

    /// The value that stands for a number; numbers that are equal may look different.
    fn float(cell: i64, row: usize) -> f64 {
        match (cell, row % 2) {
            (0, 0) => 0.0,
            (0, _) => -0.0,
            (1, 0) => f64::NAN,
            (1, _) => -f64::NAN,
            (2, _) => f64::INFINITY,
            _ => cell as f64 / 3.0,
        }
    }

    /// Numbers as a column of this form.
    fn column(self, cells: &[Cell]) -> Vector {
        const FAR: i64 = 1_000_000_007_000_001;
        let array: ArrayRef = match self {
            Form::Narrow => Arc::new(cells.iter().copied().collect::<Int64Array>()),
            Form::Wide => {
                let far = |cell: &Cell| cell.map(|cell| cell.wrapping_mul(FAR).wrapping_add(i64::MIN));
                Arc::new(cells.iter().map(far).collect::<Int64Array>())
            }
            Form::Decimal => {
                let all = cells.iter().map(|cell| cell.map(|cell| (cell as i128) << 70)).collect::<Decimal128Array>();
                Arc::new(all.with_precision_and_scale(38, 0).unwrap())
            }
            Form::Float => {
                let float = |(row, cell): (usize, &Cell)| cell.map(|cell| Form::float(cell, row));
                Arc::new(cells.iter().enumerate().map(float).collect::<Float64Array>())
            }
            Form::Bool => Arc::new(cells.iter().map(|cell| cell.map(|cell| cell != 0)).collect::<BooleanArray>()),
            Form::Text => {
                let text = |cell: &Cell| cell.map(|cell| format!("{}{cell}", "long ".repeat(cell as usize % 4)));
                Arc::new(cells.iter().map(text).collect::<StringViewArray>())
            }
        };
        let mut vector = Vector::from_arrow(&array, &self.of()).unwrap();
        // Whatever is where there is none.
        if let (Values::Int(values), Some(valid)) = (&vector.values, &vector.valid) {
            let junk = |(row, value): (usize, &i64)| if valid.get(row) { *value } else { row as i64 };
            vector.values = Values::Int(values.iter().enumerate().map(junk).collect());
        }
        vector
    }
}

/// Keys, then a number for the residual, then the row's own number; on the build side also a text.
#[derive(Clone)]
struct Side {
    forms: Vec<Form>,
    rows: Vec<Vec<Cell>>,
    types: Vec<ColumnType>,
}

impl Side {
    fn new(random: &mut Random, keys: &[Form], rows: usize, values: usize, nulls: bool, with_text: bool) -> Side {
        let mut forms = keys.to_vec();
        forms.extend([Form::Narrow, Form::Narrow]);
        if with_text {
            forms.push(Form::Text);
        }
        let cell = |random: &mut Random, column: usize, row: usize| {
            if column == keys.len() + 1 {
                return Some(row as i64);
            }
            let limit = match keys.get(column) {
                Some(Form::Bool) => values.min(2),
                Some(_) => values,
                None => 20,
            };
            (!nulls || random.below(8) > 0).then(|| random.below(limit) as i64)
        };
        let rows = (0..rows).map(|row| (0..forms.len()).map(|column| cell(random, column, row)).collect());
        let rows: Vec<Vec<Cell>> = rows.collect();
        let mut types: Vec<ColumnType> = forms.iter().map(|form| form.of()).collect();
        for (column, of) in types.iter_mut().enumerate() {
            of.nullable = rows.iter().any(|row| row[column].is_none());
        }
        Side { forms, rows, types }
    }

    fn chunks(&self, random: &mut Random, most: usize) -> Vec<Chunk> {
        let (mut chunks, mut start) = (Vec::new(), 0);
        while start < self.rows.len() {
            let rows = &self.rows[start..][..(1 + random.below(most)).min(self.rows.len() - start)];
            let column = |column: usize| {
                let cells: Vec<Cell> = rows.iter().map(|row| row[column]).collect();
                self.forms[column].column(&cells)
            };
            chunks.push(Chunk::new(rows.len(), (0..self.forms.len()).map(column).collect()));
            start += rows.len();
        }
        chunks
    }
}

/// Whether a pair matches; `None`: NULL may make it so.
fn matches(join: &Join, keys: usize, probe: &[Cell], build: &[Cell]) -> Option<bool> {
    if join.residual.is_some() && !matches!((probe[keys], build[keys]), (Some(a), Some(b)) if a < b) {
        return Some(false);
    }
    let mut result = Some(true);
    for key in &join.keys {
        match (probe[key.probe], build[key.build]) {
            (Some(a), Some(b)) if a == b => {}
            (None, None) if key.nulls_equal => {}
            (None, _) | (_, None) if !key.nulls_equal => {
                result = result.and_then(|found| if found { None } else { Some(false) })
            }
            _ => return Some(false),
        }
    }
    result
}

/// What comes out, as text: nothing of how a value is written differs between the two that are compared.
fn expected(join: &Join, keys: usize, probe: &Side, build: &Side) -> Vec<String> {
    let any = |found: &mut dyn Iterator<Item = Option<bool>>| {
        let mut any = Some(false);
        for found in found {
            match found {
                Some(true) => return Some(true),
                Some(false) => {}
                None => any = None,
            }
        }
        if join.null_aware { any } else { Some(false) }
    };
    let of_probe = |row: Option<&Vec<Cell>>| -> Vec<Cell> {
        join.probe_output.iter().map(|column| row.and_then(|row| row[*column])).collect()
    };
    let of_build = |row: Option<&Vec<Cell>>| -> Vec<Cell> {
        join.build_output.iter().map(|column| row.and_then(|row| row[*column])).collect()
    };
    let mut all: Vec<Vec<Cell>> = Vec::new();
    for p in &probe.rows {
        let found = any(&mut build.rows.iter().map(|b| matches(join, keys, p, b)));
        if join.kind.pairs() {
            for b in build.rows.iter().filter(|b| matches(join, keys, p, b) == Some(true)) {
                all.push([of_probe(Some(p)), of_build(Some(b))].concat());
            }
        }
        match join.kind {
            JoinKind::Left | JoinKind::Full if found != Some(true) => {
                all.push([of_probe(Some(p)), of_build(None)].concat())
            }
            JoinKind::LeftSemi if found == Some(true) => all.push(of_probe(Some(p))),
            JoinKind::LeftAnti if found == Some(false) => all.push(of_probe(Some(p))),
            JoinKind::LeftMark => all.push([of_probe(Some(p)), vec![found.map(i64::from)]].concat()),
            _ => {}
        }
    }
    for b in &build.rows {
        let found = any(&mut probe.rows.iter().map(|p| matches(join, keys, p, b)));
        match join.kind {
            JoinKind::Right | JoinKind::Full if found != Some(true) => {
                all.push([of_probe(None), of_build(Some(b))].concat())
            }
            JoinKind::RightSemi if found == Some(true) => all.push(of_build(Some(b))),
            JoinKind::RightAnti if found == Some(false) => all.push(of_build(Some(b))),
            _ => {}
        }
    }
    let mut all: Vec<String> = all.iter().map(|row| format!("{row:?}")).collect();
    all.sort();
    all
}

/// Numbers that values stand for.
fn cells(form: Form, vector: &Vector) -> Vec<Cell> {
    (0..vector.len())
        .map(|row| {
            vector.is_valid(row).then(|| match (&vector.values, form) {
                (Values::Int(values), Form::Wide) => values[row].wrapping_sub(i64::MIN) / 1_000_000_007_000_001,
                (Values::Int(values), _) => values[row],
                (Values::Wide(values), _) => (values[row] >> 70) as i64,
                (Values::Float(values), _) => match values[row] {
                    value if value.is_nan() => 1,
                    f64::INFINITY => 2,
                    value => (value * 3.0).round() as i64,
                },
                (Values::Bool(values), _) => i64::from(values.get(row)),
                (Values::Text(texts), _) => {
                    String::from_utf8_lossy(texts.bytes(row)).trim_start_matches("long ").parse().unwrap()
                }
                _ => unreachable!(),
            })
        })
        .collect()
}

fn actual(join: &Join, probe: &Side, build: &Side, chunks: &[Chunk]) -> Vec<String> {
    let mut forms: Vec<Form> = Vec::new();
    if join.kind.emits_probe() {
        forms.extend(join.probe_output.iter().map(|column| probe.forms[*column]));
    }
    if !join.kind.tests_probe() {
        forms.extend(join.build_output.iter().map(|column| build.forms[*column]));
    }
    if join.kind == JoinKind::LeftMark {
        forms.push(Form::Bool);
    }
    let types = join.output();
    let mut all = Vec::new();
    for chunk in chunks {
        assert!(chunk.rows > 0 && chunk.rows <= CHUNK_ROWS, "{} rows", chunk.rows);
        assert_eq!(chunk.columns.len(), forms.len());
        for (column, of) in chunk.columns.iter().zip(&types) {
            assert_eq!(column.len(), chunk.rows);
            assert_eq!(column.values.class(), of.class());
            assert!(of.nullable || column.valid.is_none());
        }
        let columns: Vec<Vec<Cell>> =
            forms.iter().zip(&chunk.columns).map(|(form, column)| cells(*form, column)).collect();
        all.extend((0..chunk.rows).map(|row| {
            let row: Vec<Cell> = columns.iter().map(|column| column[row]).collect();
            format!("{row:?}")
        }));
    }
    all.sort();
    all
}

fn in_turns(chunks: Vec<Chunk>, states: usize, mut push: impl FnMut(usize, Chunk)) {
    chunks.into_iter().enumerate().for_each(|(index, chunk)| push(index % states, chunk));
}

/// By hand, with several workers' states.
fn by_hand(table: &Arc<JoinTable>, build: Vec<Chunk>, probe: Vec<Chunk>) -> Vec<Chunk> {
    let sink = BuildSink::new(table);
    let mut states: Vec<Box<dyn SinkState>> = (0..3).map(|_| sink.worker().unwrap()).collect();
    in_turns(build, 3, |state, chunk| states[state].push(chunk).unwrap());
    for round in 0.. {
        let tasks: Vec<Task> = sink.finish(round, &mut states).unwrap();
        if tasks.is_empty() {
            break;
        }
        std::thread::scope(|scope| {
            tasks.into_iter().for_each(|task| drop(scope.spawn(|| task().unwrap())));
        });
    }
    let mut all = Vec::new();
    let operator = Probe::new(table);
    let mut steps: Vec<_> = (0..2).map(|_| operator.worker().unwrap()).collect();
    in_turns(probe, 2, |step, chunk| {
        if !steps[step].is_satisfied() {
            let mut out = |chunk| {
                all.push(chunk);
                Ok(())
            };
            steps[step].push(chunk, &mut out).unwrap();
        }
    });
    if table.join().kind.emits_build() {
        let source = BuildRows::new(table);
        let mut readers: Vec<_> = (0..2).map(|_| source.reader().unwrap()).collect();
        while !readers.is_empty() {
            readers.retain_mut(|reader| match reader.next().unwrap() {
                Next::Chunk(chunk) => {
                    all.push(chunk);
                    true
                }
                _ => false,
            });
        }
    }
    all
}

struct Given {
    chunks: Arc<Vec<Chunk>>,
    next: Arc<AtomicUsize>,
}

impl Source for Given {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(Given { chunks: self.chunks.clone(), next: self.next.clone() }))
    }
}

impl Reader for Given {
    fn next(&mut self) -> Result<Next> {
        let chunk = self.chunks.get(self.next.fetch_add(1, Ordering::Relaxed)).cloned();
        Ok(chunk.map_or(Next::End, Next::Chunk))
    }
}

#[derive(Default)]
struct Collect(Mutex<Vec<Chunk>>);

#[derive(Default)]
struct Collected(Vec<Chunk>);

impl Sink for Collect {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::<Collected>::default())
    }

    fn finish(&self, _: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        let chunks = states_of::<Collected>(states).into_iter().flat_map(|state| state.0);
        self.0.lock().unwrap().extend(chunks);
        Ok(Vec::new())
    }
}

impl SinkState for Collected {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        self.0.push(chunk);
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// As pipelines of a run.
fn by_run(workers: &Workers, table: &Arc<JoinTable>, build: Vec<Chunk>, probe: Vec<Chunk>) -> Vec<Chunk> {
    let given = |chunks| Arc::new(Given { chunks: Arc::new(chunks), next: Arc::default() });
    let collect = Arc::new(Collect::default());
    let pipeline = |source: Arc<dyn Source>, operators: Vec<Arc<dyn Operator>>, sink: Arc<dyn Sink>| Pipeline {
        counters: (0..operators.len() + 2).map(|_| Arc::default()).collect(),
        source,
        operators,
        sink,
        account: None,
    };
    let mut pipelines = vec![
        pipeline(given(build), vec![], Arc::new(BuildSink::new(table))),
        pipeline(given(probe), vec![Arc::new(Probe::new(table))], collect.clone()),
    ];
    if table.join().kind.emits_build() {
        pipelines.push(pipeline(Arc::new(BuildRows::new(table)), vec![], collect.clone()));
    }
    let (over, result) = mpsc::channel();
    let run = Run::start(pipelines, None, Arc::new(Never), workers.tickets(), 2, &[], false, move |result| {
        over.send(result).unwrap();
    });
    result.recv().unwrap().unwrap();
    drop(run);
    std::mem::take(&mut *collect.0.lock().unwrap())
}

const KINDS: [JoinKind; 9] = [
    JoinKind::Inner,
    JoinKind::Left,
    JoinKind::Right,
    JoinKind::Full,
    JoinKind::LeftSemi,
    JoinKind::LeftAnti,
    JoinKind::RightSemi,
    JoinKind::RightAnti,
    JoinKind::LeftMark,
];

fn residual(keys: usize, probe: &Side, build: &Side) -> Expr {
    let (a, b) = (probe.types[keys].clone(), build.types[keys].clone());
    let right = Expr::column(probe.types.len() + keys, b);
    Expr::compare(CompareOp::Lt, Expr::column(keys, a), right).unwrap()
}

fn join_of(kind: JoinKind, forms: &[Form], probe: &Side, build: &Side) -> Join {
    let keys = forms.len();
    Join {
        kind,
        null_aware: false,
        probe_types: probe.types.clone(),
        build_types: build.types.clone(),
        keys: (0..keys).map(|key| JoinKey { probe: key, build: key, nulls_equal: false }).collect(),
        residual: None,
        probe_output: vec![keys + 1, keys],
        build_output: (0..build.forms.len()).rev().collect(),
        filters: false,
    }
}

#[test]
fn pairs_are_those_that_match() {
    use Form::{Bool, Decimal, Float, Narrow, Text, Wide};
    let workers = Workers::start(2, 1 << 20, || {}).unwrap();
    let mut random = Random(7);
    let mut variants = std::collections::BTreeMap::new();
    let keys: [&[Form]; 10] = [
        &[],
        &[Narrow],
        &[Wide],
        &[Text],
        &[Float],
        &[Bool],
        &[Decimal],
        &[Narrow, Text],
        &[Wide, Float],
        &[Narrow, Narrow],
    ];
    for forms in keys {
        for case in 0..30 {
            let sizes = [0, 1, 5, 40, 200];
            let (probe_rows, build_rows) = (sizes[random.below(5)], sizes[random.below(5)]);
            let (values, nulls) = ([1, 4, 30, 400][random.below(4)], random.below(3) > 0);
            let probe_nulls = nulls && random.below(2) > 0;
            let probe = Side::new(&mut random, forms, probe_rows, values, probe_nulls, false);
            let build = Side::new(&mut random, forms, build_rows, values, nulls, true);
            let nulls_equal = case % 3 == 0;
            for kind in KINDS {
                for (with_residual, null_aware) in [(false, false), (true, false), (false, true), (true, true)] {
                    let mut join = join_of(kind, forms, &probe, &build);
                    join.filters = case % 2 == 0;
                    join.residual = with_residual.then(|| residual(forms.len(), &probe, &build));
                    if null_aware {
                        let can_be = matches!(kind, JoinKind::LeftAnti | JoinKind::LeftMark | JoinKind::RightAnti);
                        if !can_be || forms.len() != 1 {
                            continue;
                        }
                        join.null_aware = true;
                    } else if nulls_equal && let Some(key) = join.keys.last_mut() {
                        key.nulls_equal = true;
                    }
                    let wanted = expected(&join, forms.len(), &probe, &build);
                    // Tables of few rows would all be dense.
                    let none_is_dense = table::Narrow { dense_words_per_row: 0, dense_words_min: 0 };
                    let narrow = (random.below(2) > 0).then_some(none_is_dense);
                    let table = JoinTable::narrow(join.clone(), Arc::new(Never), Meter::default(), narrow).unwrap();
                    let (b, p) = (build.chunks(&mut random, 70), probe.chunks(&mut random, 70));
                    let chunks =
                        if random.below(4) > 0 { by_hand(&table, b, p) } else { by_run(&workers, &table, b, p) };
                    let what = format!("{forms:?} {kind:?}, case {case}, residual {with_residual}, aware {null_aware}");
                    assert_eq!(actual(&join, &probe, &build, &chunks), wanted, "{what}, {:?}", table.variant());
                    *variants.entry(format!("{:?}", table.variant().unwrap())).or_insert(0) += 1;
                    check_filters(&table, &join, &probe, &build);
                }
            }
        }
    }
    assert_eq!(
        variants.keys().collect::<Vec<_>>(),
        ["Bitmap", "Dense", "Empty", "Hash", "Nested", "Ranked"],
        "{variants:?}"
    );
}

/// No filter drops a row that matches.
fn check_filters(table: &JoinTable, join: &Join, probe: &Side, build: &Side) {
    for (index, key) in join.keys.iter().enumerate() {
        let Some(filter) = table.key_filter(index) else { continue };
        let form = probe.forms[key.probe];
        let keyed: Vec<&Vec<Cell>> = build
            .rows
            .iter()
            .filter(|row| join.keys.iter().all(|key| key.nulls_equal || row[key.build].is_some()))
            .collect();
        let values: Vec<Cell> = (-3..430).map(Some).collect();
        let there = |cell: &Cell| keyed.iter().any(|row| row[key.build] == *cell);
        let vector = form.column(&values);
        let mut words = vec![u64::MAX; values.len().div_ceil(64)];
        words[0] &= !(1 << 5);
        filter.test_ints(vector.as_ints().unwrap(), &mut words);
        let mask = Mask::from_words(words, values.len());
        for (row, value) in values.iter().enumerate() {
            if row == 5 {
                assert!(!mask.get(row));
            } else if there(value) {
                assert!(mask.get(row), "{value:?}");
            } else if filter.is_exact() {
                assert!(!mask.get(row), "{value:?}");
            }
        }
    }
}
