//! Expressions and columns at random.

use super::model::Model;
use crate::dictionary::Dictionary;
use crate::evaluate::text::repeat;
use crate::expr::{ArithmeticOp, DatePart, Expr, Function, Pattern, Scalar, TextUnit};
use crate::mask::Mask;
use crate::text::{Owners, Text};
use crate::types::{Class, ColumnType};
use crate::vector::{Chunk, Texts, Values, Vector};
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Int32Array};
use arrow_schema::{DataType, TimeUnit};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::CompareOp;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn text(&mut self) -> Vec<u8> {
        let long = self.one_in(3);
        let chars: String = (0..self.below(if long { 24 } else { 5 }))
            .map(|_| self.pick(&['a', 'b', 'A', 'é', 'É', '%', '_', '日']))
            .collect();
        chars.into_bytes()
    }

    fn int(&mut self, lower: i128, upper: i128) -> i128 {
        match self.below(8) {
            0 => lower,
            1 => upper,
            2 if lower <= 0 => 0,
            3..6 => (self.next() as i128 % 20 - 10).clamp(lower, upper),
            _ => {
                let wide = i128::from(self.next()) << 64 | i128::from(self.next());
                let shifted = wide >> self.below(127);
                let shifted =
                    if shifted < lower || shifted > upper { shifted.clamp(lower, upper) / 2 } else { shifted };
                shifted.clamp(lower, upper)
            }
        }
    }

    fn float(&mut self, is_real: bool) -> f64 {
        let value = match self.below(10) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            3 => -0.0,
            4 => 0.0,
            5 => f64::MAX,
            6 => -1e18 + self.below(1000) as f64,
            7 => self.below(40) as f64 / 2.0 - 10.0,
            _ => self.below(2000) as f64 / 100.0 - 10.0,
        };
        if is_real { f64::from(value as f32) } else { value }
    }

    pub fn scalar(&mut self, of: &ColumnType) -> Model {
        match of.class() {
            _ if of.dictionary.is_some() || of.class() == Class::Text => Model::Text(self.text()),
            Class::Int | Class::Wide => {
                let (lower, upper) = of.bounds.unwrap();
                // They cross where no value can be.
                let lower = lower.min(upper);
                Model::Int(self.int(lower, upper))
            }
            Class::Float => Model::Float(self.float(of.data_type == DataType::Float32)),
            Class::Bool => Model::Bool(self.one_in(2)),
            Class::Text | Class::Other => unreachable!(),
        }
    }
}

pub fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// Columns of all classes, some with bounds.
pub fn columns(random: &mut Random) -> Vec<ColumnType> {
    let types = [
        ColumnType::new(DataType::Int16, true),
        ColumnType::new(DataType::Int32, true),
        ColumnType::new(DataType::Int32, false).within((-50, 1000)),
        ColumnType::new(DataType::Int64, true),
        ColumnType::new(DataType::Int64, true).within((-1_000_000_000_000, 1_000_000_000_000)),
        ColumnType::new(DataType::Decimal128(12, 2), true),
        ColumnType::new(DataType::Decimal128(5, 2), false),
        ColumnType::new(DataType::Decimal128(38, 2), true),
        ColumnType::new(DataType::Decimal128(30, 4), true),
        ColumnType::new(DataType::Float32, true),
        ColumnType::new(DataType::Float64, true),
        ColumnType::new(DataType::Boolean, true),
        ColumnType::new(DataType::Boolean, false),
        ColumnType::new(DataType::Utf8View, true),
        ColumnType::new(DataType::Utf8View, false),
        ColumnType::new(DataType::Date32, true),
        ColumnType::new(DataType::Date32, true).within((8000, 11_000)),
        ColumnType::new(timestamp(), true),
    ];
    let mut types = types.to_vec();
    for nullable in [true, false] {
        let mut values: Vec<Vec<u8>> = (0..1 + random.below(40)).map(|_| random.text()).collect();
        values.sort();
        values.dedup();
        let dictionary = Dictionary::new(texts(&values).values().to_vec(), Owners::default());
        types.push(ColumnType::new(DataType::Utf8View, nullable).in_dictionary(Arc::new(dictionary)));
    }
    types
}

fn texts(values: &[Vec<u8>]) -> Texts {
    let text = |value: &Vec<u8>| {
        // Never freed: a value may be looked at however long.
        let bytes: &'static [u8] = Box::leak(value.clone().into_boxed_slice());
        // SAFETY: as above.
        unsafe { Text::new(bytes) }
    };
    // SAFETY: as above.
    unsafe { Texts::new(values.iter().map(text).collect(), Owners::default()) }
}

