//! Against a model that looks at every row of a partition for each row.

use super::*;
use crate::aggregate::AggregateFunction;
use crate::sort::keys::float_order;
use arrow_array::{Array, ArrayRef, Decimal128Array, Float64Array, Int64Array, StringViewArray};
use arrow_schema::DataType;
use std::cmp::Ordering as Order;
use tidepool_base::SqlState;

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Null,
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

const ID: usize = 0;
const INT: usize = 1;
const WIDE: usize = 2;
const FLOAT: usize = 3;
const BOOL: usize = 4;
const TEXT: usize = 5;
/// With few values.
const KEY: usize = 6;

fn types() -> Vec<ColumnType> {
    vec![
        ColumnType::new(DataType::Int64, false),
        ColumnType::new(DataType::Int64, true).within((-20, 20)),
        ColumnType::new(DataType::Decimal128(38, 2), true),
        ColumnType::new(DataType::Float64, true),
        ColumnType::new(DataType::Boolean, true),
        ColumnType::new(DataType::Utf8View, true),
        ColumnType::new(DataType::Int64, true).within((0, 9)),
    ]
}

/// `distinct`: how many values of a kind there are, about.
fn chunk(random: &mut Random, first: i64, rows: usize, distinct: u64) -> Chunk {
    let mut some = |value: &mut dyn FnMut(&mut Random) -> i64| -> Vec<Option<i64>> {
        (0..rows).map(|_| (random.below(6) > 0).then(|| value(random))).collect()
    };
    let small = |random: &mut Random| random.below(distinct.min(41)) as i64 - 20.min(distinct as i64 / 2);
    let ints = some(&mut |random| small(random));
    let wides = some(&mut |random| small(random));
    let floats = some(&mut |random| small(random));
    let texts = some(&mut |random| small(random));
    let keys = some(&mut |random| random.below(distinct.min(10)) as i64);
    let bools = some(&mut |random| random.below(2) as i64);
    let wide = |value: i64| i128::from(value) * 10i128.pow(if value % 2 == 0 { 34 } else { 2 });
    let float = |value: i64| match value {
        7 => f64::NAN,
        8 => f64::INFINITY,
        -9 => f64::NEG_INFINITY,
        value => value as f64 / 4.0,
    };
    let text =
        |value: i64| if value % 3 == 0 { format!("a text that is long enough {value}") } else { format!("{value}") };
    let arrays: Vec<ArrayRef> = vec![
        Arc::new((first..first + rows as i64).collect::<Int64Array>()),
        Arc::new(ints.into_iter().collect::<Int64Array>()),
        Arc::new(
            wides
                .into_iter()
                .map(|value| value.map(wide))
                .collect::<Decimal128Array>()
                .with_precision_and_scale(38, 2)
                .unwrap(),
        ),
        Arc::new(floats.into_iter().map(|value| value.map(float)).collect::<Float64Array>()),
        Arc::new(bools.into_iter().map(|value| value.map(|value| value == 1)).collect::<arrow_array::BooleanArray>()),
        Arc::new(texts.into_iter().map(|value| value.map(text)).collect::<StringViewArray>()),
        Arc::new(keys.into_iter().collect::<Int64Array>()),
    ];
    let columns = arrays.iter().zip(&types()).map(|(array, of)| Vector::from_arrow(array, of).unwrap()).collect();
    Chunk::new(rows, columns)
}

fn cells(chunk: &Chunk, row: usize) -> Vec<Cell> {
    use crate::vector::Values;
    let cell = |vector: &Vector| {
        if !vector.is_valid(row) {
            return Cell::Null;
        }
        match &vector.values {
            Values::Int(values) => Cell::Int(values[row].into()),
            Values::Wide(values) => Cell::Int(values[row]),
            Values::Float(values) => Cell::Float(values[row]),
            Values::Bool(values) => Cell::Bool(values.get(row)),
            Values::Text(values) => Cell::Text(String::from_utf8(values.bytes(row).to_vec()).unwrap()),
            Values::Other(_) => panic!("no such column"),
        }
    };
    chunk.columns.iter().map(cell).collect()
}

