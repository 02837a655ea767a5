//! Commands on the database as a whole (tablespaces, checkpoints, merges), and `DISCARD ALL`.

use super::{Outcome, Running, Session};
use crate::execute::joined;
use crate::interrupt::Interrupt;
use crate::statement::{AdviseArguments, AlterTablespaceAction, QualifiedName, RoleName};
use chrono::Utc;
use tidepool_base::{ByteSize, Error, Result, RoleId, SqlState};
use tidepool_database::{Access, AccessObject, Commented, RelationName, Transaction, advice};

impl Session {
    pub(super) async fn create_tablespace(
        &self,
        name: &str,
        location: &str,
        options: &[(String, String)],
        owner: Option<&RoleName>,
    ) -> Result<Outcome> {
        self.refuse_in_block("CREATE TABLESPACE")?;
        let facts = self.facts(Utc::now());
        let owner = owner.map_or(Ok(facts.role.id), |owner| self.member_role(&facts, owner))?;
        // What it sees would be kept.
        drop(facts);
        let config = crate::ddl::tablespace(name, location, options, self.planner.database().config())?;
        let database = self.planner.database().clone();
        let creating = self.planner.workers().spawn_blocking(move || {
            let object = AccessObject::Tablespace(config.name.clone());
            database.create_tablespace(config)?;
            if owner != RoleId::OWNER {
                let mut transaction = database.begin()?;
                transaction.set_access(object, Access::of(owner));
                transaction.commit()?;
            }
            Ok(())
        });
        joined(creating.await)?;
        Ok(Outcome::command("CREATE TABLESPACE"))
    }

    pub(super) async fn alter_tablespace(
        &mut self,
        text: &str,
        name: &str,
        action: &AlterTablespaceAction,
    ) -> Result<Outcome> {
        self.refuse_in_block("ALTER TABLESPACE")?;
        let change = crate::ddl::tablespace_change(action)?;
        let database = self.planner.database().clone();
        // Not its snapshot, which would keep what is to be moved.
        let Running { interrupt, mut query, .. } = self.running(text);
        query.info.running(None);
        let altered = name.to_owned();
        let work =
            self.planner.workers().spawn_blocking(move || database.alter_tablespace(&altered, &change, &*interrupt));
        joined(work.await)?;
        query.succeeded();
        Ok(Outcome::command("ALTER TABLESPACE"))
    }

    pub(super) async fn drop_tablespace(&mut self, name: &str, if_exists: bool) -> Result<Outcome> {
        self.refuse_in_block("DROP TABLESPACE")?;
        let database = self.planner.database().clone();
        let dropped = name.to_owned();
        let dropping = self.planner.workers().spawn_blocking(move || {
            database.drop_tablespace(&dropped)?;
            // What was granted of it is not to be found on another one of its name.
            let object = AccessObject::Tablespace(dropped);
            if database.state().catalog.access.contains_key(&object) {
                let mut transaction = database.begin()?;
                transaction.forget_access(object);
                transaction.commit()?;
            }
            Ok(())
        });
        match joined(dropping.await) {
            Err(error) if if_exists && error.code() == SqlState::UNDEFINED_OBJECT => {
                self.notice(
                    "NOTICE",
                    SqlState::SUCCESSFUL_COMPLETION,
                    format!("tablespace \"{name}\" does not exist, skipping"),
                );
            }
            dropped => {
                dropped?;
                let about = Commented::Tablespace(name.to_owned());
                if self.planner.database().version().catalog.comments.contains_key(&about) {
                    let running = self.running("DROP TABLESPACE");
                    let forget = move |transaction: &mut Transaction, _: &Interrupt| {
                        transaction.comment(about, None);
                        Ok(())
                    };
                    self.write(running, forget).await?;
                }
            }
        }
        Ok(Outcome::command("DROP TABLESPACE"))
    }

    pub(super) async fn checkpoint(&self) -> Result<Outcome> {
        let (database, interrupt) = (self.planner.database().clone(), self.interrupt());
        let saving = move || database.checkpoint_unless(&|| interrupt.check());
        joined(self.planner.workers().spawn_blocking(saving).await)?;
        Ok(Outcome::command("CHECKPOINT"))
    }

    /// Statistics are part of the data and always true: there is nothing to gather.
    pub(super) fn analyze(&self, text: &str, names: &[QualifiedName]) -> Result<Outcome> {
        let running = self.running(text);
        for name in names {
            crate::resolve::table(&running.facts, name)?;
        }
        Ok(Outcome::command("ANALYZE"))
    }

    /// Frees what nobody sees any more; `FULL` moves delta into main, too. Statistics need no gathering.
    pub(super) async fn vacuum(&self, full: bool, names: &[QualifiedName]) -> Result<Outcome> {
        self.refuse_in_block("VACUUM")?;
        let facts = self.facts(Utc::now());
        let mut tables = names
            .iter()
            .map(|name| crate::resolve::table(&facts, name).map(|version| RelationName::from(&*version.def)))
            .collect::<Result<Vec<_>>>()?;
        if names.is_empty() {
            tables = facts.version.tables.keys().cloned().collect();
        }
        // Nothing of these is ever merged.
        tables.retain(|name| !name.schema.is_temporary());
        // What it sees would be kept.
        drop(facts);
        let (database, interrupt) = (self.planner.database().clone(), self.interrupt());
        let vacuuming = self.planner.workers().spawn_blocking(move || {
            for table in tables.iter().filter(|_| full) {
                match database.merge_unless(table, &|| interrupt.check()) {
                    // Dropped since.
                    Err(error) if error.code() == SqlState::UNDEFINED_TABLE => {}
                    merged => drop(merged?),
                }
            }
            database.vacuum();
            Ok(())
        });
        joined(vacuuming.await)?;
        Ok(Outcome::command("VACUUM"))
    }

    pub(super) async fn merge(&self, table: &QualifiedName) -> Result<Outcome> {
        self.refuse_in_block("CALL tidepool.merge")?;
        let name = RelationName::from(&*crate::resolve::table(&self.facts(Utc::now()), table)?.def);
        if name.schema.is_temporary() {
            return Err(Error::unsupported("temporary tables are not merged"));
        }
        let database = self.planner.database().clone();
        let interrupt = self.interrupt();
        let merging = move || database.merge_unless(&name, &|| interrupt.check());
        joined(self.planner.workers().spawn_blocking(merging).await)?;
        Ok(Outcome::command("CALL"))
    }

    pub(super) async fn advise(&self, arguments: &AdviseArguments) -> Result<Outcome> {
        let database = self.planner.database().clone();
        let profile = arguments.profile.as_deref().map(|name| database.config().profile(name)).transpose()?;
        let request = advice::Request {
            near_limit_bytes: arguments.near_limit.parse::<ByteSize>()?.0,
            far: arguments.far.clone(),
            profile,
        };
        let advice = joined(self.planner.workers().spawn_blocking(move || database.advise(&request)).await)?;
        let batch = crate::placement::advice_batch(&advice)?;
        Ok(Outcome::Rows {
            columns: crate::placement::advice_columns(),
            batches: Box::pin(futures::stream::iter([Ok(batch)])),
            tag: "CALL",
        })
    }

    pub(super) async fn discard_all(&mut self, text: &str) -> Result<Outcome> {
        self.refuse_in_block("DISCARD ALL")?;
        self.planner.advisory.unlock_all(self.shared.id);
        self.prepared.clear();
        self.by_protocol.clear();
        *self.sequences.lock() = Default::default();
        self.cursors.clear();
        self.reset_all()?;
        self.discard_temporary(text).await?;
        Ok(Outcome::command("DISCARD ALL"))
    }
}
