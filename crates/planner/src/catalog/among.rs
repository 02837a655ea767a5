//! Comparisons with the rows of a query that stands by itself, as a function of what is compared and of the rows' *set*.
//!
//! The set is the query's column as one list: each value once, in order, NULL first. So the query runs once, and an answer is a binary search; which of its
//! three values it is, the list knows, too. [`Comparisons`] goes last in analysis, when types do not change any more, and leaves to DataFusion's joins what
//! they get right.

use super::comparisons::is_set_operator;
use super::pull_up::has_outer_columns;
use super::truth::{Place, transform};
use crate::casts::map_expressions;
use crate::optimizer::has_query;
use crate::rewrites::RewritePlan;
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, UInt32Array, make_comparator, new_empty_array,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::{SortOptions, cast, concat, sort_to_indices, take};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::{AggregateFunction, InList, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder,
    Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Subquery, Volatility, binary_expr,
};
use datafusion::optimizer::AnalyzerRule;
use std::cmp::Ordering;
use std::sync::Arc;

#[derive(Debug)]
pub struct Comparisons;

impl AnalyzerRule for Comparisons {
    fn name(&self) -> &str {
        "comparisons_with_rows"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.rewrite_up_with_subqueries(&mut |node| {
            let mut found = false;
            node.apply_expressions(|expr| {
                found |= expr.exists(|expr| {
                    Ok(matches!(expr, Expr::InList(_) | Expr::InSubquery(_) | Expr::SetComparison(_)))
                })?;
                Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
            })?;
            if !found {
                return Ok(Transformed::no(node));
            }
            let (place, schema) = (Place::within(&node), merge_schema(&node.inputs()));
            let is_filter = matches!(node, LogicalPlan::Filter(_));
            map_expressions(node, &mut |expr| {
                transform(expr, place, &mut |expr, place| settled(expr, place, is_filter, &schema))
            })?
            .map_data(LogicalPlan::recompute_schema)
        })
        .data()
    }
}

fn settled(expr: Expr, place: Place, is_filter: bool, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (needle, subquery, op, quantifier) = match expr {
        Expr::InSubquery(within) => {
            // By outer columns it is a join's, or none of these were left.
            if has_outer_columns(&within.subquery.subquery)? {
                return Ok(Transformed::no(Expr::InSubquery(within)));
            }
            if is_filter && is_join(&within, place, schema)? {
                return joinable(within);
            }
            let InSubquery { expr, subquery, negated } = within;
            match negated {
                false => (expr, subquery, Operator::Eq, SetQuantifier::Any),
                true => (expr, subquery, Operator::NotEq, SetQuantifier::All),
            }
        }
        Expr::SetComparison(of) if is_set_operator(of.op) && !has_outer_columns(&of.subquery.subquery)? => {
            let SetComparison { expr, subquery, op, quantifier } = of;
            (expr, subquery, op, quantifier)
        }
        Expr::InList(list) => return written_out(list),
        other => return Ok(Transformed::no(other)),
    };
    let plan = subquery.subquery.as_ref().clone();
    let column = Expr::Column(Column::from(plan.schema().qualified_field(0)));
    let set = AggregateUDF::new_from_impl(SetOf { signature: Signature::any(1, Volatility::Immutable) });
    let set =
        Expr::AggregateFunction(AggregateFunction::new_udf(Arc::new(set), vec![column], false, None, Vec::new(), None));
    let plan = LogicalPlanBuilder::from(plan).aggregate(Vec::<Expr>::new(), [set.alias("\u{1}set")])?.build()?;
    let set = Subquery { subquery: Arc::new(plan), outer_ref_columns: Vec::new(), spans: subquery.spans };
    let signature = Signature::any(2, Volatility::Immutable);
    let function = ScalarUDF::new_from_impl(Compared { op, quantifier, signature });
    Ok(Transformed::yes(function.call(vec![*needle, Expr::ScalarSubquery(set)])))
}

/// A list of what is computed as comparisons with each. DataFusion computes items of no rows to find out whether they are constants, and takes a choice
/// that comes to a constant then for one.
fn written_out(list: InList) -> Result<Transformed<Expr>> {
    let is_choice = |expr: &Expr| Ok(matches!(expr, Expr::Case(_) | Expr::ScalarFunction(_) | Expr::ScalarSubquery(_)));
    let mut may_be_taken = false;
    for item in &list.list {
        let varies = item.any_column_refs() || item.contains_outer() || has_query(item);
        may_be_taken |= varies && item.exists(is_choice)?;
    }
    if !may_be_taken || list.expr.is_volatile() {
        return Ok(Transformed::no(Expr::InList(list)));
    }
    let InList { expr, list, negated } = list;
    let (op, connective) = if negated { (Operator::NotEq, Operator::And) } else { (Operator::Eq, Operator::Or) };
    let compared = list.into_iter().map(|item| binary_expr(expr.as_ref().clone(), op, item));
    match compared.reduce(|left, right| binary_expr(left, connective, right)) {
        Some(all) => Ok(Transformed::yes(all)),
        None => internal_err!("a list without items"),
    }
}

