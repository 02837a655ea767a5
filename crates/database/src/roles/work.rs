//! What a primary does in tests while manifests and checkpoints are written: everything at once, from a seed.

use crate::Database;
use crate::follow::tests::{define, refused_write, transfer, write};
use crate::tests::{columns, insert, placement};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;

/// The tables that it is done to.
pub(super) fn create_tables(primary: &Arc<Database>) {
    for (name, key) in
        [("ticks", false), ("one", true), ("two", true), ("three", false), ("left", true), ("right", true)]
    {
        let mut transaction = primary.begin().unwrap();
        let key = if key { vec![0] } else { vec![] };
        transaction.create_table(name, columns(), key, placement("near")).unwrap();
        transaction.commit().unwrap();
    }
    let mut transaction = primary.begin().unwrap();
    insert(&mut transaction, "left", 0..200).unwrap();
    transaction.commit().unwrap();
}

/// Starts three threads that go on until `done`: two write, and one of these changes what exists; one merges. `next` numbers rows.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    database: &'scope Arc<Database>,
    next: &'scope AtomicUsize,
    done: &'scope AtomicBool,
    seed: u64,
) {
    for thread in 0..2u64 {
        scope.spawn(move || {
            let mut random = StdRng::seed_from_u64(seed << 8 | thread);
            while !done.load(Ordering::Acquire) {
                let step = match random.random_range(0..12) {
                    0 if thread == 0 => define(&mut random, database, next),
                    1..4 => transfer(&mut random, database, next),
                    _ => write(&mut random, database, next),
                };
                step.unwrap_or_else(|error| refused_write(&error));
            }
        });
    }
    scope.spawn(move || {
        let mut random = StdRng::seed_from_u64(seed);
        while !done.load(Ordering::Acquire) {
            let version = database.version();
            let names: Vec<String> = version.versions().map(|table| table.def.name.clone()).collect();
            drop(version);
            let name = &names[random.random_range(0..names.len())];
            database.merge(name.as_str()).map_or_else(|error| refused_write(&error), drop);
            database.vacuum();
        }
    });
}
