//! Sequences: what `CREATE` and `ALTER SEQUENCE` ask for, and the columns that have one.

use crate::facts::SessionFacts;
use crate::resolve;
use crate::statement::{QualifiedName, fold};
use crate::walk::walk_mut;
use datafusion::arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::sql::sqlparser::ast::{
    self, CastKind, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Value, ValueWithSpan, VisitMut, VisitorMut,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType, TableId};
use tidepool_database::{DatabaseVersion, RelationName, Sequence, SequenceDef, SequenceOwner};
use tidepool_table::Table;

/// The options of a sequence, as far as they were written. `Some(None)` for `NO …`, and for `RESTART` alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceOptions {
    /// What the sequence of an identity column is to be called.
    pub name: Option<QualifiedName>,
    pub data_type: Option<SqlType>,
    pub increment: Option<i64>,
    pub min: Option<Option<i64>>,
    pub max: Option<Option<i64>>,
    pub start: Option<i64>,
    pub restart: Option<Option<i64>>,
    pub cache: Option<i64>,
    pub cycle: Option<bool>,
    /// A table and its column; `Some(None)` for `NONE`.
    pub owned_by: Option<Option<(QualifiedName, String)>>,
}

impl SequenceOptions {
    /// With what others ask for, too; of what both ask for the later counts.
    pub fn and(self, later: SequenceOptions) -> SequenceOptions {
        SequenceOptions {
            name: later.name.or(self.name),
            data_type: later.data_type.or(self.data_type),
            increment: later.increment.or(self.increment),
            min: later.min.or(self.min),
            max: later.max.or(self.max),
            start: later.start.or(self.start),
            restart: later.restart.or(self.restart),
            cache: later.cache.or(self.cache),
            cycle: later.cycle.or(self.cycle),
            owned_by: later.owned_by.or(self.owned_by),
        }
    }

    /// Those of `GENERATED … AS IDENTITY (…)`.
    pub fn of_identity(options: &[ast::SequenceOptions]) -> Result<SequenceOptions> {
        let mut read = SequenceOptions::default();
        let number = |expr: &Expr| {
            expr.to_string().replace(' ', "").parse::<i64>().map_err(|_| {
                Error::new(SqlState::SYNTAX_ERROR, format!("\"{expr}\" is no number that a sequence can have"))
            })
        };
        for option in options {
            match option {
                ast::SequenceOptions::IncrementBy(value, _) => read.increment = Some(number(value)?),
                ast::SequenceOptions::MinValue(value) => read.min = Some(value.as_ref().map(number).transpose()?),
                ast::SequenceOptions::MaxValue(value) => read.max = Some(value.as_ref().map(number).transpose()?),
                ast::SequenceOptions::StartWith(value, _) => read.start = Some(number(value)?),
                ast::SequenceOptions::Cache(value) => read.cache = Some(number(value)?),
                // sqlparser's flag says whether it was NO CYCLE.
                ast::SequenceOptions::Cycle(no) => read.cycle = Some(!no),
            }
        }
        Ok(read)
    }
}

fn bounds(data_type: SqlType) -> (i64, i64) {
    match data_type {
        SqlType::SmallInt => (i16::MIN.into(), i16::MAX.into()),
        SqlType::Integer => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    }
}

