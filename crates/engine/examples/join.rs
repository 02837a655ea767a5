//! What joins cost a row: `cargo run --release -p tidepool-engine --example join [FILTER] [ROUNDS]`.
//!
//! One thread; 1.5 M rows on the build side, 6 M on the probe side. Least processor time of some rounds.

use arrow_array::{ArrayRef, StringViewArray};
use arrow_schema::DataType;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Result, TablespaceId};
use tidepool_device::Location;
use tidepool_engine::hash;
use tidepool_engine::join::{BuildRows, BuildSink, Join, JoinKey, JoinKind, JoinTable, Probe};
use tidepool_engine::mask::Mask;
use tidepool_engine::pipeline::{Next, Operator, Sink, Source};
use tidepool_engine::run::Interruption;
use tidepool_engine::types::ColumnType;
use tidepool_engine::vector::{CHUNK_ROWS, Chunk, Vector};
use tidepool_heap::QueryHeap;
use tidepool_tablespace::{Tablespace, TablespaceConfig};

#[global_allocator]
static ALLOCATOR: tidepool_heap::TidepoolAllocator = tidepool_heap::TidepoolAllocator;

struct Never;

impl Interruption for Never {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

const PROBE_ROWS: usize = 6_000_000;

/// Time that this thread was on a core, to some milliseconds: others' work does not count.
#[derive(Clone, Copy)]
struct Start(Duration);

impl Start {
    fn now() -> Start {
        let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        Start(Duration::from_nanos(times.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0)))
    }

