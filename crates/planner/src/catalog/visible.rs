//! What `information_schema` and `pg_stats` show to a role: what it owns, and what it may do something with.

use crate::facts::SessionFacts;
use tidepool_base::{SchemaId, TableId};
use tidepool_database::{AccessKind, AccessObject, Privileges};

/// Whether it is the role's, as all is that belongs to a role that it is a member of.
pub fn owns(facts: &SessionFacts, id: TableId) -> bool {
    facts.role.owns(&facts.version.catalog, &AccessObject::Relation(id))
}

/// A table or a view.
pub fn relation(facts: &SessionFacts, id: TableId) -> bool {
    may(facts, id, AccessKind::Table.privileges())
}

/// As `relation`, for a role that may do more with it than read it.
pub fn changed(facts: &SessionFacts, id: TableId) -> bool {
    may(facts, id, AccessKind::Table.privileges().without(Privileges::SELECT))
}

fn may(facts: &SessionFacts, id: TableId, any: Privileges) -> bool {
    let (catalog, object) = (&facts.version.catalog, AccessObject::Relation(id));
    let of_columns = any.both(AccessKind::Column.privileges());
    owns(facts, id)
        || !facts.role.privileges(catalog, &object, AccessKind::Table).both(any).is_empty()
        || of_columns.each().any(|(privilege, ..)| facts.role.with_some_column(catalog, &object, privilege))
}

/// A column, by its number.
pub fn column(facts: &SessionFacts, id: TableId, number: u16) -> bool {
    owns(facts, id) || may_column(facts, id, number, AccessKind::Column.privileges())
}

/// A column whose values the role may read.
pub fn readable(facts: &SessionFacts, id: TableId, number: u16) -> bool {
    may_column(facts, id, number, Privileges::SELECT)
}

fn may_column(facts: &SessionFacts, id: TableId, number: u16, any: Privileges) -> bool {
    let (catalog, object) = (&facts.version.catalog, AccessObject::Relation(id));
    let of_table = facts.role.privileges(catalog, &object, AccessKind::Table);
    !of_table.and(facts.role.of_column(catalog, &object, number)).both(any).is_empty()
}

pub fn sequence(facts: &SessionFacts, id: TableId) -> bool {
    let object = AccessObject::Relation(id);
    owns(facts, id) || !facts.role.privileges(&facts.version.catalog, &object, AccessKind::Sequence).is_empty()
}

/// One of the users'; the system's are everybody's.
pub fn schema(facts: &SessionFacts, id: SchemaId) -> bool {
    let (catalog, object) = (&facts.version.catalog, AccessObject::Schema(id));
    !catalog.schemas.contains_key(&id)
        || facts.role.owns(catalog, &object)
        || !facts.role.privileges(catalog, &object, AccessKind::Schema).is_empty()
}
