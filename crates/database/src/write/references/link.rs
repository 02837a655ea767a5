//! A foreign key between two tables as a transaction has them.

use super::convert::{Reverse, convert, reverse};
use super::parents::Parents;
use super::pending::{Loss, Lost};
use crate::Patience;
use crate::catalog::state::DatabaseState;
use crate::text::{TextSettings, TextWriter};
use crate::write::index::value_text;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tidepool_base::{Error, Part, Result, RowId, SqlState, SqlType, Subject, TableId};
use tidepool_index::key::KeyValue;
use tidepool_table::rows::{RowRef, RowStore};
use tidepool_table::{
    BATCH_ROWS, ForeignKeyDef, RowGroup, ScanRequest, Table, TableDef, TableIndex, TableScan, TableVersion, key_value,
};
use tidepool_txn::{HeldSnapshot, View};

/// Rows that a scan reads in the time in which one key is looked up in an index.
const SCANNED_PER_LOOK_UP: u64 = 40;

/// An index is not used when more than one in so many rows would be found by it.
const SHARE_MAX: u64 = 4;

/// Keys that are remembered as found, so as not to be looked up again.
pub(super) const KEYS_KNOWN_MAX: usize = 1 << 18;

pub(super) struct Link {
    pub key: ForeignKeyDef,
    pub child: Arc<Table>,
    /// Those that have the child's rows: itself, or if it is partitioned its leaves, by ordinal.
    pub leaves: Vec<Arc<Table>>,
    pub parent: Arc<Table>,
    /// The parent's. Keys are its; those of leaves' indexes are the same.
    pub index: Arc<TableIndex>,
    pub(super) parents: Parents,
    /// Of the child's schema, for messages.
    pub schema: String,
    /// Positions of the child's columns, in the order in which the foreign key names them.
    pub positions: Vec<usize>,
    /// Their types, and those of the columns that they refer to.
    types: Vec<(SqlType, SqlType)>,
    /// Of each of the index's columns its place in that order.
    places: Vec<usize>,
}

/// Takes rows of one of the child's leaves, by its place among them, each with the number of the key that it refers to.
pub(super) type TakeChildren<'a> = &'a mut dyn FnMut(usize, &[(RowId, usize)]) -> Result<()>;

/// Takes a row of arrays, which are the foreign key's columns, with what it refers to, and the key if it is one. Whether
/// other rows with the same key may be passed over.
pub(super) type TakeReference<'a> = &'a mut dyn FnMut(&[ArrayRef], usize, Reference, &[u8]) -> Result<bool>;

/// What a row refers to. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// It has NULLs, and so refers to nothing.
    Nothing,
    /// Of its columns some are NULL, but not all, which `MATCH FULL` forbids.
    Mixed,
    /// To a value that the referenced column's type does not have.
    Nowhere,
    Key,
}

impl Link {
    /// `leaves`: the child's. The parent's are opened as they are needed.
    pub fn new(
        state: &DatabaseState,
        key: &ForeignKeyDef,
        child: &Arc<Table>,
        leaves: Vec<Arc<Table>>,
        parent: &Arc<Table>,
    ) -> Result<Link> {
        let broken = || Error::internal(format!("foreign key \"{}\" does not fit its tables", key.name));
        let index = parent.index(key.index).ok_or_else(broken)?.clone();
        let positions = child.def.positions(&key.columns);
        let referenced = parent.def.positions(&key.referenced_columns);
        let places: Vec<usize> = (index.positions().iter())
            .filter_map(|position| referenced.iter().position(|known| known == position))
            .collect();
        let columns = key.columns.len();
        if [positions.len(), referenced.len(), index.positions().len(), places.len()] != [columns; 4] {
            return Err(broken());
        }
        let sql_type =
            |(from, to): (&usize, &usize)| (child.def.columns[*from].sql_type, parent.def.columns[*to].sql_type);
        let types = positions.iter().zip(&referenced).map(sql_type).collect();
        Ok(Link {
            key: key.clone(),
            child: child.clone(),
            leaves,
            parent: parent.clone(),
            parents: Parents::of(state, parent, &index)?,
            index,
            schema: state.schema_name(child.def.schema).to_owned(),
            positions,
            types,
            places,
        })
    }

    pub fn has_same_types(&self) -> bool {
        self.types.iter().all(|(from, to)| from == to)
    }

