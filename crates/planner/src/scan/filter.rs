//! DataFusion's predicates as the storage's filters.

use crate::rewrites::RewriteTree;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Expr, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use std::sync::Arc;
use tidepool_engine::evaluate::Prepared;
use tidepool_engine::expr::{Expr as EngineExpr, Pattern};
use tidepool_engine::types::ColumnType;
use tidepool_engine::vector::{Chunk, Vector};
use tidepool_table::{ColumnFilter, CompareOp, Datum};

/// True when the storage's scan can evaluate a predicate by itself, once its parameters have their values: it reads one column and always answers
/// the same.
pub fn storage_evaluates(expr: &Expr) -> bool {
    if expr.column_refs().len() != 1 || expr.is_volatile() || expr.contains_outer() {
        return false;
    }
    let mut plain = true;
    let visited = expr.apply(|node| {
        if matches!(
            node,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::ScalarVariable(..)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        ) {
            plain = false;
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    plain && visited.is_ok()
}

/// What became of a conjunction.
#[derive(Default)]
pub struct Conjuncts {
    pub filters: Vec<ColumnFilter>,
    /// The expression behind each of `filters`, over the table's columns.
    pub expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// Conjuncts on more than one column, as they came.
    pub residual: Vec<Arc<dyn PhysicalExpr>>,
}

/// Splits a predicate into filters of the storage. Column `i` of `predicate` is column `columns[i]` of the table.
pub fn convert(predicate: &Arc<dyn PhysicalExpr>, columns: &[usize], table: &SchemaRef, out: &mut Conjuncts) {
    for conjunct in split_conjunction(predicate) {
        if matches!(literal(conjunct), Some(ScalarValue::Boolean(Some(true)))) {
            continue;
        }
        match remap(conjunct, columns, table).and_then(|expr| Some((column_filter(&expr, table)?, expr))) {
            Some((filter, expression)) => {
                out.filters.push(filter);
                out.expressions.push(expression);
            }
            None => out.residual.push(conjunct.clone()),
        }
    }
}

/// The same expression over the table's columns; `None` when a column is not among `columns`.
fn remap(expr: &Arc<dyn PhysicalExpr>, columns: &[usize], table: &SchemaRef) -> Option<Arc<dyn PhysicalExpr>> {
    let mut known = true;
    let mapped = expr
        .clone()
        .rewrite_up(&mut |node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            match columns.get(column.index()) {
                Some(&index) => {
                    let name = table.field(index).name();
                    Ok(Transformed::yes(Arc::new(Column::new(name, index)) as Arc<dyn PhysicalExpr>))
                }
                None => {
                    known = false;
                    Ok(Transformed::no(node))
                }
            }
        })
        .data()
        .ok()?;
    known.then_some(mapped)
}

/// A predicate over the table's columns as one filter of the storage; `None` unless it reads one column at most.
fn column_filter(expr: &Arc<dyn PhysicalExpr>, table: &SchemaRef) -> Option<ColumnFilter> {
    if let Some(value) = literal(expr) {
        // True was dealt with; false and NULL let nothing pass.
        return matches!(value, ScalarValue::Boolean(_) | ScalarValue::Null)
            .then(|| ColumnFilter::In { column: 0, values: Vec::new() });
    }
    if let Some(column) = expr.downcast_ref::<Column>() {
        return Some(ColumnFilter::Compare { column: column.index(), op: CompareOp::Eq, value: Datum::Boolean(true) });
    }
    if let Some(not) = expr.downcast_ref::<NotExpr>()
        && let Some(column) = not.arg().downcast_ref::<Column>()
    {
        return Some(ColumnFilter::Compare { column: column.index(), op: CompareOp::Eq, value: Datum::Boolean(false) });
    }
    if let Some(is_null) = expr.downcast_ref::<IsNullExpr>()
        && let Some(column) = is_null.arg().downcast_ref::<Column>()
    {
        return Some(ColumnFilter::IsNull { column: column.index() });
    }
    if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>()
        && let Some(column) = is_not_null.arg().downcast_ref::<Column>()
    {
        return Some(ColumnFilter::IsNotNull { column: column.index() });
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>()
        && let Some(filter) = comparison(binary, table).or_else(|| alternatives(binary, table))
    {
        return Some(filter);
    }
    if let Some(in_list) = expr.downcast_ref::<InListExpr>()
        && let Some(filter) = membership(in_list, table)
    {
        return Some(filter);
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>()
        && let Some(filter) = pattern(like, table)
    {
        return Some(filter);
    }
    function(expr, table)
}

fn comparison(binary: &BinaryExpr, table: &SchemaRef) -> Option<ColumnFilter> {
    let (column, value, flipped) = match (binary.left().downcast_ref::<Column>(), literal(binary.right())) {
        (Some(column), Some(value)) => (column, value, false),
        _ => (binary.right().downcast_ref::<Column>()?, literal(binary.left())?, true),
    };
    let op = match (binary.op(), flipped) {
        (Operator::Eq, _) => CompareOp::Eq,
        (Operator::NotEq, _) => CompareOp::Ne,
        (Operator::Lt, false) | (Operator::Gt, true) => CompareOp::Lt,
        (Operator::LtEq, false) | (Operator::GtEq, true) => CompareOp::Le,
        (Operator::Gt, false) | (Operator::Lt, true) => CompareOp::Gt,
        (Operator::GtEq, false) | (Operator::LtEq, true) => CompareOp::Ge,
        _ => return None,
    };
    if value.is_null() {
        return Some(ColumnFilter::In { column: column.index(), values: Vec::new() });
    }
    let value = scalar_datum(value, table.field(column.index()).data_type())?;
    Some(ColumnFilter::Compare { column: column.index(), op, value })
}

/// One of several values of one column: a short `IN` list comes as this.
fn alternatives(binary: &BinaryExpr, table: &SchemaRef) -> Option<ColumnFilter> {
    if *binary.op() != Operator::Or {
        return None;
    }
    let values_of = |side: &Arc<dyn PhysicalExpr>| match column_filter(side, table)? {
        ColumnFilter::Compare { column, op: CompareOp::Eq, value } => Some((column, vec![value])),
        ColumnFilter::In { column, values } => Some((column, values)),
        _ => None,
    };
    let ((column, mut values), (other, more)) = (values_of(binary.left())?, values_of(binary.right())?);
    values.extend(more);
    (column == other).then_some(ColumnFilter::In { column, values })
}

fn membership(in_list: &InListExpr, table: &SchemaRef) -> Option<ColumnFilter> {
    if in_list.negated() {
        return None;
    }
    let column = in_list.expr().downcast_ref::<Column>()?;
    let data_type = table.field(column.index()).data_type();
    let mut values = Vec::with_capacity(in_list.len());
    for item in in_list.list() {
        let value = literal(item)?;
        if !value.is_null() {
            values.push(scalar_datum(value, data_type)?);
        }
    }
    Some(ColumnFilter::In { column: column.index(), values })
}

/// `LIKE` of a constant pattern, by the engine's matcher.
fn pattern(like: &LikeExpr, table: &SchemaRef) -> Option<ColumnFilter> {
    let column = like.expr().downcast_ref::<Column>()?.index();
    let text = literal(like.pattern())?.try_as_str()??;
    let pattern = Pattern::parse(text, Some('\\'), like.case_insensitive()).ok()?;
    let of = ColumnType::new(table.field(column).data_type().clone(), true);
    let condition = EngineExpr::column(0, of.clone()).like(pattern, like.negated()).ok()?;
    let prepared = Prepared::new(&condition).ok()?;
    let function = move |array: &ArrayRef| {
        let chunk = Chunk::new(array.len(), vec![Vector::from_arrow(array, &of)?]);
        let answers = prepared.evaluate(&chunk)?.to_arrow(&condition.of)?;
        Ok(answers.as_boolean().clone())
    };
    Some(ColumnFilter::Function { column, function: Arc::new(function) })
}

fn function(expr: &Arc<dyn PhysicalExpr>, table: &SchemaRef) -> Option<ColumnFilter> {
    let columns = collect_columns(expr);
    let [column] = columns.iter().collect::<Vec<_>>()[..] else { return None };
    let index = column.index();
    let field = table.field(index);
    let name = field.name().clone();
    let alone = expr
        .clone()
        .rewrite_up(&mut |node| {
            if node.downcast_ref::<Column>().is_some() {
                return Ok(Transformed::yes(Arc::new(Column::new(&name, 0)) as Arc<dyn PhysicalExpr>));
            }
            Ok(Transformed::no(node))
        })
        .data()
        .ok()?;
    let schema = Arc::new(Schema::new(vec![Field::new(field.name(), field.data_type().clone(), true)]));
    Some(ColumnFilter::Function {
        column: index,
        function: Arc::new(move |array| evaluate(&alone, &schema, array).map_err(crate::errors::from_datafusion)),
    })
}

fn evaluate(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, array: &ArrayRef) -> Result<BooleanArray> {
    let options = RecordBatchOptions::new().with_row_count(Some(array.len()));
    let batch = RecordBatch::try_new_with_options(schema.clone(), vec![array.clone()], &options)?;
    predicate_mask(expr, &batch)
}

/// Which rows of a batch a predicate is true for; NULL stays NULL.
pub fn predicate_mask(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    let values = expr.evaluate(batch)?.into_array(batch.num_rows())?;
    match values.data_type() {
        DataType::Boolean => Ok(values.as_boolean().clone()),
        DataType::Null => Ok(BooleanArray::new_null(values.len())),
        other => datafusion::common::internal_err!("a predicate is of type {other}"),
    }
}

fn literal(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    expr.downcast_ref::<Literal>().map(Literal::value)
}

/// A literal in the storage form of a column of type `data_type`; `None` when it has no exact counterpart there.
fn scalar_datum(value: &ScalarValue, data_type: &DataType) -> Option<Datum> {
    Some(match (value, data_type) {
        (ScalarValue::Boolean(Some(value)), DataType::Boolean) => Datum::Boolean(*value),
        (ScalarValue::Int16(Some(value)), DataType::Int16) => Datum::Int(i64::from(*value)),
        (ScalarValue::Int32(Some(value)), DataType::Int32) => Datum::Int(i64::from(*value)),
        (ScalarValue::Int64(Some(value)), DataType::Int64) => Datum::Int(*value),
        (ScalarValue::Date32(Some(value)), DataType::Date32) => Datum::Int(i64::from(*value)),
        (ScalarValue::TimestampMicrosecond(Some(value), _), DataType::Timestamp(TimeUnit::Microsecond, _)) => {
            Datum::Int(*value)
        }
        (ScalarValue::Decimal128(Some(value), _, scale), DataType::Decimal128(_, column_scale))
            if scale == column_scale =>
        {
            Datum::Decimal(*value)
        }
        (ScalarValue::Float32(Some(value)), DataType::Float32) => Datum::Float(f64::from(*value)),
        (ScalarValue::Float64(Some(value)), DataType::Float64) => Datum::Float(*value),
        (
            ScalarValue::Utf8(Some(value)) | ScalarValue::LargeUtf8(Some(value)) | ScalarValue::Utf8View(Some(value)),
            DataType::Utf8View,
        ) => Datum::Text(value.clone()),
        (ScalarValue::FixedSizeBinary(_, Some(value)), DataType::FixedSizeBinary(_)) => Datum::Bytes(value.clone()),
        (
            ScalarValue::Binary(Some(value))
            | ScalarValue::LargeBinary(Some(value))
            | ScalarValue::BinaryView(Some(value)),
            DataType::BinaryView,
        ) => Datum::Bytes(value.clone()),
        _ => return None,
    })
}

/// A value of the storage as a scalar of `data_type`.
pub fn datum_scalar(datum: &Datum, data_type: &DataType) -> Option<ScalarValue> {
    Some(match (datum, data_type) {
        (Datum::Boolean(value), DataType::Boolean) => ScalarValue::Boolean(Some(*value)),
        (Datum::Int(value), DataType::Int16) => ScalarValue::Int16(Some(i16::try_from(*value).ok()?)),
        (Datum::Int(value), DataType::Int32) => ScalarValue::Int32(Some(i32::try_from(*value).ok()?)),
        (Datum::Int(value), DataType::Int64) => ScalarValue::Int64(Some(*value)),
        (Datum::Int(value), DataType::Date32) => ScalarValue::Date32(Some(i32::try_from(*value).ok()?)),
        (Datum::Int(value), DataType::Timestamp(TimeUnit::Microsecond, zone)) => {
            ScalarValue::TimestampMicrosecond(Some(*value), zone.clone())
        }
        (Datum::Decimal(value), DataType::Decimal128(precision, scale)) => {
            ScalarValue::Decimal128(Some(*value), *precision, *scale)
        }
        (Datum::Float(value), DataType::Float32) => ScalarValue::Float32(Some(*value as f32)),
        (Datum::Float(value), DataType::Float64) => ScalarValue::Float64(Some(*value)),
        (Datum::Text(value), DataType::Utf8View) => ScalarValue::Utf8View(Some(value.clone())),
        (Datum::Bytes(value), DataType::FixedSizeBinary(width)) => {
            ScalarValue::FixedSizeBinary(*width, Some(value.clone()))
        }
        (Datum::Bytes(value), DataType::BinaryView) => ScalarValue::BinaryView(Some(value.clone())),
        _ => return None,
    })
}

/// A scalar on a number line (days for dates, microseconds for timestamps), for estimates. `None` for text and the like.
pub fn scalar_f64(value: &ScalarValue) -> Option<f64> {
    Some(match value {
        ScalarValue::Boolean(Some(value)) => f64::from(u8::from(*value)),
        ScalarValue::Int8(Some(value)) => f64::from(*value),
        ScalarValue::Int16(Some(value)) => f64::from(*value),
        ScalarValue::Int32(Some(value)) => f64::from(*value),
        ScalarValue::Int64(Some(value)) => *value as f64,
        ScalarValue::UInt8(Some(value)) => f64::from(*value),
        ScalarValue::UInt16(Some(value)) => f64::from(*value),
        ScalarValue::UInt32(Some(value)) => f64::from(*value),
        ScalarValue::UInt64(Some(value)) => *value as f64,
        ScalarValue::Float32(Some(value)) => f64::from(*value),
        ScalarValue::Float64(Some(value)) => *value,
        ScalarValue::Decimal128(Some(value), _, scale) => *value as f64 / 10f64.powi(i32::from(*scale)),
        ScalarValue::Date32(Some(value)) => f64::from(*value),
        ScalarValue::TimestampSecond(Some(value), _) => *value as f64 * 1e6,
        ScalarValue::TimestampMillisecond(Some(value), _) => *value as f64 * 1e3,
        ScalarValue::TimestampMicrosecond(Some(value), _) => *value as f64,
        ScalarValue::TimestampNanosecond(Some(value), _) => *value as f64 / 1e3,
        _ => return None,
    })
}
