//! DataFusion's expressions as the engine's. What the engine has no operator for becomes a call of DataFusion's own evaluation,
//! over Arrow arrays of the columns that it reads.

use crate::rewrites::RewriteTree;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result as PlanResult, ScalarValue, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{BinaryExpr, Case, Cast, Expr, ExprSchemable, LogicalPlan, Operator, Subquery};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_engine::expr::{ArithmeticOp, DatePart, Expr as EngineExpr, Function, Pattern, Scalar, TextUnit};
use tidepool_engine::types::ColumnType;
use tidepool_table::CompareOp;

/// What expressions are read over: the columns of a plan, and what the engine knows of them.
pub struct Scope<'a> {
    pub state: &'a SessionState,
    pub schema: &'a DFSchema,
    pub types: &'a [ColumnType],
    /// What some subqueries give.
    pub subqueries: Vec<(Arc<LogicalPlan>, EngineExpr)>,
}

/// DataFusion's evaluation of an expression, over the columns that it reads.
struct Evaluation {
    name: String,
    expr: Arc<dyn PhysicalExpr>,
    schema: SchemaRef,
}

impl Function for Evaluation {
    fn name(&self) -> &str {
        &self.name
    }

    fn evaluate(&self, arguments: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), arguments.to_vec(), &options);
        let batch = batch.map_err(crate::errors::from_arrow)?;
        let value = self.expr.evaluate(&batch).map_err(crate::errors::from_datafusion)?;
        value.into_array(rows).map_err(crate::errors::from_datafusion)
    }
}

/// A constant in the engine's form; `None` for one of a type that it has no values of.
pub fn scalar(value: &ScalarValue) -> Option<Scalar> {
    Some(match value {
        value if value.is_null() => Scalar::Null,
        ScalarValue::Boolean(Some(value)) => Scalar::Bool(*value),
        ScalarValue::Int8(Some(value)) => Scalar::Int((*value).into()),
        ScalarValue::Int16(Some(value)) => Scalar::Int((*value).into()),
        ScalarValue::Int32(Some(value)) | ScalarValue::Date32(Some(value)) => Scalar::Int((*value).into()),
        ScalarValue::Int64(Some(value)) | ScalarValue::TimestampMicrosecond(Some(value), _) => Scalar::Int(*value),
        ScalarValue::UInt8(Some(value)) => Scalar::Int((*value).into()),
        ScalarValue::UInt16(Some(value)) => Scalar::Int((*value).into()),
        ScalarValue::UInt32(Some(value)) => Scalar::Int((*value).into()),
        ScalarValue::UInt64(Some(value)) => Scalar::Int(i64::try_from(*value).ok()?),
        ScalarValue::Float32(Some(value)) => Scalar::Float((*value).into()),
        ScalarValue::Float64(Some(value)) => Scalar::Float(*value),
        ScalarValue::Decimal128(Some(value), ..) => Scalar::Wide(*value),
        ScalarValue::Utf8(Some(value)) | ScalarValue::Utf8View(Some(value)) => Scalar::Text(value.as_bytes().into()),
        ScalarValue::Binary(Some(value)) | ScalarValue::BinaryView(Some(value)) => {
            Scalar::Text(value.as_slice().into())
        }
        _ => return None,
    })
}

fn comparison(op: Operator) -> Option<CompareOp> {
    Some(match op {
        Operator::Eq => CompareOp::Eq,
        Operator::NotEq => CompareOp::Ne,
        Operator::Lt => CompareOp::Lt,
        Operator::LtEq => CompareOp::Le,
        Operator::Gt => CompareOp::Gt,
        Operator::GtEq => CompareOp::Ge,
        _ => return None,
    })
}

fn arithmetic(op: Operator) -> Option<ArithmeticOp> {
    Some(match op {
        Operator::Plus => ArithmeticOp::Add,
        Operator::Minus => ArithmeticOp::Subtract,
        Operator::Multiply => ArithmeticOp::Multiply,
        Operator::Divide => ArithmeticOp::Divide,
        Operator::Modulo => ArithmeticOp::Modulo,
        _ => return None,
    })
}

fn is_integer(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64)
}

/// Integers and decimals.
pub fn is_exact(data_type: &DataType) -> bool {
    is_integer(data_type) || matches!(data_type, DataType::Decimal128(..))
}

/// Whether the engine's cast and DataFusion's, as this database uses it, are the same.
fn is_plain_cast(from: &DataType, to: &DataType) -> bool {
    let scale = |data_type: &DataType| match data_type {
        DataType::Decimal128(_, scale) => *scale,
        _ => 0,
    };
    let width = |data_type: &DataType| data_type.primitive_width().unwrap_or(0);
    match (from, to) {
        (from, to) if is_integer(from) && is_integer(to) => width(from) <= width(to),
        (from, DataType::Decimal128(..)) if is_exact(from) => scale(from) <= scale(to),
        (DataType::Float32, DataType::Float64) => true,
        (from, DataType::Float64) if is_integer(from) => true,
        (DataType::Date32, DataType::Timestamp(TimeUnit::Microsecond, None)) => true,
        _ => is_text(from) && is_text(to),
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::Utf8View)
}

