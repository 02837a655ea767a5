//! Comparisons with the rows of a query (`IN`, `ANY`, `ALL`) as queries that DataFusion and [`apply`](super::apply) have a way to run.
//!
//! With `ANY` a comparison is true if it is for some row, else unknown if it is for some row, else false; with `ALL` it is false if it is for some row,
//! else unknown if it is for some row, else true. `IN` is `= ANY`, and `NOT IN` is `<> ALL`. Where it cannot be seen whether the answer is unknown or
//! false ([`truth`](super::truth)) it is whether rows exist, which is a join; elsewhere it is counted.
//!
//! DataFusion's own rewriting gives two values, and takes a compared column for the query's where both read a relation of one name.

use crate::rewrites::RewriteTree;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue, Spans, exec_err, internal_err};
use datafusion::functions_aggregate::expr_fn::{bool_and, bool_or, count};
use datafusion::logical_expr::expr::{Exists, ScalarFunction, SetQuantifier};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Subquery, Volatility, lit, when,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A name that is nobody's.
fn fresh(of: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("\u{1}{of} {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The operators that [`among`](super::among) knows.
pub fn is_set_operator(op: Operator) -> bool {
    matches!(op, Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq)
}

/// Whether Arrow orders the values of a type as SQL does: not rows, whose fields may be unknown.
pub fn is_ordered(data_type: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Decimal128, Interval, LargeUtf8, Null, Time64, Timestamp, Utf8, Utf8View,
    };
    data_type.is_integer()
        || data_type.is_floating()
        || matches!(
            data_type,
            Null | Boolean
                | Decimal128(..)
                | Utf8
                | Utf8View
                | LargeUtf8
                | Binary
                | BinaryView
                | Date32
                | Time64(_)
                | Timestamp(..)
                | Interval(_)
        )
}

/// The query's rows, and what is compared with each.
pub struct Comparison {
    /// A projection to the compared column.
    rows: LogicalPlan,
    /// Its column, by a name that hides none of the needle's.
    column: Expr,
    /// What the rows are compared with, as the query sees it.
    needle: Expr,
    op: Operator,
    spans: Spans,
}

impl Comparison {
    /// `needle op` a row of `subquery`, in an operator whose inputs have this schema.
    pub fn new(needle: Expr, op: Operator, subquery: &Subquery, schema: &DFSchema) -> Result<Comparison> {
        let name = fresh("compared");
        let column = Expr::Column(Column::from(subquery.subquery.schema().qualified_field(0)));
        let rows = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).project([column.alias(&name)])?;
        let (rows, column) = (rows.build()?, Expr::Column(Column::new_unqualified(name)));
        Ok(Comparison { rows, column, needle: outer(needle, schema)?, op, spans: subquery.spans.clone() })
    }

    fn with(&self, op: Operator) -> Expr {
        Expr::BinaryExpr(BinaryExpr::new(Box::new(self.needle.clone()), op, Box::new(self.column.clone())))
    }

    fn query(&self, plan: LogicalPlan) -> Subquery {
        let outer_ref_columns = plan.all_out_ref_exprs();
        Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: self.spans.clone() }
    }

    /// Whether the comparison is true: false also where it is unknown. `is_known`: neither side is ever NULL.
    pub fn condition(self, quantifier: SetQuantifier, is_known: bool) -> Result<Expr> {
        let (condition, negated) = match quantifier {
            SetQuantifier::Any => (self.with(self.op), false),
            SetQuantifier::All => match self.op.negate().filter(|_| is_known) {
                Some(opposite) => (self.with(opposite), true),
                None => (Expr::IsNotTrue(Box::new(self.with(self.op))), true),
            },
        };
        let plan = LogicalPlanBuilder::from(self.rows.clone()).filter(condition)?.build()?;
        Ok(Expr::Exists(Exists { subquery: self.query(plan), negated }))
    }

    /// Its value. The query is read once.
    pub fn value(self, quantifier: SetQuantifier) -> Result<Expr> {
        let [answer, decided, rows, known] = ["answer", "decided", "rows", "known"].map(fresh);
        let column = |name: &str| Expr::Column(Column::new_unqualified(name));
        let decision = match quantifier {
            SetQuantifier::Any => bool_or(column(&answer)),
            SetQuantifier::All => bool_and(column(&answer)),
        };
        let counts = [count(lit(1)).alias(&rows), count(column(&answer)).alias(&known)];
        let unknown = lit(ScalarValue::Boolean(None));
        let has_unknown = column(&rows).gt(column(&known));
        let value = match quantifier {
            SetQuantifier::Any => when(column(&decided).is_true(), lit(true)).when(has_unknown, unknown),
            SetQuantifier::All => when(column(&decided).is_false(), lit(false)).when(has_unknown, unknown),
        };
        let value = { value }.otherwise(lit(quantifier == SetQuantifier::All))?;
        let plan = LogicalPlanBuilder::from(self.rows.clone())
            .project([self.with(self.op).alias(&answer)])?
            .aggregate(Vec::<Expr>::new(), std::iter::once(decision.alias(&decided)).chain(counts))?
            .project([value.alias(fresh("value"))])?
            .build()?;
        Ok(Expr::ScalarSubquery(self.query(plan)))
    }
}

