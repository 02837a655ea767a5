//! The manifest: which files, tables, tablespaces and roles are in force. Replaced as a whole.
//!
//! The first line is `TIDEPOOL MANIFEST <format> <xxh3 of the rest, hex>`; the rest is JSON.

use super::contents::SavedContents;
use super::log_place::{EarlierLife, SavedLog};
use crate::catalog::comment::Commented;
use crate::catalog::roles::{Access, AccessObject, RoleDef, initial_roles};
use crate::catalog::sequence::{Position, SequenceDef};
use crate::durability::ids::{FIRST_OID, NextIds};
use crate::durability::transaction_ids::SavedTransactionIds;
use crate::{SchemaDef, Sequence, ViewDef};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, RoleId, SchemaId, SqlState, StoreId};
use tidepool_device::{Location, Profile};
use tidepool_log::DatabaseIdentity;
use tidepool_table::{Placement, TableDef};
use tidepool_tablespace::TablespaceConfig;
use xxhash_rust::xxh3::xxh3_64;

const FIRST_WORDS: &str = "TIDEPOOL MANIFEST ";
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub commit_ts: CommitTs,
    pub next_table_id: u32,
    pub next_row_group_id: u64,
    #[serde(default)]
    pub next_store_id: u64,
    pub next_chunk_id: u64,
    /// Whose log it is; `None` in folders from before the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Where the log is; `None` in folders of earlier releases: where the configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<SavedLog>,
    /// Of a database that lives in a pool, and was made anew in another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_lives: Vec<EarlierLife>,
    pub tablespaces: Vec<SavedTablespace>,
    /// Tablespaces of the configuration that were altered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub altered: Vec<SavedAlteration>,
    /// By role, in folders from before roles; now they are the roles'.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub passwords: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleDef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<(AccessObject, Access)>,
    /// `None` in folders from before schemas: `public` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemas: Option<Vec<SavedSchema>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<ViewDef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<SavedSequence>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comments: Vec<(Commented, String)>,
    /// How often file `SEQUENCES` had been written; 0 in folders of earlier releases, where it may be missing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub positions_written: u64,
    /// How often the folder was opened to be written to: the epoch of transactions' ids.
    #[serde(default, skip_serializing_if = "is_none")]
    pub starts: u32,
    #[serde(default, skip_serializing_if = "SavedTransactionIds::is_empty")]
    pub transaction_ids: SavedTransactionIds,
    pub tables: Vec<SavedTable>,
    /// What devices held that row groups lie on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<SavedContents>,
}

/// A sequence, and how far its values may have been given, unless file `SEQUENCES` says more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSequence {
    pub def: SequenceDef,
    pub position: Position,
}

