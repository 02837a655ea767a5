//! Which values follow from others, by keys of tables.
//!
//! Rows in which a table's unique columns are equal come of one row of that table, so that all of its columns are equal in them, and
//! so are columns that joins hold equal to one of those. Groups by some columns are then groups by those from which the others follow
//! ("functional dependency": Simmen, Shekita, Malkemus, *Fundamental Techniques for Order Optimization*, SIGMOD 1996).

use crate::expr::{Expr, Node};
use crate::join::{Join, JoinKind};
use crate::plan::{Op, Plan};
use crate::scan::ScanSource;
use crate::types::Class;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_table::IndexDef;

/// A column of a scan's table.
type Origin = (*const ScanSource, usize);

/// What is known of the rows of a plan.
#[derive(Default)]
struct Known {
    /// Columns that are equal where they are not both NULL.
    equal: Vec<(Origin, Origin)>,
    /// Scans, and sets of their columns that no two rows have in common. None of them is NULL.
    unique: Vec<(*const ScanSource, Vec<usize>)>,
}

/// Of some expressions over a plan's columns, those that follow from the others. Never all of them; of text rather than of others.
pub fn determined(plan: &Plan, exprs: &[Expr]) -> Vec<bool> {
    let mut is_determined = vec![false; exprs.len()];
    if exprs.len() < 2 {
        return is_determined;
    }
    let mut known = Known::default();
    known.gather(plan);
    if known.unique.is_empty() {
        return is_determined;
    }
    let origins: Vec<Option<Vec<Origin>>> = exprs.iter().map(|expr| origins(plan, expr)).collect();
    // What only a column itself tells.
    let told = |index: usize| match (&exprs[index].node, &origins[index]) {
        (Node::Column(_), Some(origins)) => origins.first().copied(),
        _ => None,
    };
    let mut order: Vec<usize> = (0..exprs.len()).collect();
    order.sort_by_key(|index| exprs[*index].class() != Class::Text);
    for index in order {
        let Some(wanted) = origins[index].as_ref().filter(|wanted| !wanted.is_empty()) else { continue };
        let others = (0..exprs.len()).filter(|other| *other != index && !is_determined[*other]);
        let closure = known.closure(others.filter_map(told).collect());
        is_determined[index] = wanted.iter().all(|origin| closure.has(*origin));
    }
    is_determined
}

/// All columns of tables that an expression is computed of. `None` where one comes of something else.
fn origins(plan: &Plan, expr: &Expr) -> Option<Vec<Origin>> {
    let mut columns = BTreeSet::new();
    expr.columns_into(&mut columns);
    columns.into_iter().map(|column| origin(plan, column)).collect()
}

/// The column that a plan's column is, row by row; NULL where an outer join has no row of it.
fn origin(plan: &Plan, column: usize) -> Option<Origin> {
    let input = |index: usize, column: usize| plan.inputs.get(index).and_then(|input| origin(input, column));
    match &plan.op {
        Op::Scan(scan) => Some((Arc::as_ptr(scan), scan.columns.get(column)?.column)),
        Op::Filter(_) | Op::Sort { .. } | Op::Limit { .. } | Op::Subqueries(_) => input(0, column),
        Op::Project(outputs) => match outputs.get(column)?.node {
            Node::Column(inner) => input(0, inner),
            _ => None,
        },
        Op::Aggregate(aggregate) => input(0, *aggregate.keys.get(column)?),
        Op::Window(window) => input(0, *window.output.get(column)?),
        Op::Join(join) => {
            let of_probe = if join.kind.emits_probe() { join.probe_output.len() } else { 0 };
            match column.checked_sub(of_probe) {
                None => input(0, join.probe_output[column]),
                Some(_) if join.kind.tests_probe() => None,
                Some(column) => input(1, *join.build_output.get(column)?),
            }
        }
        Op::Input(_) | Op::Chunks(_) | Op::GroupingSets(_) | Op::Union | Op::Common(_) => None,
    }
}

/// Sets of a scan's table's columns that no two rows have in common, and none of which is NULL.
fn unique_columns(scan: &ScanSource) -> Vec<Vec<usize>> {
    // Partitions' keys are each its own.
    let [part] = scan.parts.as_slice() else { return Vec::new() };
    let def = &part.version.def;
    let columns = |index: &IndexDef| {
        let numbers: Vec<u16> = index.columns.iter().map(|column| column.number).collect();
        let columns = def.positions(&numbers);
        let are_there = columns.iter().all(|column| !def.columns[*column].nullable);
        (columns.len() == numbers.len() && are_there).then_some(columns)
    };
    def.indexes.iter().filter(|index| index.unique && !index.building).filter_map(columns).collect()
}

/// What was found out of parts of one plan, which stays as it is meanwhile. A join asks its sides for itself and for what is above it:
/// without a memory of it, that doubles with each join.
#[derive(Default)]
pub(crate) struct Uniqueness {
    known: HashMap<(*const Plan, Vec<usize>), bool>,
}