/// What to multiply decimals by instead of dividing them, and its type, if all digits of the quotient are there then: by 2, 10 or 25, not by 3.
fn reciprocal(of: &ColumnType, divisor: (i128, i8), quotient: &DataType) -> Option<(i128, DataType)> {
    let &DataType::Decimal128(precision, scale) = quotient else { return None };
    let digits = scale.checked_sub(of.scale()?).filter(|digits| *digits >= 0)?;
    let one = 10i128.checked_pow(u32::try_from(i16::from(digits) + i16::from(divisor.1)).ok()?)?;
    let factor = one.checked_div(divisor.0).filter(|factor| factor * divisor.0 == one)?;
    let most = of
        .bounds
        .and_then(|(lower, upper)| lower.checked_abs()?.max(upper.checked_abs()?).checked_mul(factor.abs()))?;
    // Beyond its type a quotient is an error, which a product is not.
    let limit = 10i128.checked_pow(precision.into())?;
    (most < limit).then_some((factor, DataType::Decimal128(precision, digits)))
}

impl Scope<'_> {
    /// The engine's form of an expression. Fails for what has to be asked once a statement (volatile functions) or by other
    /// operators (subqueries).
    pub fn expr(&self, expr: &Expr) -> PlanResult<EngineExpr> {
        if let Some(lowered) = self.native(expr)? {
            return Ok(lowered);
        }
        self.call(expr)
    }

    fn data_type(&self, expr: &Expr) -> PlanResult<DataType> {
        expr.get_type(self.schema)
    }

    pub fn column(&self, column: &Column) -> PlanResult<EngineExpr> {
        let index = self.schema.index_of_column(column)?;
        Ok(EngineExpr::column(index, self.types[index].clone()))
    }

    fn subquery(&self, subquery: &Subquery) -> Option<EngineExpr> {
        let known = self.subqueries.iter().find(|(plan, _)| *plan == subquery.subquery);
        known.map(|(_, value)| value.clone())
    }

    fn literal(&self, value: &ScalarValue) -> Option<EngineExpr> {
        Some(EngineExpr::literal(scalar(value)?, value.data_type()))
    }

    /// `None` where the engine has nothing that does the same.
    fn native(&self, expr: &Expr) -> PlanResult<Option<EngineExpr>> {
        // What the engine's constructors refuse is called instead.
        Ok(match expr {
            Expr::Alias(alias) => Some(self.expr(&alias.expr)?),
            Expr::Column(column) => Some(self.column(column)?),
            Expr::Literal(value, _) => self.literal(value),
            Expr::ScalarSubquery(subquery) => self.subquery(subquery),
            Expr::BinaryExpr(binary) => self.binary(binary, expr)?,
            Expr::Not(value) => Some(self.expr(value)?.negated()),
            Expr::IsNull(value) => Some(self.expr(value)?.is_null(false)),
            Expr::IsNotNull(value) => Some(self.expr(value)?.is_null(true)),
            Expr::IsTrue(value) => Some(self.expr(value)?.is_bool(true, false)),
            Expr::IsNotTrue(value) => Some(self.expr(value)?.is_bool(true, true)),
            Expr::IsFalse(value) => Some(self.expr(value)?.is_bool(false, false)),
            Expr::IsNotFalse(value) => Some(self.expr(value)?.is_bool(false, true)),
            Expr::IsUnknown(value) => Some(self.expr(value)?.is_null(false)),
            Expr::IsNotUnknown(value) => Some(self.expr(value)?.is_null(true)),
            Expr::Between(between) => {
                let side = |op, bound: &Expr| -> PlanResult<Option<EngineExpr>> {
                    Ok(EngineExpr::compare(op, self.expr(&between.expr)?, self.expr(bound)?).ok())
                };
                let lower = side(CompareOp::Ge, &between.low)?;
                let upper = side(CompareOp::Le, &between.high)?;
                lower.zip(upper).map(|(lower, upper)| {
                    let both = EngineExpr::and(vec![lower, upper]);
                    if between.negated { both.negated() } else { both }
                })
            }
            Expr::Negative(value) => self.expr(value)?.negate().ok(),
            Expr::InList(list) => {
                let value = self.expr(&list.expr)?;
                let scale = value.of.scale();
                let own = |item: &Expr| match item {
                    Expr::Literal(item, _) => {
                        let same_scale = match item {
                            ScalarValue::Decimal128(_, _, of_item) => scale == Some(*of_item),
                            _ => scale.is_none_or(|scale| scale == 0),
                        };
                        scalar(item).filter(|_| same_scale || item.is_null())
                    }
                    _ => None,
                };
                let values: Option<Vec<Scalar>> = list.list.iter().map(own).collect();
                values.and_then(|values| value.in_list(values, list.negated).ok())
            }
            Expr::Like(like) => {
                let pattern = match like.pattern.as_ref() {
                    Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => {
                        Pattern::parse(text, like.escape_char.or(Some('\\')), like.case_insensitive).ok()
                    }
                    _ => None,
                };
                match pattern {
                    Some(pattern) => self.expr(&like.expr)?.like(pattern, like.negated).ok(),
                    None => None,
                }
            }
            Expr::Case(case) => self.case(case)?,
            Expr::Cast(cast) => self.cast(cast)?,
            Expr::ScalarFunction(function) => {
                let arguments = function.args.as_slice();
                match (function.func.name(), arguments) {
                    (crate::casts::KEY, [value]) => Some(self.expr(value)?),
                    ("tidepool_checked" | "tidepool_convert", _) => match crate::casts::watched(function) {
                        Some(watched) => self.native(&watched)?,
                        None => None,
                    },
                    (
                        "tidepool_divide",
                        [value, Expr::Literal(ScalarValue::Decimal128(Some(divisor), _, scale), _)],
                    ) => {
                        let value = self.expr(value)?;
                        match reciprocal(&value.of, (*divisor, *scale), &self.data_type(expr)?) {
                            Some((factor, of)) => {
                                let factor = EngineExpr::literal(Scalar::Wide(factor), of);
                                EngineExpr::arithmetic(ArithmeticOp::Multiply, value, factor, self.data_type(expr)?)
                                    .ok()
                            }
                            None => None,
                        }
                    }
                    ("coalesce", arguments) if !arguments.is_empty() => {
                        let values = arguments.iter().map(|value| self.expr(value)).collect::<PlanResult<Vec<_>>>()?;
                        EngineExpr::coalesce(values).ok()
                    }
                    ("date_part", [Expr::Literal(part, _), value]) => {
                        let part = match part.try_as_str().flatten().unwrap_or_default().to_ascii_lowercase().as_str() {
                            "year" => Some(DatePart::Year),
                            "quarter" => Some(DatePart::Quarter),
                            "month" => Some(DatePart::Month),
                            "day" => Some(DatePart::Day),
                            "dow" => Some(DatePart::DayOfWeek),
                            "doy" => Some(DatePart::DayOfYear),
                            _ => None,
                        };
                        match part {
                            Some(part) => EngineExpr::part(part, self.expr(value)?, self.data_type(expr)?).ok(),
                            None => None,
                        }
                    }
                    ("character_length" | "length", [value]) if is_text(&self.data_type(value)?) => {
                        self.expr(value)?.length(TextUnit::Characters, self.data_type(expr)?).ok()
                    }
                    ("octet_length" | "length", [value]) => {
                        self.expr(value)?.length(TextUnit::Bytes, self.data_type(expr)?).ok()
                    }
                    ("substr", [value, Expr::Literal(ScalarValue::Int64(Some(start)), _)]) => {
                        self.expr(value)?.substring(*start, None).ok()
                    }
                    (
                        "substr",
                        [
                            value,
                            Expr::Literal(ScalarValue::Int64(Some(start)), _),
                            Expr::Literal(ScalarValue::Int64(Some(len @ 0..)), _),
                        ],
                    ) => self.expr(value)?.substring(*start, Some(*len)).ok(),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    fn binary(&self, binary: &BinaryExpr, expr: &Expr) -> PlanResult<Option<EngineExpr>> {
        let BinaryExpr { left, op, right } = binary;
        // Long chains of one operator are as deep as they are long.
        if matches!(op, Operator::And | Operator::Or) {
            let (mut parts, mut rest) = (Vec::new(), vec![expr]);
            while let Some(next) = rest.pop() {
                match next {
                    Expr::BinaryExpr(inner) if inner.op == *op => rest.extend([inner.right.as_ref(), &inner.left]),
                    other => parts.push(self.expr(other)?),
                }
            }
            return Ok(Some(if *op == Operator::And { EngineExpr::and(parts) } else { EngineExpr::or(parts) }));
        }
        if let Some(compare) = comparison(*op) {
            return Ok(EngineExpr::compare(compare, self.expr(left)?, self.expr(right)?).ok());
        }
        if matches!(op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) {
            let negated = *op == Operator::IsNotDistinctFrom;
            return Ok(EngineExpr::is_distinct(self.expr(left)?, self.expr(right)?, negated).ok());
        }
        let Some(arithmetic) = arithmetic(*op) else { return Ok(None) };
        let data_type = self.data_type(expr)?;
        let numbers = |expr: &Expr| -> PlanResult<bool> {
            let own = self.data_type(expr)?;
            Ok(if data_type == DataType::Float64 { own == data_type } else { is_exact(&own) })
        };
        // Integers are added and multiplied by a function that watches over overflow, and divided as Arrow does.
        let is_own = matches!(data_type, DataType::Decimal128(..))
            && matches!(arithmetic, ArithmeticOp::Add | ArithmeticOp::Subtract | ArithmeticOp::Multiply)
            || is_integer(&data_type)
            || data_type == DataType::Float64 && arithmetic != ArithmeticOp::Modulo;
        if !is_own || !numbers(left)? || !numbers(right)? {
            return Ok(None);
        }
        Ok(EngineExpr::arithmetic(arithmetic, self.expr(left)?, self.expr(right)?, data_type).ok())
    }

    fn case(&self, case: &Case) -> PlanResult<Option<EngineExpr>> {
        let mut branches = Vec::with_capacity(case.when_then_expr.len());
        for (when, then) in &case.when_then_expr {
            let condition = match &case.expr {
                Some(value) => EngineExpr::compare(CompareOp::Eq, self.expr(value)?, self.expr(when)?).ok(),
                None => Some(self.expr(when)?),
            };
            let Some(condition) = condition else { return Ok(None) };
            branches.push((condition, self.expr(then)?));
        }
        let mut otherwise = case.else_expr.as_deref().map(|value| self.expr(value)).transpose()?;
        // A NULL without a type is of the others'.
        if otherwise.as_ref().is_some_and(|value| value.of.data_type == DataType::Null) {
            otherwise = None;
        }
        Ok(EngineExpr::case(branches, otherwise).ok())
    }

    fn cast(&self, cast: &Cast) -> PlanResult<Option<EngineExpr>> {
        let (from, to) = (self.data_type(&cast.expr)?, cast.field.data_type());
        let metadata = cast.field.metadata();
        if !metadata.is_empty() || !is_plain_cast(&from, to) {
            return Ok(None);
        }
        let value = self.expr(&cast.expr)?;
        if is_text(&from) {
            // Text is text, however Arrow holds it.
            let mut value = value;
            value.of.data_type = to.clone();
            return Ok(Some(value));
        }
        Ok(value.cast(to.clone()).ok())
    }

    /// A call of DataFusion's evaluation.
    fn call(&self, expr: &Expr) -> PlanResult<EngineExpr> {
        let mut is_plain = !expr.is_volatile() && !expr.contains_outer();
        expr.apply(|node| {
            is_plain &= match node {
                Expr::ScalarSubquery(subquery) => self.subquery(subquery).is_some(),
                Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::GroupingSet(_)
                | Expr::Unnest(_) => false,
                _ => true,
            };
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !is_plain {
            return plan_err!("the engine does not evaluate {expr}");
        }
        let mut arguments: Vec<EngineExpr> = Vec::new();
        let mut fields: Vec<Field> = Vec::new();
        let mut known: Vec<Expr> = Vec::new();
        let own = expr
            .clone()
            .rewrite_up(&mut |node| {
                let (field, argument) = match &node {
                    Expr::Column(column) => {
                        let index = self.schema.index_of_column(column)?;
                        let argument = EngineExpr::column(index, self.types[index].clone());
                        (self.schema.field(index).as_ref().clone(), argument)
                    }
                    Expr::ScalarSubquery(subquery) => match self.subquery(subquery) {
                        Some(argument) => (subquery.subquery.schema().field(0).as_ref().clone(), argument),
                        None => return Ok(Transformed::no(node)),
                    },
                    _ => return Ok(Transformed::no(node)),
                };
                let place = known.iter().position(|known| *known == node).unwrap_or_else(|| {
                    // Whether a column has NULLs is a promise that nobody here relies on.
                    fields.push(field.with_name(format!("c{}", known.len())).with_nullable(true));
                    arguments.push(argument);
                    known.push(node.clone());
                    known.len() - 1
                });
                Ok(Transformed::yes(Expr::Column(Column::new_unqualified(format!("c{place}")))))
            })
            .data()?;
        let schema = Arc::new(Schema::new(fields));
        let df_schema = DFSchema::try_from(schema.clone())?;
        let physical =
            create_physical_expr(&own, &df_schema, self.state.execution_props(), &PhysicalPlanningContext::default())?;
        let of = ColumnType::new(physical.data_type(&schema)?, true);
        let evaluation = Evaluation { name: expr.to_string(), expr: physical, schema };
        Ok(EngineExpr::call(Arc::new(evaluation), arguments, of))
    }
}
