//! Makes of an expression what can be evaluated.

use super::{Op, Prepared, arithmetic, cast, list, lookup, pattern, simplify, text};
use crate::expr::{Expr, Node};
use crate::types::{Class, ColumnType};
use arrow_schema::DataType;
use tidepool_base::{Error, Result};

/// Of a result that is looked up by its code.
const LOOKUP_COST: usize = 6;

impl Prepared {
    /// Simplifies it first.
    pub fn new(expr: &Expr) -> Result<Prepared> {
        Prepared::simplified(&simplify(expr.clone()))
    }

    /// Of an expression that has been simplified.
    pub fn simplified(expr: &Expr) -> Result<Prepared> {
        Prepared::build(expr, true)
    }

    /// `with_lookups`: what depends on codes alone is worked out beforehand.
    pub(super) fn build(expr: &Expr, with_lookups: bool) -> Result<Prepared> {
        if with_lookups && let Some((codes, results)) = lookup::results(expr) {
            let op = Op::Lookup { codes, results };
            return Ok(Prepared { op, of: expr.of.clone(), cost: LOOKUP_COST, has_call: false, can_fail: false });
        }
        let of = |expr: &Expr| Prepared::build(expr, with_lookups);
        let one = |expr: &Expr| of(expr).map(Box::new);
        let all = |exprs: &[Expr]| exprs.iter().map(of).collect::<Result<Vec<_>>>();
        let op = match &expr.node {
            Node::Column(index) => Op::Column(*index),
            Node::Literal(scalar) => Op::Literal(scalar.clone()),
            Node::Later { value, .. } => Op::Later(value.clone()),
            Node::Arithmetic { op, left, right } => {
                let kernel = arithmetic::Kernel::new(*op, &left.of, &right.of, &expr.of)?;
                Op::Arithmetic { kernel, left: one(left)?, right: one(right)? }
            }
            Node::Negate(value) => {
                Op::Negate { kernel: arithmetic::Kernel::negation(&value.of, &expr.of)?, value: one(value)? }
            }
            Node::Compare { op, left, right } => Op::Compare { op: *op, left: one(left)?, right: one(right)? },
            Node::IsDistinct { negated, left, right } => {
                Op::IsDistinct { negated: *negated, left: one(left)?, right: one(right)? }
            }
            Node::And(parts) => Op::And(all(parts)?),
            Node::Or(parts) => Op::Or(all(parts)?),
            Node::Not(value) => Op::Not(one(value)?),
            Node::IsNull { value, negated } => Op::IsNull { value: one(value)?, negated: *negated },
            Node::IsBool { value, is, negated } => Op::IsBool { value: one(value)?, is: *is, negated: *negated },
            Node::In { value, values, has_null, negated } => {
                let set = list::Set::new(values, &value.of)?;
                Op::In { value: one(value)?, set, has_null: *has_null, negated: *negated }
            }
            Node::Like { value, pattern, negated } => {
                let matcher = pattern::Matcher::new(pattern, &value.of.data_type);
                Op::Like { value: one(value)?, matcher, negated: *negated }
            }
            Node::Case { branches, otherwise } => {
                let branch = |(condition, value): &(Expr, Expr)| Ok((of(condition)?, of(value)?));
                Op::Case {
                    branches: branches.iter().map(branch).collect::<Result<_>>()?,
                    otherwise: otherwise.as_deref().map(one).transpose()?,
                }
            }
            Node::Coalesce(values) => Op::Coalesce(all(values)?),
            Node::Cast(value) => Op::Cast { kernel: cast::Kernel::new(&value.of, &expr.of)?, value: one(value)? },
            Node::Part { part, value } => {
                Op::Part { part: *part, is_date: value.of.data_type == DataType::Date32, value: one(value)? }
            }
            Node::Substring { value, start, len } => Op::Substring { value: one(value)?, start: *start, len: *len },
            Node::Length { value, unit } => Op::Length { value: one(value)?, unit: *unit },
            Node::Decode(value) => {
                let dictionary = value.of.dictionary.clone();
                let dictionary = dictionary.ok_or_else(|| Error::internal("codes without a dictionary"))?;
                Op::Decode { value: one(value)?, dictionary }
            }
            Node::CodeTest { value, passes } => Op::CodeTest { value: one(value)?, test: list::CodeTest::new(passes) },
            Node::Call { function, arguments } => Op::Call { function: function.clone(), arguments: all(arguments)? },
        };
        let own_cost = own_cost(expr);
        let mut prepared = Prepared { op, of: expr.of.clone(), cost: 0, has_call: false, can_fail: false };
        let (cost, has_call, can_fail) = prepared.children().fold(
            (own_cost, matches!(prepared.op, Op::Call { .. }), prepared.fails_itself()),
            |(cost, has_call, can_fail), child| {
                (cost + child.cost, has_call | child.has_call, can_fail | child.can_fail)
            },
        );
        (prepared.cost, prepared.has_call, prepared.can_fail) = (cost, has_call, can_fail);
        Ok(prepared)
    }

