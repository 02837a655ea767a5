//! SQL as text: parsed, prepared, planned and run.

use crate::world::World;
use std::cell::Cell;
use std::path::Path;
use tidepool_base::SqlState;

/// After so many inputs the tables are made anew: some of them were dropped, others filled.
const RESET_AFTER: u32 = 500;

/// The statements of the SQL tests.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    // Cargo says at run time whose checkout this is; it takes what another checkout compiled for fresh where they share a target folder.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    collect(&Path::new(&folder).join("../cli/tests/slt"), &mut seeds);
    assert!(seeds.len() > 1000, "the SQL tests have moved: only {} statements were found", seeds.len());
    seeds
}

fn collect(folder: &Path, seeds: &mut Vec<Vec<u8>>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, seeds);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            seeds.extend(statements(&text));
        }
    }
}

/// What stands between `statement` or `query` and the line that ends it.
fn statements(text: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        match &mut current {
            None if line.starts_with("statement") || line.starts_with("query") => current = Some(String::new()),
            None => {}
            Some(statement) if line.is_empty() || line == "----" => {
                found.push(statement.trim_end().as_bytes().to_vec());
                current = None;
            }
            Some(statement) => {
                statement.push_str(line);
                statement.push('\n');
            }
        }
    }
    found.extend(current.map(|statement| statement.trim_end().as_bytes().to_vec()));
    found
}

/// Whatever the text says, the statement ends with rows or with an error that is not the server's own fault.
pub fn run(input: &[u8]) {
    thread_local! {
        static INPUTS: Cell<u32> = const { Cell::new(0) };
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    let world = World::get();
    if INPUTS.replace(INPUTS.get() + 1) % RESET_AFTER == RESET_AFTER - 1 {
        world.reset();
    }
    let result = world.runtime.block_on(async {
        let mut session = world.session();
        let prepared = session.prepare_statement(text, &[]).await.map(|_| ());
        let queried = session.query(text).await.map(|_| ());
        prepared.and(queried)
    });
    if let Err(error) = result {
        assert_ne!(error.code(), SqlState::INTERNAL_ERROR, "{error} for {text}");
    }
}
