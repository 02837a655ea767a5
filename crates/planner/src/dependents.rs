//! What goes with an object that is dropped, and what stands in the way.
//!
//! Objects are found as PostgreSQL finds them: depth first from what is to be dropped, newer dependents before older ones,
//! each after all that depends on it. That is the order of dropping; in reverse it is the order in which messages list them.

use crate::catalog::quote_identifier;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState, TableId};
use tidepool_database::{DatabaseVersion, RelationName, ViewDef, ViewRelation};
use tidepool_table::ForeignKeyDef;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Schema(SchemaId),
    Table(TableId),
    View(TableId),
    Sequence(TableId),
    /// Of a table's column.
    Default(TableId, u16),
    /// By number.
    Column(TableId, u16),
    /// A foreign key, by number, of a table.
    ForeignKey(TableId, u32),
    /// An index of a table, with the constraint that it serves.
    Key(TableId, TableId),
}

impl Object {
    fn oid(self) -> u32 {
        match self {
            Object::Schema(id) => id.0,
            Object::Table(id)
            | Object::View(id)
            | Object::Sequence(id)
            | Object::Default(id, _)
            | Object::Column(id, _) => id.0,
            Object::ForeignKey(_, oid) => oid,
            Object::Key(_, id) => id.0,
        }
    }
}

/// One object to be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    pub object: Object,
    /// What it depends on, where that is to be told: not of those that were named.
    because: Option<Object>,
}

/// Names of objects as messages have them.
pub struct Shown<'a> {
    pub version: &'a DatabaseVersion,
    /// The search path.
    pub path: &'a [SchemaId],
}

impl Shown<'_> {
    /// Relations that the path finds go without their schema.
    pub fn name(&self, name: &RelationName) -> String {
        let taken = |schema: &&SchemaId| self.version.is_taken(&RelationName::new(**schema, &name.name));
        if self.path.iter().find(taken) == Some(&name.schema) {
            return quote_identifier(&name.name);
        }
        format!("{}.{}", quote_identifier(self.version.schema_name(name.schema)), quote_identifier(&name.name))
    }

    fn constraint(&self, name: &str, table: TableId) -> String {
        format!("constraint {} on {}", quote_identifier(name), self.object(Object::Table(table)))
    }

    /// As `object`, of one that a statement names.
    fn target(&self, object: Object) -> String {
        match object {
            Object::Key(table, id) => match self.version.index_by_id(id) {
                Some((_, index)) if index.constraint.is_some() => self.constraint(&index.name, table),
                _ => self.object(object),
            },
            _ => self.object(object),
        }
    }

    pub fn object(&self, object: Object) -> String {
        match object {
            Object::Schema(id) => format!("schema {}", quote_identifier(self.version.schema_name(id))),
            Object::Table(id) => match self.version.table_by_id(id) {
                Some(table) => format!("table {}", self.name(&RelationName::from(&*table.def))),
                None => format!("table {id}"),
            },
            Object::View(id) => match self.version.catalog.view_by_id(id) {
                Some(view) => format!("view {}", self.name(&RelationName::from(&**view))),
                None => format!("view {id}"),
            },
            Object::Sequence(id) => match self.version.catalog.sequence_by_id(id) {
                Some(sequence) => format!("sequence {}", self.name(&RelationName::from(&sequence.def))),
                None => format!("sequence {id}"),
            },
            Object::Column(id, number) => match self.version.table_by_id(id) {
                Some(table) => {
                    let column = table.def.column_by_number(number).map_or("", |(_, column)| &column.name);
                    format!("column {} of {}", quote_identifier(column), self.object(Object::Table(id)))
                }
                None => format!("column of table {id}"),
            },
            Object::ForeignKey(id, oid) => match self.version.table_by_id(id) {
                Some(table) => {
                    let key = table.def.foreign_keys.iter().find(|key| key.oid == oid);
                    self.constraint(key.map_or("", |key| &key.name), id)
                }
                None => format!("constraint of table {id}"),
            },
            Object::Key(_, id) => match self.version.index_by_id(id) {
                Some((table, index)) => {
                    format!("index {}", self.name(&RelationName::new(table.def.schema, &index.name)))
                }
                None => format!("index {id}"),
            },
            Object::Default(id, number) => match self.version.table_by_id(id) {
                Some(table) => {
                    let column = table.def.column_by_number(number).map_or("", |(_, column)| &column.name);
                    format!(
                        "default value for column {} of {}",
                        quote_identifier(column),
                        self.object(Object::Table(id))
                    )
                }
                None => format!("default value of table {id}"),
            },
        }
    }
}

