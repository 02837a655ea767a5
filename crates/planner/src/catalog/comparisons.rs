//! What DataFusion gets wrong of subqueries in expressions, before it looks at them.
//!
//! * `x > ALL (SELECT …)` and `x > ANY (SELECT …)` it turns into `EXISTS`, with `x` and the subquery's column beside each other: where both
//!   queries read a relation of one name, `x` is taken for the subquery's. And it does so only after the `EXISTS` of a select list have been seen
//!   to. Here it is done first, with a name of its own for the subquery's column.
//! * A scalar subquery is taken to be no more NULL than its column, and so fails where it finds no row.

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchemaRef, ExprSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::{Case, Exists, ScalarFunction, SetComparison, SetQuantifier};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Subquery, Volatility, lit,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rewrites what an expression over these inputs has of either.
pub fn rewrite(expr: Expr, inputs: &[DFSchemaRef]) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| match expr {
        Expr::SetComparison(comparison) => Ok(Transformed::yes(compared(comparison, inputs)?)),
        Expr::ScalarSubquery(subquery) if is_never_null(&subquery) => {
            Ok(Transformed::yes(Expr::ScalarSubquery(perhaps_null(subquery)?)))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// As `SQL:2023` has them: decided by a row for which the comparison is false (`ALL`) or true (`ANY`), else unknown if it is so
/// for any.
fn compared(comparison: SetComparison, inputs: &[DFSchemaRef]) -> Result<Expr> {
    let SetComparison { expr, subquery, op, quantifier } = comparison;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("\u{1}compared {}", NEXT.fetch_add(1, Ordering::Relaxed));
    let column = Expr::Column(Column::from(subquery.subquery.schema().qualified_field(0)));
    let rows = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).project([column.alias(&name)])?.build()?;
    let right = Expr::Column(Column::new_unqualified(name));
    let compared = Expr::BinaryExpr(BinaryExpr::new(Box::new(outer(*expr, inputs)?), op, Box::new(right)));
    let is_there = |condition: Expr| -> Result<Box<Expr>> {
        let plan = LogicalPlanBuilder::from(rows.clone()).filter(condition)?.build()?;
        let outer_ref_columns = plan.all_out_ref_exprs();
        let subquery = Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: subquery.spans.clone() };
        Ok(Box::new(Expr::Exists(Exists { subquery, negated: false })))
    };
    let (decided, decision) = match quantifier {
        SetQuantifier::Any => (Expr::IsTrue(Box::new(compared.clone())), true),
        SetQuantifier::All => (Expr::IsFalse(Box::new(compared.clone())), false),
    };
    let unknown = Box::new(Expr::Literal(ScalarValue::Boolean(None), None));
    Ok(Expr::Case(Case {
        expr: None,
        when_then_expr: vec![
            (is_there(decided)?, Box::new(lit(decision))),
            (is_there(Expr::IsNull(Box::new(compared)))?, unknown),
        ],
        else_expr: Some(Box::new(lit(!decision))),
    }))
}

/// An expression as it is seen from a subquery.
fn outer(expr: Expr, inputs: &[DFSchemaRef]) -> Result<Expr> {
    let refer = |expr: Expr| match expr {
        Expr::Column(column) => {
            let field = inputs.iter().find_map(|schema| schema.field_from_column(&column).ok());
            match field {
                Some(field) => Ok(Transformed::yes(Expr::OuterReferenceColumn(Arc::clone(field), column))),
                None => internal_err!("a compared column is in no input"),
            }
        }
        other => Ok(Transformed::no(other)),
    };
    Ok(expr.transform_up(refer)?.data)
}

/// `needle IN (SELECT …)`, as the same.
pub fn is_among(needle: Expr, subquery: Subquery, inputs: &[DFSchemaRef]) -> Result<Expr> {
    let (op, quantifier) = (Operator::Eq, SetQuantifier::Any);
    compared(SetComparison { expr: Box::new(needle), subquery, op, quantifier }, inputs)
}

fn is_never_null(subquery: &Subquery) -> bool {
    let fields = subquery.subquery.schema().fields();
    subquery.outer_ref_columns.is_empty() && fields.first().is_some_and(|field| !field.is_nullable())
}

fn perhaps_null(subquery: Subquery) -> Result<Subquery> {
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
            Some(value) => Ok(value),
            None => internal_err!("perhaps_null takes one argument"),
        }
    }
}
