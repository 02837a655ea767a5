//! What is computed of a row's partition, and of its frame.

use super::frame::Frame;
use crate::aggregate::AggregateFunction;
use crate::types::{Class, ColumnType};
use arrow_schema::DataType;
use std::fmt;
use tidepool_base::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WindowFunction {
    /// From 1 on.
    RowNumber,
    /// The number of the first of its peers.
    Rank,
    /// The number of its group of peers.
    DenseRank,
    /// The share of the other rows that are before its peers; 0 of a row without others.
    PercentRank,
    /// The share of rows that are its peers or before them.
    CumeDist,
    /// The number of its part of so many, of which the first ones have a row more than the others. Fewer than one are 22014.
    Ntile(i64),
    /// The argument of the row that is so many after it, NULL without one: `lag` is below 0.
    Shift(i64),
    /// Whether there is such a row.
    HasShift(i64),
    /// The argument of the frame's first row; NULL if it has none, as of those that follow.
    FirstValue,
    LastValue,
    /// From 1 on; less is 22016.
    NthValue(i64),
    Aggregate(AggregateFunction),
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowCall {
    pub function: WindowFunction,
    /// A column of the input.
    pub argument: Option<usize>,
    /// A boolean column: an aggregate takes only rows in which it is true.
    pub filter: Option<usize>,
    /// Functions of the whole partition do not look at it.
    pub frame: Frame,
    /// Of the result: a function that picks a row's value has its argument's, which may be NULL. Of sums and averages, as an
    /// aggregate's.
    pub of: ColumnType,
}

impl fmt::Display for WindowCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use WindowFunction as F;
        let argument = self.argument.map(|column| format!("#{column}"));
        let (name, number) = match self.function {
            F::RowNumber => ("row_number".to_owned(), None),
            F::Rank => ("rank".to_owned(), None),
            F::DenseRank => ("dense_rank".to_owned(), None),
            F::PercentRank => ("percent_rank".to_owned(), None),
            F::CumeDist => ("cume_dist".to_owned(), None),
            F::Ntile(parts) => ("ntile".to_owned(), Some(parts)),
            F::Shift(shift @ 0..) => ("lead".to_owned(), Some(shift)),
            F::Shift(shift) => ("lag".to_owned(), Some(shift.saturating_neg())),
            F::HasShift(shift @ 0..) => ("has_lead".to_owned(), Some(shift)),
            F::HasShift(shift) => ("has_lag".to_owned(), Some(shift.saturating_neg())),
            F::FirstValue => ("first_value".to_owned(), None),
            F::LastValue => ("last_value".to_owned(), None),
            F::NthValue(number) => ("nth_value".to_owned(), Some(number)),
            F::Aggregate(function) => (format!("{function:?}").to_lowercase(), None),
        };
        let star =
            (self.function == F::Aggregate(AggregateFunction::Count) && argument.is_none()).then(|| "*".to_owned());
        let arguments: Vec<String> =
            argument.or(star).into_iter().chain(number.map(|number| number.to_string())).collect();
        write!(f, "{name}({})", arguments.join(", "))?;
        self.own_frame().filter(|frame| **frame != Frame::WHOLE).map_or(Ok(()), |frame| write!(f, " {frame}"))
    }
}

impl WindowFunction {
    fn is_framed(&self) -> bool {
        use WindowFunction as F;
        matches!(self, F::FirstValue | F::LastValue | F::NthValue(_) | F::Aggregate(_))
    }
}

impl WindowCall {
    /// The frame, of a function that looks at it.
    pub(super) fn own_frame(&self) -> Option<&Frame> {
        self.function.is_framed().then_some(&self.frame)
    }

    /// Whether it asks which rows are peers.
    pub(super) fn has_peers(&self) -> bool {
        use WindowFunction as F;
        matches!(self.function, F::Rank | F::DenseRank | F::PercentRank | F::CumeDist)
            || self.own_frame().is_some_and(Frame::has_peers)
    }

    /// Fails for functions of types that they have not.
    pub(super) fn check(&self, input: &[ColumnType]) -> Result<()> {
        use AggregateFunction as A;
        use WindowFunction as F;
        let wrong = |what: &str| Err(Error::internal(format!("{:?} {what}", self.function)));
        let used = || self.argument.into_iter().chain(self.filter);
        if used().any(|column| column >= input.len()) {
            return wrong("of a column that is not there");
        }
        if self.filter.is_some_and(|filter| input[filter].class() != Class::Bool) {
            return wrong("with a filter that is not a boolean");
        }
        let argument = self.argument.map(|argument| &input[argument]);
        let class = self.of.class();
        let is_picked = |of: Option<&ColumnType>| of.is_some_and(|of| of.class() == class && self.of.nullable);
        match self.function {
            F::RowNumber | F::Rank | F::DenseRank | F::Ntile(_) | F::Aggregate(A::Count) if class == Class::Int => {
                Ok(())
            }
            F::PercentRank | F::CumeDist if class == Class::Float => Ok(()),
            F::HasShift(_) if class == Class::Bool => Ok(()),
            F::Shift(_) | F::FirstValue | F::LastValue | F::NthValue(_) if is_picked(argument) => Ok(()),
            F::Aggregate(A::Min | A::Max | A::BoolAnd | A::BoolOr) if is_picked(argument) && class != Class::Other => {
                Ok(())
            }
            F::Aggregate(A::Sum | A::Avg) => match (argument.map(ColumnType::class), class) {
                (Some(Class::Float), Class::Float) => Ok(()),
                (Some(Class::Int | Class::Wide), Class::Int | Class::Wide) => {
                    let scale = |of: Option<&ColumnType>| of.and_then(ColumnType::scale);
                    let has_scales = scale(argument).is_some() && self.of.scale().is_some();
                    let is_same = scale(argument) == self.of.scale();
                    if has_scales && (is_same || self.function == F::Aggregate(A::Avg)) {
                        return Ok(());
                    }
                    wrong("of another type than its argument")
                }
                (Some(Class::Int | Class::Wide), Class::Float) if self.function == F::Aggregate(A::Avg) => Ok(()),
                _ => wrong("of values that are no numbers"),
            },
            _ => wrong("of such a type"),
        }
    }

    /// What it is to be rounded to.
    pub(super) fn is_single(&self) -> bool {
        self.of.data_type == DataType::Float32
    }
}
