//! What a pool costs: leasing, handing over, zeroing, publishing, and checking: `just pool-speed /dev/shm/pool 1`.
//!
//! The pool is made at PATH with GIGABYTES, and removed.

use std::sync::Arc;
use std::time::Instant;
use tidepool_base::Result;
use tidepool_device::Location;
use tidepool_pool::check::check;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::{Extent, Generation, Kind, Role};

fn join(pool: &Arc<Pool>, name: &str, database: &str) -> Result<Member> {
    let options = JoinOptions { role: Role::Standby, database: Some(database.to_owned()), ..JoinOptions::tool(name) };
    Member::join(Arc::clone(pool), &options)
}

fn timed<T>(what: &str, bytes: u64, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let result = run()?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{what:<58} {:>9.3} ms {:>8.1} GB/s", seconds * 1e3, bytes as f64 / seconds / 1e9);
    Ok(result)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "/dev/shm/tidepool-pool-speed".to_owned());
    let gigabytes: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let location = Location::File(path.clone().into());
    let room = (gigabytes << 30) + (16 << 20);
    let options = CreateOptions {
        devices: vec![(location, Some(room))],
        extent_bytes: None,
        bytes_max: None,
        label: "speed".to_owned(),
        populates: true,
        overcommits: false,
    };
    let pool = Arc::new(timed("make and populate the pool", room, || Pool::create(&options))?);
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("speed"))?;
    tool.create_database("a", 0)?;
    tool.create_database("b", 0)?;
    let count = (gigabytes << 30 >> 21) as usize;
    let bytes = (count as u64) << 21;
    let (one, two, other) = (join(&pool, "one", "a")?, join(&pool, "two", "a")?, join(&pool, "other", "b")?);

    let leased = timed("lease", bytes, || one.lease(Kind::Heap, count))?;
    let each = |run: &dyn Fn(Extent) -> Result<()>| leased.iter().try_for_each(|extent| run(*extent));
    timed("hand over within a database", bytes, || {
        each(&|extent| one.hand(extent, two.host().slot))?;
        each(&|extent| two.take(extent).map(drop))
    })?;
    for turn in ["first touched by this process", "again"] {
        let (from, to) = if turn == "again" { (&other, &two) } else { (&two, &other) };
        timed(&format!("hand over between databases, zeroed ({turn})"), bytes, || {
            each(&|extent| from.hand(extent, to.host().slot))?;
            each(&|extent| to.take(extent).map(drop))
        })?;
    }
    timed("give back", bytes, || each(&|extent| two.give_back(extent)))?;
    let filled = timed("lease to fill", bytes, || two.lease(Kind::Main, count))?;
    timed("publish, with checksums", bytes, || {
        filled.iter().try_for_each(|extent| two.publish(*extent, Generation(0)))
    })?;
    let report = timed("check the books", 0, || check(&pool, false))?;
    let deep = timed("check the contents, too", bytes, || check(&pool, true))?;
    println!("{} words, {} extents compared, {} faults", report.words, deep.compared, deep.faults.len());
    drop((one, two, other, tool));
    let _ = std::fs::remove_file(path);
    Ok(())
}
