use super::*;
use crate::vector::{Values, Vector};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, StringViewArray};
use arrow_schema::DataType;

fn sorted(types: &[ColumnType], chunks: Vec<Chunk>, keys: Vec<SortKey>, limit: Option<usize>) -> Vec<Chunk> {
    let sorted = Sorted::new(Sort { keys, limit, types: types.to_vec() });
    let sink = SortSink(Arc::clone(&sorted));
    let mut workers = [sink.worker().unwrap(), sink.worker().unwrap()];
    for (index, chunk) in chunks.into_iter().enumerate() {
        workers[index % 2].push(chunk).unwrap();
    }
    workers.iter_mut().for_each(|worker| worker.end().unwrap());
    let mut states = workers.into_iter().collect();
    for task in sink.finish(0, &mut states).unwrap() {
        task().unwrap();
    }
    assert!(sink.finish(1, &mut states).unwrap().is_empty());
    let mut reader = SortedSource(sorted).reader().unwrap();
    let mut out = Vec::new();
    while let Next::Chunk(chunk) = reader.next().unwrap() {
        out.push(chunk);
    }
    out
}

#[test]
fn rows_come_in_order() {
    let types = [
        ColumnType::new(DataType::Int64, true),
        ColumnType::new(DataType::Float64, true),
        ColumnType::new(DataType::Utf8View, true),
    ];
    let mut seed = 7u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 40
    };
    let mut rows: Vec<(Option<i64>, Option<f64>, Option<String>)> = Vec::new();
    let mut chunks = Vec::new();
    for _ in 0..40 {
        let part: Vec<_> = (0..2000)
            .map(|_| {
                let float = match next() % 9 {
                    0 => None,
                    1 => Some(f64::NAN),
                    2 => Some(-0.0),
                    other => Some(other as f64 - 5.0),
                };
                let int = (next() % 7 > 0).then(|| next() as i64 % 50);
                (int, float, (next() % 5 > 0).then(|| format!("{:x}", next() % 100_000)))
            })
            .collect();
        let arrays: [ArrayRef; 3] = [
            Arc::new(part.iter().map(|row| row.0).collect::<Int64Array>()),
            Arc::new(part.iter().map(|row| row.1).collect::<Float64Array>()),
            Arc::new(part.iter().map(|row| row.2.clone()).collect::<StringViewArray>()),
        ];
        let columns = arrays.iter().zip(&types).map(|(array, of)| Vector::from_arrow(array, of).unwrap());
        chunks.push(Chunk::new(part.len(), columns.collect()));
        rows.extend(part);
    }
    for (nulls_first, descending, limit) in
        [(false, false, None), (true, false, Some(10)), (false, true, Some(5000)), (true, true, Some(0))]
    {
        let key = |column| SortKey { column, descending, nulls_first };
        let found = sorted(&types, chunks.clone(), vec![key(0), key(1), key(2)], limit);
        let float = |value: f64| if value.is_nan() { i64::MAX } else { (value * 2.0) as i64 };
        fn side<T: Ord>(a: Option<T>, b: Option<T>, nulls_first: bool, descending: bool) -> Ordering {
            match (a, b) {
                (None, None) => Ordering::Equal,
                (None, _) => {
                    if nulls_first {
                        Ordering::Less
                    } else {
                        Ordering::Greater
                    }
                }
                (_, None) => {
                    if nulls_first {
                        Ordering::Greater
                    } else {
                        Ordering::Less
                    }
                }
                (Some(a), Some(b)) => {
                    if descending {
                        b.cmp(&a)
                    } else {
                        a.cmp(&b)
                    }
                }
            }
        }
        let mut expected = rows.clone();
        expected.sort_by(|a, b| {
            side(a.0, b.0, nulls_first, descending)
                .then(side(a.1.map(float), b.1.map(float), nulls_first, descending))
                .then(side(a.2.as_ref(), b.2.as_ref(), nulls_first, descending))
        });
        expected.truncate(limit.unwrap_or(usize::MAX));
        let mut at = 0;
        for chunk in &found {
            let ints = chunk.columns[0].to_arrow(&types[0]).unwrap();
            let texts = chunk.columns[2].to_arrow(&types[2]).unwrap();
            let part = &expected[at..at + chunk.rows];
            assert_eq!(ints.as_ref(), &part.iter().map(|row| row.0).collect::<Int64Array>() as &dyn Array);
            let part = part.iter().map(|row| row.2.clone()).collect::<StringViewArray>();
            assert_eq!(texts.as_ref(), &part as &dyn Array);
            at += chunk.rows;
        }
        assert_eq!(at, expected.len());
    }
}

