//! `nextval` and the functions beside it.
//!
//! Values are taken for a batch of rows at a time, one for each row, and outside the transaction: what was taken stays
//! taken. A session keeps what `CACHE` let it take ahead, and what it was given last.

use super::{Function, Type, find_relation, sql_error};
use crate::catalog::objects::*;
use crate::catalog::value::Value;
use crate::facts::SessionFacts;
use crate::portable::PortableSequence;
use crate::resolve::{self, Relation};
use datafusion::arrow::array::{Array, ArrayRef, Int64Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tidepool_base::{Error, SqlState, TableId};
use tidepool_database::{Catalog, Database, Privileges, Sequence};
use tidepool_heap::QueryHeap;

use Type::*;

/// What a session knows of sequences.
#[derive(Debug, Default)]
pub struct SessionSequences {
    by_id: HashMap<TableId, SessionSequence>,
    /// What `lastval` asks.
    latest: Option<TableId>,
    /// Rises whenever anything of it may have changed.
    revision: u64,
}

#[derive(Debug)]
struct SessionSequence {
    last: Option<i64>,
    /// Taken ahead, for as long as the sequence is this one.
    cached: VecDeque<i64>,
    sequence: Arc<Sequence>,
}

impl SessionSequences {
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn of(&mut self, sequence: &Arc<Sequence>) -> &mut SessionSequence {
        let new = || SessionSequence { last: None, cached: VecDeque::new(), sequence: sequence.clone() };
        self.revision += 1;
        let own = self.by_id.entry(sequence.def.id).or_insert_with(new);
        if own.sequence.def != sequence.def {
            own.cached.clear();
            own.sequence = sequence.clone();
        }
        own
    }

    /// As another process goes on with it. Values that were taken ahead of a sequence that is another by now are none any more.
    pub fn to_portable(&self, catalog: &Catalog) -> (Vec<PortableSequence>, Option<TableId>) {
        let portable = |(id, own): (&TableId, &SessionSequence)| {
            let is_now = catalog.sequence_by_id(*id).is_some_and(|now| now.def == own.sequence.def);
            let cached = own.cached.iter().copied().filter(|_| is_now).collect();
            PortableSequence { id: id.0, last: own.last, cached }
        };
        (self.by_id.iter().map(portable).collect(), self.latest)
    }

    /// Those of sequences that exist.
    pub fn of_portable(sequences: &[PortableSequence], latest: Option<u32>, catalog: &Catalog) -> SessionSequences {
        let session = |portable: &PortableSequence| {
            let id = TableId(portable.id);
            let sequence = catalog.sequence_by_id(id)?.clone();
            Some((
                id,
                SessionSequence { last: portable.last, cached: portable.cached.iter().copied().collect(), sequence },
            ))
        };
        let by_id = sequences.iter().filter_map(session).collect();
        SessionSequences { by_id, latest: latest.map(TableId), revision: 0 }
    }
}

fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn check_writable(facts: &SessionFacts, sequence: &Sequence, function: &str) -> Result<()> {
    if sequence.def.id.is_temporary() {
        return Ok(());
    }
    if facts.settings.is_on("transaction_read_only") || facts.settings.is_standby() {
        return Err(external(crate::read_only::in_read_only(&format!("{function}()"))));
    }
    Ok(())
}

/// The sequence that a name or oid means.
fn sequence(facts: &SessionFacts, value: &Value) -> Result<Arc<Sequence>> {
    let oid = match value {
        Value::Text(name) => match name.parse::<u32>() {
            Ok(oid) => Some(oid),
            Err(_) => find_relation(facts, name),
        },
        oid => u32::try_from(oid.as_int()).ok(),
    };
    let shown = match value {
        Value::Text(name) => name.to_string(),
        oid => oid.as_int().to_string(),
    };
    let missing = || sql_error(SqlState::UNDEFINED_TABLE, format!("relation \"{shown}\" does not exist"));
    let oid = oid.ok_or_else(missing)?;
    match resolve::by_id(facts, TableId(oid)) {
        Some(Relation::Sequence(sequence)) => Ok(sequence),
        _ => match relation_by_oid(facts, oid) {
            Some((_, name)) => Err(sql_error(SqlState::WRONG_OBJECT_TYPE, format!("\"{name}\" is not a sequence"))),
            None => Err(missing()),
        },
    }
}

fn check_may(facts: &SessionFacts, sequence: &Arc<Sequence>, any: &[Privileges]) -> Result<()> {
    crate::privileges::check_sequence(facts, &Relation::Sequence(sequence.clone()), any).map_err(external)
}

/// Gives a session a sequence's next value. What the session may do has been looked at.
pub fn next_value_of(
    sequences: &parking_lot::Mutex<SessionSequences>,
    database: &Database,
    sequence: &Arc<Sequence>,
) -> tidepool_base::Result<i64> {
    let mut session = sequences.lock();
    let value = taken(session.of(sequence), database, sequence, 1)?.pop();
    session.latest = Some(sequence.def.id);
    value.ok_or_else(|| Error::internal("a sequence gave no value"))
}

/// The next `rows` values, of those that were taken ahead first.
fn taken(
    own: &mut SessionSequence,
    database: &Database,
    sequence: &Sequence,
    rows: usize,
) -> tidepool_base::Result<Vec<i64>> {
    QueryHeap::outside(|| {
        let mut values = Vec::with_capacity(rows);
        while values.len() < rows {
            if let Some(value) = own.cached.pop_front() {
                values.push(value);
                continue;
            }
            let wanted = (rows - values.len()) as u64;
            let cache = sequence.def.cache.max(1) as u64;
            if cache == 1 {
                values.extend(database.next_values(sequence, wanted, false)?);
            } else {
                own.cached.extend(database.next_values(sequence, wanted.next_multiple_of(cache), true)?);
            }
        }
        own.last = values.last().copied().or(own.last);
        Ok(values)
    })
}

/// Gives the session the next `rows` values.
fn take(facts: &SessionFacts, sequence: &Arc<Sequence>, rows: usize) -> Result<Vec<i64>> {
    check_writable(facts, sequence, "nextval")?;
    check_may(facts, sequence, &[Privileges::USAGE, Privileges::UPDATE])?;
    let database = facts.planner.database();
    let mut session = facts.sequences.lock();
    let own = QueryHeap::outside(|| session.of(sequence));
    let values = taken(own, database, sequence, rows).map_err(external)?;
    if rows > 0 {
        session.latest = Some(sequence.def.id);
    }
    Ok(values)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NextValue {
    signature: Signature,
}

impl ScalarUDFImpl for NextValue {
    fn name(&self) -> &str {
        "nextval"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }
    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        match arg_types {
            [DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::UInt32 | DataType::Null] => {
                Ok(arg_types.to_vec())
            }
            [other] if other.is_integer() => Ok(vec![DataType::UInt32]),
            _ => plan_err!("function nextval with these arguments does not exist"),
        }
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let facts = SessionFacts::of(&args.config_options)
            .ok_or_else(|| DataFusionError::Internal("no session to ask".to_owned()))?;
        let rows = args.number_rows;
        let values: ArrayRef = match args.args.first() {
            Some(ColumnarValue::Scalar(scalar)) => match crate::catalog::value::value_at(&scalar.to_array()?, 0)? {
                Value::Null => Arc::new(Int64Array::new_null(rows)),
                name => Arc::new(Int64Array::from(take(facts, &sequence(facts, &name)?, rows)?)),
            },
            Some(ColumnarValue::Array(names)) => {
                let mut values = Vec::with_capacity(rows);
                for row in 0..names.len() {
                    values.push(match crate::catalog::value::value_at(names, row)? {
                        Value::Null => None,
                        name => take(facts, &sequence(facts, &name)?, 1)?.pop(),
                    });
                }
                Arc::new(Int64Array::from(values))
            }
            None => return plan_err!("function nextval() does not exist"),
        };
        // A constant argument of one row is still asked once a row.
        Ok(match rows {
            1 => ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?),
            _ => ColumnarValue::Array(values),
        })
    }
}

