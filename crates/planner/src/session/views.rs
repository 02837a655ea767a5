//! Views made and renamed.

use super::{Outcome, Session};
use crate::resolve::{self, Relation};
use crate::statement::{AlterAction, QualifiedName, Statement};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::{RelationName, ViewDef};

impl Session {
    pub(super) async fn create_view(
        &mut self,
        text: &str,
        name: &QualifiedName,
        or_replace: bool,
        columns: &[String],
        query: &Statement,
    ) -> Result<Outcome> {
        crate::ddl::check_table_name(&name.name)?;
        let running = self.running(text);
        let facts = running.facts.clone();
        let view = resolve::new_name(&facts, name)?;
        let (columns, query) = (columns.to_vec(), query.clone());
        let defining =
            self.plan_apart(text, async move { crate::view::define(&facts, view, &columns, &query, or_replace) });
        let view = defining.await?;
        self.write(running, move |transaction, _| transaction.create_view(view, or_replace).map(drop)).await?;
        Ok(Outcome::command("CREATE VIEW"))
    }

    pub(super) async fn alter_view(
        &mut self,
        text: &str,
        name: &QualifiedName,
        if_exists: bool,
        action: &AlterAction,
    ) -> Result<Outcome> {
        let running = self.running(text);
        let view = self.altered(&running.facts, name, if_exists, "view", |relation| match relation {
            Relation::View(view) => Some(view),
            _ => None,
        })?;
        let Some(view) = view else { return Ok(Outcome::command("ALTER VIEW")) };
        let mut altered = ViewDef::clone(&view);
        match action {
            AlterAction::Rename { name } => altered.name.clone_from(name),
            AlterAction::SetSchema { schema } => altered.schema = resolve::own_schema(&running.facts, schema)?,
            AlterAction::RenameColumn { column, name } => rename_column(&mut altered, column, name)?,
            _ => return Err(Error::unsupported("this form of ALTER VIEW is not supported")),
        }
        let name = RelationName::from(&*view);
        self.write(running, move |transaction, _| transaction.alter_view(&name, altered)).await?;
        Ok(Outcome::command("ALTER VIEW"))
    }
}

fn rename_column(view: &mut ViewDef, column: &str, name: &str) -> Result<()> {
    if view.columns.iter().any(|other| other.name == name) {
        return Err(Error::new(
            SqlState::DUPLICATE_COLUMN,
            format!("column \"{name}\" of relation \"{}\" already exists", view.name),
        ));
    }
    match view.columns.iter_mut().find(|known| known.name == column) {
        Some(known) => name.clone_into(&mut known.name),
        None => {
            return Err(Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{column}\" does not exist")));
        }
    }
    Ok(())
}
