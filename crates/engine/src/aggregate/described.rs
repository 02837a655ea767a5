//! How groups were found and why so, in words: for `EXPLAIN (ANALYZE)`.

use super::local::LocalTable;
use super::plan::{Lookup, Plan};
use crate::types::Class;

impl Plan {
    /// Of groups that were not looked up by hash.
    pub fn note_method(&self) {
        self.meter.observer().note(|| match &self.lookup {
            Lookup::One => "Aggregate Method: one group, as there are no keys".to_owned(),
            Lookup::Direct(numbering) => format!(
                "Aggregate Method: by number, as the keys' bounds leave no more than {} {}",
                numbering.size,
                if numbering.size == 1 { "group" } else { "groups" }
            ),
            Lookup::Hashed => "Aggregate Method: as they come, as rows are in the order of a key".to_owned(),
        });
    }

    /// Of groups that were made as they came, before it showed that rows are not in the order of a key.
    pub fn note_disorder(&self, groups: usize) {
        if groups > 0 {
            self.meter.observer().note(|| "Order: rows began in that of a key and did not go on so".to_owned());
        }
    }

    /// Of groups or distinct values that were; `tables`: all workers' own.
    pub fn note_hashed(&self, tables: &[LocalTable]) {
        self.meter.observer().note(|| {
            let keys = self.layout.columns().iter().take(self.keys.len());
            let why = match keys.clone().find(|of| !matches!(of.class(), Class::Int | Class::Bool)) {
                _ if !self.sets.is_empty() => "there are distinct values to find".to_owned(),
                Some(of) => format!("a key is {}", of.class()),
                None => format!("the keys' bounds leave more than {} groups", self.numbers_max),
            };
            format!("Aggregate Method: by hash, as {why}")
        });
        let sum = |of: fn(&LocalTable) -> u64| tables.iter().map(of).sum::<u64>();
        let (times, groups) = (sum(|table| table.outgrown.times), sum(|table| table.outgrown.groups));
        if times > 0 {
            let skipped = sum(|table| table.outgrown.skipped);
            self.meter.observer().note(|| {
                format!(
                    "Partitioned: tables outgrew the cache; times={times} groups={groups} rows_not_looked_up={skipped}"
                )
            });
        }
    }
}
