//! Statements on their way to the module that each belongs to.

use super::objects::Kind;
use super::{Notice, Outcome, Session};
use crate::read_only;
use crate::statement::{Command, Statement};
use arrow::array::ArrayRef;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, Result, panic_point};
use tidepool_database::Footing;

impl Session {
    /// Runs one statement. `parameters` are arrays of length one, of the described types. Outside a transaction block
    /// it commits by itself; `CopyIn` commits at `finish`. An error inside a block fails the block.
    pub async fn execute(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        self.forget_last();
        let outcome = match self.try_direct(statement, parameters).await {
            Ok(Some(outcome)) => {
                self.shown_by_standbys().await?;
                return Ok(outcome);
            }
            Ok(None) => self.execute_inner(statement, parameters).await,
            Err(error) => Err(error),
        };
        let outcome = self.placed(statement, outcome)?;
        self.shown_by_standbys().await?;
        Ok(outcome)
    }

    /// As `execute`, of a statement that does not go to its rows by itself ([`Session::run_direct`]).
    pub async fn execute_planned(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        self.forget_last();
        let outcome = self.execute_inner(statement, parameters).await;
        let outcome = self.placed(statement, outcome)?;
        self.shown_by_standbys().await?;
        Ok(outcome)
    }

    fn placed(&mut self, statement: &Statement, outcome: Result<Outcome>) -> Result<Outcome> {
        outcome.map_err(|error| {
            self.fail();
            statement.place(error)
        })
    }

    pub(super) async fn execute_inner(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        let is_outermost = self.began.is_none();
        self.began.get_or_insert_with(Instant::now);
        let outcome = self.execute_upon(statement, parameters).await;
        if is_outermost {
            self.began = None;
        }
        outcome
    }

    /// Before a statement of the client's: one that panicked has left these.
    fn forget_last(&mut self) {
        self.began = None;
        self.footing = Arc::default();
    }

    /// Runs a statement, and anew as long as what it was planned against changes before it has its locks.
    async fn execute_upon(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        self.undone().await?;
        self.notice_role();
        self.take_requested_settings();
        self.check_not_failed(statement)?;
        if read_only::takes_snapshot(statement.command()) {
            self.check_level()?;
        }
        let refused = read_only::check(statement.command(), self.is_read_only(), self.settings.is_standby());
        if refused.is_err() && !(self.settings.is_standby() && self.is_of_temporary(statement.command())) {
            return refused.map(|()| Outcome::Empty);
        }
        // May wait: all that follows is as of afterwards.
        self.admit_planned(statement).await?;
        let _room = self.room_for(statement.text())?;
        panic_point("planner.session");
        let told = self.notices.len();
        loop {
            self.footing = Arc::new(Footing::on(&self.planner.database().state()));
            let outcome = match self.check_privileges(statement.command()) {
                Ok(()) => self.execute_admitted(statement, parameters).await,
                Err(error) => Err(error),
            };
            let footing = std::mem::take(&mut self.footing);
            if outcome.is_ok() || !footing.is_overtaken() {
                // What runs on has it too.
                self.place = None;
                return outcome.map_err(|error| crate::misplaced::explained(error, statement.command()));
            }
            self.notices.truncate(told);
            self.undone().await?;
        }
    }

    async fn execute_admitted(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        self.analyzes = matches!(statement.command(), Command::Explain { options, .. } if options.analyze);
        let is_whole = matches!(
            statement.command(),
            Command::Query(_) | Command::CreateTable { .. } | Command::Copy(_) | Command::Explain { .. }
        );
        // What most transactions consist of beside their statements, without the state that all others need.
        match statement.command() {
            Command::Begin { modes } => return self.begin_admitted(statement.text(), modes).await,
            Command::Commit { chain } => return self.commit(*chain).await,
            Command::Rollback { chain } => return self.roll_back(*chain).await,
            _ => {}
        }
        if !statement.locks_rows() || !is_whole {
            return Box::pin(self.dispatch(statement, parameters)).await;
        }
        // What it locks and what it then reads is of one transaction.
        match statement.command() {
            Command::Explain { options, .. } if !options.analyze => {}
            _ => self.check_writable("SELECT FOR UPDATE")?,
        }
        let own_block = self.begin_own_block();
        let outcome = Box::pin(self.dispatch(statement, parameters)).await;
        self.end_own_block(own_block, outcome).await
    }

