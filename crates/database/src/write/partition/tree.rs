//! What the partitions of a partitioned table are, all the way down.

use super::error;
use crate::text::{TextReader, TextSettings};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_select::take::take;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlType, TableId};
use tidepool_index::key::KeyValue;
use tidepool_table::{ColumnFilter, PartitionMap, Table, TableDef};

/// Finds tables by their ids.
type Tables<'f, 't> = &'f dyn Fn(TableId) -> Option<&'t Arc<Table>>;

/// No leaf.
const NONE: u32 = u32::MAX;

/// The partitions of one partitioned table, as one state of the database has them.
#[derive(Debug)]
pub struct PartitionTree {
    /// Tables by ordinal.
    leaves: Vec<TableId>,
    root: Node,
}

#[derive(Debug)]
struct Node {
    def: Arc<TableDef>,
    map: PartitionMap,
    /// By place.
    children: Vec<Child>,
}

#[derive(Debug)]
enum Child {
    Leaf(usize),
    Inner(Box<Node>),
}

/// Trees that were made of one state, each when it was asked for first.
#[derive(Debug, Default)]
pub(crate) struct PartitionTrees(Mutex<BTreeMap<TableId, Arc<PartitionTree>>>);

/// A value of a bound, as the catalogue has it.
pub(super) fn read_text(sql_type: SqlType, text: &str) -> Result<ArrayRef> {
    let mut reader = TextReader::new(sql_type, &TextSettings::default());
    reader.append(text)?;
    Ok(reader.finish())
}

impl PartitionTrees {
    /// Of a table, whose partitions `table` finds by their ids; `None` for one that is not partitioned.
    pub(super) fn tree<'t>(&self, def: &Arc<TableDef>, table: Tables<'_, 't>) -> Result<Option<Arc<PartitionTree>>> {
        if def.partitioning.is_none() {
            return Ok(None);
        }
        if let Some(known) = self.0.lock().get(&def.id)
            && known.root.def == *def
        {
            return Ok(Some(known.clone()));
        }
        let mut leaves = Vec::new();
        let root = Node::new(table, def, &mut leaves)?;
        let tree = Arc::new(PartitionTree { leaves, root });
        self.0.lock().insert(def.id, tree.clone());
        Ok(Some(tree))
    }
}

impl Node {
    fn new(tables: Tables<'_, '_>, def: &Arc<TableDef>, leaves: &mut Vec<TableId>) -> Result<Node> {
        let partitioning = def.partitioning.as_ref().ok_or_else(|| Error::internal("a table is not partitioned"))?;
        let map = PartitionMap::new(def, partitioning, &read_text)?;
        let mut children: Vec<Option<Child>> = (0..map.len()).map(|_| None).collect();
        for place in map.in_order() {
            let id = partitioning.partitions[place].id;
            let table = tables(id).ok_or_else(|| Error::internal("a partition is gone"))?;
            children[place] = Some(match table.def.partitioning {
                Some(_) => Child::Inner(Box::new(Node::new(tables, &table.def, leaves)?)),
                None => {
                    leaves.push(id);
                    Child::Leaf(leaves.len() - 1)
                }
            });
        }
        let children = children.into_iter().collect::<Option<Vec<_>>>();
        let children = children.ok_or_else(|| Error::internal("a partition has no place among the others"))?;
        Ok(Node { def: def.clone(), map, children })
    }

    fn nodes(&self, found: &mut Vec<TableId>) {
        found.push(self.def.id);
        for child in &self.children {
            if let Child::Inner(inner) = child {
                inner.nodes(found);
            }
        }
    }

    fn keep(&self, filters: &[ColumnFilter], kept: &mut Vec<usize>) {
        let wanted = self.map.prune(filters);
        for place in self.map.in_order().into_iter().filter(|place| wanted[*place]) {
            match &self.children[place] {
                Child::Leaf(ordinal) => kept.push(*ordinal),
                Child::Inner(node) => node.keep(filters, kept),
            }
        }
    }

    fn key(&self, columns: &[ArrayRef]) -> Vec<ArrayRef> {
        self.map.positions().iter().map(|position| columns[*position].clone()).collect()
    }

