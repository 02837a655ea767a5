//! Bounds as PostgreSQL shows them.

use tidepool_base::SqlType;
use tidepool_table::{PartitionBound, Partitioning, RangeBound, TableDef};

/// What stands behind the name of a partition: `FOR VALUES FROM (1) TO (10)`, `DEFAULT`. `def` is the partitioned table.
pub fn bound_text(def: &TableDef, partitioning: &Partitioning, bound: &PartitionBound) -> String {
    match bound {
        PartitionBound::Range { from, to } => {
            let (from, to) = (range_text(def, partitioning, from), range_text(def, partitioning, to));
            format!("FOR VALUES FROM {from} TO {to}")
        }
        PartitionBound::List { values } => {
            let sql_type = types(def, partitioning).next();
            let text = |value: &Option<String>| match value {
                Some(text) => sql_type.map_or_else(String::new, |sql_type| bound_literal(sql_type, text)),
                None => "NULL".to_owned(),
            };
            format!("FOR VALUES IN ({})", values.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        PartitionBound::Hash { modulus, remainder } => {
            format!("FOR VALUES WITH (modulus {modulus}, remainder {remainder})")
        }
        PartitionBound::Default => "DEFAULT".to_owned(),
    }
}

/// One end of a range, in parentheses.
pub fn range_text(def: &TableDef, partitioning: &Partitioning, values: &[RangeBound]) -> String {
    let text = |(value, sql_type): (&RangeBound, SqlType)| match value {
        RangeBound::MinValue => "MINVALUE".to_owned(),
        RangeBound::MaxValue => "MAXVALUE".to_owned(),
        RangeBound::Value(text) => bound_literal(sql_type, text),
    };
    format!("({})", values.iter().zip(types(def, partitioning)).map(text).collect::<Vec<_>>().join(", "))
}

fn types(def: &TableDef, partitioning: &Partitioning) -> impl Iterator<Item = SqlType> {
    def.positions(&partitioning.columns).into_iter().map(|position| def.columns[position].sql_type)
}

/// A value as a literal. PostgreSQL quotes what would be read as another type, or is negative.
pub fn bound_literal(sql_type: SqlType, text: &str) -> String {
    let is_plain = match sql_type {
        SqlType::Integer => text.bytes().all(|byte| byte.is_ascii_digit()),
        SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric => {
            text.starts_with(|c: char| c.is_ascii_digit()) && text.contains(['.', 'e', 'E'])
        }
        SqlType::Boolean => return if text.starts_with('t') { "true".to_owned() } else { "false".to_owned() },
        _ => false,
    };
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}
