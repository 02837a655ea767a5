//! Indexes made, changed, made anew and dropped.

use super::{Notice, Outcome, Running, Session};
use crate::ddl::check_table_name;
use crate::dependents::Object;
use crate::execute::joined;
use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::statement::{IndexAction, IndexClause, QualifiedName, Reindexed};
use parking_lot::Mutex;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::{Database, DatabaseState, RelationName, Transaction};

impl Session {
    pub(super) async fn create_index(&mut self, text: &str, clause: &IndexClause) -> Result<Outcome> {
        if clause.concurrently {
            self.refuse_in_any_block("CREATE INDEX CONCURRENTLY")?;
        }
        let running = self.running(text);
        let table = resolve::table(&running.facts, &clause.table)?;
        if let Some(name) = &clause.key.name {
            check_table_name(name)?;
            let name = RelationName::new(table.def.schema, name);
            if clause.if_not_exists && running.facts.version.is_taken(&name) {
                let message = format!("relation \"{}\" already exists, skipping", name.name);
                self.notice("NOTICE", SqlState::DUPLICATE_TABLE, message);
                return Ok(Outcome::command("CREATE INDEX"));
            }
        }
        clause.key.check(&table.def.columns)?;
        let (table, key) = (RelationName::from(&*table.def), clause.key.clone());
        if clause.concurrently && !table.schema.is_temporary() {
            self.online(running, move |database, begin| {
                database.create_index_online(begin, &table, |now| key.resolve(now)).map(drop)
            })
            .await?;
            return Ok(Outcome::command("CREATE INDEX"));
        }
        self.write(running, move |transaction, interrupt| {
            transaction.lock_table(&table, &interrupt.lock_wait())?;
            let now = transaction.version().table(&table).ok_or_else(|| Error::internal("a locked table is gone"))?;
            let new = key.resolve(&now.def)?;
            transaction.create_index(&table, new).map(drop)
        })
        .await?;
        Ok(Outcome::command("CREATE INDEX"))
    }