/// What depends on an object, and whether it goes silently with it.
fn dependents(version: &DatabaseVersion, object: Object) -> Vec<(Object, bool)> {
    match object {
        Object::Schema(id) => {
            let inside = version.tables.values().filter(|table| table.def.schema == id);
            let views = version.catalog.views.values().filter(|view| view.schema == id);
            let tables = inside.map(|table| (Object::Table(table.def.id), false));
            let views = views.map(|view| (Object::View(view.id), false));
            let sequences = version.catalog.sequences.values().filter(|sequence| sequence.def.schema == id);
            // Those that go with a column go with its table.
            let sequences = sequences.map(|sequence| (Object::Sequence(sequence.def.id), sequence.def.owner.is_some()));
            tables.chain(views).chain(sequences).collect()
        }
        Object::Table(id) => {
            let owned = version.catalog.owned_sequences(id).map(|owned| (Object::Sequence(owned.def.id), true));
            let keys = version.foreign_keys_on(id).into_iter().filter(|referring| referring.child.def.id != id);
            let keys = keys.map(|of| (Object::ForeignKey(of.child.def.id, of.key.oid), false)).collect::<Vec<_>>();
            let partitioning = version.table_of_id(id).and_then(|table| table.def.partitioning.as_ref());
            let partitions = partitioning.into_iter().flat_map(|partitioning| &partitioning.partitions);
            let partitions = partitions.map(|partition| (Object::Table(partition.id), true));
            readers(version, id).into_iter().chain(owned).chain(keys).chain(partitions).collect()
        }
        Object::View(id) => readers(version, id),
        Object::Sequence(id) => {
            let tables = version.tables.values();
            let defaults = tables.flat_map(|table| {
                let uses = move |default: &String| crate::sequences::named_in(default).contains(&id);
                let columns = table.def.columns.iter().filter(move |column| column.default.as_ref().is_some_and(uses));
                columns.map(|column| (Object::Default(table.def.id, column.number), false))
            });
            readers(version, id).into_iter().chain(defaults).collect()
        }
        Object::Default(..) | Object::ForeignKey(..) => Vec::new(),
        Object::Key(table, index) => foreign_keys(version, table, |_, key| key.index == index),
        Object::Column(id, number) => {
            let names = |relation: &ViewRelation| {
                relation.id == id && relation.columns.iter().any(|source| source.number == number && source.used)
            };
            let views = version.catalog.views.values().filter(|view| view.relations.iter().any(names));
            let views = views.map(|view| (Object::View(view.id), false));
            let owned = version.catalog.owned_sequences(id);
            let owned = owned.filter(|owned| owned.def.owner.is_some_and(|owner| owner.column == number));
            let own = |child: TableId, key: &ForeignKeyDef| child == id && key.has_column(number);
            let keys =
                foreign_keys(version, id, |child, key| key.referenced_columns.contains(&number) && !own(child, key));
            views.chain(owned.map(|owned| (Object::Sequence(owned.def.id), true))).chain(keys).collect()
        }
    }
}

/// Foreign keys that refer to a table and are no parts of others, those that `which` says of their table and themselves.
fn foreign_keys(
    version: &DatabaseVersion,
    table: TableId,
    which: impl Fn(TableId, &ForeignKeyDef) -> bool,
) -> Vec<(Object, bool)> {
    let keys = version.foreign_keys_to(table).filter(|(_, key)| key.part_of.is_none());
    let keys = keys.filter(|(child, key)| which(child.def.id, key));
    keys.map(|(child, key)| (Object::ForeignKey(child.def.id, key.oid), false)).collect()
}