    /// What a row of arrays, which are the foreign key's columns, refers to: its key is put into `key`.
    pub fn reference(&self, columns: &[ArrayRef], row: usize, key: &mut Vec<u8>) -> Result<Reference> {
        let nulls = columns.iter().filter(|column| column.is_null(row)).count();
        if nulls > 0 {
            let refuses = self.key.match_full && nulls < columns.len();
            return Ok(if refuses { Reference::Mixed } else { Reference::Nothing });
        }
        key.clear();
        for (at, place) in self.places.iter().enumerate() {
            let (from, to) = self.types[*place];
            let value = key_value(from, &columns[*place], row)?;
            let Some(value) = convert(value, from, to) else { return Ok(Reference::Nowhere) };
            self.index.codec().push(at, &value, key)?;
        }
        Ok(if key.len() > tidepool_index::KEY_BYTES_MAX { Reference::Nowhere } else { Reference::Key })
    }

    /// Whether a view's version of a row of one of the child's leaves refers to `key`.
    pub fn refers(&self, leaf: usize, view: &View, row: RowId, key: &[u8]) -> Result<bool> {
        let (found, columns) = read_columns(&self.leaves[leaf].rows, view, &[row], &self.positions)?;
        let mut own = Vec::new();
        Ok(!found.is_empty() && self.reference(&columns, 0, &mut own)? == Reference::Key && own == key)
    }

    /// Finds the child's rows that refer to one of `keys`, as the view sees them. `found` is given them in parts, each row
    /// with its key's number, and ends the search by an error.
    pub fn children(
        &self,
        view: &Arc<HeldSnapshot>,
        keys: &HashMap<Vec<u8>, usize>,
        patience: &dyn Patience,
        found: TakeChildren<'_>,
    ) -> Result<()> {
        for leaf in 0..self.leaves.len() {
            patience.check()?;
            self.children_in(leaf, view, keys, patience, found)?;
        }
        Ok(())
    }

    fn children_in(
        &self,
        leaf: usize,
        view: &Arc<HeldSnapshot>,
        keys: &HashMap<Vec<u8>, usize>,
        patience: &dyn Patience,
        found: TakeChildren<'_>,
    ) -> Result<()> {
        let table = &self.leaves[leaf];
        let version = Arc::new(TableVersion::of(table, view));
        let mut projection = self.positions.clone();
        // The rows' ids.
        projection.push(table.def.columns.len());
        let request = ScanRequest {
            projection,
            filters: Vec::new(),
            dynamic: None,
            limit: None,
            batch_rows: BATCH_ROWS,
            forms: Vec::new(),
        };
        let scan = match self.candidates(table, &version, keys)? {
            Some(rows) => TableScan::picked(version, request, &rows),
            None => TableScan::new(version, request),
        };
        let mut reader = scan.reader();
        let (mut key, mut matches) = (Vec::new(), Vec::new());
        while let Some(batch) = reader.next_batch()? {
            patience.check()?;
            let (ids, columns) =
                batch.columns().split_last().ok_or_else(|| Error::internal("a scan has no columns"))?;
            let ids = ids.as_primitive::<UInt64Type>();
            for row in 0..batch.num_rows() {
                if self.reference(columns, row, &mut key)? == Reference::Key
                    && let Some(number) = keys.get(&key)
                {
                    matches.push((RowId(ids.value(row)), *number));
                }
            }
            if !matches.is_empty() {
                found(leaf, &matches)?;
                matches.clear();
            }
        }
        Ok(())
    }

    /// Looks at all rows of one of the child's leaves as a version shows them.
    pub fn each_reference(
        &self,
        version: &Arc<TableVersion>,
        interrupted: &dyn Fn() -> Result<()>,
        take: TakeReference<'_>,
    ) -> Result<()> {
        let request = ScanRequest {
            projection: self.positions.clone(),
            filters: Vec::new(),
            dynamic: None,
            limit: None,
            batch_rows: BATCH_ROWS,
            forms: Vec::new(),
        };
        let mut reader = TableScan::new(version.clone(), request).reader();
        let (mut key, mut known) = (Vec::new(), HashSet::new());
        while let Some(batch) = reader.next_batch()? {
            interrupted()?;
            for row in 0..batch.num_rows() {
                let reference = self.reference(batch.columns(), row, &mut key)?;
                if reference == Reference::Key && known.contains(&key) {
                    continue;
                }
                if take(batch.columns(), row, reference, &key)? && reference == Reference::Key {
                    if known.len() == KEYS_KNOWN_MAX {
                        known.clear();
                    }
                    known.insert(key.clone());
                }
            }
        }
        Ok(())
    }