/// The definition that `options` make, of nothing or of `before`, and the value to restart with. 22023 for options that
/// do not fit together.
pub fn define(
    name: &RelationName,
    before: Option<&Sequence>,
    options: &SequenceOptions,
) -> Result<(SequenceDef, Option<i64>)> {
    let invalid = |message: String| Error::new(SqlState::INVALID_PARAMETER_VALUE, message);
    let old = before.map(|before| &before.def);
    let data_type = options.data_type.or(old.map(|old| old.data_type)).unwrap_or(SqlType::BigInt);
    if !matches!(data_type, SqlType::SmallInt | SqlType::Integer | SqlType::BigInt) {
        return Err(invalid("sequence type must be smallint, integer, or bigint".to_owned()));
    }
    let (type_min, type_max) = bounds(data_type);
    let increment = options.increment.or(old.map(|old| old.increment)).unwrap_or(1);
    if increment == 0 {
        return Err(invalid("INCREMENT must not be zero".to_owned()));
    }
    // A bound that was the old type's becomes the new type's.
    let kept = |bound: fn(&SequenceDef) -> i64, of_type: fn((i64, i64)) -> i64| {
        let old = old?;
        let follows = options.data_type.is_some() && bound(old) == of_type(bounds(old.data_type));
        (!follows).then(|| bound(old))
    };
    let max = match options.max {
        Some(Some(max)) => max,
        Some(None) if increment > 0 => type_max,
        Some(None) => -1,
        None => kept(|old| old.max, |bounds| bounds.1).unwrap_or(if increment > 0 { type_max } else { -1 }),
    };
    let min = match options.min {
        Some(Some(min)) => min,
        Some(None) if increment > 0 => 1,
        Some(None) => type_min,
        None => kept(|old| old.min, |bounds| bounds.0).unwrap_or(if increment > 0 { 1 } else { type_min }),
    };
    for (what, value) in [("MAXVALUE", max), ("MINVALUE", min)] {
        if !(type_min..=type_max).contains(&value) {
            return Err(invalid(format!("{what} ({value}) is out of range for sequence data type {data_type}")));
        }
    }
    if min >= max {
        return Err(invalid(format!("MINVALUE ({min}) must be less than MAXVALUE ({max})")));
    }
    let within = |what: &str, value: i64| {
        if value < min {
            return Err(invalid(format!("{what} value ({value}) cannot be less than MINVALUE ({min})")));
        }
        if value > max {
            return Err(invalid(format!("{what} value ({value}) cannot be greater than MAXVALUE ({max})")));
        }
        Ok(value)
    };
    let natural_start = if increment > 0 { min } else { max };
    let start = within("START", options.start.or(old.map(|old| old.start)).unwrap_or(natural_start))?;
    let restart = options.restart.map(|value| value.unwrap_or(start));
    if let Some(value) = restart.or(before.map(|before| before.position().last_value)) {
        within("RESTART", value)?;
    }
    let cache = options.cache.or(old.map(|old| old.cache)).unwrap_or(1);
    if cache < 1 {
        return Err(invalid(format!("CACHE ({cache}) must be greater than zero")));
    }
    let def = SequenceDef {
        id: old.map_or(TableId(0), |old| old.id),
        schema: name.schema,
        name: name.name.clone(),
        data_type,
        start,
        increment,
        min,
        max,
        cache,
        cycle: options.cycle.or(old.map(|old| old.cycle)).unwrap_or(false),
        owner: old.and_then(|old| old.owner),
        position_id: old.map_or(0, |old| old.position_id),
    };
    Ok((def, restart))
}

/// The column that `OWNED BY` names.
pub fn owner(
    facts: &SessionFacts,
    sequence: &RelationName,
    owned_by: &Option<(QualifiedName, String)>,
) -> Result<Option<SequenceOwner>> {
    let Some((table, column)) = owned_by else { return Ok(None) };
    let table = resolve::table(facts, table)?;
    if table.def.schema != sequence.schema {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "sequence must be in same schema as table it is linked to",
        ));
    }
    match table.def.columns.iter().find(|known| known.name == *column) {
        Some(column) => Ok(Some(SequenceOwner { table: table.def.id, column: column.number, identity: false })),
        None => Err(Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{column}\" of relation \"{}\" does not exist", table.def.name),
        )),
    }
}

/// What a column takes its values from: stored as its default.
pub fn default_of(sequence: TableId) -> String {
    format!("nextval('{sequence}'::REGCLASS)")
}

/// The sequences that a stored expression names.
pub fn named_in(text: &str) -> Vec<TableId> {
    pieces(text).filter_map(|(_, id)| id).collect()
}

/// A stored expression cut after each `'oid'::REGCLASS` in it: the text before, and the oid.
fn pieces(text: &str) -> impl Iterator<Item = (&str, Option<TableId>)> {
    const CAST: &str = "'::REGCLASS";
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut from = 0;
        while let Some(at) = rest[from..].find(CAST).map(|at| from + at) {
            if let Some(quote) = rest[..at].rfind('\'')
                && let Ok(id) = rest[quote + 1..at].parse::<u32>()
            {
                let before = &rest[..quote];
                rest = &rest[at + CAST.len()..];
                return Some((before, Some(TableId(id))));
            }
            from = at + CAST.len();
        }
        Some((std::mem::take(&mut rest), None))
    })
}