/// Views that read a relation.
fn readers(version: &DatabaseVersion, id: TableId) -> Vec<(Object, bool)> {
    let reads = |view: &&Arc<ViewDef>| view.relations.iter().any(|relation| relation.id == id);
    version.catalog.views.values().filter(reads).map(|view| (Object::View(view.id), false)).collect()
}

fn collect(
    version: &DatabaseVersion,
    object: Object,
    because: Option<Object>,
    seen: &mut BTreeSet<Object>,
    drops: &mut Vec<Drop>,
) {
    if !seen.insert(object) {
        return;
    }
    let mut found = dependents(version, object);
    // What refers to a table depends on it rather than on its partitions.
    let is_partition = |dependent: &Object, silent: bool| silent && matches!(dependent, Object::Table(_));
    found.sort_by_key(|(dependent, silent)| (is_partition(dependent, *silent), std::cmp::Reverse(dependent.oid())));
    for (dependent, silent) in found {
        collect(version, dependent, (!silent).then_some(object), seen, drops);
    }
    drops.push(Drop { object, because });
}

/// Everything that goes when `targets` do, in the order of dropping. 2BP01 without `cascade` if that is more than they.
pub fn plan(shown: &Shown<'_>, targets: &[Object], cascade: bool) -> Result<Vec<Drop>> {
    let mut drops = Vec::new();
    // What was named is not told about, though another of the named ones may depend on it.
    let mut seen = BTreeSet::new();
    for target in targets {
        collect(shown.version, *target, None, &mut seen, &mut drops);
    }
    // A default goes silently where its column does, a foreign key where its table does.
    let gone: Vec<Object> = drops.iter().map(|drop| drop.object).collect();
    drops.retain(|drop| match drop.object {
        Object::Default(table, column) => {
            !gone.contains(&Object::Table(table)) && !gone.contains(&Object::Column(table, column))
        }
        Object::ForeignKey(table, _) => !gone.contains(&Object::Table(table)),
        _ => true,
    });
    for target in targets {
        if let Object::Sequence(id) = target
            && let Some(owner) = shown.version.catalog.sequence_by_id(*id).and_then(|sequence| sequence.def.owner)
            && owner.identity
            && let Some(table) = shown.version.table_by_id(owner.table)
            && !gone.contains(&Object::Table(owner.table))
        {
            let column = table.def.column_by_number(owner.column).map_or("", |(_, column)| &column.name);
            let column = format!("column {} of {}", quote_identifier(column), shown.object(Object::Table(owner.table)));
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!("cannot drop {} because {column} requires it", shown.object(*target)),
            )
            .with_hint(format!("You can drop {column} instead.")));
        }
    }
    for drop in &mut drops {
        if targets.contains(&drop.object) {
            drop.because = None;
        }
    }
    let lines: Vec<String> = (drops.iter().rev())
        .filter_map(|drop| {
            let because = drop.because?;
            Some(format!("{} depends on {}", shown.object(drop.object), shown.object(because)))
        })
        .collect();
    if cascade || lines.is_empty() {
        return Ok(drops);
    }
    let message = match targets {
        [target] => format!("cannot drop {} because other objects depend on it", shown.target(*target)),
        _ => "cannot drop desired object(s) because other objects depend on them".to_owned(),
    };
    Err(Error::new(SqlState::DEPENDENT_OBJECTS_STILL_EXIST, message)
        .with_detail(lines.join("\n"))
        .with_hint("Use DROP ... CASCADE to drop the dependent objects too."))
}

/// What the client is told of objects that it did not name.
pub fn notice(shown: &Shown<'_>, drops: &[Drop]) -> Option<Error> {
    let lines: Vec<String> = (drops.iter().rev())
        .filter(|drop| drop.because.is_some())
        .map(|drop| format!("drop cascades to {}", shown.object(drop.object)))
        .collect();
    match lines.as_slice() {
        [] => None,
        [line] => Some(Error::new(SqlState::SUCCESSFUL_COMPLETION, line)),
        lines => Some(
            Error::new(SqlState::SUCCESSFUL_COMPLETION, format!("drop cascades to {} other objects", lines.len()))
                .with_detail(lines.join("\n")),
        ),
    }
}
