//! PostgreSQL's words for what partitions refuse.

use crate::text::{ROW_VALUE_CHARACTERS_MAX, TextSettings, TextWriter, shortened};
use arrow_array::ArrayRef;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::TableDef;

/// 23514: `key` are the columns at `positions`.
pub fn no_partition(def: &TableDef, key: &[ArrayRef], positions: &[usize], row: usize) -> Error {
    let text = |(position, column): (&usize, &ArrayRef)| -> Result<String> {
        let mut text = Vec::new();
        let writer = TextWriter::new(column, def.columns[*position].sql_type, &TextSettings::default())?;
        Ok(match writer.write(row, &mut text) {
            true => shortened(&String::from_utf8_lossy(&text), ROW_VALUE_CHARACTERS_MAX),
            false => "null".to_owned(),
        })
    };
    let names: Vec<&str> = positions.iter().map(|position| def.columns[*position].name.as_str()).collect();
    let error =
        Error::new(SqlState::CHECK_VIOLATION, format!("no partition of relation \"{}\" found for row", def.name));
    match positions.iter().zip(key).map(text).collect::<Result<Vec<String>>>() {
        Ok(values) => error.with_detail(format!(
            "Partition key of the failing row contains ({}) = ({}).",
            names.join(", "),
            values.join(", ")
        )),
        Err(other) => other,
    }
}
