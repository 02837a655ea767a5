//! Indexes made, changed, made anew and dropped.

use super::{Notice, Outcome, Session};
use crate::ddl::check_table_name;
use crate::dependents::Object;
use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::statement::{IndexAction, IndexClause, QualifiedName, Reindexed};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::RelationName;

impl Session {
    pub(super) async fn create_index(&mut self, text: &str, clause: &IndexClause) -> Result<Outcome> {
        self.check_writable("CREATE INDEX")?;
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
        self.write(running, move |transaction, interrupt| {
            transaction.lock_table(&table, &interrupt.lock_wait())?;
            let now = transaction.version().table(&table).ok_or_else(|| Error::internal("a locked table is gone"))?;
            let new = key.resolve(&now.def)?;
            transaction.create_index(&table, new).map(drop)
        })
        .await?;
        Ok(Outcome::command("CREATE INDEX"))
    }

    pub(super) async fn drop_indexes(
        &mut self,
        text: &str,
        names: &[QualifiedName],
        if_exists: bool,
        cascade: bool,
    ) -> Result<Outcome> {
        self.check_writable("DROP INDEX")?;
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
                targets.iter().try_for_each(|name| transaction.drop_index(name)).map(|()| told)
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
        self.check_writable("ALTER INDEX")?;
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

    pub(super) async fn reindex(&mut self, text: &str, what: &Reindexed) -> Result<Outcome> {
        self.check_writable("REINDEX")?;
        let running = self.running(text);
        let (name, whole) = match what {
            Reindexed::Index(name) => (index(&running.facts, name)?, false),
            Reindexed::Table(name) => {
                let table = resolve::table(&running.facts, name)?;
                (RelationName::from(&*table.def), true)
            }
        };
        self.write(running, move |transaction, _| match whole {
            true => transaction.reindex_table(&name),
            false => transaction.reindex(&name),
        })
        .await?;
        Ok(Outcome::command("REINDEX"))
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
        if facts.version.index(&full).is_some() {
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
