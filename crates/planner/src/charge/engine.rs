//! The account of the engine's operators, which tell themselves what they touch.

use super::account::{HeapAccount, OperatorAccount};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tidepool_device::PoolId;
use tidepool_engine::plan::Plan;
use tidepool_engine::touch::{Account, Touch};
use tidepool_heap::QueryHeap;

/// That of one plan.
pub struct EngineAccount {
    heap: Arc<HeapAccount>,
    /// By number among the plan's nodes.
    operators: Vec<Arc<OperatorAccount>>,
    /// For chunks on their way, which are no operator's.
    way: Arc<OperatorAccount>,
    /// Where each worker's chunks lie.
    scratches: Mutex<HashMap<usize, usize>>,
}

impl fmt::Debug for EngineAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineAccount").field("operators", &self.operators).finish_non_exhaustive()
    }
}

impl EngineAccount {
    pub fn new(heap: &Arc<HeapAccount>, plan: &Plan) -> EngineAccount {
        EngineAccount {
            operators: plan
                .nodes()
                .into_iter()
                .map(|node| heap.operator(|| node.name.clone().unwrap_or_else(|| node.label())))
                .collect(),
            way: heap.operator(|| "rows between operators".to_owned()),
            heap: Arc::clone(heap),
            scratches: Mutex::default(),
        }
    }

    /// Of the plan's node of this number.
    pub fn operator(&self, number: usize) -> Option<&OperatorAccount> {
        self.operators.get(number).map(Arc::as_ref)
    }

    /// Of what is no operator's.
    pub fn way(&self) -> &OperatorAccount {
        &self.way
    }
}

impl Account for EngineAccount {
    fn pool(&self) -> PoolId {
        self.heap.pool()
    }

    fn drop_pool(&self, pool: PoolId) {
        self.heap.drop_pool(pool);
    }

    fn charge(&self, operator: usize, touches: &[(PoolId, Touch)]) {
        let Some(operator) = self.operators.get(operator) else { return };
        self.heap.charge(operator, |charge| touches.iter().for_each(|(pool, touch)| charge.touch(*pool, *touch)));
    }

    fn stream(&self, bytes: u64) {
        self.heap.stream(bytes);
    }

    fn pass(&self, worker: usize, bytes: usize, batches: usize) {
        let scratch =
            QueryHeap::outside(|| *self.scratches.lock().entry(worker).or_insert_with(|| self.heap.make_scratch()));
        self.heap.charge(&self.way, |charge| charge.pass_scratch(scratch, bytes, batches));
    }

    fn window_bytes(&self) -> u64 {
        self.heap.window_bytes()
    }

    fn small_bytes(&self) -> u64 {
        self.heap.small_bytes()
    }
}
