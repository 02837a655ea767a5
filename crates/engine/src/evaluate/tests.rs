use super::*;
use crate::expr::{ArithmeticOp, Pattern};
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