/// Keys that fit into a number, and those that do not, against the same by whole columns.
#[test]
fn keys_of_all_widths_order_alike() {
    let mut seed = 11u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let wide = 10i128.pow(37);
    let types = [
        ColumnType::new(DataType::Int32, true).within((-5, 6)),
        ColumnType::new(DataType::Decimal128(38, 0), true).within((-wide, wide)),
        ColumnType::new(DataType::Int64, false),
        ColumnType::new(DataType::Boolean, false),
        ColumnType::new(DataType::Int64, false).within((7, 7)),
        ColumnType::new(DataType::Decimal128(38, 0), false),
    ];
    type Row = (Option<i64>, Option<i128>, i64, bool);
    let wides = [-wide, -1, 0, 1, 1 << 64, wide - 1, wide];
    let ints = [i64::MIN, i64::MAX, 0, -1, 1];
    let rows: Vec<Row> = (0..150_000)
        .map(|_| {
            let wide = (next() % 8 > 0).then(|| wides[next() as usize % wides.len()]);
            let int = ints[next() as usize % ints.len()];
            ((next() % 8 > 0).then(|| next() as i64 % 12 - 5), wide, int, next() % 2 == 0)
        })
        .collect();
    let chunk = |rows: &[Row]| {
        let mask = |of: &dyn Fn(&Row) -> bool| crate::mask::Mask::from_fn(rows.len(), |row| of(&rows[row]));
        let wides = |of: &dyn Fn(&Row) -> i128| Values::Wide(rows.iter().map(of).collect::<Vec<_>>().into());
        let of = |values| Vector { values, valid: None };
        let columns = vec![
            Vector::ints(rows.iter().map(|row| row.0.unwrap_or(99)).collect())
                .with_valid(Some(mask(&|row| row.0.is_some()))),
            of(wides(&|row| row.1.unwrap_or(i128::MAX))).with_valid(Some(mask(&|row| row.1.is_some()))),
            Vector::ints(rows.iter().map(|row| row.2).collect()),
            of(Values::Bool(mask(&|row| row.3))),
            Vector::ints(vec![7; rows.len()]),
            of(wides(&|row| i128::from(row.2) << 40)),
        ];
        Chunk::new(rows.len(), columns)
    };
    let chunks: Vec<Chunk> = rows.chunks(2048).map(chunk).collect();
    fn keyed<T: Ord>(value: Option<T>, other: Option<T>, key: SortKey) -> Ordering {
        let order = match (&value, &other) {
            (None, None) => Ordering::Equal,
            (None, _) if key.nulls_first => return Ordering::Less,
            (None, _) => return Ordering::Greater,
            (_, None) if key.nulls_first => return Ordering::Greater,
            (_, None) => return Ordering::Less,
            _ => value.cmp(&other),
        };
        if key.descending { order.reverse() } else { order }
    }
    for (columns, flags) in [
        (vec![0, 3, 2], 0),
        (vec![4, 3, 0, 2], 5),
        (vec![1], 2),
        (vec![1, 2, 0], 1),
        (vec![2, 1], 3),
        (vec![5, 3, 1], 7),
        (vec![0, 1, 2, 3, 4], 10),
    ] {
        let key = |(index, column): (usize, &usize)| SortKey {
            column: *column,
            descending: flags >> index & 1 == 1,
            nulls_first: flags >> (index + 1) & 1 == 1,
        };
        let keys: Vec<SortKey> = columns.iter().enumerate().map(key).collect();
        let order = |a: &Row, b: &Row| {
            let by = |key: &SortKey| match key.column {
                0 => keyed(a.0, b.0, *key),
                1 => keyed(a.1, b.1, *key),
                2 | 5 => keyed(Some(a.2), Some(b.2), *key),
                3 => keyed(Some(a.3), Some(b.3), *key),
                _ => Ordering::Equal,
            };
            keys.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        };
        let mut expected = rows.clone();
        expected.sort_by(order);
        for limit in [None, Some(1), Some(3000), Some(140_000), Some(1 << 40)] {
            let found = sorted(&types, chunks.clone(), keys.clone(), limit);
            let mut at = 0;
            for chunk in &found {
                for row in 0..chunk.rows {
                    let wide = chunk.columns[1].as_wide().unwrap()[row];
                    let found = (
                        chunk.columns[0].is_valid(row).then(|| chunk.columns[0].as_ints().unwrap()[row]),
                        chunk.columns[1].is_valid(row).then_some(wide),
                        chunk.columns[2].as_ints().unwrap()[row],
                        chunk.columns[3].as_bools().unwrap().get(row),
                    );
                    assert!(order(&found, &expected[at]).is_eq(), "{keys:?}, {found:?}, not {:?}", expected[at]);
                    at += 1;
                }
            }
            assert_eq!(at, limit.unwrap_or(usize::MAX).min(rows.len()));
        }
    }
}

#[test]
fn no_rows_and_wrong_keys() {
    let types = [ColumnType::new(DataType::Int64, true)];
    let key = SortKey { column: 0, descending: false, nulls_first: false };
    for limit in [None, Some(5)] {
        assert!(sorted(&types, Vec::new(), vec![key], limit).is_empty());
    }
    let other = [ColumnType::new(DataType::Interval(arrow_schema::IntervalUnit::DayTime), true)];
    for (types, column) in [(&types, 1), (&other, 0)] {
        let sort = Sort { keys: vec![SortKey { column, ..key }], limit: None, types: types.to_vec() };
        assert!(SortSink(Sorted::new(sort)).worker().is_err());
    }
}
