//! Transaction blocks: those that `BEGIN` makes, those around the statements of one query text, and the transaction
//! that a statement writes with.

use super::cursor::Cursor;
use super::savepoint::Savepoint;
use super::{Outcome, Running, Session};
use crate::execute::joined;
use crate::facts::SessionFacts;
use crate::interrupt::{Interrupt, Settling};
use crate::portable::{
    PortableBlock, PortableBlockSettings, PortableBlockState, PortableSettings, PortableTransaction,
};
use crate::read_only;
use crate::references::Rules;
use crate::settings::Settings;
use crate::statement::{Command, Statement, TransactionMode};
use crate::workload::Place;
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_base::{Error, Result, RowId, SqlState, TableId, caught, panic_point};
use tidepool_database::{CommitWait, CommitWitness, DatabaseVersion, Isolation, Transaction};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    Idle,
    InTransaction,
    Failed,
}

/// A transaction on loan to the statement that writes with it. Empty before the first write, and while lent.
type Slot = Arc<Mutex<Option<Transaction>>>;

/// Fewer are undone on the thread that serves the session.
const ROWS_UNDONE_HERE: usize = 100;

/// From so many on, rows are undone after their statement's client has its error: it may have cancelled so as not to wait.
const ROWS_UNDONE_AT_ONCE: usize = 20_000;

pub(super) struct Block {
    pub(super) slot: Slot,
    /// Made by `BEGIN`, rather than around the statements of one query text.
    pub(super) explicit: bool,
    pub(super) failed: Arc<AtomicBool>,
    /// It failed because another process had it, which its client has not been told yet.
    lost: AtomicBool,
    pub(super) read_only: bool,
    pub(super) start: DateTime<Utc>,
    /// What `ROLLBACK` goes back to.
    settings_before: Arc<Settings>,
    /// Without `SET LOCAL`: what `COMMIT` leaves.
    pub(super) settings_session: Arc<Settings>,
    pub(super) savepoints: Vec<Savepoint>,
    /// Among the class of transactions. Given up while its client is idle.
    pub(super) place: Option<Place>,
    /// It had a place: it does not wait for another one.
    pub(super) was_admitted: bool,
}

impl Block {
    /// The block as another process can go on with it. `None` for one that its client did not begin. `settings`: the session's.
    pub(super) fn to_portable(&self, settings: &Settings) -> Option<PortableBlock> {
        if !self.explicit {
            return None;
        }
        Some(self.portable_if(self.is_untouched(settings), settings))
    }

    fn portable_if(&self, is_untouched: bool, settings: &Settings) -> PortableBlock {
        let state = match self.failed.load(Ordering::Acquire) {
            true if self.lost.load(Ordering::Acquire) => PortableBlockState::Lost,
            true => PortableBlockState::Failed,
            false if is_untouched => PortableBlockState::Begun,
            false => PortableBlockState::Lost,
        };
        PortableBlock {
            state,
            start_us: self.start.timestamp_micros(),
            isolation: settings.isolation().to_owned(),
            is_read_only: self.read_only,
            is_deferrable: settings.is_deferrable(),
        }
    }

    /// Nothing was done since it began.
    fn is_untouched(&self, settings: &Settings) -> bool {
        let all = |settings: &Settings| (settings.to_portable(&self.settings_before), settings.custom());
        self.savepoints.is_empty()
            && self
                .slot
                .lock()
                .as_ref()
                .is_some_and(|transaction| !transaction.has_begun() && !transaction.holds_locks())
            && self.leaves_settings()
            && all(settings) == all(&self.settings_before)
    }

    /// Another process can do again what was done in it.
    pub(super) fn is_explicit_and_whole(&self) -> bool {
        self.explicit
            && !self.failed.load(Ordering::Acquire)
            && self.savepoints.iter().all(|savepoint| savepoint.is_made_again(self))
            && self.slot.lock().as_ref().is_some_and(Transaction::is_portable)
    }

    /// `None`: what was done cannot be done again. `settings`: the session's.
    pub(super) fn to_steps(&self, settings: &Arc<Settings>) -> Result<Option<PortableTransaction>> {
        let Some(states) = self.savepoints.iter().map(Savepoint::state).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let slot = self.slot.lock();
        let steps = slot.as_ref().map(|transaction| transaction.to_steps(&states)).transpose()?.flatten();
        let savepoints = self.savepoints.iter().map(|savepoint| savepoint.name().to_owned()).collect();
        let settings = self.portable_settings(settings);
        Ok(steps.map(|steps| PortableTransaction { savepoints, steps, settings, ..PortableTransaction::default() }))
    }