    fn elapsed(self) -> Duration {
        Start::now().0.saturating_sub(self.0)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Key {
    /// One of four numbers, as an order's is.
    Dense,
    Sparse,
    Two,
    Text,
}

struct Case {
    name: &'static str,
    rows: usize,
    key: Key,
    kind: JoinKind,
    /// Rows of the build side that have the same key.
    repeats: usize,
    /// One of so many rows of the probe side has a match.
    one_in: usize,
    /// Rows of the probe side come in the order of their keys.
    sorted: bool,
    /// Values are tested before they come.
    has_filter: bool,
}

fn text(value: i64) -> String {
    format!("Customer#{value:09}")
}

fn columns(key: Key, values: &[i64]) -> Vec<Vector> {
    let payload = || Vector::ints(values.iter().map(|value| value & 0xffff).collect());
    let mut columns = match key {
        Key::Dense => vec![Vector::ints(values.iter().map(|value| value * 4 + (value & 3)).collect())],
        Key::Sparse => vec![Vector::ints(values.iter().map(|value| hash::of_int(*value) as i64).collect())],
        Key::Two => vec![
            Vector::ints(values.iter().map(|value| value / 4).collect()),
            Vector::ints(values.iter().map(|value| value % 4 * 1000).collect()),
        ],
        Key::Text => {
            let array: ArrayRef = Arc::new(values.iter().map(|value| Some(text(*value))).collect::<StringViewArray>());
            vec![Vector::from_arrow(&array, &ColumnType::new(DataType::Utf8View, false)).unwrap()]
        }
    };
    columns.extend([payload(), payload()]);
    columns
}

fn chunks(key: Key, values: &[i64]) -> Vec<Chunk> {
    values.chunks(CHUNK_ROWS).map(|values| Chunk::new(values.len(), columns(key, values))).collect()
}

fn run(case: &Case, rounds: usize) {
    let mut state = 1u64;
    let mut random = |limit: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash::of_int(state as i64) as usize % limit
    };
    let keys = case.rows / case.repeats;
    let mut build: Vec<i64> = (0..case.rows).map(|row| (row % keys * case.one_in) as i64).collect();
    for row in (1..build.len()).rev() {
        build.swap(row, random(row + 1));
    }
    let mut probe: Vec<i64> = (0..PROBE_ROWS).map(|_| random(keys * case.one_in) as i64).collect();
    if case.sorted {
        probe.sort_unstable();
    }
    let int = || ColumnType::new(DataType::Int64, false);
    let types = match case.key {
        Key::Text => vec![ColumnType::new(DataType::Utf8View, false), int(), int()],
        Key::Two => vec![int(); 4],
        _ => vec![int(); 3],
    };
    let key_count = types.len() - 2;
    let join = Join {
        kind: case.kind,
        null_aware: false,
        probe_types: types.clone(),
        build_types: types,
        keys: (0..key_count).map(|key| JoinKey { probe: key, build: key, nulls_equal: false }).collect(),
        residual: None,
        probe_output: vec![key_count],
        build_output: vec![key_count, key_count + 1],
        filters: case.has_filter,
    };
    let (build, probe) = (chunks(case.key, &build), chunks(case.key, &probe));
    let mut least = [Duration::MAX; 4];
    let (mut variant, mut rows) = (None, 0);
    for _ in 0..rounds {
        let mut took = [Duration::ZERO; 4];
        let table = JoinTable::new(join.clone(), Arc::new(Never)).unwrap();
        let sink = BuildSink::new(&table);
        let start = Start::now();
        let mut worker = sink.worker().unwrap();
        for chunk in &build {
            worker.push(chunk.clone()).unwrap();
        }
        took[0] = start.elapsed();
        let start = Start::now();
        let mut states = vec![worker];
        for task in sink.finish(0, &mut states).unwrap() {
            task().unwrap();
        }
        took[1] = start.elapsed();
        let probe_of = Probe::new(&table);
        let mut step = probe_of.worker().unwrap();
        let start = Start::now();
        rows = 0;
        for chunk in &probe {
            let mut chunk = chunk.clone();
            if let Some(filter) = table.key_filter(0) {
                let mut words = vec![u64::MAX; chunk.rows.div_ceil(64)];
                filter.test_ints(chunk.columns[0].as_ints().unwrap(), &mut words);
                let passing = Mask::from_words(words, chunk.rows);
                chunk = chunk.keep(&passing).unwrap();
            }
            let out = &mut |chunk: Chunk| {
                rows += chunk.rows;
                Ok(())
            };
            step.push(chunk, out).unwrap();
        }
        took[2] = start.elapsed();
        let start = Start::now();
        if case.kind.emits_build() {
            let mut reader = BuildRows::new(&table).reader().unwrap();
            while let Next::Chunk(chunk) = reader.next().unwrap() {
                rows += chunk.rows;
            }
        }
        took[3] = start.elapsed();
        variant = table.variant();
        least.iter_mut().zip(took).for_each(|(least, took)| *least = took.min(*least));
    }
    let ns = |time: Duration, rows: usize| time.as_nanos() as f64 / rows as f64;
    println!(
        "{:<28} {:<8} keep {:6.2}  insert {:6.2} ns/build row   probe {:7.2} ns/row   after {:6.2}   {rows} rows",
        case.name,
        format!("{:?}", variant.unwrap()),
        ns(least[0], case.rows),
        ns(least[1], case.rows),
        ns(least[2], PROBE_ROWS),
        ns(least[3], case.rows),
    );
}

fn main() {
    let config = TablespaceConfig {
        name: "near".into(),
        location: Location::Anon,
        size_bytes: Some(8 << 30),
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    let near = Tablespace::open(TablespaceId(0), config).unwrap();
    let heap = QueryHeap::open(vec![near], None).unwrap();
    let _inside = heap.enter();
    let mut arguments = std::env::args().skip(1);
    let filter = arguments.next().unwrap_or_default();
    let rounds = arguments.next().map_or(3, |rounds| rounds.parse().unwrap());
    let case = |name, key, kind, repeats, one_in, sorted| Case {
        name,
        rows: 1_500_000,
        key,
        kind,
        repeats,
        one_in,
        sorted,
        has_filter: false,
    };
    let small = |name, key, one_in| Case {
        name,
        rows: 20_000,
        key,
        kind: Inner,
        repeats: 1,
        one_in,
        sorted: false,
        has_filter: false,
    };
    use JoinKind::{Inner, Left, LeftSemi, Right, RightSemi};
    let cases = [
        case("dense", Key::Dense, Inner, 1, 1, false),
        case("dense, in order", Key::Dense, Inner, 1, 1, true),
        case("dense, 5 matches", Key::Dense, Inner, 5, 1, false),
        case("dense, 1 in 2", Key::Dense, Inner, 1, 2, false),
        case("dense, left", Key::Dense, Left, 1, 1, false),
        case("hash", Key::Sparse, Inner, 1, 1, false),
        case("hash, 1 in 2", Key::Sparse, Inner, 1, 2, false),
        case("hash, 1 in 20", Key::Sparse, Inner, 1, 20, false),
        case("hash, 5 matches", Key::Sparse, Inner, 5, 1, false),
        case("hash, right", Key::Sparse, Right, 1, 1, false),
        case("hash, right semi", Key::Sparse, RightSemi, 1, 1, false),
        case("two keys", Key::Two, Inner, 1, 1, false),
        case("text", Key::Text, Inner, 1, 1, false),
        case("semi, bitmap", Key::Dense, LeftSemi, 5, 1, false),
        case("semi, hash", Key::Sparse, LeftSemi, 5, 2, false),
        small("small, dense", Key::Dense, 1),
        small("small, dense, 1 in 10", Key::Dense, 10),
        small("small, hash", Key::Sparse, 1),
        small("small, hash, 1 in 10", Key::Sparse, 10),
        small("small, two keys", Key::Two, 1),
        small("small, text", Key::Text, 1),
        Case { has_filter: true, ..case("filter, bitmap", Key::Dense, Inner, 5, 20, false) },
        Case { has_filter: true, ..case("filter, Bloom", Key::Sparse, Inner, 5, 20, false) },
        Case { has_filter: true, ..small("small, filter, bitmap", Key::Dense, 20) },
        Case { has_filter: true, ..small("small, filter, Bloom", Key::Sparse, 20) },
    ];
    for case in cases.iter().filter(|case| case.name.contains(&filter)) {
        run(case, rounds);
    }
}
