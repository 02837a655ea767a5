//! Hosts in processes of their own, which the benchmark tells what to do, and kills.

use crate::random::Random;
use std::io::{BufRead, Write};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::Location;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::Pool;
use tidepool_pool::words::{Extent, Kind, Role};

/// Operations between two lines that say how many there were.
const TOLD: u64 = 256;

pub(super) fn join(pool: &Arc<Pool>, name: &str, database: &str) -> Result<Member> {
    let options = JoinOptions { role: Role::Standby, database: Some(database.to_owned()), ..JoinOptions::tool(name) };
    Member::join(Arc::clone(pool), &options)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| Error::io("write to the benchmark", &error))
}

/// `take:DATABASE:COUNT` or `work:DATABASE:SEED`.
pub(super) fn run(location: &Location, mode: &str) -> Result<()> {
    let pool = Arc::new(Pool::open(location)?);
    let parts: Vec<&str> = mode.split(':').collect();
    let wrong = || Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("\"{mode}\" is nothing that a host does"));
    let [what, database, number] = parts[..] else { return Err(wrong()) };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let member = join(&pool, mode, database)?;
    say(&format!("slot {}", member.host().slot.0))?;
    match what {
        "take" => take(&member, number as usize),
        "work" => work(&pool, &member, number),
        _ => Err(wrong()),
    }
}

/// Takes so many extents that are offered, and gives them back when it is told to; again and again until its input ends.
fn take(member: &Member, count: usize) -> Result<()> {
    let mut input = std::io::stdin().lock().lines();
    loop {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            for extent in member.offered()? {
                member.take(extent)?;
                taken.push(extent);
            }
        }
        say("taken")?;
        if input.next().is_none() {
            return Ok(());
        }
        taken.into_iter().try_for_each(|extent| member.give_back(extent))?;
        say("returned")?;
    }
}

/// Leases, hands over, takes and gives back until it is killed.
fn work(pool: &Arc<Pool>, member: &Member, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut own: Vec<Extent> = Vec::new();
    let mut done = 0;
    // What was to be changed may be another's, or not there, by now.
    let done_if = |result: Result<()>| match result {
        Ok(()) => Ok(1),
        Err(error) if matches!(error.code(), SqlState::DISK_FULL | SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => Ok(0),
        Err(error) => Err(error),
    };
    loop {
        let before = done / TOLD;
        match random.below(8) {
            0..=2 => match member.lease(Kind::Heap, 1 + random.below(2) as usize) {
                Ok(leased) => {
                    done += leased.len() as u64;
                    own.extend(leased);
                }
                other => done += done_if(other.map(drop))?,
            },
            3..=5 if !own.is_empty() => {
                let extent = own.swap_remove(random.below(own.len() as u64) as usize);
                done += done_if(member.give_back(extent))?;
            }
            6 if !own.is_empty() => {
                let extent = own.swap_remove(random.below(own.len() as u64) as usize);
                let hosts = pool.hosts()?;
                let to = hosts[random.below(hosts.len() as u64) as usize].host.slot;
                done += done_if(member.hand(extent, to))?;
            }
            _ => {
                for extent in member.offered()? {
                    let taken = done_if(member.take(extent).map(drop))?;
                    done += taken;
                    if taken == 1 {
                        own.push(extent);
                    }
                }
            }
        }
        if done / TOLD > before {
            say(&format!("done {done}"))?;
        }
    }
}