    /// The settings at each savepoint, and now. Empty: nothing has changed them.
    fn portable_settings(&self, now: &Arc<Settings>) -> Vec<PortableBlockSettings> {
        let before = &self.settings_before;
        let changes = |settings: &Arc<Settings>| {
            if Arc::ptr_eq(settings, before) {
                return None;
            }
            let ((values, defaults), custom) = (settings.to_portable(before), settings.custom());
            let is_same = values.is_empty() && defaults.is_empty() && custom == before.custom();
            (!is_same).then_some(PortableSettings { values, defaults, custom })
        };
        let at_savepoints = self.savepoints.iter().map(Savepoint::settings);
        let all: Vec<PortableBlockSettings> = at_savepoints
            .chain([(now, &self.settings_session)])
            .map(|(now, session)| PortableBlockSettings { now: changes(now), session: changes(session) })
            .collect();
        let none = PortableBlockSettings::default();
        if all.iter().all(|settings| *settings == none) { Vec::new() } else { all }
    }

    /// Its end leaves the session's settings as they were before it.
    pub(super) fn leaves_settings(&self) -> bool {
        Arc::ptr_eq(&self.settings_session, &self.settings_before)
    }

    pub(super) fn settings_before(&self) -> &Arc<Settings> {
        &self.settings_before
    }

    /// What a statement hears in a block that has failed.
    pub(super) fn refusal(&self) -> Error {
        if self.lost.swap(false, Ordering::AcqRel) { lost() } else { aborted() }
    }
}

impl Session {
    /// Goes on with a block of another process.
    pub(super) fn go_on_with_block(
        &mut self,
        portable: &PortableBlock,
        transaction: Option<&PortableTransaction>,
    ) -> Result<()> {
        let modes = [
            TransactionMode::Isolation(crate::settings::isolation(&portable.isolation)?),
            TransactionMode::ReadOnly(portable.is_read_only),
            TransactionMode::Deferrable(portable.is_deferrable),
        ];
        self.begin(true, &modes);
        let mut state = portable.state;
        if let Some(transaction) = transaction.filter(|_| state == PortableBlockState::Lost) {
            match self.do_again(transaction) {
                Ok(()) => state = PortableBlockState::Begun,
                Err(error) => tracing::info!("a transaction of another process does not go on here: {error}"),
            }
        }
        if let Some(block) = &mut self.block {
            block.start = DateTime::from_timestamp_micros(portable.start_us).unwrap_or(block.start);
            block.lost = (state == PortableBlockState::Lost).into();
            block.failed.store(state != PortableBlockState::Begun, Ordering::Release);
        }
        Ok(())
    }

    /// Does what was done in the block by another process, all of it or nothing.
    fn do_again(&mut self, portable: &PortableTransaction) -> Result<()> {
        let Some(block) = &mut self.block else { return Ok(()) };
        let mut slot = block.slot.lock();
        let Some(transaction) = slot.as_mut() else { return Err(Error::internal("a block without a transaction")) };
        let done = transaction.do_again(&portable.steps).inspect_err(|_| {
            slot.take().into_iter().for_each(Transaction::rollback);
        })?;
        drop(slot);
        let (read_only, before) = (block.read_only, block.settings_before.clone());
        let begun = self.settings.clone();
        let database = self.planner.database().clone();
        let settings_at = |place: usize| {
            let over = |base: &Arc<Settings>, changes: &Option<PortableSettings>| {
                let Some(changes) = changes else { return Ok::<_, Error>(base.clone()) };
                let mut settings = base.as_ref().clone();
                settings.take_portable((&changes.values, &changes.defaults), &changes.custom, &database)?;
                Ok(Arc::new(settings))
            };
            match portable.settings.get(place) {
                Some(at) => Ok((over(&begun, &at.now)?, over(&before, &at.session)?)),
                None => Ok::<_, Error>((begun.clone(), before.clone())),
            }
        };
        let own = |table: TableId, row: RowId| done.rows.get(&(table, row)).copied().unwrap_or(row);
        let mut cursors = portable.cursors.iter().peekable();
        let mut open_those_before = |session: &mut Session, savepoints: usize| {
            while let Some(cursor) = cursors.next_if(|cursor| cursor.savepoints as usize <= savepoints) {
                session.open_block_cursor(cursor, own)?;
            }
            Ok(())
        };
        let mut savepoints = Vec::new();
        let opened = (|| {
            for (number, (name, state)) in portable.savepoints.iter().zip(done.savepoints.iter().cloned()).enumerate() {
                open_those_before(self, number)?;
                let settings = settings_at(number)?;
                savepoints.push(Savepoint::of_other_process(name, state, settings, read_only, self.next_cursor));
            }
            open_those_before(self, usize::MAX)?;
            self.take_locks_again(&portable.locks, true)?;
            let (now, session) = settings_at(portable.savepoints.len())?;
            self.hold_settings(&now)?;
            self.settings = now;
            Ok(session)
        })();
        let opened = opened.map(|session| {
            if let Some(block) = &mut self.block {
                block.settings_session = session;
            }
        });
        if let Some(block) = &mut self.block {
            block.savepoints = savepoints;
            if opened.is_err() {
                block.slot.lock().take().into_iter().for_each(Transaction::rollback);
            }
        }
        opened.inspect_err(|_| {
            self.cursors.retain(|_, cursor| cursor.place.is_held);
            self.planner.advisory.end_transaction(self.shared.id);
        })
    }