    /// Runs what needs several transactions, on a thread that may block.
    async fn online(
        &self,
        running: Running,
        work: impl FnOnce(&Database, &dyn Fn() -> Result<Transaction>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Running { facts, interrupt, mut query } = running;
        query.info.running(None);
        let role = facts.role.id;
        // What it sees would be kept.
        drop(facts);
        let wait = self.commit_wait();
        let database = self.planner.database().clone();
        // Once the first transaction is over, what exists has changed by the statement's own doing.
        let footing = Mutex::new(Some(self.footing.clone()));
        let working = self.planner.workers().spawn_blocking(move || {
            work(&database, &|| {
                let mut transaction = database.begin()?;
                transaction.set_patience(interrupt.clone());
                transaction.set_commit_wait(wait);
                transaction.act_as(role);
                transaction.stand_on(footing.lock().take());
                Ok(transaction)
            })
        });
        joined(working.await)?;
        query.succeeded();
        Ok(())
    }

    pub(super) async fn drop_indexes(
        &mut self,
        text: &str,
        names: &[QualifiedName],
        if_exists: bool,
        concurrently: bool,
        cascade: bool,
    ) -> Result<Outcome> {
        if concurrently {
            self.refuse_in_any_block("DROP INDEX CONCURRENTLY")?;
            if names.len() > 1 {
                return Err(Error::unsupported("DROP INDEX CONCURRENTLY does not support dropping multiple objects"));
            }
            if cascade {
                return Err(Error::unsupported("DROP INDEX CONCURRENTLY does not support CASCADE"));
            }
        }
        let running = self.running(text);
        let mut targets = Vec::with_capacity(names.len());
        for name in names {
            match index(&running.facts, name) {
                Ok(found) => {
                    let state = running.facts.version.state();
                    if let Some((table, def)) = state.index(&found)
                        && def.constraint.is_some()
                    {
                        let required = format!("constraint {} on table {}", def.name, state.shown_name(&table.def));
                        return Err(Error::new(
                            SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                            format!("cannot drop index {} because {required} requires it", def.name),
                        )
                        .with_hint(format!("You can drop {required} instead.")));
                    }
                    if let Some((_, def)) = state.index(&found)
                        && let Some((_, whole)) = def.partition_of.and_then(|whole| state.index_by_id(whole))
                    {
                        let message =
                            format!("cannot drop index {} because index {} requires it", def.name, whole.name);
                        return Err(Error::new(SqlState::DEPENDENT_OBJECTS_STILL_EXIST, message)
                            .with_hint(format!("You can drop index {} instead.", whole.name)));
                    }
                    if concurrently
                        && let Some((table, def)) = state.index(&found)
                        && table.def.partitioning.is_some()
                    {
                        let message = format!("cannot drop partitioned index \"{}\" concurrently", def.name);
                        return Err(Error::unsupported(message));
                    }
                    targets.push(found);
                }
                Err(error) if if_exists && error.code() == SqlState::UNDEFINED_OBJECT => {
                    self.skipping(error.message());
                }
                Err(error) => return Err(error),
            }
        }
        let path = super::objects::path_ids(&running.facts);
        let told = self
            .write(running, move |transaction, interrupt| {
                let version = transaction.version();
                let keys: Vec<Object> = (targets.iter())
                    .filter_map(|name| version.index(name).map(|(table, index)| Object::Key(table.def.id, index.id)))
                    .collect();
                let told = super::objects::drop_all(transaction, interrupt, &path, &keys, cascade)?;
                let drop_one = |name: &RelationName| match concurrently && !name.schema.is_temporary() {
                    true => transaction.drop_index_online(name),
                    false => transaction.drop_index(name),
                };
                targets.iter().try_for_each(drop_one).map(|()| told)
            })
            .await?;
        self.notices.extend(told.map(|error| Notice { severity: "NOTICE", error }));
        Ok(Outcome::command("DROP INDEX"))
    }

    pub(super) async fn alter_index(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_exists: bool,
        action: &IndexAction,
    ) -> Result<Outcome> {
        let running = self.running(text);
        let name = match index(&running.facts, name) {
            Ok(name) => name,
            Err(error) if if_exists && error.code() == SqlState::UNDEFINED_OBJECT => {
                self.skipping(error.message());
                return Ok(Outcome::command("ALTER INDEX"));
            }
            Err(error) => return Err(error),
        };
        let action = action.clone();
        self.write(running, move |transaction, _| match &action {
            IndexAction::Rename(new_name) => {
                check_table_name(new_name)?;
                transaction.rename_index(&name, new_name)
            }
            IndexAction::SetTablespace(space) => transaction.set_index_tablespace(&name, Some(space)),
        })
        .await?;
        Ok(Outcome::command("ALTER INDEX"))
    }

    pub(super) async fn reindex(&mut self, text: &str, what: &Reindexed, concurrently: bool) -> Result<Outcome> {
        if concurrently {
            self.refuse_in_any_block("REINDEX CONCURRENTLY")?;
        }
        let running = self.running(text);
        let (name, whole) = match what {
            Reindexed::Index(name) => (index(&running.facts, name)?, false),
            Reindexed::Table(name) => {
                let table = resolve::table(&running.facts, name)?;
                (RelationName::from(&*table.def), true)
            }
        };
        if concurrently && !name.schema.is_temporary() {
            let state = running.facts.version.state();
            let names = if whole { indexes_of(state, &name) } else { vec![name] };
            self.online(running, move |database, begin| {
                names.iter().try_for_each(|name| database.reindex_online(begin, name))
            })
            .await?;
            return Ok(Outcome::command("REINDEX"));
        }
        self.write(running, move |transaction, _| match whole {
            true => transaction.reindex_table(&name),
            false => transaction.reindex(&name),
        })
        .await?;
        Ok(Outcome::command("REINDEX"))
    }
}

/// The indexes of a table, or of all partitions that have rows.
fn indexes_of(state: &DatabaseState, table: &RelationName) -> Vec<RelationName> {
    let Some(table) = state.tables.get(table) else { return Vec::new() };
    match &table.def.partitioning {
        Some(partitioning) => (partitioning.partitions.iter())
            .filter_map(|partition| state.table_of_id(partition.id))
            .flat_map(|partition| indexes_of(state, &RelationName::from(&*partition.def)))
            .collect(),
        None => {
            let finished = table.def.indexes.iter().filter(|index| !index.building);
            finished.map(|index| RelationName::new(table.def.schema, &index.name)).collect()
        }
    }
}

/// An index by its name. 42704 when there is none, 42809 when the name is something else's.
pub(super) fn index(facts: &SessionFacts, name: &QualifiedName) -> Result<RelationName> {
    let schemas = match &name.schema {
        Some(schema) => vec![schema.clone()],
        None => resolve::search_path(facts),
    };
    for schema in schemas {
        let Some(known) = facts.version.schema(&schema) else { continue };
        let full = RelationName::new(known.id, &name.name);
        facts.footing.name(&full);
        if let Some((table, _)) = facts.version.index(&full) {
            facts.footing.relation(table.def.id);
            return Ok(full);
        }
        if let Some(other) = resolve::in_schema(facts, &schema, &name.name) {
            let kind = match other {
                Relation::Table(_) | Relation::System(_) => "TABLE",
                Relation::View(_) => "VIEW",
                Relation::Sequence(_) => "SEQUENCE",
            };
            let error = Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not an index", name.name));
            return Err(error.with_hint(format!("Use {kind} in the place of INDEX.")));
        }
    }
    Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("index \"{name}\" does not exist")))
}
