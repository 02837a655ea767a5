//! Comments on objects, as `pg_description`, `pg_shdescription` and their functions show them.

use super::objects::{DATABASE, PG_CATALOG, PG_CLASS, PUBLIC, tablespace_oid};
use super::{relations, tidepool};
use crate::facts::SessionFacts;
use tidepool_base::{SchemaId, TableId};
use tidepool_database::Commented;

pub const PG_NAMESPACE: u32 = 2615;
pub const PG_CONSTRAINT: u32 = 2606;
pub const PG_DATABASE: u32 = 1262;
pub const PG_TABLESPACE: u32 = 1213;

/// The object, the catalogue that it is in, the column of it or zero, and the text.
type Description = (u32, u32, u16, String);

/// Of objects of the database.
pub fn all(facts: &SessionFacts) -> Vec<Description> {
    let mut all: Vec<Description> = Vec::new();
    let own = relations::all().iter().filter(|relation| relation.schema == "tidepool");
    all.extend(own.map(|relation| (relation.oid, PG_CLASS, 0, tidepool::description(relation.name).to_owned())));
    let comments = &facts.version.catalog.comments;
    if !comments.contains_key(&Commented::Schema(SchemaId::PUBLIC)) {
        all.push((PUBLIC, PG_NAMESPACE, 0, "standard public schema".to_owned()));
    }
    all.push((PG_CATALOG, PG_NAMESPACE, 0, "system catalog schema".to_owned()));
    for (about, text) in facts.version.comments(facts.planner.database()) {
        let (object, class, part) = match about {
            Commented::Relation(id) => (id.0, PG_CLASS, 0),
            Commented::Column(id, number) => (id.0, PG_CLASS, *number),
            Commented::Constraint(oid) => (*oid, PG_CONSTRAINT, 0),
            Commented::Schema(id) => (id.0, PG_NAMESPACE, 0),
            Commented::Database | Commented::Tablespace(_) => continue,
        };
        all.push((object, class, part, text.to_string()));
    }
    all
}

/// Of objects that databases share.
pub fn shared(facts: &SessionFacts) -> Vec<Description> {
    let of = |(about, text): (&Commented, &std::sync::Arc<str>)| match about {
        Commented::Database => Some((DATABASE, PG_DATABASE, 0, text.to_string())),
        Commented::Tablespace(name) => {
            let space = facts.planner.database().tablespaces().get(name).ok()?;
            Some((tablespace_oid(space.id()), PG_TABLESPACE, 0, text.to_string()))
        }
        _ => None,
    };
    facts.version.comments(facts.planner.database()).filter_map(of).collect()
}

/// What `obj_description` and `shobj_description` give; of any catalogue without `class`.
pub fn of_object(facts: &SessionFacts, object: u32, class: Option<&str>) -> Option<String> {
    let class = match class {
        None => None,
        Some("pg_class") => Some(PG_CLASS),
        Some("pg_namespace") => Some(PG_NAMESPACE),
        Some("pg_constraint") => Some(PG_CONSTRAINT),
        Some(_) => return None,
    };
    let is_it = |of: &Description| of.0 == object && of.2 == 0 && class.is_none_or(|class| class == of.1);
    all(facts).into_iter().find(is_it).map(|(.., text)| text)
}

pub fn of_shared(facts: &SessionFacts, object: u32, class: &str) -> Option<String> {
    let class = match class {
        "pg_database" => PG_DATABASE,
        "pg_tablespace" => PG_TABLESPACE,
        _ => return None,
    };
    shared(facts).into_iter().find(|of| of.0 == object && of.1 == class).map(|(.., text)| text)
}

pub fn of_column(facts: &SessionFacts, relation: u32, number: i64) -> Option<String> {
    let about = Commented::Column(TableId(relation), u16::try_from(number).ok()?);
    facts.version.catalog.comments.get(&about).map(|text| text.to_string())
}