    /// The transaction block that the client is in, as another process goes on with it. `is_untouched`: nothing was done in it.
    pub fn portable_block(&self, is_untouched: bool) -> Option<PortableBlock> {
        let block = self.block.as_ref().filter(|block| block.explicit)?;
        Some(block.portable_if(is_untouched, &self.settings))
    }

    /// Whether the session, when the transaction that it is in commits, is as it is without that: its settings, and its temporary tables.
    pub fn block_leaves_session(&self) -> bool {
        let makes_tables =
            |block: &Block| block.slot.lock().as_ref().is_some_and(Transaction::changes_temporary_tables);
        self.block.as_ref().is_none_or(|block| block.leaves_settings() && !makes_tables(block))
    }

    /// The error of a transaction that was lost, once, if its client has not been told.
    pub fn take_lost(&self) -> Option<Error> {
        let block = self.block.as_ref()?;
        block.lost.swap(false, Ordering::AcqRel).then(lost)
    }

    /// Whether the session goes over to another process with all that it has.
    pub fn is_whole_elsewhere(&self) -> bool {
        let state = |block: &Block| block.to_portable(&self.settings).map(|block| block.state);
        self.block
            .as_ref()
            .is_none_or(|block| matches!(state(block), Some(PortableBlockState::Begun | PortableBlockState::Failed)))
    }

    /// From here to `end_implicit_block`, statements outside a transaction block share one transaction instead of
    /// committing one by one: several statements in one simple query, or a pipeline up to its Sync. As in PostgreSQL,
    /// `BEGIN` turns it into an ordinary block (which outlives it), `COMMIT` and `ROLLBACK` end what was done so far,
    /// and `transaction_status` does not show it. Does nothing inside a transaction block.
    pub fn begin_implicit_block(&mut self) {
        if self.block.is_none() {
            self.begin(false, &[]);
        }
    }

    /// Commits what the implicit block did, or rolls it back when a statement in it failed (or `fail` was called). Does
    /// nothing when there is none, or when it became an ordinary block.
    pub async fn end_implicit_block(&mut self) -> Result<()> {
        if let Some(block) = self.block.as_ref().filter(|block| !block.explicit) {
            let failed = block.failed.load(Ordering::Acquire);
            self.end(!failed).await?;
        }
        self.shown_by_standbys().await
    }

    /// For a statement that reads and writes as of one transaction: begins an implicit block, unless there is a block. True if
    /// it did; for `end_own_block`.
    pub(super) fn begin_own_block(&mut self) -> bool {
        let own = self.block.is_none();
        self.begin_implicit_block();
        own
    }

    /// Ends the block that `begin_own_block` began, if it did, as what came of the statement has it.
    pub(super) async fn end_own_block(&mut self, own: bool, outcome: Result<Outcome>) -> Result<Outcome> {
        if !own {
            return outcome;
        }
        match &outcome {
            Err(_) => self.fail(),
            Ok(Outcome::Command { tag }) => self.will_say(tag),
            Ok(_) => {}
        }
        let ended = self.end_implicit_block().await;
        let outcome = outcome?;
        ended.map(|()| outcome)
    }

    /// An error of the protocol's own (a bad parameter, CopyFail) also fails the transaction block.
    pub fn fail(&mut self) {
        // After a panic it may still be there.
        self.place = None;
        if let Some(block) = &self.block {
            block.failed.store(true, Ordering::Release);
            self.show_status();
        }
    }

    /// How long it may wait for its client's next message as it is now, and the error that ends it then.
    pub fn idle_timeout(&self) -> Option<(Duration, Error)> {
        let (within, code, what) = match self.transaction_status() {
            TransactionStatus::Idle => (false, SqlState::IDLE_SESSION_TIMEOUT, "idle-session"),
            TransactionStatus::InTransaction | TransactionStatus::Failed => {
                (true, SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT, "idle-in-transaction")
            }
        };
        let timeout = self.settings.idle_timeout(within)?;
        Some((timeout, Error::new(code, format!("terminating connection due to {what} timeout"))))
    }