/// Whether DataFusion makes a join of it that gives what can be seen of its value.
fn is_join(within: &InSubquery, place: Place, schema: &DFSchema) -> Result<bool> {
    let InSubquery { expr: needle, subquery, negated } = within;
    // A join needs a key of the rows around, and a subquery within it is no key.
    if !needle.any_column_refs() || needle.contains_outer() || has_query(needle) || needle.is_volatile() {
        return Ok(false);
    }
    let rows_may_be_null = subquery.subquery.schema().field(0).is_nullable();
    if !rows_may_be_null && !needle.nullable(schema)? {
        return Ok(true);
    }
    if !negated {
        return Ok(!place.shows_unknown());
    }
    // An anti join minds NULL only by one key of which its columns say that it may be NULL: an expression may come to a constant yet, or be NULL
    // where none of its columns is.
    let column = match needle.as_ref() {
        Expr::Cast(cast) => cast.expr.as_ref(),
        needle => needle,
    };
    let Expr::Column(column) = column else { return Ok(false) };
    Ok(place == Place::Conjunct && (rows_may_be_null || ExprSchema::nullable(schema, column).unwrap_or(true)))
}

/// DataFusion looks for the compared column as an expression, which some operators have none for.
fn joinable(within: InSubquery) -> Result<Transformed<Expr>> {
    let plan = within.subquery.subquery.as_ref();
    if plan.head_output_expr()?.is_some() {
        return Ok(Transformed::no(Expr::InSubquery(within)));
    }
    let column = Expr::Column(Column::from(plan.schema().qualified_field(0)));
    let plan = LogicalPlanBuilder::from(plan.clone()).project([column])?.build()?;
    let subquery = Subquery { subquery: Arc::new(plan), ..within.subquery };
    Ok(Transformed::yes(Expr::InSubquery(InSubquery { subquery, ..within })))
}

/// The values of a set are compared in Arrow's order, which is SQL's but for floats.
fn comparable(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float32 => {
            let same = |value: f32| if value.is_nan() { f32::NAN } else { value + 0.0 };
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(same)) as ArrayRef
        }
        DataType::Float64 => {
            let same = |value: f64| if value.is_nan() { f64::NAN } else { value + 0.0 };
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(same)) as ArrayRef
        }
        _ => values.clone(),
    }
}

const ORDER: SortOptions = SortOptions { descending: false, nulls_first: true };

/// The values, each once and in order.
fn distinct(values: &ArrayRef) -> Result<ArrayRef> {
    let order = sort_to_indices(values, Some(ORDER), None)?;
    let compare = make_comparator(values.as_ref(), values.as_ref(), ORDER)?;
    let mut kept: Vec<u32> = Vec::new();
    for &place in order.values() {
        if kept.last().is_none_or(|last| compare(*last as usize, place as usize) != Ordering::Equal) {
            kept.push(place);
        }
    }
    Ok(take(values, &UInt32Array::from(kept), None)?)
}

/// An aggregate: its argument's values as a set.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SetOf {
    signature: Signature,
}

fn list_of(item: &DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item.clone(), true)))
}

impl AggregateUDFImpl for SetOf {
    fn name(&self) -> &str {
        "set_of"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [item] => Ok(list_of(item)),
            _ => internal_err!("set_of takes one argument"),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(args.name, args.return_type().clone(), true))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let DataType::List(item) = args.return_type() else { return internal_err!("a set that is no list") };
        let item = item.data_type().clone();
        Ok(Box::new(Collected { item, parts: Vec::new(), rows: 0, settled: 0 }))
    }
}

#[derive(Debug)]
struct Collected {
    item: DataType,
    /// The first may be a set.
    parts: Vec<ArrayRef>,
    rows: usize,
    /// The size of the set that was made last.
    settled: usize,
}

impl Collected {
    /// As many rows are waited for until a set is made of all, so that it is done seldom.
    const ROWS_MIN: usize = 64 << 10;

    fn add(&mut self, values: &ArrayRef) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        self.rows += values.len();
        self.parts.push(comparable(values));
        if self.rows > 2 * self.settled + Self::ROWS_MIN { self.settle() } else { Ok(()) }
    }

    fn settle(&mut self) -> Result<()> {
        let parts: Vec<&dyn Array> = self.parts.iter().map(AsRef::as_ref).collect();
        if !parts.is_empty() {
            self.parts = vec![distinct(&concat(&parts)?)?];
        }
        self.rows = self.parts.first().map_or(0, |set| set.len());
        self.settled = self.rows;
        Ok(())
    }

    fn list(&mut self) -> Result<ScalarValue> {
        self.settle()?;
        let set = self.parts.first().cloned().unwrap_or_else(|| new_empty_array(&self.item));
        let item = Arc::new(Field::new_list_field(self.item.clone(), true));
        let list = ListArray::try_new(item, OffsetBuffer::from_lengths([set.len()]), set, None)?;
        Ok(ScalarValue::List(Arc::new(list)))
    }
}