struct Never;

impl Interruption for Never {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// So many times not yet.
struct Soon(AtomicUsize);

impl Interruption for Soon {
    fn check(&self) -> Result<()> {
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(SqlState::QUERY_CANCELED, "enough")),
        }
    }
}

fn run(window: &Window, chunks: &[Chunk]) -> Result<Vec<Vec<Cell>>> {
    run_while(window, chunks, Arc::new(Never))
}

fn run_while(window: &Window, chunks: &[Chunk], interruption: Arc<dyn Interruption>) -> Result<Vec<Vec<Cell>>> {
    let table = WindowTable::new(window, interruption)?;
    let sink = WindowSink(Arc::clone(&table));
    let mut workers = [sink.worker()?, sink.worker()?];
    for (index, chunk) in chunks.iter().enumerate() {
        workers[index % 2].push(chunk.clone())?;
    }
    workers.iter_mut().try_for_each(|worker| worker.end())?;
    let mut states = workers.into_iter().collect();
    for round in 0.. {
        let tasks = sink.finish(round, &mut states)?;
        if tasks.is_empty() {
            break;
        }
        tasks.into_iter().try_for_each(|task| task())?;
    }
    let mut reader = WindowSource(table).reader()?;
    let mut out = Vec::new();
    while let Next::Chunk(chunk) = reader.next()? {
        assert!(0 < chunk.rows && chunk.rows <= CHUNK_ROWS);
        out.extend((0..chunk.rows).map(|row| cells(&chunk, row)));
    }
    Ok(out)
}

/// Of values that are there.
fn compare(a: &Cell, b: &Cell) -> Order {
    match (a, b) {
        (Cell::Int(a), Cell::Int(b)) => a.cmp(b),
        (Cell::Float(a), Cell::Float(b)) => float_order(*a).cmp(&float_order(*b)),
        (Cell::Bool(a), Cell::Bool(b)) => a.cmp(b),
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        other => panic!("{other:?}"),
    }
}

fn by_key(key: &SortKey, a: &Cell, b: &Cell) -> Order {
    match (a, b) {
        (Cell::Null, Cell::Null) => Order::Equal,
        (Cell::Null, _) => {
            if key.nulls_first {
                Order::Less
            } else {
                Order::Greater
            }
        }
        (_, Cell::Null) => {
            if key.nulls_first {
                Order::Greater
            } else {
                Order::Less
            }
        }
        (a, b) if key.descending => compare(b, a),
        (a, b) => compare(a, b),
    }
}

fn same(a: &Cell, b: &Cell) -> bool {
    match (a, b) {
        (Cell::Float(a), Cell::Float(b)) => a == b || a.is_nan() && b.is_nan() || (a - b).abs() < 1e-9,
        (a, b) => a == b,
    }
}

struct Model<'a> {
    window: &'a Window,
    /// A partition's.
    rows: &'a [Vec<Cell>],
    /// The number of each row's group.
    groups: Vec<i128>,
}

