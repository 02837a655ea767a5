//! What `EXPLAIN` says of a program.

use super::compile::Source;
use super::{Program, Work};
use crate::catalog::quote_identifier;
use tidepool_database::DatabaseVersion;

/// A line for each table that it goes to, in the order in which it does.
pub fn lines(program: &Program, version: &DatabaseVersion) -> Vec<String> {
    let of_source = |source: &Source| {
        let table = version.table_by_id(source.id);
        let index = table.as_ref().and_then(|table| {
            table.def.indexes.iter().find(|index| index.id == source.access.index).map(|index| index.name.clone())
        });
        let what = match (source.access.is_point, source.access.backward) {
            (true, _) => "index lookup",
            (false, false) => "index scan",
            (false, true) => "index scan backward",
        };
        let index = quote_identifier(&index.unwrap_or_default());
        let name = table.map(|table| quote_identifier(&table.def.name)).unwrap_or_default();
        format!("Direct: {what} using {index} on {name}")
    };
    match &program.work {
        Work::Insert { target, .. } => vec![format!("Direct: insert into {}", quote_identifier(&target.def.name))],
        _ => program.sources().iter().map(of_source).collect(),
    }
}