impl Accumulator for Collected {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [values] = values else { return internal_err!("set_of takes one argument") };
        self.add(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.list()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.parts.iter().map(|part| part.get_array_memory_size()).sum::<usize>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.list()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [sets] = states else { return internal_err!("set_of has one state") };
        sets.as_list::<i32>().iter().flatten().try_for_each(|set| self.add(&set))
    }
}

/// Its first argument compared with the values of the set that is its second.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Compared {
    op: Operator,
    quantifier: SetQuantifier,
    signature: Signature,
}

impl ScalarUDFImpl for Compared {
    fn name(&self) -> &str {
        match (self.op, self.quantifier) {
            (Operator::Eq, SetQuantifier::Any) => "is_among",
            (Operator::NotEq, SetQuantifier::All) => "is_not_among",
            (_, SetQuantifier::Any) => "compare_with_any",
            (_, SetQuantifier::All) => "compare_with_all",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let args: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
        Ok(format!("{}[{}]({})", self.name(), self.op, args.join(",")))
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [needle, set] = args.args.as_slice() else { return internal_err!("a comparison of two arguments") };
        let is_scalar = matches!((needle, set), (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let needle = needle.to_array(if matches!(needle, ColumnarValue::Scalar(_)) { 1 } else { rows })?;
        let answers = match set {
            ColumnarValue::Scalar(ScalarValue::List(list)) => {
                let answers = self.answers(&needle, &list.value(0))?;
                if answers.len() == rows { answers } else { repeated(&answers, rows) }
            }
            ColumnarValue::Array(lists) => {
                // One set for all rows, written out for each.
                let lists = lists.as_list::<i32>();
                let row = |row: usize| {
                    let needle = needle.slice(if needle.len() == 1 { 0 } else { row }, 1);
                    let answers = self.answers(&needle, &lists.value(row))?;
                    Ok((!answers.is_null(0)).then(|| answers.value(0)))
                };
                (0..rows).map(row).collect::<Result<BooleanArray>>()?
            }
            ColumnarValue::Scalar(_) => return internal_err!("a set that is no list"),
        };
        if is_scalar {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&answers, 0)?));
        }
        Ok(ColumnarValue::Array(Arc::new(answers)))
    }
}

fn repeated(answers: &BooleanArray, rows: usize) -> BooleanArray {
    let answer = (answers.len() == 1 && !answers.is_null(0)).then(|| answers.value(0));
    (0..rows).map(|_| answer).collect()
}

impl Compared {
    fn answers(&self, needles: &ArrayRef, set: &ArrayRef) -> Result<BooleanArray> {
        // `ALL` is where the opposite of no row is.
        let (op, negated) = match (self.quantifier, self.op.negate()) {
            (SetQuantifier::Any, _) => (self.op, false),
            (SetQuantifier::All, Some(opposite)) => (opposite, true),
            (SetQuantifier::All, None) => return internal_err!("a comparison that has no opposite"),
        };
        if set.is_empty() {
            return Ok(BooleanArray::from(vec![negated; needles.len()]));
        }
        if matches!((needles.data_type(), set.data_type()), (DataType::Null, _) | (_, DataType::Null)) {
            return Ok(BooleanArray::new_null(needles.len()));
        }
        let nulls = set.null_count();
        let known = set.slice(nulls, set.len() - nulls);
        let otherwise = (nulls == 0).then_some(negated);
        let needles = match needles.data_type() == known.data_type() {
            true => comparable(needles),
            false => comparable(&cast(needles, known.data_type())?),
        };
        let compare = make_comparator(needles.as_ref(), known.as_ref(), ORDER)?;
        let size = known.len();
        let has = |row: usize| {
            if size == 0 {
                return false;
            }
            let (first, last) = (|| compare(row, 0), || compare(row, size - 1));
            match op {
                Operator::Lt => last() == Ordering::Less,
                Operator::LtEq => last() != Ordering::Greater,
                Operator::Gt => first() == Ordering::Greater,
                Operator::GtEq => first() != Ordering::Less,
                Operator::NotEq => first() != Ordering::Equal || last() != Ordering::Equal,
                _ => {
                    let (mut low, mut high) = (0, size);
                    while low < high {
                        let middle = low + (high - low) / 2;
                        match compare(row, middle) {
                            Ordering::Equal => return true,
                            Ordering::Less => high = middle,
                            Ordering::Greater => low = middle + 1,
                        }
                    }
                    false
                }
            }
        };
        let answer = |row: usize| match () {
            () if needles.is_null(row) => None,
            () if has(row) => Some(!negated),
            () => otherwise,
        };
        Ok((0..needles.len()).map(answer).collect())
    }
}