pub fn next_value() -> ScalarUDF {
    ScalarUDF::new_from_impl(NextValue { signature: Signature::user_defined(Volatility::Volatile) })
}

fn set_value(facts: &SessionFacts, args: &[Value]) -> Result<Value> {
    let sequence = sequence(facts, &args[0])?;
    check_writable(facts, &sequence, "setval")?;
    check_may(facts, &sequence, &[Privileges::UPDATE])?;
    let (value, called) = (args[1].as_int(), args.get(2).is_none_or(Value::as_bool));
    facts.planner.database().set_sequence(&sequence, value, called).map_err(external)?;
    let mut session = facts.sequences.lock();
    QueryHeap::outside(|| {
        let own = session.of(&sequence);
        own.cached.clear();
        if called {
            own.last = Some(value);
        }
    });
    Ok(value.into())
}

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("currval", &[&[Oid], &[Text]], "int8", |call, args| {
            let facts = call.facts()?;
            let sequence = sequence(facts, &args[0])?;
            check_may(facts, &sequence, &[Privileges::USAGE, Privileges::SELECT])?;
            let last = facts.sequences.lock().by_id.get(&sequence.def.id).and_then(|own| own.last);
            last.map(Into::into).ok_or_else(|| {
                sql_error(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("currval of sequence \"{}\" is not yet defined in this session", sequence.def.name),
                )
            })
        })
        .volatile(),
        Function::new("lastval", &[&[]], "int8", |call, _| {
            let facts = call.facts()?;
            let session = facts.sequences.lock();
            // Of one that was dropped nothing is known any more.
            let latest = session.latest.filter(|id| facts.version.catalog.sequence_by_id(*id).is_some());
            let last = latest.and_then(|id| session.by_id.get(&id)).and_then(|own| own.last);
            last.map(Into::into).ok_or_else(|| {
                sql_error(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "lastval is not yet defined in this session")
            })
        })
        .volatile(),
        Function::new(
            "setval",
            &[&[Oid, Int8], &[Oid, Int8, Bool], &[Text, Int8], &[Text, Int8, Bool]],
            "int8",
            |call, args| set_value(call.facts()?, args),
        )
        .volatile(),
        Function::new("pg_sequence_last_value", &[&[Oid], &[Text]], "int8", |call, args| {
            let position = sequence(call.facts()?, &args[0])?.position();
            Ok(position.is_called.then_some(position.last_value).into())
        })
        .volatile(),
        Function::new("pg_get_serial_sequence", &[&[Text, Text]], "text", |call, args| {
            let facts = call.facts()?;
            let missing = |what: String| sql_error(SqlState::UNDEFINED_TABLE, what);
            let name = args[0].as_str();
            let relation = find_relation(facts, name).and_then(|oid| resolve::by_id(facts, TableId(oid)));
            let no_column = |column: &str, relation: &str| {
                let message = format!("column \"{column}\" of relation \"{relation}\" does not exist");
                sql_error(SqlState::UNDEFINED_COLUMN, message)
            };
            let wanted = args[1].as_str();
            let table = match relation {
                Some(Relation::Table(table)) => table,
                // Those of others have columns, and no sequences.
                Some(Relation::View(view)) => {
                    let is_there = view.columns.iter().any(|column| column.name == wanted);
                    return if is_there { Ok(None::<String>.into()) } else { Err(no_column(wanted, &view.name)) };
                }
                _ => {
                    let system = find_relation(facts, name)
                        .and_then(|oid| crate::catalog::relations::all().iter().find(|relation| relation.oid == oid))
                        .ok_or_else(|| missing(format!("relation \"{name}\" does not exist")))?;
                    let is_there = system.columns.iter().any(|column| column.name == wanted);
                    return if is_there { Ok(None::<String>.into()) } else { Err(no_column(wanted, system.name)) };
                }
            };
            let column = table.def.columns.iter().find(|column| column.name == wanted);
            let column = column.ok_or_else(|| no_column(wanted, &table.def.name))?;
            let mut owned = facts.version.catalog.owned_sequences(table.def.id);
            let sequence = owned.find(|sequence| sequence.def.owner.is_some_and(|owner| owner.column == column.number));
            Ok(sequence
                .map(|sequence| {
                    let schema = facts.version.schema_name(sequence.def.schema);
                    format!("{}.{}", quote_identifier(schema), quote_identifier(&sequence.def.name))
                })
                .into())
        })
        .stable(),
    ]
}
