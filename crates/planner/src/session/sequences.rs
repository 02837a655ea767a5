//! Sequences made and changed.

use super::{Outcome, Session};
use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::sequences::{self, SequenceOptions};
use crate::statement::{AlterAction, QualifiedName};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::{RelationName, Sequence, SequenceDef};

impl Session {
    pub(super) async fn create_sequence(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_not_exists: bool,
        options: &SequenceOptions,
    ) -> Result<Outcome> {
        crate::ddl::check_table_name(&name.name)?;
        let running = self.running(text);
        let name = resolve::new_name(&running.facts, name)?;
        if if_not_exists && running.facts.version.is_taken(&name) {
            let message = format!("relation \"{}\" already exists, skipping", name.name);
            self.notice("NOTICE", SqlState::DUPLICATE_TABLE, message);
            return Ok(Outcome::command("CREATE SEQUENCE"));
        }
        let (mut def, _) = sequences::define(&name, None, options)?;
        if let Some(owned_by) = &options.owned_by {
            def.owner = sequences::owner(&running.facts, &name, owned_by)?;
        }
        self.write(running, move |transaction, _| transaction.create_sequence(def).map(drop)).await?;
        Ok(Outcome::command("CREATE SEQUENCE"))
    }

    pub(super) async fn alter_sequence(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_exists: bool,
        options: &SequenceOptions,
    ) -> Result<Outcome> {
        let running = self.running(text);
        let Some(sequence) = self.sequence(&running.facts, name, if_exists)? else {
            return Ok(Outcome::command("ALTER SEQUENCE"));
        };
        let name = RelationName::from(&sequence.def);
        let (mut def, restart) = sequences::define(&name, Some(&sequence), options)?;
        if let Some(owned_by) = &options.owned_by {
            if def.owner.is_some_and(|owner| owner.identity) {
                return Err(Error::unsupported("cannot change ownership of identity sequence")
                    .with_detail(format!("Sequence \"{}\" is linked to an identity column.", def.name)));
            }
            def.owner = sequences::owner(&running.facts, &name, owned_by)?;
        }
        self.write(running, move |transaction, _| transaction.alter_sequence(&name, def, restart)).await?;
        Ok(Outcome::command("ALTER SEQUENCE"))
    }

    pub(super) async fn name_sequence(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_exists: bool,
        action: &AlterAction,
    ) -> Result<Outcome> {
        let running = self.running(text);
        let Some(sequence) = self.sequence(&running.facts, name, if_exists)? else {
            return Ok(Outcome::command("ALTER SEQUENCE"));
        };
        let mut def: SequenceDef = sequence.def.clone();
        match action {
            AlterAction::Rename { name } => def.name.clone_from(name),
            AlterAction::SetSchema { schema } => {
                if def.owner.is_some() {
                    return Err(Error::unsupported("cannot move an owned sequence into another schema")
                        .with_hint("It moves with its table."));
                }
                def.schema = resolve::own_schema(&running.facts, schema)?;
            }
            _ => return Err(Error::new(SqlState::SYNTAX_ERROR, "sequences have no columns to be renamed")),
        }
        let name = RelationName::from(&sequence.def);
        self.write(running, move |transaction, _| transaction.alter_sequence(&name, def, None)).await?;
        Ok(Outcome::command("ALTER SEQUENCE"))
    }

    /// `None` after a notice, with `IF EXISTS`.
    fn sequence(
        &mut self,
        facts: &SessionFacts,
        name: &QualifiedName,
        if_exists: bool,
    ) -> Result<Option<Arc<Sequence>>> {
        self.altered(facts, name, if_exists, "sequence", |relation| match relation {
            Relation::Sequence(sequence) => Some(sequence),
            _ => None,
        })
    }

    /// The relation that is to be altered, which must be what `wanted` takes: a `kind`. `None` after a notice, when it is not
    /// there, with `IF EXISTS`.
    pub(super) fn altered<T>(
        &mut self,
        facts: &SessionFacts,
        name: &QualifiedName,
        if_exists: bool,
        kind: &str,
        wanted: impl FnOnce(Relation) -> Option<T>,
    ) -> Result<Option<T>> {
        match resolve::relation(facts, name.schema.as_deref(), &name.name) {
            Some(Relation::System(relation)) => Err(crate::errors::system_relation(relation.name)),
            Some(relation) => wanted(relation)
                .map(Some)
                .ok_or_else(|| Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not a {kind}", name.name))),
            None if if_exists => {
                self.skipping(resolve::missing(name).message());
                Ok(None)
            }
            None => Err(resolve::missing(name)),
        }
    }
}
