//! DataFusion by itself over Arrow tables in memory, as its users know it: what Tidepool is measured against.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::prelude::{SessionConfig, SessionContext};
use std::sync::Arc;
use tidepool_base::{Error, Result};

pub struct Baseline {
    context: SessionContext,
}

impl Baseline {
    /// DataFusion's defaults, with `threads` partitions.
    pub fn new(threads: usize) -> Baseline {
        let config = SessionConfig::new().with_target_partitions(threads);
        Baseline { context: SessionContext::new_with_config(config) }
    }

    /// Makes `partitions` of batches a table.
    pub fn register(&self, name: &str, schema: SchemaRef, partitions: Vec<Vec<RecordBatch>>) -> Result<()> {
        let table = MemTable::try_new(schema, partitions).map_err(from_datafusion)?;
        self.context.register_table(name, Arc::new(table)).map_err(from_datafusion)?;
        Ok(())
    }

    pub async fn query(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let frame = self.context.sql(sql).await.map_err(from_datafusion)?;
        frame.collect().await.map_err(from_datafusion)
    }
}

fn from_datafusion(error: DataFusionError) -> Error {
    Error::internal(format!("plain DataFusion: {}", error.strip_backtrace()))
}