impl Model<'_> {
    fn is_within(&self, frame: &Frame, row: usize, other: usize) -> bool {
        let bound = |bound: FrameBound, is_start: bool| {
            let (at, other_at) = match frame.units {
                FrameUnits::Rows => (row as i128, other as i128),
                _ => (self.groups[row], self.groups[other]),
            };
            let on = |at: i128| if is_start { other_at >= at } else { other_at <= at };
            match (bound, frame.units) {
                (FrameBound::First | FrameBound::Last, _) => true,
                (FrameBound::Current, _) => on(at),
                (FrameBound::At(distance), FrameUnits::Range) => {
                    let key = &self.window.order[0];
                    let (own, other) = (&self.rows[row][key.column], &self.rows[other][key.column]);
                    let sign = if key.descending { -1 } else { 1 };
                    let to = match (own, distance) {
                        (Cell::Null, _) => Cell::Null,
                        (Cell::Int(own), Distance::Whole(distance)) => Cell::Int(own + distance * sign),
                        (Cell::Float(own), Distance::Float(distance)) => Cell::Float(own + distance * sign as f64),
                        other => panic!("{other:?}"),
                    };
                    let order = by_key(key, other, &to);
                    if is_start { order.is_ge() } else { order.is_le() }
                }
                (FrameBound::At(Distance::Whole(distance)), _) => on(at + distance),
                other => panic!("{other:?}"),
            }
        };
        bound(frame.start, true) && bound(frame.end, false)
    }

    fn expected(&self, call: &WindowCall, row: usize) -> Cell {
        use AggregateFunction as A;
        use WindowFunction as F;
        let len = self.rows.len();
        let argument = |row: usize| self.rows[row][call.argument.unwrap()].clone();
        let frame: Vec<usize> = (0..len).filter(|other| self.is_within(&call.frame, row, *other)).collect();
        let first = self.groups.iter().position(|group| *group == self.groups[row]).unwrap();
        let behind = self.groups.iter().rposition(|group| *group == self.groups[row]).unwrap() + 1;
        let int = |value: usize| Cell::Int(value as i128);
        let at = |row: Option<usize>| row.map_or(Cell::Null, argument);
        let shifted = |shift: i64| usize::try_from(row as i64 + shift).ok().filter(|row| *row < len);
        match call.function {
            F::RowNumber => int(row + 1),
            F::Rank => int(first + 1),
            F::DenseRank => Cell::Int(self.groups[row] + 1),
            F::PercentRank => Cell::Float(if len == 1 { 0.0 } else { first as f64 / (len - 1) as f64 }),
            F::CumeDist => Cell::Float(behind as f64 / len as f64),
            F::Ntile(parts) => {
                let parts = parts as usize;
                let ends = (1..=parts).map(|part| part * (len / parts) + part.min(len % parts));
                int(ends.into_iter().position(|end| row < end).unwrap() + 1)
            }
            F::Shift(shift) => at(shifted(shift)),
            F::HasShift(shift) => Cell::Bool(shifted(shift).is_some()),
            F::FirstValue => at(frame.first().copied()),
            F::LastValue => at(frame.last().copied()),
            F::NthValue(number) => at(frame.get(number as usize - 1).copied()),
            F::Aggregate(function) => {
                let is_taken =
                    |row: &&usize| call.filter.is_none_or(|filter| self.rows[**row][filter] == Cell::Bool(true));
                let taken: Vec<usize> = frame.iter().filter(is_taken).copied().collect();
                let Some(_) = call.argument else { return int(taken.len()) };
                let values: Vec<Cell> = taken.into_iter().map(argument).filter(|cell| *cell != Cell::Null).collect();
                let ints = || values.iter().map(|cell| if let Cell::Int(value) = cell { *value } else { panic!() });
                let floats = || values.iter().map(|cell| if let Cell::Float(value) = cell { *value } else { panic!() });
                let is_float = matches!(values.first(), Some(Cell::Float(_)));
                match function {
                    A::Count => int(values.len()),
                    _ if values.is_empty() => Cell::Null,
                    A::Sum if is_float => Cell::Float(floats().sum()),
                    A::Avg if is_float => Cell::Float(floats().sum::<f64>() / values.len() as f64),
                    A::Sum => Cell::Int(ints().sum()),
                    A::Avg => {
                        let shift =
                            call.of.scale().unwrap() - self.window.input[call.argument.unwrap()].scale().unwrap();
                        let (sum, count) = (ints().sum::<i128>(), values.len() as i128);
                        let part = |value: i128| (value * 2 + count * value.signum()) / (count * 2);
                        let power = 10i128.pow(shift as u32);
                        Cell::Int(sum / count * power + part(sum % count * power))
                    }
                    A::Min | A::BoolAnd => values.iter().min_by(|a, b| compare(a, b)).unwrap().clone(),
                    A::Max | A::BoolOr => values.iter().max_by(|a, b| compare(a, b)).unwrap().clone(),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

fn check(window: &Window, chunks: &[Chunk]) {
    let all = (0..window.input.len()).collect::<Vec<_>>();
    assert_eq!(window.output, all);
    let found = run(window, chunks).unwrap();
    let mut ids: Vec<i128> = found.iter().map(|row| if let Cell::Int(id) = row[ID] { id } else { panic!() }).collect();
    ids.sort_unstable();
    let rows: usize = chunks.iter().map(|chunk| chunk.rows).sum();
    assert!(ids.into_iter().eq(0..rows as i128));
    let is_same_partition = |a: &Vec<Cell>, b: &Vec<Cell>| {
        let by = |column: &usize| match (&a[*column], &b[*column]) {
            (Cell::Null, Cell::Null) => true,
            (Cell::Null, _) | (_, Cell::Null) => false,
            (a, b) => compare(a, b).is_eq(),
        };
        window.partition.iter().all(by)
    };
    let order = |a: &Vec<Cell>, b: &Vec<Cell>| {
        let by = |key: &SortKey| by_key(key, &a[key.column], &b[key.column]);
        window.order.iter().map(by).find(|order| order.is_ne()).unwrap_or(Order::Equal)
    };
    let mut firsts: Vec<&Vec<Cell>> = Vec::new();
    for rows in found.chunk_by(is_same_partition) {
        assert!(firsts.iter().all(|first| !is_same_partition(first, &rows[0])), "a partition in two places");
        firsts.push(&rows[0]);
        let mut groups = vec![0];
        for pair in rows.windows(2) {
            let order = order(&pair[0], &pair[1]);
            assert!(order.is_le(), "{:?} before {:?}", pair[0], pair[1]);
            groups.push(groups[groups.len() - 1] + i128::from(order.is_lt()));
        }
        let model = Model { window, rows, groups };
        for (row, cells) in rows.iter().enumerate() {
            for (number, call) in window.functions.iter().enumerate() {
                let (found, expected) = (&cells[all.len() + number], model.expected(call, row));
                assert!(same(found, &expected), "{call:?} of row {row} of {}: {found:?}, not {expected:?}", rows.len());
            }
        }
    }
}

fn call(function: WindowFunction, argument: Option<usize>, frame: Frame) -> WindowCall {
    use AggregateFunction as A;
    use WindowFunction as F;
    let argument_type = || types()[argument.unwrap()].clone();
    let of = match function {
        F::RowNumber | F::Rank | F::DenseRank | F::Ntile(_) => ColumnType::new(DataType::UInt64, false),
        F::PercentRank | F::CumeDist => ColumnType::new(DataType::Float64, false),
        F::HasShift(_) => ColumnType::new(DataType::Boolean, false),
        F::Aggregate(A::Count) => ColumnType::new(DataType::Int64, false),
        F::Aggregate(A::Sum) if argument == Some(INT) => ColumnType::new(DataType::Int64, true),
        F::Aggregate(A::Avg) if argument == Some(INT) => ColumnType::new(DataType::Decimal128(38, 16), true),
        _ => ColumnType {
            nullable: true,
            bounds: crate::types::type_bounds(&argument_type().data_type),
            ..argument_type()
        },
    };
    WindowCall { function, argument, filter: None, frame, of }
}

fn window(partition: Vec<usize>, order: Vec<SortKey>, functions: Vec<WindowCall>) -> Window {
    Window { input: types(), partition, order, functions, output: (0..types().len()).collect(), first: None }
}

fn random_bound(random: &mut Random, units: FrameUnits, key: Option<usize>, is_start: bool) -> FrameBound {
    match random.below(5) {
        0 => {
            if is_start {
                FrameBound::First
            } else {
                FrameBound::Last
            }
        }
        1 => FrameBound::Current,
        _ => {
            let steps = random.below(5) as i128 - 2;
            match (units, key) {
                (FrameUnits::Range, Some(FLOAT)) => FrameBound::At(Distance::Float(steps as f64 / 2.0)),
                (FrameUnits::Range, Some(WIDE)) => FrameBound::At(Distance::Whole(steps * 10i128.pow(34))),
                (FrameUnits::Range, Some(INT)) => FrameBound::At(Distance::Whole(steps * 2)),
                (FrameUnits::Range, _) => FrameBound::Current,
                _ => FrameBound::At(Distance::Whole(steps)),
            }
        }
    }
}

fn random_call(random: &mut Random, order: &[SortKey]) -> WindowCall {
    use AggregateFunction as A;
    use WindowFunction as F;
    let units = match random.below(3) {
        0 => FrameUnits::Rows,
        1 => FrameUnits::Range,
        _ => FrameUnits::Groups,
    };
    let key = if let [key] = order { Some(key.column) } else { None };
    let frame =
        Frame { units, start: random_bound(random, units, key, true), end: random_bound(random, units, key, false) };
    let any = 1 + random.below(5) as usize;
    let number = [INT, WIDE, FLOAT][random.below(3) as usize];
    let aggregate = |function| F::Aggregate(function);
    let (function, argument) = match random.below(18) {
        0 => (F::RowNumber, None),
        1 => (F::Rank, None),
        2 => (F::DenseRank, None),
        3 => (F::PercentRank, None),
        4 => (F::CumeDist, None),
        5 => (F::Ntile(1 + random.below(9) as i64), None),
        6 => (F::Shift(random.below(7) as i64 - 3), Some(any)),
        7 => (F::HasShift(random.below(7) as i64 - 3), None),
        8 => (F::FirstValue, Some(any)),
        9 => (F::LastValue, Some(any)),
        10 => (F::NthValue(1 + random.below(3) as i64), Some(any)),
        11 => (aggregate(A::Count), None),
        12 => (aggregate(A::Count), Some(any)),
        13 => (aggregate(A::Sum), Some(number)),
        14 => (aggregate(A::Avg), Some(if number == WIDE { INT } else { number })),
        15 => (aggregate(A::Min), Some(any)),
        16 => (aggregate(A::Max), Some(any)),
        _ => (aggregate(if random.below(2) == 0 { A::BoolAnd } else { A::BoolOr }), Some(BOOL)),
    };
    let mut call = call(function, argument, frame);
    if matches!(function, F::Aggregate(_)) && random.below(4) == 0 {
        call.filter = Some(BOOL);
    }
    call
}

#[test]
fn windows_are_as_by_definition() {
    let mut random = Random(5);
    for round in 0..150 {
        let distinct = [2, 6, 41][random.below(3) as usize];
        let sizes: Vec<usize> = (0..random.below(5)).map(|_| 1 + random.below(60) as usize).collect();
        let mut first = 0;
        let chunks: Vec<Chunk> = sizes
            .iter()
            .map(|rows| {
                first += *rows as i64;
                chunk(&mut random, first - *rows as i64, *rows, distinct)
            })
            .collect();
        let partition = match round % 4 {
            0 => vec![],
            1 => vec![KEY],
            2 => vec![TEXT],
            _ => vec![KEY, BOOL],
        };
        let order: Vec<SortKey> = (0..random.below(3))
            .map(|_| SortKey {
                column: 1 + random.below(5) as usize,
                descending: random.below(2) == 0,
                nulls_first: random.below(2) == 0,
            })
            .collect();
        let functions = (0..1 + random.below(6)).map(|_| random_call(&mut random, &order)).collect();
        check(&window(partition, order, functions), &chunks);
    }
}

/// What is left out comes after all that is wanted, in its partition.
#[test]
fn first_rows_are_those_of_all() {
    let mut random = Random(31);
    for round in 0..40u64 {
        let (rows, distinct) = ([300, 2000][round as usize % 2], [3, 50, 5000][round as usize % 3]);
        let chunks: Vec<Chunk> =
            (0..40).map(|number| chunk(&mut random, number * rows as i64, rows, distinct)).collect();
        let partition = [vec![], vec![KEY], vec![BOOL, KEY], vec![INT]][round as usize % 4].clone();
        let key = |random: &mut Random| SortKey {
            column: 1 + random.below(5) as usize,
            descending: random.below(2) == 0,
            nulls_first: random.below(2) == 0,
        };
        let order = vec![key(&mut random), key(&mut random)];
        let functions =
            vec![call(WindowFunction::Rank, None, Frame::WHOLE), call(WindowFunction::DenseRank, None, Frame::WHOLE)];
        let whole = window(partition, order, functions);
        let most = [1, 3, 100, 4000][random.below(4) as usize];
        assert!(whole.can_begin_with(0, most) && !whole.can_begin_with(1, most));
        let first = Window { first: Some(most), ..whole.clone() };
        let rank = types().len();
        let wanted = |window: &Window| {
            let mut rows = run(window, &chunks).unwrap();
            let all = rows.len();
            rows.retain(|row| matches!(&row[rank], Cell::Int(rank) if *rank <= i128::from(most)));
            let mut shown: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
            shown.sort();
            (all, shown)
        };
        let ((all, expected), (left, found)) = (wanted(&whole), wanted(&first));
        assert_eq!(found, expected);
        // One partition, hardly any row of which is wanted.
        if whole.partition.is_empty() && most <= 3 && distinct == 5000 {
            assert!(left * 2 < all, "{left} of {all}");
        }
    }
}

#[test]
fn functions_of_rows_behind_have_them_all() {
    let order = vec![SortKey { column: INT, descending: false, nulls_first: false }];
    for function in [WindowFunction::CumeDist, WindowFunction::Ntile(3), WindowFunction::HasShift(1)] {
        let functions = vec![call(WindowFunction::Rank, None, Frame::WHOLE), call(function, None, Frame::WHOLE)];
        assert!(!window(vec![KEY], order.clone(), functions).can_begin_with(0, 3));
    }
    let functions = vec![call(WindowFunction::Rank, None, Frame::WHOLE)];
    assert!(!window(vec![KEY], vec![], functions).can_begin_with(0, 3));
}

/// Rows of more than one piece, in partitions that begin and end within and at the ends of pieces.
#[test]
fn long_partitions_are_cut_where_they_end() {
    let mut random = Random(9);
    let rows = 2000;
    let chunks: Vec<Chunk> = (0..140).map(|number| chunk(&mut random, number * rows as i64, rows, 3)).collect();
    let running = Frame { units: FrameUnits::Rows, start: FrameBound::First, end: FrameBound::Current };
    let order = vec![SortKey { column: ID, descending: false, nulls_first: false }];
    for partition in [vec![], vec![KEY], vec![INT, FLOAT, TEXT, KEY]] {
        let functions = vec![
            call(WindowFunction::RowNumber, None, Frame::WHOLE),
            call(WindowFunction::Aggregate(AggregateFunction::Count), Some(INT), running),
            call(WindowFunction::Aggregate(AggregateFunction::Sum), Some(INT), running),
            call(WindowFunction::Aggregate(AggregateFunction::Max), Some(TEXT), Frame::WHOLE),
            call(WindowFunction::Shift(-1), Some(ID), Frame::WHOLE),
        ];
        let window = window(partition.clone(), order.clone(), functions);
        let found = run(&window, &chunks).unwrap();
        assert_eq!(found.len(), 140 * rows);
        let width = types().len();
        let mut last: Option<&Vec<Cell>> = None;
        let (mut number, mut count, mut sum) = (0, 0, 0);
        for row in &found {
            let goes_on = last.is_some_and(|last| partition.iter().all(|column| same(&last[*column], &row[*column])));
            if !goes_on {
                (number, count, sum) = (0, 0, 0);
            }
            number += 1;
            if let Cell::Int(value) = row[INT] {
                (count, sum) = (count + 1, sum + value);
            }
            assert_eq!(row[width], Cell::Int(number));
            assert_eq!(row[width + 1], Cell::Int(count));
            assert_eq!(row[width + 2], if count == 0 { Cell::Null } else { Cell::Int(sum) });
            assert_eq!(row[width + 4], last.filter(|_| goes_on).map_or(Cell::Null, |last| last[ID].clone()));
            if let (Some(last), true) = (last, goes_on) {
                assert_eq!(row[width + 3], last[width + 3]);
            }
            last = Some(row);
        }
    }
}

#[test]
fn what_no_type_holds_is_refused() {
    let value = i128::from(i64::MAX) * 10i128.pow(19);
    let array: ArrayRef =
        Arc::new(Decimal128Array::from(vec![value, value, -value]).with_precision_and_scale(38, 0).unwrap());
    let of = ColumnType::new(array.data_type().clone(), false);
    let chunk = Chunk::new(3, vec![Vector::from_arrow(&array, &of).unwrap()]);
    let sum = |start, end| Window {
        input: vec![of.clone()],
        partition: vec![],
        order: vec![],
        functions: vec![WindowCall {
            function: WindowFunction::Aggregate(AggregateFunction::Sum),
            argument: Some(0),
            filter: None,
            frame: Frame { units: FrameUnits::Rows, start, end },
            of: ColumnType { nullable: true, ..of.clone() },
        }],
        output: vec![],
        first: None,
    };
    // What is too much on the way does no harm.
    let whole = run(&sum(FrameBound::First, FrameBound::Last), std::slice::from_ref(&chunk)).unwrap();
    assert_eq!(whole, vec![vec![Cell::Int(value)]; 3]);
    let error = run(&sum(FrameBound::First, FrameBound::Current), std::slice::from_ref(&chunk)).unwrap_err();
    assert_eq!(error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
    for (function, state) in [
        (WindowFunction::Ntile(0), SqlState::INVALID_ARGUMENT_FOR_NTILE),
        (WindowFunction::NthValue(0), SqlState::INVALID_ARGUMENT_FOR_NTH_VALUE),
    ] {
        let mut window = sum(FrameBound::First, FrameBound::Last);
        window.functions[0].function = function;
        if let WindowFunction::Ntile(_) = function {
            window.functions[0].of = ColumnType::new(DataType::UInt64, false);
        }
        assert_eq!(run(&window, std::slice::from_ref(&chunk)).unwrap_err().code(), state);
        assert_eq!(run(&window, &[]).unwrap(), Vec::<Vec<Cell>>::new());
    }
    let mut window = sum(FrameBound::First, FrameBound::Last);
    window.functions[0].of = ColumnType::new(DataType::Utf8View, true);
    assert!(window.check().is_err());
}

#[test]
fn long_partitions_can_be_interrupted() {
    let mut random = Random(2);
    let chunks: Vec<Chunk> = (0..150).map(|number| chunk(&mut random, number * 2000, 2000, 3)).collect();
    let sum = WindowFunction::Aggregate(AggregateFunction::Sum);
    let running = Frame { units: FrameUnits::Rows, start: FrameBound::First, end: FrameBound::Current };
    for frame in [Frame::WHOLE, running] {
        let window = window(vec![], vec![], vec![call(sum, Some(INT), frame)]);
        // Once before the only call, and then within it.
        let error = run_while(&window, &chunks, Arc::new(Soon(AtomicUsize::new(3)))).unwrap_err();
        assert_eq!(error.code(), SqlState::QUERY_CANCELED);
        assert_eq!(run_while(&window, &chunks, Arc::new(Soon(AtomicUsize::new(30)))).unwrap().len(), 300_000);
    }
}

#[test]
fn rows_are_numbered_as_they_come() {
    use crate::pipeline::Operator;
    let mut random = Random(3);
    let mut window = window(vec![], vec![], vec![call(WindowFunction::RowNumber, None, Frame::WHOLE)]);
    window.output = vec![ID];
    let numbers = NumberRows::new(&window).unwrap();
    let mut steps = [numbers.worker().unwrap(), numbers.worker().unwrap()];
    let mut next = 0;
    for number in 0..6 {
        let rows = chunk(&mut random, number * 50, 50, 3);
        let take = &mut |chunk: Chunk| {
            for row in 0..chunk.rows {
                assert_eq!(cells(&chunk, row), [Cell::Int(next), Cell::Int(next + 1)]);
                next += 1;
            }
            Ok(())
        };
        steps[number as usize % 2].push(rows, take).unwrap();
    }
    assert_eq!(next, 300);
    window.partition = vec![KEY];
    assert!(NumberRows::new(&window).is_err());
}