impl SavedSequence {
    pub fn new(sequence: &Sequence) -> SavedSequence {
        SavedSequence { def: sequence.def.clone(), position: sequence.written() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSchema {
    pub id: SchemaId,
    pub name: String,
}

impl SavedSchema {
    pub fn new(schema: &SchemaDef) -> SavedSchema {
        SavedSchema { id: schema.id, name: schema.name.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTablespace {
    pub name: String,
    pub location: String,
    pub size_bytes: Option<u64>,
    pub profile: Option<Profile>,
    /// Of several locations that differ in this: one for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<Option<Profile>>,
    pub huge_pages: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub populate_bytes: u64,
}

/// A tablespace of the configuration that was altered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedAlteration {
    /// What the configuration said when it was.
    pub configured: SavedTablespace,
    pub now: SavedTablespace,
}

fn is_none(starts: &u32) -> bool {
    *starts == 0
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl SavedTablespace {
    pub fn new(config: &TablespaceConfig) -> SavedTablespace {
        SavedTablespace {
            name: config.name.clone(),
            location: config.location.to_string(),
            size_bytes: config.size_bytes,
            profile: config.profile.clone(),
            profiles: config.profiles.clone(),
            huge_pages: config.huge_pages,
            populate_bytes: config.populate_bytes,
        }
    }

    pub fn config(&self) -> Result<TablespaceConfig> {
        Ok(TablespaceConfig {
            name: self.name.clone(),
            location: self.location.parse()?,
            size_bytes: self.size_bytes,
            profile: self.profile.clone(),
            profiles: self.profiles.clone(),
            huge_pages: self.huge_pages,
            populate_bytes: self.populate_bytes,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTable {
    pub def: TableDef,
    pub placement: Placement,
    /// `None` in folders from before rows kept their ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreId>,
    pub row_groups: Vec<SavedFile>,
    pub delta: Vec<SavedFile>,
    /// Where each row group lies in memory, if it stays there (`found.rs`). Empty: none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
    /// As `places`, of the bytes of delta's files, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_place: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedFile {
    pub id: u64,
    pub rows: u64,
    /// Of a row group: the range that delta calls its rows by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<u64>,
}

impl Manifest {
    pub fn new() -> Manifest {
        Manifest {
            commit_ts: CommitTs(0),
            next_table_id: FIRST_OID,
            next_row_group_id: 1,
            next_store_id: 1,
            next_chunk_id: 1,
            identity: None,
            log: None,
            earlier_lives: Vec::new(),
            tablespaces: Vec::new(),
            altered: Vec::new(),
            passwords: BTreeMap::new(),
            roles: Vec::new(),
            access: Vec::new(),
            schemas: None,
            views: Vec::new(),
            sequences: Vec::new(),
            comments: Vec::new(),
            positions_written: 0,
            starts: 0,
            transaction_ids: SavedTransactionIds::default(),
            tables: Vec::new(),
            contents: Vec::new(),
        }
    }

    pub fn set_next_ids(&mut self, next: NextIds) {
        self.next_table_id = next.oid;
        self.next_row_group_id = next.row_group;
        self.next_store_id = next.store;
        self.next_chunk_id = next.chunk;
    }

    pub fn schemas(&self) -> BTreeMap<SchemaId, Arc<SchemaDef>> {
        let schema = |id, name: &str| (id, Arc::new(SchemaDef { id, name: name.to_owned() }));
        match &self.schemas {
            None => [schema(SchemaId::PUBLIC, "public")].into(),
            Some(saved) => saved.iter().map(|saved| schema(saved.id, &saved.name)).collect(),
        }
    }

    pub fn roles(&self) -> BTreeMap<RoleId, Arc<RoleDef>> {
        let password = self.passwords.get("tidepool").cloned();
        let mut roles = initial_roles(password);
        roles.extend(self.roles.iter().map(|role| (role.id, Arc::new(role.clone()))));
        roles
    }

    /// Whose log it is, if there may be one. XX001 when that is no identity.
    pub fn identity(&self) -> Result<Option<DatabaseIdentity>> {
        let Some(text) = &self.identity else { return Ok(None) };
        let identity = DatabaseIdentity::parse(text);
        identity.map(Some).ok_or_else(|| Error::corrupted(format!("\"{text}\" is not a database's identity")))
    }

    /// Has tablespaces elsewhere, by name. 42704 for one that there is not.
    pub fn move_tablespaces(&mut self, spaces: &[(String, Location)]) -> Result<()> {
        for (name, location) in spaces {
            let saved = self.tablespaces.iter_mut().find(|saved| saved.name == *name).ok_or_else(|| {
                Error::new(SqlState::UNDEFINED_OBJECT, format!("the backup has no tablespace \"{name}\""))
                    .with_detail("Those of the configuration are where it says.")
            })?;
            saved.location = location.to_string();
        }
        Ok(())
    }

    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let body = serde_json::to_string_pretty(self)
            .map_err(|error| Error::internal(format!("the manifest cannot be written: {error}")))?;
        Ok(format!("{FIRST_WORDS}{FORMAT} {:016x}\n{body}\n", xxh3_64(format!("{body}\n").as_bytes())).into_bytes())
    }

    /// XX001 when the bytes are damaged, 55000 when they are another version's; the caller adds which file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Manifest> {
        let damaged = |what: &str| Error::corrupted(what.to_owned());
        if !bytes.starts_with(FIRST_WORDS.as_bytes()) {
            return Err(damaged("it is not a manifest of Tidepool's"));
        }
        let line_end = memchr::memchr(b'\n', bytes).ok_or_else(|| damaged("it is truncated"))?;
        let line = std::str::from_utf8(&bytes[FIRST_WORDS.len()..line_end]).map_err(|_| damaged("it is damaged"))?;
        let (format, checksum) = line.split_once(' ').ok_or_else(|| damaged("it is damaged"))?;
        let format: u32 = format.parse().map_err(|_| damaged("it is damaged"))?;
        if format != FORMAT {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("it has format {format}, and this Tidepool reads {FORMAT}"),
            ));
        }
        let body = &bytes[line_end + 1..];
        if u64::from_str_radix(checksum, 16).ok() != Some(xxh3_64(body)) {
            return Err(damaged("its checksum does not match its contents"));
        }
        serde_json::from_slice(body).map_err(|error| damaged(&format!("it cannot be understood: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_base::{SqlType, TableId};
    use tidepool_table::ColumnDef;

    #[test]
    fn a_manifest_from_before_schemas_has_its_tables_in_public() {
        let columns = vec![ColumnDef::new("a", SqlType::Integer), ColumnDef::new("b", SqlType::Text)];
        let placement = Placement { main: "near".into(), delta: "near".into(), columns: BTreeMap::new() };
        let mut manifest = Manifest::new();
        manifest.tables.push(SavedTable {
            def: TableDef::new(TableId(16_384), "t", columns, vec![0]),
            placement,
            store: None,
            row_groups: Vec::new(),
            delta: Vec::new(),
            places: Vec::new(),
            delta_place: None,
        });
        let mut value = serde_json::to_value(&manifest).unwrap();
        assert_eq!(
            value.as_object().unwrap().keys().filter(|key| matches!(key.as_str(), "views" | "schemas")).count(),
            0
        );
        let def = value["tables"][0]["def"].as_object_mut().unwrap();
        def.remove("schema").unwrap();
        def.remove("column_numbers").unwrap();
        for column in def["columns"].as_array_mut().unwrap() {
            column.as_object_mut().unwrap().remove("number").unwrap();
        }
        let mut old: Manifest = serde_json::from_value(value).unwrap();
        assert_eq!(old.schemas().values().map(|schema| schema.name.as_str()).collect::<Vec<_>>(), ["public"]);
        old.tables[0].def.number_columns();
        assert_eq!(old, manifest);
    }
}
