//! Results as rows of values that can be compared with an answer set or with another run.

use arrow::array::Array;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use tidepool_base::{Error, Result};

/// Positions of result columns.
pub type OrderKeys = &'static [usize];

/// Decimals may differ by this: the last digit that the published answers print, so that rounding either way is right.
const DECIMAL_TOLERANCE: f64 = 0.01;
/// What the conversion of two texts to binary may add, relative to their value.
const RELATIVE_SLACK: f64 = 4.0 * f64::EPSILON;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text, dates, booleans: equal as text.
    Exact,
    /// Equal as numbers.
    Integer,
    /// Equal within the tolerances.
    Decimal,
}

/// A result as text, column by column typed just enough to compare.
#[derive(Clone, Debug, Default)]
pub struct ResultSet {
    pub names: Vec<String>,
    pub kinds: Vec<ColumnKind>,
    /// `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

/// Rows as an answer file prints them, `NULL` written out.
#[derive(Clone, Debug)]
pub struct Expected {
    pub rows: Vec<Vec<String>>,
}

impl ResultSet {
    pub fn from_batches(batches: &[RecordBatch]) -> Result<ResultSet> {
        let Some(first) = batches.first() else { return Ok(ResultSet::default()) };
        let schema = first.schema();
        let mut result = ResultSet {
            names: schema.fields().iter().map(|field| field.name().clone()).collect(),
            kinds: schema.fields().iter().map(|field| kind(field.data_type())).collect(),
            rows: Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum()),
        };
        let options = FormatOptions::default();
        for batch in batches {
            let formatters = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &options))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| Error::internal(format!("could not format a result: {error}")))?;
            for row in 0..batch.num_rows() {
                result.rows.push(
                    formatters
                        .iter()
                        .zip(batch.columns())
                        .map(|(formatter, column)| (!column.is_null(row)).then(|| formatter.value(row).to_string()))
                        .collect(),
                );
            }
        }
        Ok(result)
    }

    /// As an expectation for another run of the same query.
    pub fn to_expected(&self) -> Expected {
        let cell = |cell: &Option<String>| cell.clone().unwrap_or_else(|| "NULL".to_owned());
        Expected { rows: self.rows.iter().map(|row| row.iter().map(cell).collect()).collect() }
    }

    /// `Err` says in one line where the result differs.
    pub fn matches(&self, expected: &Expected, order_keys: OrderKeys) -> Result<(), String> {
        self.matches_within(expected, order_keys, DECIMAL_TOLERANCE)
    }

    /// `matches` with decimals within `tolerance`.
    pub fn matches_within(&self, expected: &Expected, order_keys: OrderKeys, tolerance: f64) -> Result<(), String> {
        if self.rows.len() != expected.rows.len() {
            return Err(format!("{} rows, expected {}", self.rows.len(), expected.rows.len()));
        }
        let Some(first) = expected.rows.first() else { return Ok(()) };
        if first.len() != self.kinds.len() {
            return Err(format!("{} columns, expected {}", self.kinds.len(), first.len()));
        }
        for (index, (row, wanted)) in self.rows.iter().zip(&expected.rows).enumerate() {
            for &key in order_keys {
                if !cell_matches(self.kinds[key], &row[key], &wanted[key], tolerance) {
                    return Err(self.difference(index, key, row, wanted));
                }
            }
        }
        // In whatever order ties came: line both up by their exact columns, then by the others.
        let mut actual: Vec<&Vec<Option<String>>> = self.rows.iter().collect();
        let mut wanted: Vec<&Vec<String>> = expected.rows.iter().collect();
        actual.sort_by(|a, b| {
            self.canonical_order(|i| a[i].as_deref().unwrap_or("NULL"), |i| b[i].as_deref().unwrap_or("NULL"))
        });
        wanted.sort_by(|a, b| self.canonical_order(|i| a[i].as_str(), |i| b[i].as_str()));
        for (index, (row, wanted)) in actual.iter().zip(&wanted).enumerate() {
            for column in 0..self.kinds.len() {
                if !cell_matches(self.kinds[column], &row[column], &wanted[column], tolerance) {
                    return Err(self.difference(index, column, row, wanted));
                }
            }
        }
        Ok(())
    }

    fn canonical_order<'a>(&self, a: impl Fn(usize) -> &'a str, b: impl Fn(usize) -> &'a str) -> std::cmp::Ordering {
        let by_kind = |wanted: fn(ColumnKind) -> bool| {
            (0..self.kinds.len())
                .filter(move |&column| wanted(self.kinds[column]))
                .map(|column| match (a(column).trim().parse::<f64>(), b(column).trim().parse::<f64>()) {
                    (Ok(a), Ok(b)) if self.kinds[column] != ColumnKind::Exact => a.total_cmp(&b),
                    _ => a(column).trim_end().cmp(b(column).trim_end()),
                })
                .find(|order| order.is_ne())
        };
        by_kind(|kind| kind != ColumnKind::Decimal)
            .or_else(|| by_kind(|kind| kind == ColumnKind::Decimal))
            .unwrap_or(std::cmp::Ordering::Equal)
    }

    fn difference(&self, row: usize, column: usize, actual: &[Option<String>], wanted: &[String]) -> String {
        format!(
            "row {}, column {}: {}, expected {}",
            row + 1,
            self.names.get(column).map_or("?", String::as_str),
            actual[column].as_deref().unwrap_or("NULL"),
            wanted[column].trim()
        )
    }
}

fn kind(data_type: &DataType) -> ColumnKind {
    match data_type {
        data_type if data_type.is_integer() => ColumnKind::Integer,
        DataType::Decimal128(_, 0) | DataType::Decimal256(_, 0) => ColumnKind::Integer,
        data_type if data_type.is_numeric() => ColumnKind::Decimal,
        _ => ColumnKind::Exact,
    }
}

fn cell_matches(kind: ColumnKind, actual: &Option<String>, wanted: &str, tolerance: f64) -> bool {
    let Some(actual) = actual else { return wanted.trim() == "NULL" };
    match (kind, actual.trim().parse::<f64>(), wanted.trim().parse::<f64>()) {
        // Trailing blanks are how char(n) and answer files pad.
        (ColumnKind::Exact, ..) => actual.trim_end() == wanted.trim_end(),
        (ColumnKind::Integer, Ok(actual), Ok(wanted)) => actual == wanted,
        (ColumnKind::Decimal, Ok(actual), Ok(wanted)) => {
            (actual - wanted).abs() <= tolerance + RELATIVE_SLACK * wanted.abs()
        }
        _ => false,
    }
}