    pub fn transaction_status(&self) -> TransactionStatus {
        match &self.block {
            Some(block) if block.explicit && block.failed.load(Ordering::Acquire) => TransactionStatus::Failed,
            Some(block) if block.explicit => TransactionStatus::InTransaction,
            _ => TransactionStatus::Idle,
        }
    }

    pub(super) fn begin_block(&mut self, modes: &[TransactionMode]) -> Result<Outcome> {
        check_own_modes(&self.settings, modes)?;
        match &mut self.block {
            Some(block) if block.explicit => {
                self.notice("WARNING", SqlState::ACTIVE_SQL_TRANSACTION, "there is already a transaction in progress");
            }
            Some(block) => {
                block.explicit = true;
                self.set_modes(modes, true)?;
            }
            None => self.begin(true, modes),
        }
        self.show_status();
        Ok(Outcome::command("BEGIN"))
    }

    pub(super) async fn commit(&mut self, chain: bool) -> Result<Outcome> {
        if let Some(error) = self.take_lost() {
            self.end(false).await?;
            return Err(error);
        }
        let failed = self.block.as_ref().is_some_and(|block| block.failed.load(Ordering::Acquire));
        // What else is to be there afterwards is not known before.
        if self.block.as_ref().is_some_and(Block::leaves_settings) && !chain {
            self.will_say("COMMIT");
        }
        self.end_block(true, chain).await?;
        Ok(Outcome::command(if failed { "ROLLBACK" } else { "COMMIT" }))
    }

    fn will_say(&self, tag: &str) {
        if let Some(witness) = self.current.witness() {
            witness.will_say(tag, self.sequences_revision());
        }
    }

    /// Has commits from now on told before they are decided. Once only.
    pub fn set_commit_witness(&self, witness: Arc<dyn CommitWitness>) {
        self.current.set_witness(witness);
    }

    pub(super) async fn roll_back(&mut self, chain: bool) -> Result<Outcome> {
        self.end_block(false, chain).await?;
        Ok(Outcome::command("ROLLBACK"))
    }

    async fn end_block(&mut self, commit: bool, chain: bool) -> Result<()> {
        let explicit = self.block.as_ref().map(|block| block.explicit);
        if explicit != Some(true) && chain {
            let what = if commit { "COMMIT" } else { "ROLLBACK" };
            return Err(Error::new(
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                format!("{what} AND CHAIN can only be used in transaction blocks"),
            ));
        }
        let modes = if chain { self.modes() } else { Vec::new() };
        if explicit != Some(true) {
            self.notice("WARNING", SqlState::NO_ACTIVE_SQL_TRANSACTION, "there is no transaction in progress");
        }
        self.end(commit).await?;
        self.restart(explicit, chain, &modes);
        Ok(())
    }

    pub(super) fn set_transaction(&mut self, modes: &[TransactionMode]) -> Result<Outcome> {
        check_modes(modes)?;
        if self.block.as_ref().is_none_or(|block| !block.explicit) {
            self.notice(
                "WARNING",
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "SET TRANSACTION can only be used in transaction blocks",
            );
        }
        self.set_modes(modes, false)?;
        Ok(Outcome::command("SET"))
    }

    fn begin(&mut self, explicit: bool, modes: &[TransactionMode]) {
        self.notice_role();
        let mut settings = self.settings.as_ref().clone();
        let mut read_only = settings.begin_transaction();
        let mut deferrable = settings.is_deferrable();
        let before = self.settings.clone();
        for mode in modes {
            match mode {
                TransactionMode::Isolation(level) => settings.set_own("transaction_isolation", level),
                TransactionMode::ReadOnly(only) => read_only = *only,
                TransactionMode::Deferrable(may) => deferrable = *may,
            }
        }
        // One that is chained to another may ask for what was to be had then.
        let read_only = read_only || settings.is_standby();
        settings.set_own("transaction_deferrable", if deferrable { "on" } else { "off" });
        settings.set_own("transaction_read_only", if read_only { "on" } else { "off" });
        // Refused only where there are too many: whoever writes then gets the error.
        let mut transaction = self.planner.database().begin_at(isolation_of(&settings)).ok();
        transaction.iter_mut().for_each(|transaction| self.lend_to(transaction));
        self.settings = Arc::new(settings);
        // Of statements outside of a block.
        self.cursors.values_mut().for_each(|cursor| cursor.place.is_held = true);
        self.block = Some(Block {
            slot: Arc::new(Mutex::new(transaction)),
            explicit,
            failed: Arc::default(),
            lost: AtomicBool::new(false),
            read_only,
            start: Utc::now(),
            settings_session: before.clone(),
            settings_before: before,
            savepoints: Vec::new(),
            place: None,
            was_admitted: false,
        });
        self.show_status();
    }