    /// As `each_reference`; all of the parent's leaves are open. `orphan` is told, as the error that it is, of each row that
    /// refers to nothing, and ends that by an error.
    pub fn each_orphan(
        &self,
        version: &Arc<TableVersion>,
        interrupted: &dyn Fn() -> Result<()>,
        orphan: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        self.each_reference(version, interrupted, &mut |columns, row, reference, key| match reference {
            Reference::Nothing => Ok(false),
            Reference::Mixed => orphan(self.mixed()).map(|()| false),
            Reference::Key if self.referenced(version.view(), key)?.is_some() => Ok(true),
            Reference::Nowhere | Reference::Key => orphan(self.not_present(columns, row)?).map(|()| false),
        })
    }

    /// Rows among which are all that refer to one of `keys`, through an index of the leaf. `None`: a scan costs less.
    fn candidates(
        &self,
        leaf: &Table,
        version: &TableVersion,
        keys: &HashMap<Vec<u8>, usize>,
    ) -> Result<Option<Vec<RowId>>> {
        let rows_max = version.rows_max();
        if keys.len() as u64 * SCANNED_PER_LOOK_UP > rows_max {
            return Ok(None);
        }
        // Of an index's first columns those that the foreign key has.
        let leading = |index: &TableIndex| {
            let columns = index.positions().iter();
            columns.map_while(|column| self.positions.iter().position(|known| known == column)).collect::<Vec<usize>>()
        };
        let usable = leaf.indexes().iter().filter(|index| index.is_complete_for(version.view()));
        let best = usable.map(|index| (leading(index), index)).max_by_key(|(leading, _)| leading.len());
        let Some((leading, index)) = best.filter(|(leading, _)| !leading.is_empty()) else { return Ok(None) };
        let mut rows = Vec::new();
        'keys: for key in keys.keys() {
            let values = self.values(key)?;
            let mut wanted: Vec<KeyValue<'_>> = Vec::with_capacity(leading.len());
            for place in &leading {
                let (from, to) = self.types[*place];
                match reverse(values[*place].clone(), from, to) {
                    Reverse::Value(value) => wanted.push(value),
                    Reverse::Nothing => continue 'keys,
                    Reverse::Several => return Ok(None),
                }
            }
            rows.append(&mut index.candidates(version.view(), &wanted)?);
            if rows.len() as u64 * SHARE_MAX > rows_max {
                return Ok(None);
            }
        }
        rows.sort_unstable();
        rows.dedup();
        Ok(Some(rows))
    }

    /// The values of a key, in the order in which the foreign key names its columns.
    fn values(&self, key: &[u8]) -> Result<Vec<KeyValue<'static>>> {
        let mut values = vec![KeyValue::Null; self.places.len()];
        for (value, place) in self.index.codec().decode(key)?.into_iter().zip(&self.places) {
            values[*place] = value;
        }
        Ok(values)
    }

    fn violation(&self, message: String, constraint: &str) -> Error {
        Error::new(SqlState::FOREIGN_KEY_VIOLATION, message).with_subject(Subject {
            schema: self.schema.clone(),
            table: self.child.def.name.clone(),
            part: Part::Constraint(constraint.to_owned()),
        })
    }

    fn refused(&self) -> Error {
        let Link { key, child, .. } = self;
        let message = format!(
            "insert or update on table \"{}\" violates foreign key constraint \"{}\"",
            child.def.name, key.name
        );
        self.violation(message, &key.name)
    }

    /// 23503 for a row of arrays whose key nobody has.
    pub fn not_present(&self, columns: &[ArrayRef], row: usize) -> Result<Error> {
        let key = self.row_text(columns, row)?;
        Ok(self.refused().with_detail(format!("Key {key} is not present in table \"{}\".", self.parent.def.name)))
    }

    /// 23503 for a row of arrays whose key is in a partition that is to leave the parent.
    pub fn removed(&self, partition: &TableDef, columns: &[ArrayRef], row: usize) -> Result<Error> {
        let constraint = self.part_name(partition.id);
        let message =
            format!("removing partition \"{}\" violates foreign key constraint \"{constraint}\"", partition.name);
        let key = self.row_text(columns, row)?;
        let detail = format!("Key {key} is still referenced from table \"{}\".", self.child.def.name);
        Ok(self.violation(message, constraint).with_detail(detail))
    }

    /// A row's columns and what is in them, each in parentheses.
    fn row_text(&self, columns: &[ArrayRef], row: usize) -> Result<String> {
        let settings = TextSettings::default();
        let mut texts = Vec::with_capacity(columns.len());
        for (column, (sql_type, _)) in columns.iter().zip(&self.types) {
            let mut text = Vec::new();
            TextWriter::new(column, *sql_type, &settings)?.write(row, &mut text);
            texts.push(String::from_utf8_lossy(&text).into_owned());
        }
        let names: Vec<&str> =
            self.positions.iter().map(|position| self.child.def.columns[*position].name.as_str()).collect();
        Ok(format!("({})=({})", names.join(", "), texts.join(", ")))
    }

    /// 23503 for a row of which some columns are NULL.
    pub fn mixed(&self) -> Error {
        self.refused().with_detail("MATCH FULL does not allow mixing of null and nonnull key values.")
    }

    /// What the foreign key is called as far as it refers to a partition of the parent's.
    fn part_name(&self, partition: TableId) -> &str {
        let part = self.key.referenced_parts.iter().find(|part| part.referenced == partition);
        part.map_or(&self.key.name, |part| &part.name)
    }

    /// 23503 for a key that somebody refers to.
    pub fn still_referenced(&self, state: &DatabaseState, lost: &Lost) -> Result<Error> {
        let Link { key: def, child, parent, .. } = self;
        let names = parent.def.positions(&def.referenced_columns).into_iter();
        let names: Vec<&str> = names.map(|position| parent.def.columns[position].name.as_str()).collect();
        let values = self.values(&lost.key)?;
        let texts = (values.iter().zip(&self.types))
            .map(|(value, (_, sql_type))| value_text(value, *sql_type))
            .collect::<Result<Vec<_>>>()?;
        // A row that moved was the whole table's.
        let leaf = state.table_of_id(lost.place.0).filter(|_| lost.loss != Loss::Moved);
        let of = leaf.unwrap_or(parent);
        let constraint = self.part_name(of.def.id);
        let error = self.violation(
            format!(
                "update or delete on table \"{}\" violates foreign key constraint \"{constraint}\" on table \"{}\"",
                of.def.name, child.def.name
            ),
            constraint,
        );
        Ok(error.with_detail(format!(
            "Key ({})=({}) is still referenced from table \"{}\".",
            names.join(", "),
            texts.join(", "),
            child.def.name
        )))
    }
}

