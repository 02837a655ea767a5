//! Columns that become identity columns, or are no more: `ALTER COLUMN … ADD GENERATED`, `SET GENERATED`, `DROP IDENTITY`.

use super::alter::Altering;
use crate::resolve;
use crate::sequences::{self, SequenceOptions};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::{RelationName, Sequence, SequenceDef, SequenceOwner};
use tidepool_table::{Identity, TableDef, TableVersion};

impl Altering<'_> {
    pub(super) fn add_identity(
        &mut self,
        table: &TableVersion,
        column: &str,
        identity: Identity,
        options: SequenceOptions,
    ) -> Result<()> {
        let position = self.position(table, column)?;
        let before = &table.def.columns[position];
        let refused = |what: &str| {
            let message = format!("column \"{column}\" of relation \"{}\" {what}", table.def.name);
            Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message))
        };
        if before.nullable {
            return refused("must be declared NOT NULL before identity can be added");
        }
        if before.identity.is_some() {
            return refused("is already an identity column");
        }
        if before.default.is_some() {
            return refused("already has a default value");
        }
        if !matches!(before.sql_type, SqlType::SmallInt | SqlType::Integer | SqlType::BigInt) {
            let message = "identity column type must be smallint, integer, or bigint";
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message));
        }
        let name = RelationName::from(&*table.def);
        let version = self.transaction.version();
        let free = match &options.name {
            Some(chosen) => {
                let chosen_name = resolve::new_name(self.facts, chosen)?;
                if chosen_name.schema != name.schema {
                    let message = "sequence must be in same schema as table it is linked to";
                    return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
                }
                chosen_name
            }
            None => RelationName::new(name.schema, version.free_name(name.schema, [&name.name, column], "seq", &[])),
        };
        let options = SequenceOptions { data_type: options.data_type.or(Some(before.sql_type)), ..options };
        let (sequence, _) = sequences::define(&free, None, &options)?;
        let id = self.transaction.create_sequence(sequence)?;
        let mut def = TableDef::clone(&table.def);
        def.columns[position].default = Some(sequences::default_of(id));
        def.columns[position].identity = Some(identity);
        let owner = Some(SequenceOwner { table: def.id, column: before.number, identity: true });
        self.transaction.set_table_def(&name, def)?;
        let version = self.transaction.version();
        let made = version.catalog.sequences.get(&free).ok_or_else(|| Error::internal("a new sequence is gone"))?;
        self.transaction.alter_sequence(&free, SequenceDef { owner, ..made.def.clone() }, None)
    }

    pub(super) fn set_identity(
        &mut self,
        table: &TableVersion,
        column: &str,
        identity: Option<Identity>,
        options: &SequenceOptions,
    ) -> Result<()> {
        let position = self.position(table, column)?;
        if table.def.columns[position].identity.is_none() {
            return Err(no_identity(column, &table.def.name));
        }
        if let Some(identity) = identity {
            let mut def = TableDef::clone(&table.def);
            def.columns[position].identity = Some(identity);
            self.transaction.set_table_def(&RelationName::from(&*table.def), def)?;
        }
        if *options == SequenceOptions::default() {
            return Ok(());
        }
        let sequence = self.identity_sequence(table, position)?;
        let name = RelationName::from(&sequence.def);
        let (def, restart) = sequences::define(&name, Some(&sequence), options)?;
        self.transaction.alter_sequence(&name, def, restart)
    }

    pub(super) fn drop_identity(&mut self, table: &TableVersion, column: &str, if_exists: bool) -> Result<()> {
        let position = self.position(table, column)?;
        if table.def.columns[position].identity.is_none() {
            let error = no_identity(column, &table.def.name);
            if if_exists {
                self.skip(SqlState::SUCCESSFUL_COMPLETION, error.message().to_owned());
                return Ok(());
            }
            return Err(error);
        }
        let sequence = self.identity_sequence(table, position)?;
        let mut def = TableDef::clone(&table.def);
        def.columns[position].default = None;
        def.columns[position].identity = None;
        self.transaction.set_table_def(&RelationName::from(&*table.def), def)?;
        self.transaction.drop_sequence(&RelationName::from(&sequence.def))
    }

    fn identity_sequence(&self, table: &TableVersion, position: usize) -> Result<Arc<Sequence>> {
        let number = table.def.columns[position].number;
        let version = self.transaction.version();
        let is_its = |sequence: &&Arc<Sequence>| {
            sequence.def.owner.is_some_and(|owner| owner.identity && owner.column == number)
        };
        let found = version.catalog.owned_sequences(table.def.id).find(is_its).cloned();
        found.ok_or_else(|| Error::internal("an identity column has no sequence"))
    }
}

fn no_identity(column: &str, table: &str) -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("column \"{column}\" of relation \"{table}\" is not an identity column"),
    )
}