    /// Ends the block, if there is one.
    async fn end(&mut self, commit: bool) -> Result<()> {
        let commits = commit && self.block.as_ref().is_some_and(|block| !block.failed.load(Ordering::Acquire));
        let is_own = |(_, cursor): &(&String, &Cursor)| !cursor.place.is_held;
        let own: Vec<String> = self.cursors.iter().filter(is_own).map(|(name, _)| name.clone()).collect();
        let kept = if commits { self.keep_held_cursors().await } else { Ok(()) };
        let ended = self.end_with(commits && kept.is_ok()).await.and(kept);
        if !commits || ended.is_err() {
            self.cursors.retain(|name, _| !own.contains(name));
        }
        ended
    }

    async fn end_with(&mut self, commit: bool) -> Result<()> {
        let Some(block) = self.block.take() else { return Ok(()) };
        self.cursors.retain(|_, cursor| cursor.hold);
        self.cursors.values_mut().for_each(|cursor| cursor.place.is_held = true);
        self.planner.advisory.end_transaction(self.shared.id);
        let wait = self.commit_wait();
        self.settings = if commit { block.settings_session } else { block.settings_before };
        self.show_status();
        let transaction = block.slot.lock().take();
        let Some(mut transaction) = transaction else { return Ok(()) };
        transaction.set_commit_wait(wait);
        let is_something = transaction.has_changes() || (commit && transaction.has_id());
        if !is_something {
            transaction.rollback();
            return Ok(());
        }
        if !commit {
            self.undo_behind(transaction).await;
            return Ok(());
        }
        if transaction.commits_at_once() {
            return self.commit_at_once(transaction).await;
        }
        self.commit_patiently(transaction).await
    }

    /// Commits on a thread that may sleep.
    async fn commit_patiently(&self, mut transaction: Transaction) -> Result<()> {
        // What is deferred is checked now, and may wait.
        let interrupt = self.interrupt();
        transaction.set_patience(Arc::new(Settling(interrupt.clone())));
        let workers = self.planner.workers();
        // What comes next waits until this is over, however soon the client hears of it.
        let undoing = self.undoing.clone().lock_owned().await;
        let mut ended = self.planner.workers().spawn_blocking(move || {
            let committed = transaction.try_commit().map(drop);
            if committed.is_err() {
                roll_back(transaction, &workers, undoing);
            }
            committed
        });
        tokio::select! {
            biased;
            ended = &mut ended => joined(ended),
            // Before it is decided, a large record is written ahead, and who writes to a device cannot be interrupted.
            error = interrupt.wait_to_tell() => Err(error),
        }
    }

    pub(super) fn commit_wait(&self) -> CommitWait {
        self.settings.commit_wait()
    }

