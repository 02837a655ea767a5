//! Against a model that takes one row at a time.

use super::local::Limits;
use super::plan::Variant;
use super::*;
use crate::counters::Counters;
use crate::hash::float_bits;
use crate::mask::Mask;
use crate::pipeline::Pipeline;
use crate::run::{Interruption, Run};
use crate::schedule::Workers;
use crate::text::{Owners, Text};
use crate::touch::Meter;
use crate::types::Class;
use crate::vector::{Chunk, Texts, Values, Vector};
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use std::collections::{BTreeMap, BTreeSet};
use tidepool_base::SqlState;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Int(i128),
    /// As a key that orders.
    Float(u64),
    Bool(bool),
    Text(Vec<u8>),
}

type Column = Vec<Option<Cell>>;

fn float(value: f64) -> Cell {
    Cell::Float(states::float_key(f64::from_bits(float_bits(value))))
}

impl Cell {
    fn as_int(&self) -> i128 {
        if let Cell::Int(value) = self { *value } else { panic!("{self:?}") }
    }

    fn as_float(&self) -> f64 {
        match self {
            Cell::Int(value) => *value as f64,
            Cell::Float(key) => states::float_of_key(*key),
            other => panic!("{other:?}"),
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn vector(cells: &[Option<Cell>], of: &ColumnType) -> Vector {
    let junk = |row: usize| row as i64 * 0x0123_4567_89ab_cdef;
    let values = match of.class() {
        Class::Int => {
            let value =
                |(row, cell): (usize, &Option<Cell>)| cell.as_ref().map_or(junk(row), |cell| cell.as_int() as i64);
            Values::Int(cells.iter().enumerate().map(value).collect::<Vec<_>>().into())
        }
        Class::Wide => {
            let value = |cell: &Option<Cell>| cell.as_ref().map_or(-7, Cell::as_int);
            Values::Wide(cells.iter().map(value).collect::<Vec<_>>().into())
        }
        Class::Float => {
            let value = |cell: &Option<Cell>| cell.as_ref().map_or(f64::INFINITY, Cell::as_float);
            Values::Float(cells.iter().map(value).collect::<Vec<_>>().into())
        }
        Class::Bool => Values::Bool(Mask::from_fn(cells.len(), |row| cells[row] != Some(Cell::Bool(false)))),
        Class::Text => {
            let mut all = Vec::new();
            let mut ranges = Vec::new();
            for cell in cells {
                let start = all.len();
                if let Some(Cell::Text(bytes)) = cell {
                    all.extend_from_slice(bytes);
                }
                ranges.push(start..all.len());
            }
            let buffer = Buffer::from_vec(all);
            // SAFETY: the buffer becomes their owner.
            let texts = ranges.into_iter().map(|range| unsafe { Text::new(&buffer[range]) }).collect();
            // SAFETY: as above.
            Values::Text(unsafe { Texts::new(texts, Owners::of(vec![buffer])) })
        }
        Class::Other => panic!("no such column"),
    };
    Vector { values, valid: None }.with_valid(Some(Mask::from_fn(cells.len(), |row| cells[row].is_some())))
}

fn cells(vector: &Vector) -> Column {
    let cell = |row: usize| {
        vector.is_valid(row).then(|| match &vector.values {
            Values::Int(values) => Cell::Int(values[row].into()),
            Values::Wide(values) => Cell::Int(values[row]),
            Values::Float(values) => float(values[row]),
            Values::Bool(values) => Cell::Bool(values.get(row)),
            Values::Text(values) => Cell::Text(values.bytes(row).to_vec()),
            Values::Other(_) => panic!("no such column"),
        })
    };
    (0..vector.len()).map(cell).collect()
}

/// What a function gives of some values, and whether an equal number does not have to be the same.
fn expected(call: &AggregateCall, of: Option<&ColumnType>, rows: &[Option<Cell>]) -> Option<Cell> {
    use AggregateFunction as F;
    let mut values: Vec<&Cell> = rows.iter().flatten().collect();
    if call.distinct {
        values = values.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    }
    let is_float = of.is_some_and(|of| of.class() == Class::Float);
    if call.argument.is_none() {
        return Some(Cell::Int(rows.len() as i128));
    }
    let scale = of.and_then(ColumnType::scale).unwrap_or(0);
    match call.function {
        F::Count => Some(Cell::Int(values.len() as i128)),
        _ if values.is_empty() => None,
        F::Sum if is_float => Some(float(values.iter().map(|cell| cell.as_float()).sum())),
        F::Sum => Some(Cell::Int(values.iter().map(|cell| cell.as_int()).sum())),
        F::Avg if is_float => Some(float(values.iter().map(|cell| cell.as_float()).sum::<f64>() / values.len() as f64)),
        F::Avg => {
            let sum: i128 = values.iter().map(|cell| cell.as_int()).sum();
            let (count, shift) = (values.len() as i128, call.of.scale().unwrap() - scale);
            let (sum, count) = (sum * 10i128.pow(shift.max(0) as u32), count * 10i128.pow((-shift).max(0) as u32));
            Some(Cell::Int((sum * 2 + count * sum.signum()) / (count * 2)))
        }
        F::Min | F::BoolAnd => values.into_iter().min().cloned(),
        F::Max | F::BoolOr => values.into_iter().max().cloned(),
        F::AnyValue => panic!("any will do"),
        F::VarPop | F::VarSamp | F::StddevPop | F::StddevSamp => {
            let unit = 10f64.powi(scale.into());
            let values: Vec<f64> = values.iter().map(|cell| cell.as_float() / unit).collect();
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let variance = match call.function {
                F::VarPop | F::StddevPop => squares / count,
                _ if values.len() == 1 => return None,
                _ => squares / (count - 1.0),
            };
            let is_root = matches!(call.function, F::StddevPop | F::StddevSamp);
            Some(float(if is_root { variance.sqrt() } else { variance }))
        }
    }
}

/// `size`: of the values, in whose digits the model itself rounds.
fn is_near(a: &Option<Cell>, b: &Option<Cell>, size: f64) -> bool {
    match (a, b) {
        (Some(Cell::Float(_)), Some(Cell::Float(_))) if a != b => {
            let (a, b) = (a.as_ref().unwrap().as_float(), b.as_ref().unwrap().as_float());
            (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) + 1e-7 * size
        }
        _ => a == b,
    }
}

fn chunks(columns: &[Column], types: &[ColumnType], random: &mut Random) -> Vec<Chunk> {
    let rows = columns[0].len();
    let (mut start, mut all) = (0, Vec::new());
    while start < rows {
        let most = [1, 100, 2048, 2048, 7000][random.below(5) as usize];
        let end = rows.min(start + 1 + random.below(most) as usize);
        let vectors = columns.iter().zip(types).map(|(cells, of)| vector(&cells[start..end], of)).collect();
        all.push(Chunk::new(end - start, vectors));
        start = end;
    }
    all
}

/// By hand: chunks to workers at random.
fn aggregated(
    aggregate: &Aggregate,
    variant: Variant,
    chunks: Vec<Chunk>,
    workers: usize,
    random: &mut Random,
) -> Result<Vec<Chunk>> {
    let table = AggregateTable::with_variant(aggregate, variant, Meter::default())?;
    let sink = AggregateSink::new(&table);
    let mut states = (0..workers).map(|_| sink.worker()).collect::<Result<Vec<_>>>()?;
    for chunk in chunks {
        states[random.below(workers as u64) as usize].push(chunk)?;
    }
    states.iter_mut().try_for_each(|state| state.end())?;
    for round in 0.. {
        let tasks = sink.finish(round, &mut states)?;
        if tasks.is_empty() {
            break;
        }
        tasks.into_iter().try_for_each(|task| task())?;
    }
    let source = AggregateSource::new(&table);
    assert_eq!(table.columns().len(), aggregate.columns().len());
    let (mut one, mut other) = (source.reader()?, source.reader()?);
    let mut out = Vec::new();
    loop {
        let (Next::Chunk(chunk), is_first) = (if out.len() % 2 == 0 { one.next()? } else { other.next()? }, true)
        else {
            break;
        };
        assert!(is_first && chunk.rows > 0);
        out.push(chunk);
    }
    Ok(out)
}

fn compare(aggregate: &Aggregate, columns: &[Column], result: &[Chunk]) {
    let rows = columns.first().map_or(0, Vec::len);
    let key_of = |row: usize| aggregate.keys.iter().map(|key| columns[*key][row].clone()).collect::<Column>();
    let mut groups: BTreeMap<Column, Vec<usize>> = BTreeMap::new();
    if aggregate.keys.is_empty() {
        groups.insert(Vec::new(), Vec::new());
    }
    for row in 0..rows {
        groups.entry(key_of(row)).or_default().push(row);
    }
    assert_eq!(result.iter().map(|chunk| chunk.rows).sum::<usize>(), groups.len(), "groups");
    let types = aggregate.columns();
    let keys = aggregate.keys.len();
    for chunk in result {
        for (vector, of) in chunk.columns.iter().zip(&types) {
            assert_eq!((vector.len(), vector.values.class()), (chunk.rows, of.class()));
            vector.to_arrow(of).unwrap();
        }
        let results: Vec<Column> = chunk.columns.iter().map(cells).collect();
        for row in 0..chunk.rows {
            let key: Column = results[..keys].iter().map(|column| column[row].clone()).collect();
            let group = groups.remove(&key).unwrap_or_else(|| panic!("a group {key:?} that is not there, or twice"));
            for (call, column) in aggregate.functions.iter().zip(&results[keys..]) {
                let passes =
                    |row: &&usize| call.filter.is_none_or(|filter| columns[filter][**row] == Some(Cell::Bool(true)));
                let values: Column = group
                    .iter()
                    .filter(passes)
                    .map(|row| call.argument.and_then(|argument| columns[argument][*row].clone()))
                    .collect();
                if call.function == AggregateFunction::AnyValue {
                    let any =
                        values.contains(&column[row]) || values.iter().all(Option::is_none) && column[row].is_none();
                    assert!(any, "{call:?} of {key:?}");
                    continue;
                }
                let of = call.argument.map(|argument| &aggregate.input[argument]);
                let expected = expected(call, of, &values);
                use AggregateFunction as F;
                let size = match (call.function, of) {
                    (F::VarPop | F::VarSamp | F::StddevPop | F::StddevSamp, Some(of)) => {
                        let unit = 10f64.powi(of.scale().unwrap_or(0).into());
                        let size =
                            values.iter().flatten().fold(0f64, |size, cell| size.max(cell.as_float().abs())) / unit;
                        if matches!(call.function, F::VarPop | F::VarSamp) { size * size * 1e-5 } else { size }
                    }
                    _ => 0.0,
                };
                assert!(
                    is_near(&column[row], &expected, size),
                    "{call:?} of {key:?}: {:?}, not {expected:?}",
                    column[row]
                );
            }
        }
    }
}

fn column(of: &ColumnType, rows: usize, distinct: u64, random: &mut Random) -> Column {
    let mut before = None;
    let value = |_: usize| {
        // Some repeat the value before.
        if random.below(3) == 0 && before.is_some() {
            return before.clone().unwrap();
        }
        let value = (!of.nullable || random.below(5) > 0).then(|| {
            let pick = random.below(distinct);
            match of.class() {
                Class::Wide => Cell::Int(of.bounds.unwrap().0 + (i128::from(pick) << 70)),
                Class::Int => {
                    let (lower, upper) = of.bounds.unwrap();
                    let small = (upper - lower).min(i128::from(distinct));
                    Cell::Int(lower + (i128::from(pick) * 0x1234_5679).rem_euclid(small + 1))
                }
                Class::Float => {
                    let special = [0.0, -0.0, 1e6, -1e6, 0.25];
                    let at = special.get(pick as usize).filter(|_| distinct > 100).copied();
                    float(at.unwrap_or(pick as f64 * 0.5 - 20.0))
                }
                Class::Bool => Cell::Bool(pick.is_multiple_of(2)),
                Class::Text => {
                    let text = format!("{}{}", pick * 7919 % 100_003, "x".repeat((pick % 3 * 9) as usize));
                    Cell::Text(if pick == 0 { Vec::new() } else { text.into_bytes() })
                }
                Class::Other => panic!("no such column"),
            }
        });
        before = Some(value.clone());
        value
    };
    (0..rows).map(value).collect()
}

fn call(function: AggregateFunction, argument: Option<usize>, of: DataType) -> AggregateCall {
    AggregateCall { function, argument, filter: None, distinct: false, of: ColumnType::new(of, true) }
}

/// All functions of all columns that have them.
fn calls(input: &[ColumnType]) -> Vec<AggregateCall> {
    use AggregateFunction as F;
    let mut calls = vec![call(F::Count, None, DataType::Int64)];
    for (argument, of) in input.iter().enumerate() {
        let argument = Some(argument);
        calls.push(call(F::Count, argument, DataType::Int64));
        let mut same = |functions: &[F]| {
            for function in functions {
                calls.push(AggregateCall { of: of.clone(), ..call(*function, argument, DataType::Null) });
            }
        };
        match of.class() {
            Class::Bool => same(&[F::BoolAnd, F::BoolOr, F::Min, F::Max, F::AnyValue]),
            _ => same(&[F::Min, F::Max, F::AnyValue]),
        }
        if matches!(of.class(), Class::Int | Class::Wide | Class::Float) {
            let (sum, average) = match of.class() {
                Class::Float => (DataType::Float64, DataType::Float64),
                _ => (DataType::Decimal128(38, of.scale().unwrap()), DataType::Decimal128(38, 6)),
            };
            calls.push(call(F::Sum, argument, sum));
            calls.push(call(F::Avg, argument, average));
            for function in [F::VarPop, F::VarSamp, F::StddevPop, F::StddevSamp] {
                calls.push(call(function, argument, DataType::Float64));
            }
        }
    }
    calls
}

fn variants() -> Vec<Variant> {
    let tiny = Limits {
        cache_bytes: 20_000,
        table_bytes_max: 60_000,
        staged_bytes: 10_000,
        skipped_rows: 5000,
        ..Limits::default()
    };
    let never_skips = Limits { skipped_rows: 0, table_bytes_max: 0, ..tiny };
    let merges_in_parts = Limits { merged_rows: 100, ..Limits::default() };
    [Limits::default(), tiny, never_skips, merges_in_parts]
        .into_iter()
        .flat_map(|limits| {
            let of = move |is_hashed, has_no_runs| Variant { limits, is_hashed, has_no_runs, ..Variant::default() };
            [of(false, false), of(true, false), of(true, true)]
        })
        .collect()
}

fn input() -> Vec<ColumnType> {
    vec![
        ColumnType::new(DataType::Int32, true).within((-3, 12)),
        ColumnType::new(DataType::Int64, false).within((1 << 20, (1 << 20) + 999_999)),
        ColumnType::new(DataType::Decimal128(12, 2), true).within((-999, 1_000_000_000)),
        ColumnType::new(DataType::Decimal128(30, 3), true).within((-5, 1 << 90)),
        ColumnType::new(DataType::Float64, true),
        ColumnType::new(DataType::Boolean, true),
        ColumnType::new(DataType::Utf8View, true),
        ColumnType::new(DataType::Boolean, false),
    ]
}

#[test]
fn every_function_of_every_class_in_every_variant() {
    let types = input();
    let mut random = Random(1);
    for (index, keys) in [vec![], vec![0], vec![7, 0], vec![1], vec![6], vec![4, 5], vec![3, 6, 2]].iter().enumerate() {
        for rows in [0, 1, 3000, 9000] {
            for distinct in [3, 200, 5000] {
                let columns: Vec<Column> = types.iter().map(|of| column(of, rows, distinct, &mut random)).collect();
                let variants = variants();
                let variant = variants[random.below(variants.len() as u64) as usize];
                for variant in if rows == 9000 && distinct == 5000 { variants } else { vec![variant] } {
                    let mut functions = calls(&types);
                    for call in &mut functions {
                        call.filter = [None, None, Some(5), Some(7)][random.below(4) as usize];
                        call.distinct = random.below(4) == 0 && call.argument.is_some() && index % 2 == 0;
                    }
                    let aggregate =
                        Aggregate { input: types.clone(), keys: keys.clone(), functions, rows_max: rows as u64 };
                    let workers = 1 + random.below(3) as usize;
                    let chunks = chunks(&columns, &types, &mut random);
                    let result = aggregated(&aggregate, variant, chunks, workers, &mut random).unwrap();
                    compare(&aggregate, &columns, &result);
                }
            }
        }
    }
}

#[test]
fn rows_in_the_order_of_a_key() {
    let types = vec![
        ColumnType::new(DataType::Int64, false),
        ColumnType::new(DataType::Int64, true),
        ColumnType::new(DataType::Utf8View, true),
        ColumnType::new(DataType::Int32, true).within((0, 1000)),
    ];
    let mut random = Random(23);
    let rows = 20_000;
    for pattern in 0..8 {
        let mut key = |row: usize| match pattern {
            0 | 5 => row / 4,
            1 => row,
            2 => row * 3 / 4,
            3 if row > 15_000 => random.below(20_000) as usize,
            3 => row / 2,
            // A second time from the beginning.
            4 => row % 10_000 / 3,
            6 => row / 3000,
            _ => 7,
        };
        let values: Vec<i128> = (0..rows).map(|row| key(row) as i128 - 500).collect();
        let of_key = |of: &dyn Fn(i128) -> Option<Cell>| values.iter().map(|key| of(*key)).collect::<Column>();
        let mut columns = vec![
            of_key(&|key| Some(Cell::Int(key))),
            of_key(&|key| (key % 3 != 0).then_some(Cell::Int(key * 7 % 100))),
            of_key(&|key| (key % 5 != 0).then(|| Cell::Text(format!("{}{}", key % 99, "x".repeat(20)).into_bytes()))),
            column(&types[3], rows, 900, &mut random),
        ];
        if pattern == 5 {
            columns[1] = column(&types[1], rows, 3, &mut random);
        }
        for keys in [vec![0], vec![0, 1], vec![2, 1, 0], vec![1, 0, 2]] {
            for workers in [1, 3] {
                for has_no_order in [false, true] {
                    let variant = Variant { has_no_order, is_hashed: true, ..variants()[pattern % 4 * 2] };
                    let functions = calls(&types);
                    let aggregate =
                        Aggregate { input: types.clone(), keys: keys.clone(), functions, rows_max: rows as u64 };
                    let chunks = chunks(&columns, &types, &mut random);
                    let result = aggregated(&aggregate, variant, chunks, workers, &mut random).unwrap();
                    compare(&aggregate, &columns, &result);
                }
            }
        }
    }
}

#[test]
fn floats_group_and_order_as_sql_says() {
    let of = ColumnType::new(DataType::Float64, true);
    let values = vec![0.0, f64::NAN, -0.0, -f64::NAN, 1.0, f64::INFINITY];
    let vector = Vector { values: Values::Float(values.into()), valid: None };
    let chunk = Chunk::new(6, vec![vector]);
    use AggregateFunction as F;
    let functions = vec![
        call(F::Count, None, DataType::Int64),
        AggregateCall { distinct: true, ..call(F::Count, Some(0), DataType::Int64) },
        call(F::Min, Some(0), DataType::Float64),
        call(F::Max, Some(0), DataType::Float64),
    ];
    let aggregate = Aggregate { input: vec![of.clone()], keys: vec![0], functions: functions.clone(), rows_max: 9 };
    let mut random = Random(3);
    let out = aggregated(&aggregate, Variant::default(), vec![chunk.clone()], 1, &mut random).unwrap();
    assert_eq!(out[0].rows, 4);
    let mut counts = out[0].columns[1].as_ints().unwrap().to_vec();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2, 2]);
    let aggregate = Aggregate { input: vec![of], keys: vec![], functions, rows_max: 9 };
    let out = aggregated(&aggregate, Variant::default(), vec![chunk], 2, &mut random).unwrap();
    assert_eq!(out[0].columns[1].as_ints().unwrap(), [4]);
    assert_eq!(out[0].columns[2].as_floats().unwrap()[0], 0.0);
    assert!(out[0].columns[3].as_floats().unwrap()[0].is_nan());
}

#[test]
fn sums_are_exact_or_fail() {
    use AggregateFunction as F;
    let run = |of: &ColumnType, values: &[i128], result: DataType| {
        let cells: Column = values.iter().map(|value| Some(Cell::Int(*value))).collect();
        let aggregate = Aggregate {
            input: vec![of.clone()],
            keys: vec![],
            functions: vec![call(F::Sum, Some(0), result)],
            rows_max: values.len() as u64,
        };
        let chunks = chunks(&[cells], std::slice::from_ref(of), &mut Random(5));
        let out = aggregated(&aggregate, Variant::default(), chunks, 2, &mut Random(6));
        out.map(|out| cells_of(&out[0].columns[0])).map_err(|error| error.code())
    };
    fn cells_of(vector: &Vector) -> i128 {
        cells(vector)[0].as_ref().unwrap().as_int()
    }
    let (most, least) = (i128::from(i64::MAX), i128::from(i64::MIN));
    let int = ColumnType::new(DataType::Int64, false);
    assert_eq!(run(&int, &[most, 1, -1], DataType::Int64), Ok(most));
    assert_eq!(run(&int, &[most, 1], DataType::Int64), Err(SqlState::NUMERIC_VALUE_OUT_OF_RANGE));
    assert_eq!(run(&int, &[least, -1], DataType::Int64), Err(SqlState::NUMERIC_VALUE_OUT_OF_RANGE));
    assert_eq!(run(&int, &[most; 5], DataType::Decimal128(38, 0)), Ok(most * 5));
    let wide = ColumnType::new(DataType::Decimal128(38, 4), false);
    let nines = 10i128.pow(38) - 1;
    assert_eq!(run(&wide, &[nines, nines, nines, -nines, -nines], DataType::Decimal128(38, 4)), Ok(nines));
    let mut many = vec![nines; 3000];
    many.extend(vec![-nines; 3000]);
    assert_eq!(run(&wide, &many, DataType::Decimal128(38, 4)), Ok(0));
    assert_eq!(run(&wide, &[nines, 1], DataType::Decimal128(38, 4)), Err(SqlState::NUMERIC_VALUE_OUT_OF_RANGE));
    assert_eq!(run(&wide, &[nines; 9], DataType::Decimal128(38, 4)), Err(SqlState::NUMERIC_VALUE_OUT_OF_RANGE));
}

#[test]
fn wrong_types_are_refused() {
    use AggregateFunction as F;
    let input = vec![ColumnType::new(DataType::Utf8View, true), ColumnType::new(DataType::Int64, true)];
    for call in [
        call(F::Sum, Some(0), DataType::Int64),
        call(F::Avg, Some(0), DataType::Float64),
        call(F::VarPop, Some(0), DataType::Float64),
        call(F::Sum, Some(1), DataType::Float64),
        call(F::Sum, Some(2), DataType::Int64),
        AggregateCall { filter: Some(1), ..call(F::Count, None, DataType::Int64) },
        call(F::Max, None, DataType::Int64),
    ] {
        let aggregate = Aggregate { input: input.clone(), keys: vec![], functions: vec![call], rows_max: 1 };
        assert!(AggregateTable::new(&aggregate).is_err(), "{aggregate:?}");
    }
}

struct Chunks(Mutex<Vec<Chunk>>);

impl Source for Arc<Chunks> {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(ChunksReader(Arc::clone(self))))
    }
}