/// Whether a query has rows, as a query with one row.
pub fn has_rows(subquery: &Subquery, negated: bool) -> Result<Expr> {
    let (rows, found) = (fresh("rows"), fresh("found"));
    let column = Expr::Column(Column::new_unqualified(&rows));
    let plan = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone())
        .limit(0, Some(1))?
        .aggregate(Vec::<Expr>::new(), [count(lit(1)).alias(&rows)])?
        .project([if negated { column.eq(lit(0i64)) } else { column.gt(lit(0i64)) }.alias(&found)])?
        .build()?;
    let outer_ref_columns = plan.all_out_ref_exprs();
    Ok(Expr::ScalarSubquery(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: subquery.spans.clone() }))
}

/// An expression as it is seen from a subquery.
fn outer(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let mut refer = |expr: Expr| match expr {
        Expr::Column(column) => {
            let field = Arc::clone(schema.field_from_column(&column)?);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    };
    Ok(expr.rewrite_up(&mut refer)?.data)
}

/// A scalar subquery that DataFusion takes to be no more NULL than its column, and that so fails where it finds no row.
pub fn is_never_null(subquery: &Subquery) -> bool {
    let fields = subquery.subquery.schema().fields();
    subquery.outer_ref_columns.is_empty() && fields.first().is_some_and(|field| !field.is_nullable())
}

pub fn perhaps_null(subquery: Subquery) -> Result<Subquery> {
    let plan = subquery.subquery.as_ref();
    let (qualifier, field) = plan.schema().qualified_field(0);
    let column = Expr::Column((qualifier, field).into());
    let function =
        Arc::new(ScalarUDF::new_from_impl(PerhapsNull { signature: Signature::any(1, Volatility::Immutable) }));
    let marked = Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![column]));
    let marked = marked.alias_qualified(qualifier.cloned(), field.name());
    let plan: LogicalPlan = LogicalPlanBuilder::from(plan.clone()).project([marked])?.build()?;
    Ok(Subquery { subquery: Arc::new(plan), ..subquery })
}

/// Its argument, of which it is not said that it is never NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PerhapsNull {
    signature: Signature,
}

impl ScalarUDFImpl for PerhapsNull {
    fn name(&self) -> &str {
        "perhaps_null"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(arg_types.first().cloned().unwrap_or(DataType::Null))
    }
    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields.first() {
            Some(field) => Ok(Arc::new(Field::clone(field).with_nullable(true))),
            None => internal_err!("perhaps_null takes one argument"),
        }
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            // In the place of the call a constant would be one that is never NULL. Whoever computes constants leaves it as it is then.
            Some(ColumnarValue::Scalar(_)) if crate::planning::is_planning() => {
                exec_err!("perhaps_null is called when the statement runs")
            }
            Some(value) => Ok(value),
            None => internal_err!("perhaps_null takes one argument"),
        }
    }
}
