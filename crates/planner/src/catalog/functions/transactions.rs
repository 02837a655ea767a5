//! Ids of transactions, and what became of these. Each is drawn when its client first asks for it.

use super::Type::Int8;
use super::{Call, Function};
use crate::catalog::value::Value;
use crate::errors::carry;
use datafusion::common::Result;

fn current(call: &Call<'_>, _: &[Value]) -> Result<Value> {
    let facts = call.facts()?;
    Ok(facts.current.assign_id(facts.planner.database()).map_err(carry)?.into())
}

fn current_if_assigned(call: &Call<'_>, _: &[Value]) -> Result<Value> {
    Ok(call.facts()?.current.assigned_id().into())
}

fn fate(call: &Call<'_>, args: &[Value]) -> Result<Value> {
    let id = args[0].as_int().cast_unsigned();
    let fate = call.facts()?.planner.database().transaction_fate(id).map_err(carry)?;
    Ok(fate.map(|fate| fate.name()).into())
}

/// All are volatile, so that no plan has an answer of theirs.
pub fn functions() -> Vec<Function> {
    vec![
        Function::new("pg_current_xact_id", &[&[]], "xid8", current).volatile(),
        Function::new("txid_current", &[&[]], "int8", current).volatile(),
        Function::new("pg_current_xact_id_if_assigned", &[&[]], "xid8", current_if_assigned).volatile(),
        Function::new("txid_current_if_assigned", &[&[]], "int8", current_if_assigned).volatile(),
        Function::new("pg_xact_status", &[&[Int8]], "text", fate).volatile(),
        Function::new("txid_status", &[&[Int8]], "text", fate).volatile(),
    ]
}
