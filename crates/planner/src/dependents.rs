//! What goes with an object that is dropped, and what stands in the way.
//!
//! Objects are found as PostgreSQL finds them: depth first from what is to be dropped, newer dependents before older ones,
//! each after all that depends on it. That is the order of dropping; in reverse it is the order in which messages list them.

use crate::catalog::quote_identifier;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::{Error, Result, SchemaId, SqlState, TableId};
use tidepool_database::{DatabaseVersion, RelationName, ViewDef};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Schema(SchemaId),
    Table(TableId),
    View(TableId),
}

impl Object {
    fn oid(self) -> u32 {
        match self {
            Object::Schema(id) => id.0,
            Object::Table(id) | Object::View(id) => id.0,
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
            tables.chain(views.map(|view| (Object::View(view.id), false))).collect()
        }
        Object::Table(id) | Object::View(id) => readers(version, id),
    }
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
    found.sort_by_key(|(dependent, _)| std::cmp::Reverse(dependent.oid()));
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
        [target] => format!("cannot drop {} because other objects depend on it", shown.object(*target)),
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
