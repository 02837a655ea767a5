//! The thread that follows the pool's log, and takes over.

use super::attach::Attached;
use super::manifests::Holding;
use super::{HostRole, Roles, attach, manifests, serving, tier2, watch};
use crate::config::PoolRole;
use crate::durability::log_writer::LogWriter;
use crate::durability::storage::Storage;
use crate::follow::{Batch, Follower, LoggedRecord};
use crate::pool_host::PoolHost;
use crate::{Config, Database};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use tidepool_base::{CommitTs, Error, Result, crash_point, without_unwinding};
use tidepool_log::{LogConfig, Next, PoolTail, Primary, TakeOver};
use tidepool_pool::layout::HostNumber;
use tidepool_pool::words::{HostState, Reign};

/// Between two looks at a log in which nothing is new: while something came lately, and otherwise.
const PAUSE: Duration = Duration::from_micros(200);
const PAUSE_IDLE: Duration = Duration::from_millis(2);
const IDLE_AFTER: Duration = Duration::from_millis(500);

/// Between two looks for segments that the primary has prepared.
const MAP_INTERVAL: Duration = Duration::from_millis(10);

/// A process that follows.
pub(super) struct Following {
    roles: Arc<Roles>,
    follower: Follower,
    tail: PoolTail,
    /// The first segment that it said it needs.
    needed: u64,
    holding: Holding,
    /// It had applied all that there was when it looked once: from then on it is said to follow.
    has_caught_up: bool,
    /// When there was nothing to map ahead.
    looked_ahead: Option<Instant>,
}

/// What came of a try to take over.
pub(super) enum Outcome {
    Primary,
    /// Another host was quicker.
    Follows(Box<Following>),
}

impl Following {
    pub fn of(roles: &Arc<Roles>, attached: Attached) -> Following {
        let Attached { follower, tail } = attached;
        Following {
            roles: Arc::clone(roles),
            follower,
            tail,
            needed: 0,
            holding: Holding::default(),
            has_caught_up: false,
            looked_ahead: None,
        }
    }

    /// Takes over at once, if it is to be primary where there is none, or has a thread follow.
    pub fn run(self, database: &Arc<Database>, begins_as: PoolRole) -> Result<Arc<Database>> {
        let (mut following, roles) = (self, database.roles.clone());
        let roles = roles.ok_or_else(|| Error::internal("a pool without roles"))?;
        let host = Arc::clone(roles.host());
        let mut watcher = host.take_watcher()?;
        loop {
            let ends = match begins_as {
                PoolRole::Standby | PoolRole::Reader | PoolRole::Copy => None,
                PoolRole::Primary | PoolRole::Auto => watch::term_to_end(&host, &mut watcher, roles.host_timeout)?,
            };
            let Some(seen) = ends else {
                if begins_as == PoolRole::Primary {
                    return Err(host.in_use()?);
                }
                break;
            };
            // A predecessor that is dead is found to be so here as well as by any other host.
            match following.take_over(database, seen)? {
                Outcome::Primary => {
                    watch::start(&roles, watcher)?;
                    return Ok(Arc::clone(database));
                }
                Outcome::Follows(back) => following = *back,
            }
        }
        // Statements are to see what there is by now.
        while following.read(database)? {}
        if matches!(begins_as, PoolRole::Standby | PoolRole::Auto) {
            database.archive_left_rows(&roles);
        }
        let (weak, of_thread) = (Arc::downgrade(database), Arc::clone(&roles));
        let thread = std::thread::Builder::new()
            .name("follow".to_owned())
            .spawn(move || follow(following, &of_thread, &weak))
            .map_err(|error| Error::io("start the thread that follows", &error))?;
        roles.state.lock().threads.push(thread);
        watch::start(&roles, watcher)?;
        Ok(Arc::clone(database))
    }
}

/// What the thread does.
fn follow(mut following: Following, roles: &Roles, database: &Weak<Database>) {
    let mut last_news = Instant::now();
    loop {
        let Some(database) = database.upgrade() else { return };
        let wanted = {
            let mut state = roles.state.lock();
            if state.stopped || roles.role() == HostRole::Fenced {
                return;
            }
            let suspected = state.suspected.take();
            match state.is_asked {
                true => Some(None),
                false => suspected.map(Some),
            }
        };
        if let Some(seen) = wanted {
            let member = Arc::clone(roles.host().member());
            let seen = seen.map_or_else(|| member.reign(), Ok);
            match seen.and_then(|seen| following.take_over(&database, seen)) {
                Ok(Outcome::Primary) => return,
                Ok(Outcome::Follows(back)) => following = *back,
                Err(error) => return roles.fail(&error),
            }
            last_news = Instant::now();
        }
        if roles.pauses() {
            drop(database);
            let mut state = roles.state.lock();
            if !state.stopped && !state.is_asked && state.suspected.is_none() {
                roles.changed.wait_for(&mut state, PAUSE_IDLE);
            }
            continue;
        }
        match following.read(&database) {
            Ok(true) => {
                last_news = Instant::now();
                continue;
            }
            Ok(false) => {}
            // It is fenced, and has said so.
            Err(_) if roles.role() == HostRole::Fenced => return,
            Err(error) => return roles.fail(&error),
        }
        // It would be kept by a thread that waits.
        drop(database);
        let mut state = roles.state.lock();
        if !state.stopped && !state.is_asked && state.suspected.is_none() {
            let pause = if last_news.elapsed() > IDLE_AFTER { PAUSE_IDLE } else { PAUSE };
            roles.changed.wait_for(&mut state, pause);
        }
    }
}