impl Uniqueness {
    /// Whether no two rows of a plan have all of these columns in common, as far as is known. NULL equals NULL.
    pub fn is_unique(&mut self, plan: &Plan, columns: &[usize]) -> bool {
        let asked = (std::ptr::from_ref(plan), columns.to_vec());
        if let Some(known) = self.known.get(&asked) {
            return *known;
        }
        let is_unique = self.find(plan, columns);
        self.known.insert(asked, is_unique);
        is_unique
    }

    fn find(&mut self, plan: &Plan, columns: &[usize]) -> bool {
        match &plan.op {
            Op::Scan(scan) => {
                let has = |wanted: &usize| columns.iter().any(|column| scan.columns[*column].column == *wanted);
                unique_columns(scan).iter().any(|unique| unique.iter().all(has))
            }
            Op::Filter(_) | Op::Sort { .. } | Op::Limit { .. } | Op::Subqueries(_) => {
                self.through(plan, 0, columns, &Some)
            }
            Op::Project(outputs) => self.through(plan, 0, columns, &|column| outputs[column].as_column()),
            Op::Window(window) => self.through(plan, 0, columns, &|column| window.output.get(column).copied()),
            Op::Aggregate(aggregate) => (0..aggregate.keys.len()).all(|key| columns.contains(&key)),
            Op::Join(join) => {
                use JoinKind::{Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightSemi};
                let of_probe = if join.kind.emits_probe() { join.probe_output.len() } else { 0 };
                let in_probe = |column: usize| join.probe_output.get(column).copied().filter(|_| column < of_probe);
                let in_build = |column: usize| join.build_output.get(column.checked_sub(of_probe)?).copied();
                let by_probe = |known: &mut Uniqueness| known.through(plan, 0, columns, &in_probe);
                let by_build = |known: &mut Uniqueness| known.through(plan, 1, columns, &in_build);
                match join.kind {
                    LeftSemi | LeftAnti | LeftMark => by_probe(self),
                    RightSemi | RightAnti => by_build(self),
                    Inner => {
                        self.matches_once(plan, join) && by_probe(self)
                            || self.is_matched_once(plan, join) && by_build(self)
                    }
                    Left => self.matches_once(plan, join) && by_probe(self),
                    Right => self.is_matched_once(plan, join) && by_build(self),
                    Full => false,
                }
            }
            Op::Input(_) | Op::Chunks(_) | Op::GroupingSets(_) | Op::Union | Op::Common(_) => false,
        }
    }

    /// Of those columns that an input has.
    fn through(
        &mut self,
        plan: &Plan,
        input: usize,
        columns: &[usize],
        place: &dyn Fn(usize) -> Option<usize>,
    ) -> bool {
        let columns: Vec<usize> = columns.iter().filter_map(|column| place(*column)).collect();
        plan.inputs.get(input).is_some_and(|input| self.is_unique(input, &columns))
    }

    /// Whether a row of a join's probe side matches no more than one of its build side.
    pub fn matches_once(&mut self, plan: &Plan, join: &Join) -> bool {
        let keys: Vec<usize> = join.keys.iter().map(|key| key.build).collect();
        plan.inputs.get(1).is_some_and(|build| self.is_unique(build, &keys))
    }

    /// Whether a row of a join's build side matches no more than one of its probe side.
    pub fn is_matched_once(&mut self, plan: &Plan, join: &Join) -> bool {
        let keys: Vec<usize> = join.keys.iter().map(|key| key.probe).collect();
        plan.inputs.first().is_some_and(|probe| self.is_unique(probe, &keys))
    }
}

impl Known {
    fn gather(&mut self, plan: &Plan) {
        match &plan.op {
            Op::Scan(scan) => {
                self.unique.extend(unique_columns(scan).into_iter().map(|columns| (Arc::as_ptr(scan), columns)));
            }
            Op::Join(join) if join.kind == JoinKind::Inner => {
                let [probe, build] = plan.inputs.as_slice() else { return };
                for key in join.keys.iter().filter(|key| !key.nulls_equal) {
                    self.equal.extend(origin(probe, key.probe).zip(origin(build, key.build)));
                }
            }
            _ => {}
        }
        plan.inputs.iter().for_each(|input| self.gather(input));
    }

    fn closure(&self, told: HashSet<Origin>) -> Closure {
        let mut closure = Closure { columns: told, scans: HashSet::new() };
        loop {
            let before = (closure.columns.len(), closure.scans.len());
            for (a, b) in &self.equal {
                if closure.has(*a) {
                    closure.columns.insert(*b);
                } else if closure.has(*b) {
                    closure.columns.insert(*a);
                }
            }
            for (scan, columns) in &self.unique {
                if columns.iter().all(|column| closure.columns.contains(&(*scan, *column))) {
                    closure.scans.insert(*scan);
                }
            }
            if before == (closure.columns.len(), closure.scans.len()) {
                return closure;
            }
        }
    }
}

/// Columns whose values follow from some columns'.
struct Closure {
    columns: HashSet<Origin>,
    /// All of whose columns do.
    scans: HashSet<*const ScanSource>,
}

impl Closure {
    fn has(&self, origin: Origin) -> bool {
        self.scans.contains(&origin.0) || self.columns.contains(&origin)
    }
}