struct ChunksReader(Arc<Chunks>);

impl Reader for ChunksReader {
    fn next(&mut self) -> Result<Next> {
        Ok(self.0.0.lock().pop().map_or(Next::End, Next::Chunk))
    }
}

#[derive(Default)]
struct Collected(Mutex<Vec<Chunk>>);

impl Sink for Arc<Collected> {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::new(Collector(Arc::clone(self))))
    }

    fn finish(&self, _round: usize, _states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        Ok(Vec::new())
    }
}

struct Collector(Arc<Collected>);

impl SinkState for Collector {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        self.0.0.lock().push(chunk);
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

struct Never;

impl Interruption for Never {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// As two pipelines of a run.
fn run(aggregate: &Aggregate, chunks: Vec<Chunk>, threads: usize) -> Vec<Chunk> {
    let table = AggregateTable::new(aggregate).unwrap();
    let out = Arc::new(Collected::default());
    let counters = || (0..2).map(|_| Arc::new(Counters::default())).collect();
    let pipelines = vec![
        Pipeline {
            source: Arc::new(Arc::new(Chunks(Mutex::new(chunks)))),
            operators: vec![],
            sink: Arc::new(AggregateSink::new(&table)),
            counters: counters(),
            account: None,
        },
        Pipeline {
            source: Arc::new(AggregateSource::new(&table)),
            operators: vec![],
            sink: Arc::new(Arc::clone(&out)),
            counters: counters(),
            account: None,
        },
    ];
    let workers = Workers::start(threads, 1 << 20, || ()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let run = Run::start(pipelines, None, Arc::new(Never), workers.tickets(), threads, &[], false, move |result| {
        let _ = tell.send(result);
    });
    told.recv().unwrap().unwrap();
    drop(run);
    std::mem::take(&mut *out.0.lock())
}

#[test]
fn many_groups_and_few_in_runs() {
    use AggregateFunction as F;
    let types = vec![ColumnType::new(DataType::Int64, false), ColumnType::new(DataType::Int32, true).within((0, 99))];
    let rows = 1_500_000u64;
    for (seed, keys) in [(1, 1_000_000), (2, 2), (3, 10_000)] {
        let mut random = Random(seed);
        // Half of the rows are of one key.
        let key = |random: &mut Random| if random.below(2) == 0 { 7 } else { random.below(keys) as i64 * 1_000_003 };
        let values: Vec<i64> = (0..rows).map(|_| key(&mut random)).collect();
        let amounts: Vec<i64> = (0..rows).map(|_| random.below(100) as i64).collect();
        let mut model: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for (key, amount) in values.iter().zip(&amounts) {
            let (count, sum) = model.entry(*key).or_default();
            *count += 1;
            *sum += amount;
        }
        let chunk = |(keys, amounts): (&[i64], &[i64])| {
            Chunk::new(keys.len(), vec![Vector::ints(keys.to_vec()), Vector::ints(amounts.to_vec())])
        };
        let chunks = values.chunks(2048).zip(amounts.chunks(2048)).map(chunk).collect();
        let functions = vec![
            call(F::Count, None, DataType::Int64),
            call(F::Sum, Some(1), DataType::Int64),
            AggregateCall { distinct: true, ..call(F::Count, Some(1), DataType::Int64) },
        ];
        let functions = if seed == 1 { functions } else { functions[..2].to_vec() };
        let aggregate = Aggregate { input: types.clone(), keys: vec![0], functions, rows_max: rows };
        let mut found = BTreeMap::new();
        for chunk in run(&aggregate, chunks, 3) {
            let of = |column: usize| chunk.columns[column].as_ints().unwrap();
            for row in 0..chunk.rows {
                let group = (of(1)[row], of(2)[row]);
                assert!(found.insert(of(0)[row], group).is_none());
                assert!(seed != 1 || of(3)[row] <= group.0.min(100));
            }
        }
        assert!(found == model);
    }
}

#[test]
fn nothing_comes() {
    use AggregateFunction as F;
    let of = ColumnType::new(DataType::Int64, false);
    for (keys, groups) in [(vec![], 1), (vec![0], 0)] {
        let functions = vec![call(F::Count, None, DataType::Int64), call(F::Sum, Some(0), DataType::Int64)];
        let aggregate = Aggregate { input: vec![of.clone()], keys, functions, rows_max: 0 };
        let out = run(&aggregate, Vec::new(), 2);
        assert_eq!(out.iter().map(|chunk| chunk.rows).sum::<usize>(), groups);
        if groups == 1 {
            assert_eq!(cells(&out[0].columns[0]), [Some(Cell::Int(0))]);
            assert_eq!(cells(&out[0].columns[1]), [None]);
        }
    }
}
