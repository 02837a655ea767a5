//! What runs the queries: Tidepool, Tidepool with DataFusion's operators only, or plain DataFusion over Arrow tables in
//! memory (the baseline that the compressed tables are held against).

use arrow::record_batch::RecordBatch;
use serde::Serialize;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_database::Database;
use tidepool_planner::baseline::Baseline;
use tidepool_planner::{Planner, Session};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Tidepool as it comes.
    Tidepool,
    /// Tidepool's tables, DataFusion's operators: `SET tidepool.engine = datafusion`.
    Datafusion,
    /// DataFusion alone, over uncompressed Arrow tables.
    PlainDatafusion,
}

pub enum Engine {
    Tidepool { database: Arc<Database>, planner: Arc<Planner>, datafusion_only: bool },
    Plain(Arc<Baseline>),
}

impl Engine {
    pub async fn connect(&self) -> Result<Connection> {
        match self {
            Engine::Tidepool { planner, datafusion_only, .. } => {
                let mut session = planner.session("tidepool");
                if *datafusion_only {
                    session.query("SET tidepool.engine = 'datafusion'").await?;
                }
                Ok(Connection::Tidepool(Box::new(session)))
            }
            Engine::Plain(baseline) => Ok(Connection::Plain(baseline.clone())),
        }
    }

    pub fn database(&self) -> Option<&Arc<Database>> {
        match self {
            Engine::Tidepool { database, .. } => Some(database),
            Engine::Plain(_) => None,
        }
    }

    /// Heap and reads of the statement that finished last; only meaningful while nothing else runs.
    pub fn latest_statement(&self) -> StatementFacts {
        let Engine::Tidepool { planner, .. } = self else { return StatementFacts::default() };
        let Some(info) = planner.queries().into_iter().filter(|info| info.end().is_some()).max_by_key(|info| info.id)
        else {
            return StatementFacts::default();
        };
        StatementFacts {
            heap: info
                .heap_bytes()
                .into_iter()
                .map(|(tablespace, _, bytes_peak)| HeapPeak { tablespace, bytes_peak })
                .collect(),
            scans: info
                .scan_bytes()
                .into_iter()
                .map(|read| ScanTraffic {
                    tablespace: read.tablespace,
                    bytes: read.bytes,
                    stall_ms: read.stall_ns as f64 / 1e6,
                })
                .collect(),
            heap_stall_ms: info.heap_stall_ns() as f64 / 1e6,
            heap_account_ms: info.heap_account_ns() as f64 / 1e6,
        }
    }
}

/// What one statement held and read, by tablespace.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StatementFacts {
    pub heap: Vec<HeapPeak>,
    pub scans: Vec<ScanTraffic>,
    /// Over all threads; an estimate where the operator is DataFusion's.
    pub heap_stall_ms: f64,
    /// What it took to keep the account that stalls are charged by, over all threads.
    pub heap_account_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct HeapPeak {
    pub tablespace: String,
    pub bytes_peak: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ScanTraffic {
    pub tablespace: String,
    /// Encoded bytes read.
    pub bytes: u64,
    /// Over all threads.
    pub stall_ms: f64,
}

/// One client.
pub enum Connection {
    Tidepool(Box<Session>),
    Plain(Arc<Baseline>),
}

impl Connection {
    pub async fn query(&mut self, sql: &str) -> Result<Vec<RecordBatch>> {
        match self {
            Connection::Tidepool(session) => session.query(sql).await,
            Connection::Plain(baseline) => baseline.query(sql).await,
        }
    }
}
