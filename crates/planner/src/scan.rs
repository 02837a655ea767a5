//! Tables as DataFusion sees them: the provider and its scan operator, with filters, limits and run-time filters pushed
//! into the storage's own scan.

use datafusion::catalog::TableProvider as DataFusionTable;
use std::sync::Arc;
use tidepool_table::TableVersion;

pub struct TableProvider {}

impl TableProvider {
    #[expect(clippy::new_ret_no_self)]
    pub fn new(_version: Arc<TableVersion>) -> Arc<dyn DataFusionTable> {
        unimplemented!()
    }
}
