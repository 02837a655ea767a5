//! Ordered-set aggregates, over the array of a group's values in order that the rewriter has collected for them.

use super::Type::*;
use super::{Function, sql_error};
use crate::catalog::value::Value;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use tidepool_base::SqlState;

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("pg_percentile_disc", &[&[List, Float8]], "text", |_, args| {
            let fraction = args[1].as_float();
            if !(0.0..=1.0).contains(&fraction) {
                return Err(sql_error(
                    SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
                    format!("percentile value {fraction} is not between 0 and 1"),
                ));
            }
            let items = known(&args[0]);
            let position = (fraction * items.len() as f64).ceil() as usize;
            Ok(items.get(position.saturating_sub(1)).map_or(Value::Null, |item| (*item).clone()))
        })
        .returning(item),
        // Equal values stand together, so that the longest run is of the most frequent one.
        Function::new("pg_mode", &[&[List]], "text", |_, args| {
            let items = known(&args[0]);
            let mut best: Option<(usize, &Value)> = None;
            for run in items.chunk_by(|left, right| left == right) {
                if best.is_none_or(|(length, _)| run.len() > length) {
                    best = run.first().map(|value| (run.len(), *value));
                }
            }
            Ok(best.map_or(Value::Null, |(_, value)| value.clone()))
        })
        .returning(item),
    ]
}

/// The values that are not NULL, which these aggregates ignore.
fn known(items: &Value) -> Vec<&Value> {
    match items {
        Value::List(items) => items.iter().filter(|item| !item.is_null()).collect(),
        _ => Vec::new(),
    }
}

fn item(types: &[DataType]) -> Result<DataType> {
    match types.first() {
        Some(DataType::List(item) | DataType::LargeList(item)) => Ok(item.data_type().clone()),
        _ => plan_err!("an ordered-set aggregate takes an array"),
    }
}