    /// Ordinals of rows, all of them or those at some places; and the first row that belongs nowhere, with the table
    /// that has no partition for it.
    fn route<'n>(
        &'n self,
        columns: &[ArrayRef],
        among: Option<&[u32]>,
        ordinals: &mut [u32],
        lost: &mut Option<(usize, &'n Node)>,
    ) -> Result<()> {
        let mut key = self.key(columns);
        if let Some(among) = among {
            let among = arrow_array::UInt32Array::from(among.to_vec());
            for column in &mut key {
                *column = take(column, &among, None).map_err(|error| Error::internal(error.to_string()))?;
            }
        }
        let count = among.map_or(ordinals.len(), <[u32]>::len);
        let row_at = |index: usize| among.map_or(index, |among| among[index] as usize);
        let mut inner: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (index, place) in self.map.route(&key, count)?.into_iter().enumerate() {
            let row = row_at(index);
            match place.map(|place| (place, &self.children[place])) {
                Some((_, Child::Leaf(ordinal))) => ordinals[row] = *ordinal as u32,
                Some((place, Child::Inner(_))) => inner.entry(place).or_default().push(row as u32),
                None if lost.as_ref().is_none_or(|(first, _)| row < *first) => *lost = Some((row, self)),
                None => {}
            }
        }
        for (place, rows) in inner {
            if let Child::Inner(node) = &self.children[place] {
                node.route(columns, Some(&rows), ordinals, lost)?;
            }
        }
        Ok(())
    }
}

impl PartitionTree {
    /// The partitioned table.
    pub fn table(&self) -> TableId {
        self.root.def.id
    }

    /// Tables that have the rows, by ordinal.
    pub fn leaves(&self) -> &[TableId] {
        &self.leaves
    }

    /// The partitioned table and the partitioned tables among its partitions, each before those within it.
    pub fn nodes(&self) -> Vec<TableId> {
        let mut nodes = Vec::new();
        self.root.nodes(&mut nodes);
        nodes
    }

    /// The ordinal of the leaf for a row of which `value_at` knows the partition keys' columns, by position. `None` where
    /// there is none.
    pub fn leaf_of<'v>(&self, value_at: &dyn Fn(usize) -> Option<KeyValue<'v>>) -> Result<Option<usize>> {
        let mut node = &self.root;
        loop {
            let values = node.map.positions().iter().map(|position| value_at(*position)).collect::<Option<Vec<_>>>();
            let values = values.ok_or_else(|| Error::internal("a key has not all columns of a partition key"))?;
            match node.map.place_of(&values)?.map(|place| &node.children[place]) {
                Some(Child::Leaf(ordinal)) => return Ok(Some(*ordinal)),
                Some(Child::Inner(inner)) => node = inner,
                None => return Ok(None),
            }
        }
    }

    /// Ordinals of the leaves that may have rows for which all of the conditions hold, in order.
    pub fn prune(&self, filters: &[ColumnFilter]) -> Vec<usize> {
        let mut kept = Vec::new();
        self.root.keep(filters, &mut kept);
        kept
    }

    /// The ordinal of the leaf that each row of a batch of all columns belongs to. 23514 where there is none.
    pub fn route(&self, batch: &RecordBatch) -> Result<Vec<u32>> {
        let mut ordinals = vec![NONE; batch.num_rows()];
        let mut lost = None;
        self.root.route(batch.columns(), None, &mut ordinals, &mut lost)?;
        match lost {
            None => Ok(ordinals),
            Some((row, node)) => {
                Err(error::no_partition(&node.def, &node.key(batch.columns()), node.map.positions(), row))
            }
        }
    }
}

/// What a row must be like to be in a partition: the bounds of the partition, and of those that it is within.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    /// Each a partitioned table, and a place in it, the nearest first.
    within: Vec<(Arc<PartitionTree>, usize)>,
}

impl Membership {
    /// By the tables that it is within, each with its place there, from the innermost.
    pub(super) fn within(within: Vec<(Arc<PartitionTree>, usize)>) -> Membership {
        Membership { within }
    }

    /// Positions of the columns that decide, of each table that it is within.
    pub fn keys(&self) -> impl Iterator<Item = &[usize]> {
        self.within.iter().map(|(tree, _)| tree.root.map.positions())
    }

    /// Whether rows may be here as far as the table at `level` decides, whose key's columns these are: the first that
    /// may not.
    pub fn stranger_at(&self, level: usize, key: &[ArrayRef], rows: usize) -> Result<Option<usize>> {
        let (tree, place) = &self.within[level];
        let places = tree.root.map.route(key, rows)?;
        Ok(places.iter().position(|found| *found != Some(*place)))
    }

    /// The first row of a batch of all columns that may not be here.
    pub fn stranger(&self, columns: &[ArrayRef], rows: usize) -> Result<Option<usize>> {
        let mut first: Option<usize> = None;
        for (level, (tree, _)) in self.within.iter().enumerate() {
            let row = self.stranger_at(level, &tree.root.key(columns), rows)?;
            first = match (first, row) {
                (Some(first), Some(row)) => Some(first.min(row)),
                (first, row) => first.or(row),
            };
        }
        Ok(first)
    }
}