    /// Commits on this thread, and waits for the log without it.
    async fn commit_at_once(&self, mut transaction: Transaction) -> Result<()> {
        // A cancel of a statement before is not this one's.
        transaction.set_patience(Arc::new(()));
        let decided = transaction.decide_commit();
        // Who waits for it goes on.
        drop(transaction);
        let Some(ts) = decided? else { return Ok(()) };
        let database = self.planner.database();
        let durable = super::durable::shared(database, ts).unwrap_or_else(|| {
            let (told, durable) = tokio::sync::oneshot::channel();
            database.when_durable(ts, move |outcome| drop(told.send(outcome)));
            durable
        });
        durable.await.unwrap_or_else(|_| Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the database is being closed")))
    }

    /// Commits the transaction of a statement of its own.
    pub(super) async fn commit_decided(&self, mut transaction: Transaction) -> Result<()> {
        let wait = self.commit_wait();
        transaction.set_commit_wait(wait);
        if wait == CommitWait::Applied {
            transaction.set_current(self.current.clone());
        }
        if transaction.commits_at_once() {
            return self.commit_at_once(transaction).await;
        }
        self.commit_patiently(transaction).await
    }

    /// Rolls back what a statement that failed wrote: here, if it is little.
    pub(super) async fn undo_behind(&self, transaction: Transaction) {
        if transaction.rows_written() < ROWS_UNDONE_HERE {
            transaction.rollback();
            return;
        }
        let workers = self.planner.workers();
        let undoing = self.undoing.clone().lock_owned().await;
        let undone = self.planner.workers().spawn_blocking(move || roll_back(transaction, &workers, undoing));
        // A panic there was logged.
        let _ = undone.await;
    }

    /// After `COMMIT` or `ROLLBACK`: what comes next in a query text of several statements, or `AND CHAIN`.
    fn restart(&mut self, explicit: Option<bool>, chain: bool, modes: &[TransactionMode]) {
        if chain && explicit == Some(true) {
            self.begin(true, modes);
        } else if explicit == Some(false) {
            self.begin(false, &[]);
        }
    }

    /// The characteristics of the transaction, which one that is chained to it has, too. A transaction that failed has those of
    /// the session, as in PostgreSQL.
    fn modes(&self) -> Vec<TransactionMode> {
        let failed = self.block.as_ref().is_none_or(|block| block.failed.load(Ordering::Acquire));
        let Some(level) = crate::settings::isolation(self.settings.isolation()).ok().filter(|_| !failed) else {
            return Vec::new();
        };
        vec![
            TransactionMode::Isolation(level),
            TransactionMode::ReadOnly(self.block.as_ref().is_some_and(|block| block.read_only)),
            TransactionMode::Deferrable(self.settings.is_deferrable()),
        ]
    }

    pub(super) fn set_modes(&mut self, modes: &[TransactionMode], begin: bool) -> Result<()> {
        let Some(block) = &mut self.block else { return check_own_modes(&self.settings, modes) };
        let mut settings = self.settings.as_ref().clone();
        for mode in modes {
            match mode {
                TransactionMode::Isolation(level) => {
                    settings.set_own("transaction_isolation", level);
                    let mut slot = block.slot.lock();
                    let wanted = isolation_of(&settings);
                    if let Some(transaction) = slot.as_ref()
                        && transaction.isolation() != wanted
                    {
                        // It is another one then, which has none of the locks.
                        if transaction.has_begun() || transaction.holds_locks() {
                            return Err(Error::new(
                                SqlState::ACTIVE_SQL_TRANSACTION,
                                "SET TRANSACTION ISOLATION LEVEL must be called before any query",
                            ));
                        }
                        read_only::check_level(&settings, level)?;
                        *slot = None;
                        let mut transaction = self.planner.database().begin_at(wanted)?;
                        transaction.set_current(self.current.clone());
                        transaction.set_temporary(self.temporary.clone());
                        *slot = Some(transaction);
                    }
                }
                TransactionMode::ReadOnly(only) => {
                    if !only && block.read_only && !begin {
                        let message = match block.slot.lock().as_ref().is_none_or(Transaction::has_begun) {
                            true => Some("transaction read-write mode must be set before any query"),
                            false if block.savepoints.is_empty() => None,
                            false => Some("cannot set transaction read-write mode inside a read-only transaction"),
                        };
                        if let Some(message) = message {
                            return Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, message));
                        }
                    }
                    if !only {
                        read_only::check_read_write(&settings)?;
                    }
                    block.read_only = *only;
                    settings.set_own("transaction_read_only", if *only { "on" } else { "off" });
                }
                TransactionMode::Deferrable(may) => {
                    if *may != settings.is_deferrable()
                        && !begin
                        && block.slot.lock().as_ref().is_some_and(Transaction::has_begun)
                    {
                        return Err(Error::new(
                            SqlState::ACTIVE_SQL_TRANSACTION,
                            "SET TRANSACTION [NOT] DEFERRABLE must be called before any query",
                        ));
                    }
                    settings.set_own("transaction_deferrable", if *may { "on" } else { "off" });
                }
            }
        }
        self.settings = Arc::new(settings);
        Ok(())
    }

    /// What the next statement reads.
    pub(super) fn snapshot(&self) -> Arc<DatabaseVersion> {
        if let Some(block) = &self.block
            && let Some(transaction) = block.slot.lock().as_mut()
        {
            match transaction.begin_statement() {
                Ok(version) => return version,
                // After four billion statements: nothing is to be seen of the transaction any more.
                Err(error) => tracing::error!("a statement could not begin: {error}"),
            }
        }
        self.planner.database().version_for(&self.temporary)
    }

    /// Whether a statement of the block's transaction has begun, at some time.
    pub(super) fn has_begun(&self) -> bool {
        let slot = self.block.as_ref().map(|block| block.slot.lock());
        slot.is_some_and(|slot| slot.as_ref().is_some_and(Transaction::has_begun))
    }

    /// Has a transaction know what is its session's.
    fn lend_to(&self, transaction: &mut Transaction) {
        transaction.set_current(self.current.clone());
        transaction.set_temporary(self.temporary.clone());
    }

    pub(super) fn block_failed(&self) -> Option<Arc<AtomicBool>> {
        self.block.as_ref().map(|block| block.failed.clone())
    }

    /// Whether the transaction, or one that a statement of its own is, may only read.
    pub(super) fn is_read_only(&self) -> bool {
        match &self.block {
            Some(block) => block.read_only,
            None => self.settings.default_read_only(),
        }
    }

    pub(super) fn check_writable(&self, what: &str) -> Result<()> {
        if self.is_read_only() { Err(read_only::in_read_only(what)) } else { Ok(()) }
    }

    /// Takes notice of the server's role, which may have changed since the session's last statement. A transaction that runs
    /// may only read to its end if it began on a standby.
    #[inline]
    pub(super) fn notice_role(&mut self) {
        let is_standby = self.planner.database().is_following();
        if is_standby != self.settings.is_standby() {
            self.take_role(is_standby);
        }
    }

    #[cold]
    fn take_role(&mut self, is_standby: bool) {
        let settings = Arc::make_mut(&mut self.settings);
        settings.set_standby(is_standby);
        match &mut self.block {
            Some(block) => {
                for kept in [&mut block.settings_before, &mut block.settings_session] {
                    let kept = Arc::make_mut(kept);
                    kept.set_standby(is_standby);
                    kept.follow_defaults();
                }
            }
            None => settings.follow_defaults(),
        }
        self.show_status();
    }

    /// 0A000 for a transaction that is serializable by default, on a standby.
    #[inline]
    pub(super) fn check_level(&self) -> Result<()> {
        if !self.settings.is_standby() {
            return Ok(());
        }
        let level = if self.block.is_some() { self.settings.isolation() } else { self.settings.default_isolation() };
        read_only::check_default_level(&self.settings, level)
    }

    pub(super) fn refuse_in_block(&self, what: &str) -> Result<()> {
        match &self.block {
            Some(block) if block.explicit => Err(Error::new(
                SqlState::ACTIVE_SQL_TRANSACTION,
                format!("{what} cannot run inside a transaction block"),
            )),
            _ => Ok(()),
        }
    }

    /// As `refuse_in_block`, also where several statements share a transaction without `BEGIN`.
    pub(super) fn refuse_in_any_block(&self, what: &str) -> Result<()> {
        self.refuse_in_block(what)?;
        match &self.block {
            Some(_) => {
                Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, format!("{what} cannot run beside other statements"))
                    .with_detail("Several statements that are sent together are one transaction."))
            }
            None => Ok(()),
        }
    }

    pub(super) fn check_not_failed(&self, statement: &Statement) -> Result<()> {
        let Some(block) = self.block.as_ref().filter(|block| block.failed.load(Ordering::Acquire)) else {
            return Ok(());
        };
        match statement.command() {
            Command::Commit { .. } | Command::Rollback { .. } | Command::Empty => Ok(()),
            // Of one that is lost there is no savepoint.
            Command::RollbackTo { .. } => self.take_lost().map_or(Ok(()), Err),
            _ => Err(block.refusal()),
        }
    }

    /// Runs `write` with the block's transaction, or with one of its own that it commits, on a thread that may block,
    /// and then checks foreign keys. An error undoes all of the transaction's work, unless there is a savepoint to go
    /// back to.
    pub(crate) fn begin_write<T: Send + 'static>(
        &self,
        facts: Arc<SessionFacts>,
        interrupt: Arc<Interrupt>,
        write: impl FnOnce(&mut Transaction, &Interrupt) -> Result<T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T>> {
        self.begin_work(facts, interrupt, true, write)
    }

    /// As `begin_write`, in a block, for a statement that goes on: over what it sees already.
    pub(super) fn begin_part<T: Send + 'static>(
        &self,
        facts: Arc<SessionFacts>,
        interrupt: Arc<Interrupt>,
        write: impl FnOnce(&mut Transaction, &Interrupt) -> Result<T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T>> {
        self.begin_work(facts, interrupt, false, write)
    }

    fn begin_work<T: Send + 'static>(
        &self,
        facts: Arc<SessionFacts>,
        interrupt: Arc<Interrupt>,
        ends: bool,
        write: impl FnOnce(&mut Transaction, &Interrupt) -> Result<T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T>> {
        let slot = self.block.as_ref().map(|block| block.slot.clone());
        let failed = self.block.as_ref().map(|block| block.failed.clone());
        let keep = self.block.as_ref().is_some_and(|block| !block.savepoints.is_empty());
        let database = self.planner.database().clone();
        let wait = self.commit_wait();
        let undoing = self.undoing.clone();
        let workers = self.planner.workers();
        let (current, temporary) = (self.current.clone(), self.temporary.clone());
        self.planner.workers().spawn_blocking(move || {
            let lent = slot.as_ref().and_then(|slot| slot.lock().take());
            let mut transaction = lent.map_or_else(|| database.begin(), Ok)?;
            transaction.set_patience(interrupt.clone());
            transaction.set_commit_wait(wait);
            transaction.set_current(current);
            transaction.set_temporary(temporary);
            transaction.act_as(facts.role.id);
            let footing = facts.footing.clone();
            transaction.stand_on(Some(footing.clone()));
            let before = slot.is_some().then(|| transaction.savepoint());
            // What a panic leaves of the statement's writes goes as an error's does.
            let written = caught(|| {
                let value = write(&mut transaction, &interrupt)?;
                panic_point("planner.write");
                if ends {
                    transaction.check_references(&Rules { facts })?;
                }
                interrupt.check().map(|()| value)
            });
            transaction.stand_on(None);
            if ends || written.is_err() {
                transaction.end_statement();
            }
            if let (Err(error), Some(before), Some(slot)) = (&written, &before, &slot)
                && footing.is_overtaken()
            {
                // The statement did nothing, and comes again.
                transaction.roll_back_to(before);
                *slot.lock() = Some(transaction);
                return Err(error.clone());
            }
            let written = match (written, &slot) {
                (Ok(value), None) => transaction.try_commit().map(|_| value),
                (written, _) => written,
            };
            match (&written, slot) {
                (Ok(_), Some(slot)) => *slot.lock() = Some(transaction),
                (Ok(_), None) => {}
                (Err(_), Some(slot)) if keep => *slot.lock() = Some(transaction),
                (Err(_), _) => roll_back(transaction, &workers, undoing.blocking_lock_owned()),
            }
            if let (Err(_), Some(failed)) = (&written, failed) {
                failed.store(true, Ordering::Release);
            }
            written
        })
    }

    /// Until nothing is left of a statement that failed: as its client was told, the next one finds. An error when that is to end before.
    pub(super) async fn undone(&self) -> Result<()> {
        if self.undoing.try_lock().is_ok() {
            return Ok(());
        }
        let interrupt = self.interrupt();
        tokio::select! {
            biased;
            _ = self.undoing.lock() => Ok(()),
            error = interrupt.wait() => Err(error),
        }
    }

    pub(super) async fn write<T: Send + 'static>(
        &self,
        mut running: Running,
        write: impl FnOnce(&mut Transaction, &Interrupt) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        running.query.info.running(None);
        let begun = self.begin_write(running.facts.clone(), running.interrupt.clone(), write);
        let written = joined(begun.await);
        if written.is_ok() {
            running.query.succeeded();
        }
        written
    }
}

