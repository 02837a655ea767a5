//! What a look-up of an ordered index costs beside one of a hash table: nanoseconds a key, of keys of 8 and 16 bytes. *tree*: keys that are
//! looked up for the first time; *again*: as most are; *together*: likewise, several at once.
//!
//! `cargo run --release -p tidepool-index --example beside_hash`
//!
//! The hash table is `std`'s, with keys of fixed length in it, no locks, no versions and no tablespace: less than any index of a database can do with. Look-ups
//! do not depend on each other, so a processor overlaps what they wait for.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{CommitTs, RowId, TablespaceId};
use tidepool_device::Location;
use tidepool_index::Index;
use tidepool_tablespace::{Tablespace, TablespaceConfig};
use tidepool_txn::Transactions;

const LOOKUPS: u64 = 2_000_000;
/// Keys of one call of `get_together`, as many as an order has lines.
const TOGETHER: u64 = 10;

/// A bijection that looks random.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let n = (n ^ n >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    n ^ n >> 33
}

#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.0 = mix(self.0 ^ u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Warehouse, district and number, as a key of three integers is encoded.
fn wide(n: u64) -> [u8; 16] {
    let mut key = [0x80; 16];
    key[..8].copy_from_slice(&(n / 3000 + (1 << 63)).to_be_bytes());
    key[8..].copy_from_slice(&(n % 3000 + (1 << 63)).to_be_bytes());
    key
}

fn nanoseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / LOOKUPS as f64
}

fn run<const N: usize>(count: u64, key: impl Fn(u64) -> [u8; N]) {
    let config = TablespaceConfig {
        name: "index".into(),
        location: Location::Anon,
        size_bytes: Some(4 << 30),
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    let space: Arc<Tablespace> = Tablespace::open(TablespaceId(0), config).expect("anonymous memory");
    let transactions = Transactions::starting_after(CommitTs(0));
    let view = &*transactions.worker().expect("a slot").hold();
    let index = Index::create(space, transactions.clone()).expect("room");
    let mut table: HashMap<[u8; N], u64, BuildHasherDefault<Mixed>> = HashMap::default();
    for n in 0..count {
        index.insert(view, &key(n), RowId(n)).expect("room");
        table.insert(key(n), n);
    }
    let wanted = |n: u64| mix(n) % count;
    // Few enough that the index has no table of hashes yet.
    let few = count / 8;
    let start = Instant::now();
    for n in 0..few.max(1) {
        assert!(!index.get(view, &key(wanted(n))).is_empty());
    }
    let descending = start.elapsed().as_nanos() as f64 / few.max(1) as f64;
    for n in 0..2 * count {
        index.get(view, &key(n % count));
    }
    let again = nanoseconds(|| {
        for n in 0..LOOKUPS {
            assert!(!index.get(view, &key(wanted(n))).is_empty());
        }
    });
    let together = nanoseconds(|| {
        for first in (0..LOOKUPS).step_by(TOGETHER as usize) {
            let keys: [[u8; N]; TOGETHER as usize] = std::array::from_fn(|place| key(wanted(first + place as u64)));
            index.get_together(view, keys.len(), |place| &keys[place], |_, rows| assert!(!rows.is_empty()));
        }
    });
    let hash = nanoseconds(|| {
        for n in 0..LOOKUPS {
            black_box(table[&key(wanted(n))]);
        }
    });
    println!("{N:>5} {count:>10} {descending:>7.0} {again:>7.0} {together:>12.0} {hash:>7.0}");
}

fn main() {
    println!("bytes       keys    tree   again  {TOGETHER} together    hash");
    for count in [10_000, 100_000, 1_000_000, 10_000_000] {
        run(count, |n| mix(n).to_be_bytes());
        run(count, wide);
    }
}