impl Following {
    /// A database as the pool has it, and what follows from there when it is told to.
    pub(super) fn attach(
        config: Config,
        host: &Arc<PoolHost>,
        storage: Option<Storage>,
    ) -> Result<(Arc<Database>, Following)> {
        let (database, attached) = attach::attach(config, host, storage)?;
        let roles = Arc::clone(database.roles.as_ref().ok_or_else(|| Error::internal("a pool without roles"))?);
        let following = Following::of(&roles, attached);
        Ok((database, following))
    }

    #[cfg(test)]
    pub(super) fn holding(&mut self) -> &mut Holding {
        &mut self.holding
    }

    /// Applies what is new. False: nothing was.
    pub(super) fn read(&mut self, database: &Arc<Database>) -> Result<bool> {
        self.holding.look(&self.roles, database, self.follower.applied_ts())?;
        let next = match self.tail.read() {
            // The log of a reader that is suspect may be another's memory by now.
            Err(_) if !self.roles.host().member().is_current()? => return Err(self.roles.fence()),
            next => next?,
        };
        match next {
            Next::Batch(batch) => {
                let received = self.tail.position();
                self.roles.note_progress(|progress| (progress.term, progress.received) = received);
                let batch = logged(&mut self.tail, batch);
                // After the last look at the log: what was found there was its.
                if !self.roles.host().member().is_current()? {
                    return Err(self.roles.fence());
                }
                self.follower.apply(database, batch?)?;
                crash_point("follow.applied");
                self.applied(database)?;
                Ok(true)
            }
            Next::Nothing | Next::AtSeal => {
                // What a manifest had is passed over without a batch.
                if !std::mem::replace(&mut self.has_caught_up, true) {
                    self.applied(database)?;
                    self.roles.host().advance(HostState::Following)?;
                }
                self.roles.show_position(database, self.tail.given_out());
                self.map_ahead()?;
                Ok(false)
            }
        }
    }

    /// While there is nothing to apply: what a take-over would look at is mapped before.
    fn map_ahead(&mut self) -> Result<()> {
        let may_take_over = !matches!(self.roles.begins_as, PoolRole::Reader | PoolRole::Copy);
        let is_due = self.looked_ahead.is_none_or(|looked| looked.elapsed() >= MAP_INTERVAL);
        if may_take_over && is_due && !self.tail.map_ahead()? {
            self.looked_ahead = Some(Instant::now());
        }
        Ok(())
    }

    /// Says how far it has come.
    fn applied(&mut self, database: &Database) -> Result<()> {
        let (host, applied) = (self.roles.host(), self.follower.applied_ts());
        let (term, position) = self.tail.position();
        database.transaction_ids.follow(u32::try_from(term).unwrap_or(u32::MAX));
        self.roles.note_progress(|progress| {
            (progress.replayed, progress.applied) = (position, applied);
            progress.replayed_at = Some(SystemTime::now());
        });
        self.roles.show_position(database, self.tail.given_out());
        host.say(HostNumber::AppliedTs, applied.0)?;
        host.say(HostNumber::AppliedPosition, position.to_bits())?;
        let needed = self.tail.needed_from();
        if needed > self.needed {
            self.needed = needed;
            #[cfg(test)]
            let needed = needed + u64::from(crate::stress::is_left_out("need of the log"));
            host.member().need_log_from(needed)?;
            self.roles.needed.store(needed, Ordering::Release);
        }
        Ok(())
    }