/// Of a row group, each with its row.
type Positions = Vec<(u32, RowId)>;

/// Columns of rows as a view sees them, those that are not there left out. In any order, which the ids tell.
pub(super) fn read_columns(
    rows: &RowStore,
    view: &View,
    ids: &[RowId],
    columns: &[usize],
) -> Result<(Vec<RowId>, Vec<ArrayRef>)> {
    let (mut images, mut found) = (Vec::new(), Vec::new());
    // Row groups, each with positions in ascending order.
    let mut groups: Vec<(&Arc<RowGroup>, Positions)> = Vec::new();
    for id in ids {
        match rows.read(view, *id) {
            None => {}
            Some(RowRef::Version(image)) => {
                images.push(image);
                found.push(*id);
            }
            Some(RowRef::Main { group, position }) => {
                let of_group = (position as u32, *id);
                match groups.iter_mut().rev().find(|(known, _)| Arc::ptr_eq(known, group)) {
                    Some((_, positions)) => positions.push(of_group),
                    None => groups.push((group, vec![of_group])),
                }
            }
        }
    }
    let mut parts: Vec<Vec<ArrayRef>> = columns.iter().map(|_| Vec::with_capacity(1 + groups.len())).collect();
    if !images.is_empty() || groups.is_empty() {
        for (part, column) in parts.iter_mut().zip(rows.layout().decode(&images, columns)?) {
            part.push(column);
        }
    }
    for (group, mut positions) in groups {
        positions.sort_unstable();
        found.extend(positions.iter().map(|(_, id)| *id));
        let positions: Vec<u32> = positions.into_iter().map(|(position, _)| position).collect();
        for (part, column) in parts.iter_mut().zip(columns) {
            part.push(group.segments()[*column].take(&positions)?);
        }
    }
    let one = |part: Vec<ArrayRef>| match part.as_slice() {
        [one] => Ok(one.clone()),
        several => {
            let several: Vec<&dyn Array> = several.iter().map(AsRef::as_ref).collect();
            arrow_select::concat::concat(&several).map_err(|error| Error::internal(error.to_string()))
        }
    };
    Ok((found, parts.into_iter().map(one).collect::<Result<_>>()?))
}