/// Rows of the columns, as a chunk and as values. Where one is NULL, the chunk has whatever the column's class can hold.
pub fn chunk(random: &mut Random, types: &[ColumnType], rows: usize) -> (Chunk, Vec<Vec<Model>>) {
    let mut all = vec![Vec::new(); rows];
    let mut vectors = Vec::new();
    for of in types {
        let nulls = random.pick(&[0, 2, 5, 20]);
        let values: Vec<Model> = (0..rows)
            .map(|_| match of.nullable && nulls > 0 && random.one_in(nulls) {
                true => Model::Null,
                false => match &of.dictionary {
                    Some(dictionary) => Model::Text(dictionary.bytes(random.below(dictionary.len()) as i64).to_vec()),
                    None => random.scalar(of),
                },
            })
            .collect();
        let valid = Mask::from_fn(rows, |row| values[row] != Model::Null);
        let int = |value: &Model, random: &mut Random| match value {
            Model::Int(value) => *value,
            Model::Text(text) => of.dictionary.as_ref().unwrap().find(text).unwrap().into(),
            _ => random.pick(&[i64::MIN.into(), i64::MAX.into(), 0, 7, 1 << 33]),
        };
        let values_of_class = match of.class() {
            Class::Int => Values::Int(values.iter().map(|value| int(value, random) as i64).collect()),
            Class::Wide => Values::Wide(
                values
                    .iter()
                    .map(|value| {
                        int(value, random)
                            .checked_mul(if *value == Model::Null { 1 << 63 } else { 1 })
                            .unwrap_or(i128::MIN)
                    })
                    .collect(),
            ),
            Class::Float => Values::Float(
                values
                    .iter()
                    .map(|value| if let Model::Float(value) = value { *value } else { random.float(false) })
                    .collect(),
            ),
            Class::Bool => Values::Bool(Mask::from_fn(rows, |row| match values[row] {
                Model::Bool(value) => value,
                _ => row % 2 == 0,
            })),
            _ => {
                let bytes: Vec<Vec<u8>> = values
                    .iter()
                    .map(|value| if let Model::Text(text) = value { text.clone() } else { random.text() })
                    .collect();
                Values::Text(texts(&bytes))
            }
        };
        vectors.push(Vector { values: values_of_class, valid: None }.with_valid(Some(valid)));
        for (row, value) in values.into_iter().enumerate() {
            all[row].push(value);
        }
    }
    (Chunk::new(rows, vectors), all)
}

/// A half; 22023 for 7.
struct Half;

impl Function for Half {
    fn name(&self) -> &str {
        "half"
    }

    fn evaluate(&self, arguments: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let values = arguments[0].as_primitive::<Int32Type>();
        assert_eq!(values.len(), rows);
        if values.iter().any(|value| value == Some(7)) {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "seven"));
        }
        Ok(Arc::new(values.iter().map(|value| value.map(|value| value / 2)).collect::<Int32Array>()))
    }
}

pub struct Maker<'a> {
    pub random: &'a mut Random,
    pub types: &'a [ColumnType],
    /// Without what evaluates some rows only: an error of any row is the whole's.
    pub is_strict: bool,
}

/// What a subquery has given already.
fn later(literal: &Expr, of: ColumnType) -> Expr {
    let scalar = literal.as_literal().unwrap();
    let scalar = match (scalar.as_i128(), of.class()) {
        (Some(value), Class::Int) => Scalar::Int(value as i64),
        (Some(value), Class::Wide) => Scalar::Wide(value),
        _ => scalar.clone(),
    };
    Expr::later(0, of).with_later(&[Arc::new(scalar.into())])
}

