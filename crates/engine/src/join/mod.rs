//! Joins: rows of a build side are kept in a table, and those of a probe side look theirs up in it.
//!
//! A join is up to three pipelines: one ends in a [`BuildSink`], the next goes through a [`Probe`], and for kinds that
//! [`JoinKind::emits_build`] a third begins with [`BuildRows`]. All share a [`JoinTable`]. What its directory is, is
//! decided by the keys that came: see `table`.

mod build;
mod filter;
mod nested;
mod probe;
mod ranked;
mod residual;
mod table;
#[cfg(test)]
mod tests;
mod unmatched;
mod words;

pub use build::BuildSink;
pub use filter::KeyFilter;
pub use probe::Probe;
pub use table::{JoinTable, Variant};
pub use unmatched::BuildRows;

use crate::expr::Expr;
use crate::rows::RowLayout;
use crate::types::{Class, ColumnType};
use arrow_schema::DataType;
use tidepool_base::{Error, Result};

/// Left is the probe side, right the build side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    Inner,
    /// And rows of the probe side that match none.
    Left,
    /// And rows of the build side that match none.
    Right,
    Full,
    /// Rows of the probe side that match some.
    LeftSemi,
    /// Rows of the probe side that match none.
    LeftAnti,
    /// Rows of the build side that match some.
    RightSemi,
    /// Rows of the build side that match none.
    RightAnti,
    /// Rows of the probe side, and whether they match some.
    LeftMark,
}

impl JoinKind {
    /// Whether [`BuildRows`] has rows for what follows, once all of the probe side came.
    pub fn emits_build(self) -> bool {
        matches!(self, JoinKind::Right | JoinKind::Full | JoinKind::RightSemi | JoinKind::RightAnti)
    }

    /// Whether [`Probe`] hands on anything.
    pub fn emits_probe(self) -> bool {
        !matches!(self, JoinKind::RightSemi | JoinKind::RightAnti)
    }

    /// Whether pairs of rows are what comes out.
    pub(crate) fn pairs(self) -> bool {
        matches!(self, JoinKind::Inner | JoinKind::Left | JoinKind::Right | JoinKind::Full)
    }

    /// Whether a row of the probe side comes out once at most, and with no columns of the build side.
    pub(crate) fn tests_probe(self) -> bool {
        matches!(self, JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark)
    }

    /// Whether a row of the build side without a key can come out.
    pub(crate) fn keeps_build(self) -> bool {
        matches!(self, JoinKind::Right | JoinKind::Full | JoinKind::RightAnti)
    }

    /// Whether a row of the probe side that matches none makes no difference.
    pub(crate) fn drops_unmatched_probe(self) -> bool {
        !matches!(self, JoinKind::Left | JoinKind::Full | JoinKind::LeftAnti | JoinKind::LeftMark)
    }
}

/// Columns, by position, that are equal in rows that match. Of one class; decimals of one scale; codes of one
/// dictionary.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinKey {
    pub probe: usize,
    pub build: usize,
    /// NULL equals NULL (`IS NOT DISTINCT FROM`).
    pub nulls_equal: bool,
}

/// What is joined, and how. Rows match if all keys are equal and the residual is true.
///
/// Comes out: `probe_output` of the probe's columns, then `build_output` of the build's, then a mark, as far as the
/// kind has them (see [`Join::output`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    pub kind: JoinKind,
    /// Anti joins as `NOT IN` has them, and marks as `IN` has them: NULL as a key, of either side, may equal anything.
    /// Of one key.
    pub null_aware: bool,
    pub probe_types: Vec<ColumnType>,
    pub build_types: Vec<ColumnType>,
    /// None: each row of one side is tried with each of the other.
    pub keys: Vec<JoinKey>,
    /// Over the probe's columns, then the build's.
    pub residual: Option<Expr>,
    pub probe_output: Vec<usize>,
    pub build_output: Vec<usize>,
    /// Whether [`JoinTable::key_filter`] will be asked.
    pub filters: bool,
}

fn nullable(of: &ColumnType) -> ColumnType {
    ColumnType { nullable: true, ..of.clone() }
}

impl Join {
    /// Keys, by their places, whose values on the build side are all that a row of the probe side need be looked at for.
    pub(crate) fn filtering_keys(&self) -> impl Iterator<Item = (usize, &JoinKey)> {
        use JoinKind::{Full, Left, LeftAnti, LeftMark};
        let drops = !matches!(self.kind, Left | Full | LeftAnti | LeftMark);
        self.keys.iter().enumerate().filter(move |(_, key)| drops && !key.nulls_equal)
    }

    /// Types of the columns that come out.
    pub fn output(&self) -> Vec<ColumnType> {
        use JoinKind::{Full, Left, LeftMark, Right};
        let mut columns = Vec::new();
        if self.kind.emits_probe() {
            let of = self.probe_output.iter().map(|column| &self.probe_types[*column]);
            columns.extend(of.map(|of| if matches!(self.kind, Right | Full) { nullable(of) } else { of.clone() }));
        }
        if !self.kind.tests_probe() {
            let of = self.build_output.iter().map(|column| &self.build_types[*column]);
            columns.extend(of.map(|of| if matches!(self.kind, Left | Full) { nullable(of) } else { of.clone() }));
        }
        if self.kind == LeftMark {
            columns.push(ColumnType::new(DataType::Boolean, self.null_aware));
        }
        columns
    }

    /// Columns of the build side that outlive it: keys, then what else comes out or is tested.
    pub(crate) fn stored(&self) -> Vec<usize> {
        let mut stored: Vec<usize> = self.keys.iter().map(|key| key.build).collect();
        if !self.kind.tests_probe() {
            stored.extend(&self.build_output);
        }
        if let Some(residual) = &self.residual {
            let mut columns = std::collections::BTreeSet::new();
            residual.columns_into(&mut columns);
            let of_probe = self.probe_types.len();
            stored.extend(columns.iter().filter_map(|column| column.checked_sub(of_probe)));
        }
        let mut seen = std::collections::BTreeSet::new();
        stored.retain(|column| seen.insert(*column));
        stored
    }

    /// Fails for what no table can be made for: 0A000 where a column cannot be kept, XX000 for a join that is none.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::internal(format!("a join {what}")));
        let column = |types: &[ColumnType], column: usize| types.get(column).cloned();
        for key in &self.keys {
            let both = column(&self.probe_types, key.probe).zip(column(&self.build_types, key.build));
            let Some((probe, build)) = both else { return wrong("by a column that is not there") };
            let same_dictionary = match (&probe.dictionary, &build.dictionary) {
                (Some(a), Some(b)) => std::sync::Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            };
            let alike = probe.class() == build.class() && probe.scale() == build.scale() && same_dictionary;
            if !alike || probe.class() == Class::Other {
                return wrong("by keys of two forms");
            }
        }
        let is_one = matches!(&self.keys[..], [key] if !key.nulls_equal);
        let can_be = matches!(self.kind, JoinKind::LeftAnti | JoinKind::LeftMark | JoinKind::RightAnti);
        if self.null_aware && !(is_one && can_be) {
            return wrong("with NULLs of which it is not aware");
        }
        let of_probe = self.probe_output.iter().all(|column| *column < self.probe_types.len());
        if !of_probe || self.stored().iter().any(|column| *column >= self.build_types.len()) {
            return wrong("of columns that are not there");
        }
        if let Some(column) = self.stored().into_iter().find(|column| !RowLayout::holds(&self.build_types[*column])) {
            let of = &self.build_types[column].data_type;
            return Err(Error::unsupported(format!("a join that keeps a column of {of}")));
        }
        Ok(())
    }
}
