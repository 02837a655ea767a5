//! `COMMENT ON`.

use super::{Outcome, Session};
use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::statement::{CommentOn, QualifiedName};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Commented;

impl Session {
    /// `None`: the comment goes.
    pub(super) async fn comment(&mut self, text: &str, about: &CommentOn, comment: Option<&str>) -> Result<Outcome> {
        let running = self.running(text);
        let about = self.commented(&running.facts, about)?;
        let comment = comment.map(str::to_owned);
        self.write(running, move |transaction, _| {
            transaction.comment(about, comment.as_deref());
            Ok(())
        })
        .await?;
        Ok(Outcome::command("COMMENT"))
    }

    fn commented(&self, facts: &SessionFacts, about: &CommentOn) -> Result<Commented> {
        let relation = |name: &QualifiedName| {
            let found = resolve::relation(facts, name.schema.as_deref(), &name.name);
            found.ok_or_else(|| resolve::missing(name))
        };
        let other = |name: &QualifiedName, kind: &str| {
            Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is not {kind}", name.name)))
        };
        Ok(match about {
            CommentOn::Table(name) => Commented::Relation(resolve::table(facts, name)?.def.id),
            CommentOn::View(name) => match relation(name)? {
                Relation::View(view) => Commented::Relation(view.id),
                _ => return other(name, "a view"),
            },
            CommentOn::Sequence(name) => match relation(name)? {
                Relation::Sequence(sequence) => Commented::Relation(sequence.def.id),
                _ => return other(name, "a sequence"),
            },
            CommentOn::Index(name) => {
                let named = super::indexes::index(facts, name)?;
                let index = facts.version.index(&named).map(|(_, index)| index.id);
                Commented::Relation(index.ok_or_else(|| resolve::missing(name))?)
            }
            CommentOn::Column(name, column) => {
                let found = match relation(name)? {
                    Relation::Table(table) => {
                        let number = table.def.columns.iter().find(|known| known.name == *column);
                        number.map(|known| (table.def.id, known.number))
                    }
                    Relation::View(view) => {
                        let place = view.columns.iter().position(|known| known.name == *column);
                        place.map(|place| (view.id, place as u16 + 1))
                    }
                    Relation::Sequence(_) => return other(name, "a table or view"),
                    Relation::System(system) => return Err(crate::errors::system_relation(system.name)),
                };
                let (id, number) = found.ok_or_else(|| {
                    let message = format!("column \"{column}\" of relation \"{}\" does not exist", name.name);
                    Error::new(SqlState::UNDEFINED_COLUMN, message)
                })?;
                Commented::Column(id, number)
            }
            CommentOn::Constraint(constraint, name) => {
                let def = resolve::table(facts, name)?.def.clone();
                let check = def.checks.iter().find(|check| check.name == *constraint).map(|check| check.oid);
                let part = |key: &tidepool_table::ForeignKeyDef| {
                    let part = key.referenced_parts.iter().find(|part| part.name == *constraint);
                    if key.name == *constraint { Some(key.oid) } else { part.map(|part| part.oid) }
                };
                let key = || def.foreign_keys.iter().find_map(part);
                let index = || def.index(constraint).and_then(|index| index.constraint).map(|served| served.oid);
                let oid = check.or_else(key).or_else(index).ok_or_else(|| {
                    let message = format!("constraint \"{constraint}\" for table \"{}\" does not exist", name.name);
                    Error::new(SqlState::UNDEFINED_OBJECT, message)
                })?;
                Commented::Constraint(oid)
            }
            CommentOn::Schema(name) => Commented::Schema(resolve::own_schema(facts, name)?),
            CommentOn::Database(name) if name == facts.database => Commented::Database,
            CommentOn::Database(name) => {
                let message = format!("database \"{name}\" does not exist");
                return Err(Error::new(SqlState::INVALID_CATALOG_NAME, message));
            }
            CommentOn::Tablespace(name) => {
                self.planner.database().tablespaces().get(name)?;
                Commented::Tablespace(name.clone())
            }
        })
    }
}