impl Maker<'_> {
    fn leaf(&mut self, is_wanted: impl Fn(&ColumnType) -> bool) -> Option<Expr> {
        let fitting: Vec<usize> = (0..self.types.len()).filter(|index| is_wanted(&self.types[*index])).collect();
        let index = if fitting.is_empty() { return None } else { self.random.pick(&fitting) };
        let of = self.types[index].clone();
        if self.random.one_in(3) {
            let plain = ColumnType { dictionary: None, ..of };
            let literal = self.literal(&plain);
            return Some(if self.random.one_in(3) { later(&literal, plain) } else { literal });
        }
        Some(Expr::column(index, of))
    }

    pub fn literal(&mut self, of: &ColumnType) -> Expr {
        if self.random.one_in(12) {
            return Expr::literal(Scalar::Null, of.data_type.clone());
        }
        let scalar = scalar(&self.random.scalar(of));
        Expr::literal(scalar, of.data_type.clone())
    }

    fn choice(&mut self, depth: usize, make: impl Fn(&mut Self, usize) -> Expr) -> Expr {
        if self.random.one_in(3) {
            let values = (0..1 + self.random.below(3)).map(|_| make(self, depth)).collect();
            return Expr::coalesce(values).unwrap();
        }
        let branches: Vec<_> =
            (0..1 + self.random.below(3)).map(|_| (self.boolean(depth), make(self, depth))).collect();
        let otherwise = if self.random.one_in(3) { None } else { Some(make(self, depth)) };
        Expr::case(branches, otherwise).unwrap()
    }

    /// Of an integer or float type, or of decimals of a scale.
    pub fn number(&mut self, data_type: &DataType, depth: usize) -> Expr {
        let scale = if let DataType::Decimal128(_, scale) = data_type { Some(*scale) } else { None };
        let is_alike = move |other: &DataType| match (other, scale) {
            (DataType::Decimal128(_, other), Some(scale)) => *other == scale,
            (other, _) => other == data_type,
        };
        if depth == 0 {
            return match self.leaf(|of| is_alike(&of.data_type) && of.dictionary.is_none()) {
                Some(leaf) => leaf,
                None => self.literal(&ColumnType::new(data_type.clone(), false)),
            };
        }
        let depth = depth - 1;
        let kind = self.random.below(if self.is_strict { 8 } else { 11 });
        match (kind, scale) {
            (0, _) => self.number(data_type, 0),
            (1, _) => self.number(data_type, depth).negate().unwrap(),
            (2, _) => {
                let other = self.number_type();
                self.number(&other, depth).cast(data_type.clone()).unwrap()
            }
            (3, None) if *data_type == DataType::Int32 => {
                let value = self.number(data_type, depth);
                Expr::call(Arc::new(Half), vec![value], ColumnType::new(DataType::Int32, true))
            }
            (3, None) if *data_type != DataType::Int16 && *data_type != DataType::Float32 => {
                use DatePart::*;
                let part = self.random.pick(&[Year, Quarter, Month, Day, DayOfWeek, DayOfYear, Hour, Minute]);
                let value = self.date(depth);
                Expr::part(part, value, data_type.clone()).unwrap()
            }
            (9, None) if matches!(data_type, DataType::Int32 | DataType::Int64) => {
                let unit = self.random.pick(&[TextUnit::Characters, TextUnit::Bytes]);
                self.text(depth).length(unit, data_type.clone()).unwrap()
            }
            (8.., _) => self.choice(depth, |maker, depth| maker.number(data_type, depth)),
            (_, None) => {
                use ArithmeticOp::*;
                let op = self.random.pick(&[Add, Subtract, Multiply, Divide, Modulo]);
                let (left, right) = (self.number(data_type, depth), self.number(data_type, depth));
                Expr::arithmetic(op, left, right, data_type.clone()).unwrap()
            }
            (4, Some(4)) => {
                let two = DataType::Decimal128(12, 2);
                let (left, right) = (self.number(&two, depth), self.number(&two, depth));
                Expr::arithmetic(ArithmeticOp::Multiply, left, right, DataType::Decimal128(38, 4)).unwrap()
            }
            (_, Some(scale)) => {
                let op = self.random.pick(&[ArithmeticOp::Add, ArithmeticOp::Subtract]);
                let (left, right) = (self.number(data_type, depth), self.number(data_type, depth));
                Expr::arithmetic(op, left, right, DataType::Decimal128(38, scale)).unwrap()
            }
        }
    }

    pub fn number_type(&mut self) -> DataType {
        self.random.pick(&[
            DataType::Int16,
            DataType::Int32,
            DataType::Int64,
            DataType::Decimal128(12, 2),
            DataType::Decimal128(30, 4),
            DataType::Float32,
            DataType::Float64,
        ])
    }

    pub fn date(&mut self, depth: usize) -> Expr {
        if self.random.one_in(2) {
            return self.leaf(|of| of.data_type == DataType::Date32).unwrap();
        }
        match self.random.below(3) {
            0 if depth > 0 => self.leaf(|of| of.data_type == DataType::Date32).unwrap().cast(timestamp()).unwrap(),
            1 if depth > 0 && !self.is_strict => {
                self.choice(depth - 1, |maker, _| maker.leaf(|of| of.data_type == DataType::Date32).unwrap())
            }
            _ => self.leaf(|of| of.data_type == timestamp()).unwrap(),
        }
    }

    pub fn text(&mut self, depth: usize) -> Expr {
        let kind = self.random.below(if self.is_strict { 4 } else { 6 });
        match kind {
            _ if depth == 0 => self.leaf(|of| of.data_type == DataType::Utf8View).unwrap(),
            0 | 1 => self.text(0),
            2 | 3 => {
                let start = self.random.below(12) as i64 - 4;
                let len = if self.random.one_in(3) { None } else { Some(self.random.below(14) as i64) };
                self.text(depth - 1).substring(start, len).unwrap()
            }
            _ => self.choice(depth - 1, Maker::text),
        }
    }

    pub fn boolean(&mut self, depth: usize) -> Expr {
        if depth == 0 {
            return self.leaf(|of| of.data_type == DataType::Boolean).unwrap();
        }
        let depth = depth - 1;
        match self.random.below(if self.is_strict { 12 } else { 19 }) {
            0 => self.boolean(0),
            1..4 => {
                use CompareOp::*;
                let op = self.random.pick(&[Eq, Ne, Lt, Le, Gt, Ge]);
                let (left, right) = self.pair(depth);
                Expr::compare(op, left, right).unwrap()
            }
            4 => {
                let (left, right) = self.pair(depth);
                Expr::is_distinct(left, right, self.random.one_in(2)).unwrap()
            }
            5 => self.boolean(depth).negated(),
            6 => {
                let value = self.any(depth);
                value.is_null(self.random.one_in(2))
            }
            7 => self.boolean(depth).is_bool(self.random.one_in(2), self.random.one_in(2)),
            8 | 9 => {
                let value = self.any(depth);
                let of = ColumnType { dictionary: None, ..value.of.clone() };
                let of = if value.of.dictionary.is_some() { ColumnType::new(of.data_type, true) } else { of };
                let count = self.random.pick(&[0, 1, 3, 9, 30]);
                let values = (0..count).map(|_| scalar(&self.random.scalar(&of)));
                let mut values: Vec<Scalar> = values.collect();
                if self.random.one_in(4) {
                    values.push(Scalar::Null);
                }
                value.in_list(values, self.random.one_in(2)).unwrap()
            }
            10 | 11 => {
                let pattern: String = (0..self.random.below(7))
                    .map(|_| self.random.pick(&['a', 'b', 'A', 'é', '%', '%', '_', '日']))
                    .collect();
                let pattern = Pattern::parse(&pattern, None, self.random.one_in(3)).unwrap();
                self.text(depth).like(pattern, self.random.one_in(2)).unwrap()
            }
            12..15 => Expr::and((0..self.random.below(5)).map(|_| self.boolean(depth)).collect()),
            15..18 => Expr::or((0..self.random.below(5)).map(|_| self.boolean(depth)).collect()),
            _ => self.choice(depth, Maker::boolean),
        }
    }

    /// Two that can be compared.
    fn pair(&mut self, depth: usize) -> (Expr, Expr) {
        match self.random.below(6) {
            0 => (self.text(depth), self.text(depth)),
            1 => (self.boolean(depth), self.boolean(depth)),
            2 => {
                let of_date = |maker: &mut Self| maker.leaf(|of| of.data_type == DataType::Date32).unwrap();
                (of_date(self), of_date(self))
            }
            3 => (self.number(&DataType::Decimal128(12, 2), depth), self.number(&DataType::Decimal128(30, 4), depth)),
            _ => {
                let data_type = self.number_type();
                (self.number(&data_type, depth), self.number(&data_type, depth))
            }
        }
    }

    pub fn any(&mut self, depth: usize) -> Expr {
        match self.random.below(6) {
            0 => self.text(depth),
            1 => self.boolean(depth),
            2 => self.date(depth),
            _ => {
                let data_type = self.number_type();
                self.number(&data_type, depth)
            }
        }
    }
}

