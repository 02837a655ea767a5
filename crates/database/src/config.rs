//! Configuration: `tidepool.toml`, environment (`TIDEPOOL_…`) and flags, later ones winning.

use std::path::PathBuf;
use tidepool_tablespace::TablespaceConfig;

#[derive(Clone, Debug)]
pub struct Config {
    /// `None`: nothing is kept (demo, tests, benchmarks).
    pub data_dir: Option<PathBuf>,
    pub near: TablespaceConfig,
    pub far: TablespaceConfig,
    /// Default of `temp_tablespaces`.
    pub temp_tablespaces: Vec<String>,
    pub default_tablespace: String,
    /// Per statement; `None`: as much as the tablespaces hold.
    pub statement_memory_bytes: Option<u64>,
    pub threads: usize,
    pub server: ServerConfig,
}

/// What `serve` needs beyond the database.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    pub listen: String,
    pub metrics_listen: Option<String>,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub connections_max: usize,
}

impl Config {
    /// Both tablespaces `anon:`, nothing kept: for tests and embedded use.
    pub fn in_memory(_near_bytes: u64, _far_bytes: u64) -> Config {
        unimplemented!()
    }

    /// Reads a file's text over the defaults; F0000 with line and key on nonsense. Unknown keys are errors.
    pub fn from_toml(_text: &str) -> tidepool_base::Result<Config> {
        unimplemented!()
    }
}
