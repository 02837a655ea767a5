//! `TABLESAMPLE`: some of a table's rows, which DataFusion would give all of.
//!
//! The table is read with its rows' ids, and a function says of each row whether it is taken: by chance, or with `REPEATABLE` by the row's id
//! and the seed, so that the same rows come again while the table is the same. `SYSTEM` takes neighbours together.

use crate::query::Names;
use crate::resolve::BY_ID;
use crate::statement::{fold, parse_expression, parse_query};
use crate::walk::walk_mut;
use datafusion::catalog::TableProvider;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, SelectItem, SetExpr, TableAlias, TableFactor, TableSample, TableSampleBucket,
    TableSampleKind, TableSampleMethod, TableSampleModifier, TableSampleQuantity, TableSampleSeed, UnaryOperator,
    Value, VisitorMut,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};

/// The column of rows' ids.
pub const ROW: &str = "\u{1}sample";

/// The function that takes a row or does not: of its id, how many neighbours are taken together, the percentage, and the seed or NULL.
pub const FUNCTION: &str = "tidepool_sampled";

/// Neighbours that `SYSTEM` takes together.
const BLOCK_ROWS: u64 = 64;

/// Replaces tables of which a sample is asked for. Gives them, by name in schema `pg_oid`.
pub fn write_out(names: &Names<'_>, query: &mut Query) -> Result<BTreeMap<String, Arc<dyn TableProvider>>> {
    let mut samples = Samples { names, tables: BTreeMap::new(), with: BTreeSet::new() };
    match walk_mut(query, &mut samples) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(samples.tables),
    }
}

struct Samples<'n, 'f> {
    names: &'n Names<'f>,
    tables: BTreeMap<String, Arc<dyn TableProvider>>,
    /// The names of `WITH` queries, wherever they are.
    with: BTreeSet<String>,
}

impl VisitorMut for Samples<'_, '_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let queries = query.with.iter().flat_map(|with| &with.cte_tables);
        self.with.extend(queries.map(|cte| fold(&cte.alias.name)));
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let sample = match factor {
            TableFactor::Table { sample, .. } | TableFactor::Derived { sample, .. } => sample.take(),
            _ => None,
        };
        let Some(TableSampleKind::BeforeTableAlias(sample) | TableSampleKind::AfterTableAlias(sample)) = sample else {
            return ControlFlow::Continue(());
        };
        match self.sampled(factor, *sample) {
            Ok(sampled) => *factor = sampled,
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

/// 0A000 for what has no rows of its own.
pub fn not_a_table() -> Error {
    Error::unsupported("TABLESAMPLE clause can only be applied to tables and materialized views")
}

/// 2202H for a percentage that is none.
pub fn check_percentage(percentage: f64) -> Result<()> {
    if (0.0..=100.0).contains(&percentage) {
        return Ok(());
    }
    let message = "sample percentage must be between 0 and 100";
    Err(Error::new(SqlState::INVALID_TABLESAMPLE_ARGUMENT, message))
}

/// A number that is written out.
fn number_of(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.parse().ok(),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => number_of(expr).map(|number| -number),
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } | Expr::Nested(expr) => number_of(expr),
        _ => None,
    }
}

impl Samples<'_, '_> {
    fn sampled(&mut self, factor: &TableFactor, sample: TableSample) -> Result<TableFactor> {
        let refused = || Error::new(SqlState::SYNTAX_ERROR, "this form of TABLESAMPLE is not PostgreSQL's");
        let TableFactor::Table { name, alias, args: None, .. } = factor else { return Err(refused()) };
        let TableSample { modifier: TableSampleModifier::TableSample, name: method, quantity, seed, bucket, offset } =
            sample
        else {
            return Err(refused());
        };
        let (None::<TableSampleBucket>, None::<Expr>, Some(quantity)) = (bucket, offset, quantity) else {
            return Err(refused());
        };
        let TableSampleQuantity { parenthesized, value, unit: None } = quantity else { return Err(refused()) };
        let block = match (method, &value) {
            (Some(TableSampleMethod::Bernoulli), _) if parenthesized => 1,
            (Some(TableSampleMethod::System), _) if parenthesized => BLOCK_ROWS,
            (None, Expr::Function(function)) if !parenthesized => {
                let message = format!("tablesample method {} does not exist", function.name.to_string().to_lowercase());
                return Err(Error::new(SqlState::UNDEFINED_OBJECT, message));
            }
            _ => return Err(refused()),
        };
        if let Some(percentage) = number_of(&value) {
            check_percentage(percentage)?;
        }
        let mut parts = name.0.iter().rev().filter_map(|part| part.as_ident());
        let own = parts.next().cloned().ok_or_else(refused)?;
        let schema = parts.next().map(fold);
        if schema.is_none() && self.with.contains(&fold(&own)) {
            return Err(not_a_table());
        }
        let (table, columns) = self.names.sampled(schema.as_deref(), &fold(&own), ROW)?;
        let key = format!("\u{1}sample{}", self.tables.len());
        self.tables.insert(key.clone(), table);

        let quoted = |name: &str| Ident::with_quote('"', name);
        let mut rows = parse_query("SELECT * FROM t")?;
        let SetExpr::Select(select) = rows.body.as_mut() else { return Err(refused()) };
        let column = |name: &String| SelectItem::UnnamedExpr(Expr::Identifier(quoted(name)));
        select.projection = columns.iter().map(column).collect();
        if let Some(TableFactor::Table { name, .. }) = select.from.first_mut().map(|table| &mut table.relation) {
            *name = ObjectName::from(vec![Ident::new(BY_ID), quoted(&key)]);
        }
        let seed = match seed {
            Some(TableSampleSeed { value, .. }) => Expr::Value(value),
            None => parse_expression("NULL")?,
        };
        let condition = format!(
            "{FUNCTION}(\"{ROW}\", {block}, CAST(({value}) AS double precision), CAST(({seed}) AS double precision), {})",
            !matches!(&seed, Expr::Value(value) if matches!(value.value, Value::Null)),
        );
        select.selection = Some(parse_expression(&condition)?);
        let alias = alias.clone().unwrap_or(TableAlias { explicit: true, name: own, columns: Vec::new(), at: None });
        Ok(TableFactor::Derived { lateral: false, subquery: Box::new(rows), alias: Some(alias), sample: None })
    }
}
