use super::*;
use crate::{ColumnDef, ColumnFilter, CompareOp, Datum, TableDef, key_value};
use arrow_array::{ArrayRef, Int32Array, StringViewArray};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlType, TableId};

fn read(sql_type: SqlType, text: &str) -> Result<ArrayRef> {
    Ok(match sql_type {
        SqlType::Integer => Arc::new(Int32Array::from(vec![text.parse::<i32>().map_err(|_| Error::internal(text))?])),
        _ => Arc::new(StringViewArray::from(vec![text])),
    })
}

fn def() -> TableDef {
    let columns = vec![ColumnDef::new("a", SqlType::Integer), ColumnDef::new("b", SqlType::Text)];
    TableDef::new(TableId(1), "t", columns, vec![])
}

fn map(strategy: PartitionStrategy, columns: &[u16], bounds: Vec<PartitionBound>) -> PartitionMap {
    let numbered = (10..).map(TableId).zip(bounds);
    let partitions = numbered.map(|(id, bound)| PartitionDef { id, bound }).collect();
    PartitionMap::new(&def(), &Partitioning { strategy, columns: columns.to_vec(), partitions }, &read).unwrap()
}

fn value(text: &str) -> RangeBound {
    match text {
        "-" => RangeBound::MinValue,
        "+" => RangeBound::MaxValue,
        text => RangeBound::Value(text.to_owned()),
    }
}

fn range(from: &[&str], to: &[&str]) -> PartitionBound {
    let values = |texts: &[&str]| texts.iter().map(|text| value(text)).collect();
    PartitionBound::Range { from: values(from), to: values(to) }
}

fn list(values: &[Option<&str>]) -> PartitionBound {
    PartitionBound::List { values: values.iter().map(|value| value.map(str::to_owned)).collect() }
}

fn rows(rows: &[(Option<i32>, Option<&str>)]) -> Vec<ArrayRef> {
    let a: Int32Array = rows.iter().map(|row| row.0).collect();
    let b: StringViewArray = rows.iter().map(|row| row.1).collect();
    vec![Arc::new(a), Arc::new(b)]
}

fn route(map: &PartitionMap, rows: &[ArrayRef], count: usize) -> Result<Vec<Option<usize>>> {
    let key: Vec<ArrayRef> = map.positions().iter().map(|position| rows[*position].clone()).collect();
    let places = map.route(&key, count)?;
    for (row, place) in places.iter().enumerate() {
        let values = key.iter().zip(map.types()).map(|(column, sql_type)| key_value(*sql_type, column, row));
        assert_eq!(map.place_of(&values.collect::<Result<Vec<_>>>()?)?, *place);
    }
    Ok(places)
}

fn compare(op: CompareOp, value: i64) -> ColumnFilter {
    ColumnFilter::Compare { column: 0, op, value: Datum::Int(value) }
}

fn text(op: CompareOp, value: &str) -> ColumnFilter {
    ColumnFilter::Compare { column: 1, op, value: Datum::Text(value.to_owned()) }
}

fn kept(map: &PartitionMap, filters: &[ColumnFilter]) -> Vec<usize> {
    map.prune(filters).iter().enumerate().filter(|(_, kept)| **kept).map(|(place, _)| place).collect()
}

#[test]
fn a_range_has_its_lower_bound_and_not_its_upper_one() {
    let map = map(PartitionStrategy::Range, &[1], vec![range(&["10"], &["20"]), range(&["-"], &["10"])]);
    let rows = rows(&[(Some(9), None), (Some(10), None), (Some(19), None), (Some(20), None), (None, None)]);
    assert_eq!(route(&map, &rows, 5).unwrap(), [Some(1), Some(0), Some(0), None, None]);
    assert_eq!(map.in_order(), [1, 0]);
}

#[test]
fn bounds_of_several_columns_compare_as_rows_do() {
    let bounds = vec![range(&["1", "m"], &["2", "+"]), range(&["-", "-"], &["1", "m"]), PartitionBound::Default];
    let map = map(PartitionStrategy::Range, &[1, 2], bounds);
    let rows = rows(&[
        (Some(1), Some("a")),
        (Some(1), Some("m")),
        (Some(2), Some("zzz")),
        (Some(3), Some("a")),
        (Some(1), None),
        (Some(i32::MIN), Some("")),
    ]);
    assert_eq!(route(&map, &rows, 6).unwrap(), [Some(1), Some(0), Some(0), Some(2), Some(2), Some(1)]);
    assert_eq!(kept(&map, &[compare(CompareOp::Eq, 1)]), [0, 1, 2]);
    assert_eq!(kept(&map, &[compare(CompareOp::Eq, 1), text(CompareOp::Ge, "n")]), [0]);
    assert_eq!(kept(&map, &[compare(CompareOp::Eq, 1), text(CompareOp::Lt, "m")]), [1]);
    assert_eq!(kept(&map, &[compare(CompareOp::Gt, 2), text(CompareOp::Eq, "m")]), [2]);
}