    fn fails_itself(&self) -> bool {
        match &self.op {
            Op::Arithmetic { kernel, .. } | Op::Negate { kernel, .. } => kernel.can_fail(),
            Op::Cast { kernel, .. } => kernel.can_fail(),
            Op::Substring { len, .. } => text::is_refused(*len),
            Op::Call { .. } => true,
            _ => false,
        }
    }

    fn children(&self) -> Box<dyn Iterator<Item = &Prepared> + '_> {
        match &self.op {
            Op::Column(_) | Op::Literal(_) | Op::Later(_) | Op::Lookup { .. } => Box::new(std::iter::empty()),
            Op::Arithmetic { left, right, .. }
            | Op::Compare { left, right, .. }
            | Op::IsDistinct { left, right, .. } => Box::new([left.as_ref(), right.as_ref()].into_iter()),
            Op::Negate { value, .. }
            | Op::Not(value)
            | Op::IsNull { value, .. }
            | Op::IsBool { value, .. }
            | Op::In { value, .. }
            | Op::Like { value, .. }
            | Op::Cast { value, .. }
            | Op::Part { value, .. }
            | Op::Substring { value, .. }
            | Op::Length { value, .. }
            | Op::Decode { value, .. }
            | Op::CodeTest { value, .. } => Box::new(std::iter::once(value.as_ref())),
            Op::And(parts) | Op::Or(parts) | Op::Coalesce(parts) | Op::Call { arguments: parts, .. } => {
                Box::new(parts.iter())
            }
            Op::Case { branches, otherwise } => {
                let of_branches = branches.iter().flat_map(|(condition, value)| [condition, value]);
                Box::new(of_branches.chain(otherwise.as_deref()))
            }
        }
    }
}

/// Of one row, in comparisons of integers.
pub fn cost(expr: &Expr) -> usize {
    own_cost(expr) + expr.children().into_iter().map(cost).sum::<usize>()
}

/// The same without its parts.
fn own_cost(expr: &Expr) -> usize {
    let class_of = |expr: &Expr| expr.of.class();
    let by_class = |of: &ColumnType| match of.class() {
        Class::Int | Class::Float => 1,
        Class::Bool => 0,
        Class::Wide => 4,
        Class::Text => 12,
        Class::Other => 16,
    };
    match &expr.node {
        Node::Column(_) | Node::Literal(_) | Node::Later { .. } => 0,
        Node::And(_) | Node::Or(_) | Node::Not(_) | Node::IsNull { .. } | Node::IsBool { .. } => 0,
        Node::Arithmetic { op, .. } => match (op, class_of(expr)) {
            (crate::expr::ArithmeticOp::Divide | crate::expr::ArithmeticOp::Modulo, Class::Wide) => 60,
            (crate::expr::ArithmeticOp::Divide | crate::expr::ArithmeticOp::Modulo, Class::Int) => 15,
            _ => by_class(&expr.of),
        },
        Node::Negate(value) | Node::Cast(value) => by_class(&value.of).max(by_class(&expr.of)),
        Node::Compare { left, .. } | Node::IsDistinct { left, .. } => by_class(&left.of),
        Node::In { value, .. } => 4 + by_class(&value.of),
        Node::Like { .. } => 60,
        Node::Case { .. } | Node::Coalesce(_) => 2,
        Node::Part { .. } => 10,
        Node::Substring { .. } | Node::Length { .. } => 30,
        Node::Decode(_) => 6,
        Node::CodeTest { .. } => 3,
        Node::Call { .. } => 200,
    }
}