/// A stored expression as SQL: relations under the names that they have now.
pub fn shown(facts: &SessionFacts, text: &str) -> String {
    pieces(text)
        .map(|(before, id)| {
            let Some(id) = id else { return before.to_owned() };
            let name = match crate::catalog::relation_text(facts, id.0) {
                Some(name) => name.replace('\'', "''"),
                None => id.to_string(),
            };
            format!("{before}'{name}'::regclass")
        })
        .collect()
}

/// Names relations by oid where an expression has them as texts: `nextval('s')`, `'t'::regclass`. So it means the same
/// whatever they are called later. 42P01 when there is none of the name.
pub fn freeze(facts: &SessionFacts, expr: &mut impl VisitMut) -> Result<()> {
    match walk_mut(expr, &mut Freezer { facts }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Freezer<'a> {
    facts: &'a SessionFacts,
}

fn literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) => Some(text),
        Expr::Cast { expr, data_type: ast::DataType::Regclass, .. } => literal(expr),
        _ => None,
    }
}

/// The name in `regclass_in('t')`, which a cast has become.
fn registered(expr: &Expr) -> Option<&str> {
    let Expr::Function(function) = expr else { return None };
    let [ast::ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
    if fold(name) != "regclass_in" {
        return None;
    }
    match &function.args {
        FunctionArguments::List(list) => match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(name))] => literal(name),
            _ => None,
        },
        _ => None,
    }
}

impl Freezer<'_> {
    fn by_oid(&self, name: &str) -> Result<Expr> {
        let oid = match name.parse::<u32>() {
            Ok(oid) => oid,
            Err(_) => crate::catalog::find_relation(self.facts, name)
                .ok_or_else(|| Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist")))?,
        };
        Ok(Expr::Cast {
            kind: CastKind::DoubleColon,
            expr: Box::new(Expr::Value(Value::SingleQuotedString(oid.to_string()).into())),
            data_type: ast::DataType::Regclass,
            array: false,
            format: None,
        })
    }
}

impl VisitorMut for Freezer<'_> {
    type Break = Error;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let name = match &*expr {
            Expr::Cast { data_type: ast::DataType::Regclass, .. } => literal(expr).map(str::to_owned),
            Expr::Function(_) => registered(expr).map(str::to_owned),
            _ => None,
        };
        if let Some(name) = name {
            match self.by_oid(&name) {
                Ok(frozen) => *expr = frozen,
                Err(error) => return ControlFlow::Break(error),
            }
            return ControlFlow::Continue(());
        }
        if let Expr::Function(function) = expr
            && let Some(called) = function.name.0.last().and_then(|part| part.as_ident()).map(fold)
            && matches!(called.as_str(), "nextval" | "currval" | "setval")
            && let FunctionArguments::List(list) = &mut function.args
            && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))) = list.args.first_mut()
            && let Some(name) = literal(argument).map(str::to_owned)
        {
            match self.by_oid(&name) {
                Ok(frozen) => *argument = frozen,
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
}

/// The sequence as a table of one row.
pub fn provider(sequence: &Sequence) -> Result<Arc<dyn TableProvider>> {
    let position = sequence.position();
    let schema = Arc::new(Schema::new(vec![
        Field::new("last_value", DataType::Int64, false),
        Field::new("log_cnt", DataType::Int64, false),
        Field::new("is_called", DataType::Boolean, false),
    ]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![position.last_value])),
        Arc::new(Int64Array::from(vec![position.log_count as i64])),
        Arc::new(BooleanArray::from(vec![position.is_called])),
    ];
    let batch = RecordBatch::try_new(schema.clone(), columns).map_err(crate::errors::from_arrow)?;
    let table = MemTable::try_new(schema, vec![vec![batch]]).map_err(crate::errors::from_datafusion)?;
    Ok(Arc::new(table))
}

/// A column that takes its values from a sequence that is made with it.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Of the table.
    pub column: usize,
    pub options: SequenceOptions,
    pub identity: bool,
}

/// The sequence of an identity column or `serial`.
pub fn of_column(version: &DatabaseVersion, table: &Table, column: u16) -> Option<Arc<Sequence>> {
    let mut owned = version.catalog.owned_sequences(table.def.id);
    owned.find(|sequence| sequence.def.owner.is_some_and(|owner| owner.column == column)).cloned()
}