    async fn dispatch(&mut self, statement: &Statement, parameters: &[ArrayRef]) -> Result<Outcome> {
        let text = statement.text();
        match statement.command() {
            Command::Empty => Ok(Outcome::Empty),
            Command::Unsupported(error) => Err(error.clone()),
            Command::Query(_) => self.select(text, statement, parameters).await,
            Command::Locking { .. } => self.select_locking(text, statement, parameters, None, None).await,
            Command::Insert(..) | Command::Update { .. } | Command::Delete { .. } | Command::MergeInto { .. } => {
                self.change(text, statement, parameters, None).await
            }
            Command::CreateTable { .. } => self.create_table(text, statement, parameters, None).await,
            Command::DropTables { names, if_exists, cascade } => {
                self.drop_relations(text, Kind::Table, names, *if_exists, *cascade).await
            }
            Command::CreateSequence { name, if_not_exists, options } => {
                self.create_sequence(text, name, *if_not_exists, options).await
            }
            Command::AlterSequence { name, if_exists, options } => {
                self.alter_sequence(text, name, *if_exists, options).await
            }
            Command::NameSequence { name, if_exists, action } => {
                self.name_sequence(text, name, *if_exists, action).await
            }
            Command::DropSequences { names, if_exists, cascade } => {
                self.drop_relations(text, Kind::Sequence, names, *if_exists, *cascade).await
            }
            Command::CreateIndex(clause) => self.create_index(text, clause).await,
            Command::AlterIndex { name, if_exists, action } => self.alter_index(text, name, *if_exists, action).await,
            Command::DropIndexes { names, if_exists, concurrently, cascade } => {
                self.drop_indexes(text, names, *if_exists, *concurrently, *cascade).await
            }
            Command::Reindex { what, concurrently } => self.reindex(text, what, *concurrently).await,
            Command::CreateView { name, or_replace, columns, query } => {
                self.create_view(text, name, *or_replace, columns, query).await
            }
            Command::AlterView { name, if_exists, action } => self.alter_view(text, name, *if_exists, action).await,
            Command::DropViews { names, if_exists, cascade } => {
                self.drop_relations(text, Kind::View, names, *if_exists, *cascade).await
            }
            Command::CreateSchema { name, if_not_exists, owner } => {
                self.create_schema(text, name, *if_not_exists, owner.as_ref()).await
            }
            Command::AlterSchema { name, new_name } => self.rename_schema(text, name, new_name).await,
            Command::DropSchemas { names, if_exists, cascade } => {
                self.drop_schemas(text, names, *if_exists, *cascade).await
            }
            Command::Truncate { names, restart_identity, cascade } => {
                self.truncate(text, names, *restart_identity, *cascade).await
            }
            Command::LockTables { relations, mode, nowait } => self.lock_tables(text, relations, *mode, *nowait).await,
            Command::AlterTable { name, if_exists, actions } => self.alter_table(text, name, *if_exists, actions).await,
            Command::Comment { about, text: comment } => self.comment(text, about, comment.as_deref()).await,
            Command::CreateTablespace { name, location, options, owner } => {
                self.create_tablespace(name, location, options, owner.as_ref()).await
            }
            Command::AlterTablespace { name, action } => self.alter_tablespace(text, name, action).await,
            Command::DropTablespace { name, if_exists } => self.drop_tablespace(name, *if_exists).await,
            Command::Copy(copy) => self.copy(text, statement, copy, parameters).await,
            Command::Begin { .. } | Command::Commit { .. } | Command::Rollback { .. } => {
                Err(Error::internal("a transaction's beginning or end goes by another way"))
            }
            Command::Savepoint { name } => self.savepoint(name),
            Command::Release { name } => self.release(name),
            Command::RollbackTo { name } => self.roll_back_to(name).await,
            Command::Set { name, value, local } => {
                self.set_setting(name, value, *local)?;
                Ok(Outcome::command("SET"))
            }
            Command::SetConstraints { names, deferred } => {
                self.set_constraints(text, names.as_deref(), *deferred).await
            }
            Command::SetTransaction { modes } => self.set_transaction(modes),
            Command::SetSessionTransaction { modes } => self.set_session_transaction(modes),
            Command::Reset { name } => self.reset(name.as_deref()),
            Command::Show { name } => self.show(name.as_deref()),
            Command::DiscardAll => self.discard_all(text).await,
            Command::DiscardTemporary => self.discard_temporary(text).await,
            Command::DiscardSequences => {
                *self.sequences.lock() = Default::default();
                Ok(Outcome::command("DISCARD SEQUENCES"))
            }
            Command::DoNothing { tag, notice } => {
                if let Some(notice) = notice {
                    self.notices.push(Notice { severity: "NOTICE", error: notice.clone() });
                }
                Ok(Outcome::command(*tag))
            }
            Command::Prepare { name, types, statement } => self.prepare(name, types, statement).await,
            Command::Execute { name, arguments } => self.execute_prepared(name, arguments).await,
            Command::Deallocate { name } => self.deallocate(name.as_deref()),
            Command::Declare { name, hold, query } => self.declare(name, *hold, query, parameters).await,
            Command::Fetch { name, count, discard } => self.fetch(name, *count, *discard).await,
            Command::Close { name } => self.close(name.as_deref()),
            Command::Explain { options, statement } => self.explain(text, *options, statement, parameters).await,
            Command::Analyze { names } => self.analyze(text, names),
            Command::Checkpoint => self.checkpoint().await,
            Command::Vacuum { full, names } => self.vacuum(*full, names).await,
            Command::Merge { table } => self.merge(table).await,
            Command::Call { name, arguments } => self.call(text, name, arguments, parameters).await,
            Command::ResetAccess => {
                self.planner.database().reset_workload();
                Ok(Outcome::command("CALL"))
            }
            Command::Advise(arguments) => self.advise(arguments).await,
            Command::Check => self.check_database(text).await,
            Command::Switchover(arguments) => self.switch_over(arguments).await,
            Command::PoolYield { size } => self.pool_yield(statement.text(), size).await,
            Command::Backup { folder } => self.backup(text, folder).await,
            Command::Role(command) => self.role_command(text, command).await,
        }
    }
}