/// Rolls a transaction back whose statement failed: here, or if it wrote much then behind the session's back, which waits for it
/// before its next statement. From a thread that may block.
pub(super) fn roll_back(transaction: Transaction, workers: &Handle, undoing: OwnedMutexGuard<()>) {
    if transaction.rows_written() < ROWS_UNDONE_AT_ONCE {
        transaction.rollback();
        return;
    }
    workers.spawn_blocking(move || {
        transaction.rollback();
        drop(undoing);
    });
}

/// 40001.
fn lost() -> Error {
    let message = "the transaction was rolled back because another server has taken the database over";
    Error::new(SqlState::SERIALIZATION_FAILURE, message).with_hint("The transaction might succeed if retried.")
}

/// 25P02.
fn aborted() -> Error {
    Error::new(
        SqlState::IN_FAILED_SQL_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}

/// The level that a block's settings ask for.
fn isolation_of(settings: &Settings) -> Isolation {
    isolation(settings.isolation())
}

/// A level by its name.
pub(super) fn isolation(level: &str) -> Isolation {
    match level {
        _ if level.eq_ignore_ascii_case("serializable") => Isolation::Serializable,
        _ if level.eq_ignore_ascii_case("repeatable read") => Isolation::RepeatableRead,
        _ => Isolation::ReadCommitted,
    }
}

pub(super) fn check_modes(modes: &[TransactionMode]) -> Result<()> {
    for mode in modes {
        if let TransactionMode::Isolation(level) = mode {
            crate::settings::isolation(level)?;
        }
    }
    Ok(())
}

/// Also that the server has them: on a standby transactions only read, and are not serializable.
fn check_own_modes(settings: &Settings, modes: &[TransactionMode]) -> Result<()> {
    check_modes(modes)?;
    modes.iter().try_for_each(|mode| match mode {
        TransactionMode::Isolation(level) => read_only::check_level(settings, level),
        TransactionMode::ReadOnly(false) => read_only::check_read_write(settings),
        TransactionMode::ReadOnly(true) | TransactionMode::Deferrable(_) => Ok(()),
    })
}