fn scalar(model: &Model) -> Scalar {
    match model {
        Model::Null => Scalar::Null,
        Model::Int(value) => i64::try_from(*value).map_or(Scalar::Wide(*value), Scalar::Int),
        Model::Float(value) => Scalar::Float(*value),
        Model::Bool(value) => Scalar::Bool(*value),
        Model::Text(text) => Scalar::Text(text.as_slice().into()),
    }
}

/// A row's value.
pub fn value(vector: &Vector, of: &ColumnType, row: usize) -> Model {
    if !vector.is_valid(row) {
        return Model::Null;
    }
    match &vector.values {
        Values::Int(values) => match &of.dictionary {
            Some(dictionary) => Model::Text(dictionary.bytes(values[row]).to_vec()),
            None => Model::Int(values[row].into()),
        },
        Values::Wide(values) => Model::Int(values[row]),
        Values::Float(values) => Model::Float(values[row]),
        Values::Bool(values) => Model::Bool(values.get(row)),
        Values::Text(texts) => Model::Text(texts.bytes(row).to_vec()),
        Values::Other(_) => unreachable!(),
    }
}

#[test]
fn texts_are_what_they_were_made_of() {
    assert_eq!(repeat(b"more than twelve bytes", 3).bytes(2), b"more than twelve bytes");
}
