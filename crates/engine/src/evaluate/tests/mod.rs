mod model;
mod random;

use self::model::{Model, model};
use self::random::{Maker, Random};
use super::*;
use crate::expr::{ArithmeticOp, Pattern};
use crate::simd::{self, Level};
use arrow_schema::DataType;

fn ints(values: &[Option<i64>]) -> Vector {
    let valid = Mask::from_fn(values.len(), |row| values[row].is_some());
    Vector::ints(values.iter().map(|value| value.unwrap_or(i64::MIN)).collect()).with_valid(Some(valid))
}

fn int_column(index: usize) -> Expr {
    Expr::column(index, ColumnType::new(DataType::Int32, true))
}

fn int(value: i64) -> Expr {
    Expr::literal(Scalar::Int(value), DataType::Int32)
}

#[test]
fn guards_keep_errors_away() {
    let chunk = Chunk::new(4, vec![ints(&[Some(0), Some(2), None, Some(5)])]);
    let quotient = Expr::arithmetic(ArithmeticOp::Divide, int(10), int_column(0), DataType::Int32).unwrap();
    assert_eq!(evaluate(&quotient, &chunk).unwrap_err().code().code(), "22012");
    let not_zero = Expr::compare(CompareOp::Ne, int_column(0), int(0)).unwrap();
    let large = Expr::compare(CompareOp::Gt, quotient.clone(), int(2)).unwrap();
    let both = Expr::and(vec![not_zero.clone(), large]);
    assert_eq!(select(&both, &chunk).unwrap().positions(), [1]);
    let case = Expr::case(vec![(not_zero, quotient)], Some(int(7))).unwrap();
    let values = evaluate(&case, &chunk).unwrap();
    assert_eq!(values.as_ints().unwrap(), [7, 5, 7, 2]);
    assert!(values.valid.is_none());
}

#[test]
fn patterns_end_after_their_escape() {
    assert_eq!(Pattern::parse("a\\", Some('\\'), false).unwrap_err().code().code(), "22025");
    assert!(Pattern::parse("a\\", None, false).is_ok());
}

/// Says what went wrong with what.
fn check(expr: &Expr, types: &[ColumnType], chunk: &Chunk, rows: &[Vec<Model>], is_strict: bool, seed: u64) {
    let expected: Vec<_> = rows.iter().map(|row| model(expr, row)).collect();
    let context = |row: usize| {
        let mut columns = std::collections::BTreeSet::new();
        expr.columns_into(&mut columns);
        let of_row: Vec<_> =
            columns.iter().map(|column| (*column, &rows[row][*column], &types[*column].bounds)).collect();
        format!("seed {seed}, row {row}: {of_row:?}\n{expr}\nof {:?}\nsimplified {}", expr.of, simplify(expr.clone()))
    };
    // Where conditions change places, another of a row's errors may come first.
    let is_raised = |code: &'static str| {
        move |expected: &model::Outcome| match expected {
            Err(expected) => *expected == code || !is_strict,
            Ok(_) => false,
        }
    };
    match evaluate(expr, chunk) {
        Ok(vector) => {
            assert_eq!(vector.len(), chunk.rows);
            assert_eq!(vector.values.class(), expr.class(), "{}", context(0));
            assert!(vector.valid.as_ref().is_none_or(|valid| !valid.is_all()));
            for (row, expected) in expected.iter().enumerate() {
                match expected {
                    Ok(expected) => assert_eq!(&random::value(&vector, &expr.of, row), expected, "{}", context(row)),
                    Err(code) => assert!(!is_strict, "an error {code} was not raised; {}", context(row)),
                }
                if let (Ok(Model::Int(value)), Some((lower, upper))) = (expected, expr.of.bounds)
                    && expr.of.dictionary.is_none()
                {
                    assert!((lower..=upper).contains(value), "{}", context(row));
                }
            }
        }
        Err(error) => {
            let raised = expected.iter().any(is_raised(error.code().code()));
            assert!(raised, "{error:?} was raised; {}", context(0));
        }
    }
    if expr.class() == Class::Bool {
        match select(expr, chunk) {
            Ok(mask) => {
                for (row, expected) in expected.iter().enumerate() {
                    if let Ok(expected) = expected {
                        assert_eq!(mask.get(row), *expected == Model::Bool(true), "selected; {}", context(row));
                    }
                }
            }
            Err(error) => {
                let raised = expected.iter().any(is_raised(error.code().code()));
                assert!(raised, "{error:?} was raised; {}", context(0));
            }
        }
    }
}

/// More of them find more: some thousand do in a second.
const SEEDS: u64 = 1_500;

fn run(is_strict: bool, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Random(seed);
        simd::limit(random.pick(&[Level::Plain, Level::Avx2, Level::Avx512]));
        let types = random::columns(&mut random);
        let count = random.pick(&[0, 1, 5, 63, 64, 65, 130, 200]);
        let (chunk, rows) = random::chunk(&mut random, &types, count);
        for _ in 0..12 {
            let mut maker = Maker { random: &mut random, types: &types, is_strict };
            let depth = maker.random.below(if is_strict { 3 } else { 5 });
            let expr = if maker.random.one_in(2) { maker.boolean(depth) } else { maker.any(depth) };
            check(&expr, &types, &chunk, &rows, is_strict, seed);
        }
    }
}

#[test]
fn values_are_those_of_the_model() {
    run(false, 0..SEEDS);
}

#[test]
fn errors_are_those_of_the_model() {
    run(true, 0..SEEDS);
}

#[test]
fn tests_of_coded_text_become_tests_of_codes() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let types = random::columns(&mut random);
        let (chunk, rows) = random::chunk(&mut random, &types, 100);
        for index in types.len() - 2..types.len() {
            let column = Expr::column(index, types[index].clone());
            let literal = |random: &mut Random| {
                let of = ColumnType { dictionary: None, ..types[index].clone() };
                let Model::Text(text) = random.scalar(&of) else { unreachable!("of text") };
                text
            };
            let mut expressions = Vec::new();
            use CompareOp::*;
            for op in [Eq, Ne, Lt, Le, Gt, Ge] {
                let known = types[index].dictionary.as_ref().map(|dictionary| dictionary.bytes(0).to_vec());
                for text in [literal(&mut random), known.unwrap_or_default()] {
                    let constant = Expr::literal(Scalar::Text(text.into()), DataType::Utf8View);
                    let sides = [(column.clone(), constant.clone()), (constant, column.clone())];
                    expressions.extend(sides.map(|(left, right)| Expr::compare(op, left, right).unwrap()));
                }
            }
            let values: Vec<Scalar> = (0..9).map(|_| Scalar::Text(literal(&mut random).into())).collect();
            expressions.extend([true, false].map(|negated| column.clone().in_list(values.clone(), negated).unwrap()));
            let pattern = Pattern::parse("%a%", None, false).unwrap();
            expressions.push(column.clone().like(pattern, false).unwrap());
            for expr in expressions {
                let simple = simplify(expr.clone());
                let mut decodes = vec![&simple];
                while let Some(part) = decodes.pop() {
                    assert!(!matches!(part.node, crate::expr::Node::Decode(_)), "{expr} is {simple}");
                    decodes.extend(part.children());
                }
                check(&expr, &types, &chunk, &rows, true, seed);
            }
        }
    }
}
