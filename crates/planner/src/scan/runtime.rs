//! Conditions that become known while a plan runs: join keys on a build side, the threshold of a top-N, the extreme so
//! far of a minimum or maximum.
//!
//! They only save work: what they let through wrongly is dropped above. So whatever does not fit the storage's filters
//! is left out, and one that lets most rows through is retired, since it costs more than it saves.

use super::filter::{self, Conjuncts};
use datafusion::arrow::array::BooleanArray;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::{snapshot_generation, snapshot_physical_expr};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidepool_table::{ColumnFilter, FilterSource};

/// Rows a function must have seen before it is judged.
const JUDGED_AFTER_ROWS: u64 = 64 * 1024;

/// A function that lets more than this share of the rows through is retired: looking a key up costs about two thirds
/// of what the join itself would spend on the row.
const KEPT_MAX: f64 = 0.6;

pub struct RuntimeFilters {
    /// Over the scan's output.
    predicates: Vec<Arc<dyn PhysicalExpr>>,
    /// Output column to table column.
    columns: Vec<usize>,
    table: SchemaRef,
    current: Mutex<Current>,
    retired: Arc<AtomicU64>,
}

#[derive(Default)]
struct Current {
    generation: u64,
    filters: Vec<Tracked>,
    residual: Vec<(Arc<dyn PhysicalExpr>, Arc<Effect>)>,
}

#[derive(Clone)]
struct Tracked {
    filter: ColumnFilter,
    /// Functions only; comparisons are too cheap to judge.
    effect: Option<Arc<Effect>>,
}

/// How many of the rows that a function saw it let through.
#[derive(Debug, Default)]
pub struct Effect {
    seen: AtomicU64,
    kept: AtomicU64,
    retired: AtomicBool,
    /// The filter source's count of retirements, so that scans notice.
    retirements: Arc<AtomicU64>,
}

impl Effect {
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    pub fn add(&self, seen: usize, kept: usize) {
        let kept = self.kept.fetch_add(kept as u64, Ordering::Relaxed) + kept as u64;
        let seen = self.seen.fetch_add(seen as u64, Ordering::Relaxed) + seen as u64;
        if seen >= JUDGED_AFTER_ROWS
            && kept as f64 > KEPT_MAX * seen as f64
            && !self.retired.swap(true, Ordering::Relaxed)
        {
            self.retirements.fetch_add(1, Ordering::Release);
        }
    }
}

impl RuntimeFilters {
    pub fn new(predicates: Vec<Arc<dyn PhysicalExpr>>, columns: Vec<usize>, table: SchemaRef) -> RuntimeFilters {
        RuntimeFilters {
            predicates,
            columns,
            table,
            current: Mutex::new(Current { generation: u64::MAX, ..Current::default() }),
            retired: Arc::new(AtomicU64::new(0)),
        }
    }

    fn predicate_generation(&self) -> u64 {
        self.predicates.iter().map(snapshot_generation).fold(0, u64::wrapping_add)
    }

    /// What can only be evaluated on whole batches of the scan's output (conditions on several columns at once).
    pub fn residual(&self) -> Vec<(Arc<dyn PhysicalExpr>, Arc<Effect>)> {
        let current = self.current();
        current.residual.iter().filter(|(_, effect)| !effect.is_retired()).cloned().collect()
    }

    fn current(&self) -> parking_lot::MutexGuard<'_, Current> {
        let generation = self.predicate_generation();
        let mut current = self.current.lock();
        if current.generation != generation {
            *current = self.convert(generation);
        }
        current
    }

    fn convert(&self, generation: u64) -> Current {
        let mut conjuncts = Conjuncts::default();
        for predicate in &self.predicates {
            if let Ok(snapshot) = snapshot_physical_expr(predicate.clone()) {
                filter::convert(&snapshot, &self.columns, &self.table, &mut conjuncts);
            }
        }
        let effect = || Arc::new(Effect { retirements: self.retired.clone(), ..Effect::default() });
        let filters = conjuncts
            .filters
            .into_iter()
            .map(|filter| match filter {
                ColumnFilter::Function { column, function } => {
                    let effect = effect();
                    let judged = effect.clone();
                    let function = Arc::new(move |array: &_| {
                        let mask: BooleanArray = function(array)?;
                        judged.add(mask.len(), mask.true_count());
                        Ok(mask)
                    });
                    Tracked { filter: ColumnFilter::Function { column, function }, effect: Some(effect) }
                }
                filter => Tracked { filter, effect: None },
            })
            .collect();
        let residual = conjuncts.residual.into_iter().map(|predicate| (predicate, effect())).collect();
        Current { generation, filters, residual }
    }
}

impl FilterSource for RuntimeFilters {
    fn generation(&self) -> u64 {
        // Both parts only grow, so their sum changes when either does.
        self.predicate_generation().wrapping_add(self.retired.load(Ordering::Acquire))
    }

    fn filters(&self) -> Vec<ColumnFilter> {
        self.current()
            .filters
            .iter()
            .filter(|tracked| tracked.effect.as_ref().is_none_or(|effect| !effect.is_retired()))
            .map(|tracked| tracked.filter.clone())
            .collect()
    }
}
