//! SQL types at the edges of a plan: declared types to Arrow, result fields to PostgreSQL's oids.

/// Field metadata key that overrides the PostgreSQL type oid a result column is described with, as decimal text. For
/// types that no table column can have (`oid`, `name`, `int4[]`). The Arrow type must fit the type's wire form.
pub const TYPE_OID_METADATA: &str = "tidepool.oid";
