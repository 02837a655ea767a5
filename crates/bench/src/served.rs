//! This program as servers, alone or in one pool.

use crate::client::Client;
use crate::workload::Workload;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use tidepool_base::{ByteSize, Error, Result};
use tidepool_device::Location;
use tokio::io::AsyncBufReadExt;
use tokio::process::{Child, Command};

/// A server, which ends with this value.
#[derive(Debug)]
pub(crate) struct Served {
    process: Child,
    pub address: String,
    pub pid: u32,
}

/// This one.
pub(crate) fn program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::io("find this program", &error))
}

impl Served {
    /// `tidepool serve --ephemeral`, with these arguments, at an address of its own.
    pub async fn start(arguments: &[&str]) -> Result<Served> {
        Served::start_with(&[&["--ephemeral"], arguments].concat()).await
    }

    /// `tidepool serve`, with these arguments, at an address of its own.
    pub async fn start_with(arguments: &[&str]) -> Result<Served> {
        let mut command = Command::new(program()?);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        // What this process is configured as is not for servers.
        command.env_remove("TIDEPOOL_DATA").stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| Error::io("start a server", &error))?;
        let output = process.stdout.take().ok_or_else(|| Error::internal("a server without output"))?;
        let mut lines = tokio::io::BufReader::new(output).lines();
        let line = lines.next_line().await.map_err(|error| Error::io("read what the server says", &error))?;
        let line = line.unwrap_or_default();
        let address = line.split('@').nth(1).and_then(|rest| rest.split('/').next());
        let (Some(address), Some(pid)) = (address, process.id()) else {
            return Err(Error::internal(format!("the server did not start: \"{line}\"")));
        };
        Ok(Served { address: address.to_owned(), pid, process })
    }

    pub async fn connect(&self) -> Result<Client> {
        Client::connect(&self.address).await
    }

    pub async fn signal(&self, signal: &str) -> Result<()> {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.pid.to_string()]).status().await;
        match sent.map_err(|error| Error::io("send a signal", &error))? {
            status if status.success() => Ok(()),
            status => Err(Error::internal(format!("no signal was sent: {status}"))),
        }
    }

    pub async fn ended(&mut self) -> Result<ExitStatus> {
        self.process.wait().await.map_err(|error| Error::io("wait for a server", &error))
    }

    pub async fn stop(mut self) -> Result<()> {
        self.process.kill().await.map_err(|error| Error::io("end a server", &error))
    }
}

/// A configuration file, which goes with this value.
#[derive(Debug)]
pub(crate) struct ConfigFile(PathBuf);

impl ConfigFile {
    pub fn write(name: &str, text: &str) -> Result<ConfigFile> {
        let path = std::env::temp_dir().join(format!("tidepool-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, text).map_err(|error| Error::io("write a configuration", &error))?;
        Ok(ConfigFile(path))
    }

    pub fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a workload's tables, fills them from `folder`, which has a Parquet file of each one's name, and merges them into main.
pub(crate) async fn load(client: &mut Client, workload: &Workload, folder: &Path) -> Result<()> {
    for table in &workload.tables {
        client.query(&table.ddl).await?.succeeded()?;
        let file = folder.join(format!("{}.parquet", table.name)).display().to_string().replace('\'', "''");
        let name = &table.name;
        client.query(&format!("COPY {name} FROM '{file}' WITH (FORMAT parquet)")).await?.succeeded()?;
        client.query(&format!("CALL tidepool.merge('{name}')")).await?.succeeded()?;
    }
    Ok(())
}

/// A pool of this program's, which goes with this value.
#[derive(Debug)]
pub(crate) struct MadePool {
    path: PathBuf,
}

impl MadePool {
    /// Makes one at a path, or in shared memory, populated.
    pub async fn make(path: Option<&Path>, bytes: u64, name: &str) -> Result<MadePool> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => PathBuf::from(format!("/dev/shm/tidepool-{name}-{}", std::process::id())),
        };
        let location = format!("file:{}", path.display());
        let mut command = Command::new(program()?);
        command.args(["pool", "create", &location, "--size", &bytes.to_string()]).stdout(Stdio::null());
        let made = command.status().await.map_err(|error| Error::io("make a pool", &error))?;
        if !made.success() {
            return Err(Error::internal(format!("the pool of {} was not made: {made}", ByteSize(bytes))));
        }
        Ok(MadePool { path })
    }

    pub fn location(&self) -> String {
        format!("file:{}", self.path.display())
    }

    pub fn file(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    pub fn open(&self) -> Result<tidepool_pool::pool::Pool> {
        tidepool_pool::pool::Pool::open_to_read(&Location::File(self.path.clone()))
    }
}

impl Drop for MadePool {
    fn drop(&mut self) {
        // What is left is in nobody's way.
        let _ = remove_with_sockets(&self.path);
    }
}

/// Removes a pool's file, and beside it the control sockets of hosts that were killed.
pub(crate) fn remove_with_sockets(file: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("remove \"{}\"", file.display()), &error);
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let sockets = format!("{name}.");
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with(&sockets) {
            std::fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    std::fs::remove_file(file).map_err(failed)
}