    /// Ends the term that was seen, applies the rest of the log, and becomes primary.
    pub(super) fn take_over(self, database: &Arc<Database>, seen: Reign) -> Result<Outcome> {
        let Following { roles, mut follower, tail, needed, holding, has_caught_up, looked_ahead } = self;
        let begun = Instant::now();
        if !roles.set_role_from(&[HostRole::Following], HostRole::TakingOver) {
            return Err(roles.fence());
        }
        let predecessor = roles.host().host_of(seen)?;
        let mut taking = match TakeOver::begin_after(tail, seen)? {
            Ok(taking) => taking,
            Err(tail) => {
                tracing::info!("another host took over first");
                roles.host().advance(if has_caught_up { HostState::Following } else { HostState::Attached })?;
                roles.set_role_from(&[HostRole::TakingOver], HostRole::Following);
                let back = Following { roles, follower, tail: *tail, needed, holding, has_caught_up, looked_ahead };
                return Ok(Outcome::Follows(Box::new(back)));
            }
        };
        crash_point("role.sealed");
        let sealed = begun.elapsed();
        roles.state.lock().predecessor = predecessor;
        roles.changed.notify_all();
        while let Some(batch) = taking.next_batch()? {
            let batch = logged(taking.tail(), batch)?;
            #[cfg(test)]
            if crate::stress::is_left_out("rest of the log") {
                continue;
            }
            follower.apply(database, batch)?;
        }
        let after = taking.tail().ts_max();
        crash_point("role.applied");
        let applied = begun.elapsed();
        let config = LogConfig { bytes_max: database.config().log.bytes_max, ..LogConfig::new(roles.identity()) };
        let transactions = Arc::clone(database.transactions());
        // Below it, all have been appended.
        let floor = move || CommitTs(transactions.floor().0.saturating_sub(1));
        let primary = taking.into_log(config, Box::new(floor))?;
        let logs = begun.elapsed();
        let term = primary.reign.term.0;
        database.keep_loads(term.into());
        // From here on statements of this process write.
        without_unwinding(|| database.begin_reign(&roles, follower, &primary, after))?;
        let writes = begun.elapsed();
        // A panic is no reason for others to wait for ever, either.
        let settling = Settling(&roles);
        start_tiers(&roles, database, &primary)?;
        if roles.is_founding() {
            database.found(&roles)?;
        }
        drop(settling);
        let us = |time: Duration| time.as_micros() as u64;
        tracing::info!(
            term,
            sealed_us = us(sealed),
            applied_us = us(applied),
            logs_us = us(logs),
            writes_us = us(writes),
            us = us(begun.elapsed()),
            "this host is primary"
        );
        Ok(Outcome::Primary)
    }
}

impl Database {
    /// Goes on with the log of the term that was begun.
    fn begin_reign(&self, roles: &Roles, follower: Follower, primary: &Primary, after: CommitTs) -> Result<()> {
        // First: whoever writes from now on is a primary's statement.
        let _ = roles.reign.set(primary.reign);
        let writer = LogWriter::start(&primary.log, self.background.clone())?;
        let _ = self.log_writer.set(writer);
        // Before the clock runs: nobody commits without a record.
        self.log.set(Arc::clone(&primary.log)).map_err(|_| Error::internal("a primary has a log already"))?;
        self.place_mains(Arc::clone(roles.places()) as _)?;
        self.forget_seats();
        self.transaction_ids.begin(primary.reign.term.0);
        // While nobody can begin one here. Other hosts forget them when they take over, or with the table's next change.
        self.drop_unfinished_indexes();
        follower.promote(self, after);
        if roles.is_founding() {
            return Ok(());
        }
        if !roles.set_role_from(&[HostRole::TakingOver], HostRole::Primary) {
            return Err(roles.fence());
        }
        Ok(())
    }
}

impl Database {
    /// Writes the first manifest of a pool's database which this process brought from elsewhere. Nothing is written by statements before
    /// that: who attached to the log alone would have their rows, and not what was there before them.
    fn found(&self, roles: &Roles) -> Result<()> {
        crash_point("role.founding");
        let checkpoints = roles.checkpoints().ok_or_else(|| Error::internal("a primary writes no manifests"))?;
        checkpoints.write(self)?;
        roles.is_founding.store(false, Ordering::Release);
        crash_point("role.founded");
        if !roles.set_role_from(&[HostRole::TakingOver], HostRole::Primary) {
            return Err(roles.fence());
        }
        Ok(())
    }
}

/// At its end, all that a primary has was begun or has failed.
struct Settling<'a>(&'a Roles);

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

/// Begins what a primary has besides its log.
fn start_tiers(roles: &Arc<Roles>, database: &Arc<Database>, primary: &Primary) -> Result<()> {
    // Before manifests are written, upon which what is before them of the log goes.
    if let Err(error) = tier2::start(roles, database, primary) {
        tracing::error!("the data folder is no second tier: {error}");
        tier2::start_later(roles, database, primary, error)?;
    }
    if let Err(error) = database.archive_pool_log(roles, primary) {
        tracing::error!("the log is not archived: {error}");
    }
    serving::start(roles, database)?;
    manifests::start(roles, database, primary)
}

/// A batch with what its records hold.
fn logged(tail: &mut PoolTail, batch: tidepool_log::Batch) -> Result<Batch> {
    let tidepool_log::Batch { floor, records } = batch;
    let mut logged = Vec::with_capacity(records.len());
    for mut record in records {
        let mut pieces = Vec::new();
        while let Some(piece) = tail.next_piece(&mut record)? {
            pieces.push(piece.to_vec());
        }
        if record.kind.may_be_skipped() {
            continue;
        }
        logged.push(LoggedRecord { ts: record.ts, kind: record.kind, pieces });
    }
    Ok(Batch { records: logged, floor })
}