#[test]
fn a_list_may_have_null_in_it() {
    let bounds = vec![list(&[Some("x"), Some("y")]), list(&[None, Some("z")]), PartitionBound::Default];
    let map = map(PartitionStrategy::List, &[2], bounds);
    let rows = rows(&[(None, Some("y")), (None, None), (None, Some("q"))]);
    assert_eq!(route(&map, &rows, 3).unwrap(), [Some(0), Some(1), Some(2)]);
    assert_eq!(kept(&map, &[text(CompareOp::Eq, "z")]), [1]);
    assert_eq!(kept(&map, &[text(CompareOp::Eq, "q")]), [2]);
    assert_eq!(kept(&map, &[text(CompareOp::Lt, "z")]), [0, 2]);
    assert_eq!(kept(&map, &[ColumnFilter::IsNull { column: 1 }]), [1]);
    assert_eq!(kept(&map, &[ColumnFilter::IsNotNull { column: 1 }]), [0, 1, 2]);
}

#[test]
fn conditions_leave_the_ranges_that_they_meet() {
    let bounds =
        vec![range(&["0"], &["10"]), range(&["10"], &["20"]), range(&["30"], &["40"]), PartitionBound::Default];
    let map = map(PartitionStrategy::Range, &[1], bounds);
    assert_eq!(kept(&map, &[]), [0, 1, 2, 3]);
    assert_eq!(kept(&map, &[compare(CompareOp::Eq, 10)]), [1]);
    assert_eq!(kept(&map, &[compare(CompareOp::Eq, 25)]), [3]);
    assert_eq!(kept(&map, &[compare(CompareOp::Ge, 5), compare(CompareOp::Lt, 10)]), [0]);
    assert_eq!(kept(&map, &[compare(CompareOp::Ge, 5), compare(CompareOp::Le, 10)]), [0, 1]);
    assert_eq!(kept(&map, &[compare(CompareOp::Gt, 15), compare(CompareOp::Lt, 31)]), [1, 2, 3]);
    assert_eq!(kept(&map, &[compare(CompareOp::Gt, 9), compare(CompareOp::Le, 19)]), [1]);
    assert_eq!(kept(&map, &[ColumnFilter::IsNull { column: 0 }]), [3]);
    let many = ColumnFilter::In { column: 0, values: vec![Datum::Int(3), Datum::Int(35)] };
    assert_eq!(kept(&map, &[many]), [0, 2]);
    // Not of the key.
    assert_eq!(kept(&map, &[text(CompareOp::Eq, "x")]), [0, 1, 2, 3]);
    // Nothing can be both.
    assert_eq!(kept(&map, &[compare(CompareOp::Gt, 8), compare(CompareOp::Lt, 3)]), [] as [usize; 0]);
}

#[test]
fn hashes_stay_what_they_are_in_data_folders() {
    let hash = |modulus, remainder| PartitionBound::Hash { modulus, remainder };
    let map = map(PartitionStrategy::Hash, &[1], (0..4).map(|remainder| hash(4, remainder)).collect());
    let rows =
        rows(&[(Some(0), None), (Some(1), None), (Some(2), None), (Some(-1), None), (Some(42), None), (None, None)]);
    let places: Vec<usize> = route(&map, &rows, 6).unwrap().into_iter().flatten().collect();
    assert_eq!(places, PLACES);
    for (number, place) in [0, 1, 2, -1, 42].into_iter().zip(PLACES) {
        assert_eq!(kept(&map, &[compare(CompareOp::Eq, number)]), [place]);
    }
    assert_eq!(kept(&map, &[ColumnFilter::IsNull { column: 0 }]), [PLACES[5]]);
    assert_eq!(kept(&map, &[compare(CompareOp::Gt, 3)]), [0, 1, 2, 3]);
}

const PLACES: [usize; 6] = [0, 3, 2, 2, 1, 3];

#[test]
fn what_overlaps_is_told() {
    let ranges = map(PartitionStrategy::Range, &[1], vec![range(&["0"], &["10"])]);
    let misfit = |bound: PartitionBound| ranges.misfit(&bound, &read).unwrap();
    assert_eq!(misfit(range(&["9"], &["11"])), Some(Misfit::Overlaps(0)));
    assert_eq!(misfit(range(&["-"], &["+"])), Some(Misfit::Overlaps(0)));
    assert_eq!(misfit(range(&["10"], &["11"])), None);
    assert_eq!(misfit(range(&["-"], &["0"])), None);
    assert_eq!(misfit(range(&["20"], &["20"])), Some(Misfit::Empty));
    assert_eq!(misfit(PartitionBound::Default), None);

    let hash = |modulus, remainder| PartitionBound::Hash { modulus, remainder };
    let hashes = map(PartitionStrategy::Hash, &[1], vec![hash(3, 0), hash(6, 1)]);
    let misfit = |bound: PartitionBound| hashes.misfit(&bound, &read).unwrap();
    assert_eq!(misfit(hash(2, 0)), Some(Misfit::NoFactor(0)));
    assert_eq!(misfit(hash(6, 3)), Some(Misfit::Overlaps(0)));
    assert_eq!(misfit(hash(6, 4)), None);
    assert_eq!(misfit(hash(8, 1)), Some(Misfit::NotDivisible(1)));
    assert_eq!(misfit(hash(3, 1)), Some(Misfit::Overlaps(1)));

    let lists = map(PartitionStrategy::List, &[2], vec![list(&[Some("x"), None]), PartitionBound::Default]);
    let misfit = |bound: PartitionBound| lists.misfit(&bound, &read).unwrap();
    assert_eq!(misfit(list(&[None])), Some(Misfit::Overlaps(0)));
    assert_eq!(misfit(list(&[Some("y")])), None);
    assert_eq!(misfit(PartitionBound::Default), Some(Misfit::SecondDefault(1)));
}
