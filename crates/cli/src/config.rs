//! Where a command's configuration comes from: defaults, file, environment, flags.

use std::path::PathBuf;
use tidepool_base::{ByteSize, Result};
use tidepool_database::config::{ConfigBuilder, DATA_DIR_DEFAULT, PoolRole};
use tidepool_device::Location;

/// Flags that say what memory there is.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Configuration file [env: TIDEPOOL_CONFIG] [default: tidepool.toml, if there is one]
    // The variable is read below: for a command that is given a server's URL it means nothing, and contradicts nothing.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What the process may use in all, as in 16GB [default: what machine and control groups let it]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Size of near memory, as in 8GB
    #[arg(long, value_name = "SIZE")]
    pub near: Option<String>,
    /// Far memory: LOCATION,size=SIZE,profile=NAME, as in numa:1,size=64GB
    #[arg(long, value_name = "SPEC")]
    pub far: Option<String>,
    /// Threads that work [default: all]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Flags of every command that opens a database.
#[derive(Clone, Debug, clap::Args)]
pub struct DatabaseArgs {
    /// Data folder [default: tidepool-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Pool that tablespaces at pool: lease memory from: its first device, file:PATH or dax:PATH [default: none]
    #[arg(long, value_name = "LOCATION")]
    pub pool: Option<Location>,
    /// The process's name as a host of the pool [default: tidepool-PID]
    #[arg(long = "name", value_name = "NAME")]
    pub pool_name: Option<String>,
    /// Which of the pool's databases this is; it is made if there is none of the name [default: tidepool]
    #[arg(long = "database", value_name = "NAME")]
    pub pool_database: Option<String>,
    /// Which of the hosts this machine is that the pool is dealt out to, from 1 on [default: the pool is not dealt out]
    #[arg(long = "machine", value_name = "N")]
    pub pool_machine: Option<u8>,
    /// The slice of the pool to work in, if it is not this machine's own
    #[arg(long = "slice", value_name = "N")]
    pub pool_slice: Option<u8>,
    /// What the process begins as, of a database that lives in the pool. A flag of the commands that have it.
    #[arg(skip)]
    pub role: Option<PoolRole>,
    /// What a copy follows. As `role`.
    #[arg(skip)]
    pub copy_from: Option<PathBuf>,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl MemoryArgs {
    /// The configuration file that was named, here or by the environment.
    pub fn file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| std::env::var_os("TIDEPOOL_CONFIG").map(PathBuf::from))
    }

    /// The configuration so far: file, environment, these flags.
    pub fn builder(&self) -> Result<ConfigBuilder> {
        let mut builder = ConfigBuilder::surroundings(self.file().as_deref())?;
        if let Some(limit) = &self.memory_limit {
            builder = builder.memory_limit_bytes(Some(limit.parse::<ByteSize>()?.0));
        }
        if let Some(near) = &self.near {
            builder = builder.near(near)?;
        }
        if let Some(far) = &self.far {
            builder = builder.far(far)?;
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        Ok(builder)
    }
}

impl DatabaseArgs {
    /// The configuration so far; the command's own flags go on top.
    pub fn builder(&self) -> Result<ConfigBuilder> {
        let mut builder = self.memory.builder()?;
        if let Some(data) = &self.data {
            builder = builder.data_dir(Some(data.clone()));
        }
        builder = builder.pool_machine(self.pool_machine, self.pool_slice);
        builder = builder.pool(self.pool.clone(), self.pool_name.clone(), self.pool_database.clone());
        if let Some(role) = self.role {
            builder = builder.pool_role(role);
        }
        if let Some(folder) = &self.copy_from {
            builder = builder.copy_from(folder.clone());
        }
        Ok(builder.data_dir_default(DATA_DIR_DEFAULT))
    }
}
