//! Servers that are replaced.

use super::Through;
use crate::client::Login;
use crate::failover::{PoolHosts, PoolSetup, Signal};
use crate::served::{MadePool, program};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// For an upgrade to be done, or a server to end.
const WITHIN: Duration = Duration::from_secs(60);

const POOL_BYTES: u64 = 1 << 30;

/// Connections beyond those of the clients: of the bench itself, and of upgrades.
const FURTHER_CONNECTIONS: usize = 24;

pub(super) struct HostsSetup {
    pub through: Through,
    pub near: Option<ByteSize>,
    /// Clients that connect.
    pub clients: usize,
    pub other_program: Option<PathBuf>,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

impl HostsSetup {
    /// Of every server.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(near) = self.near {
            arguments.extend(["--near".to_owned(), near.0.to_string()]);
        }
        if let Some((certificate, key)) = &self.tls {
            let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
            arguments.extend(["--tls-certificate".to_owned(), certificate, "--tls-key".to_owned(), key]);
        }
        arguments
    }
}

pub(super) enum Hosts {
    Upgraded(Box<Upgraded>),
    Killed(PoolHosts),
}

impl Hosts {
    pub async fn start(setup: HostsSetup) -> Result<Hosts> {
        // Servers that are started have it from this process.
        let connections = (setup.clients + FURTHER_CONNECTIONS).to_string();
        match setup.through {
            Through::Upgrade => Ok(Hosts::Upgraded(Box::new(Upgraded::start(setup, connections).await?))),
            Through::Kill => {
                let settings = [setup.arguments(), vec!["--connections-max".to_owned(), connections]].concat();
                let setup = PoolSetup {
                    location: None,
                    size: ByteSize(POOL_BYTES),
                    near: None,
                    settings,
                    signal: Signal::Kill,
                    apart: false,
                    host_timeout: None,
                };
                Ok(Hosts::Killed(PoolHosts::start(setup).await?))
            }
        }
    }

    /// The address of the one that takes writes, once it can be replaced.
    pub async fn ready(&self) -> Result<String> {
        match self {
            Hosts::Upgraded(server) => Ok(server.address.clone()),
            Hosts::Killed(hosts) => hosts.ready(&Login::default()).await,
        }
    }

    /// Ends the one at an address. Returns where clients can connect afterwards.
    pub async fn replace(&mut self, address: &str) -> Result<Vec<String>> {
        match self {
            Hosts::Upgraded(server) => {
                server.upgrade().await?;
                Ok(vec![server.address.clone()])
            }
            Hosts::Killed(hosts) => {
                hosts.end(address).await?;
                Ok(hosts.addresses())
            }
        }
    }

    /// Lets another follow in the place of one that was killed.
    pub async fn restore(&mut self, address: &str) -> Result<()> {
        match self {
            Hosts::Upgraded(_) => Ok(()),
            Hosts::Killed(hosts) => hosts.replace(address).await,
        }
    }

    pub async fn stop(self) -> Result<()> {
        match self {
            Hosts::Upgraded(mut server) => {
                server.process.kill().await.map_err(|error| Error::io("end a server", &error))
            }
            Hosts::Killed(hosts) => hosts.stop().await,
        }
    }
}

/// A server at one address, which other processes take the place of one after the other.
pub(super) struct Upgraded {
    setup: HostsSetup,
    connections: String,
    pool: MadePool,
    address: String,
    process: Child,
    /// Kept, so that a server can say something.
    output: Lines<BufReader<ChildStdout>>,
    number: usize,
}

impl Upgraded {
    async fn start(setup: HostsSetup, connections: String) -> Result<Upgraded> {
        let pool = MadePool::make(None, POOL_BYTES, "connections").await?;
        let arguments = ["serve", "--role", "primary", "--listen", "127.0.0.1:0"];
        let (process, mut output) = run(program()?, &setup, &connections, &pool, 0, &arguments)?;
        let line = said(&mut output, "").await?;
        let address = line.split('@').nth(1).and_then(|rest| rest.split('/').next());
        let address = address.ok_or_else(|| Error::internal(format!("the server did not start: \"{line}\"")))?;
        Ok(Upgraded { address: address.to_owned(), setup, connections, pool, process, output, number: 0 })
    }

    /// Another process takes its place. Returns when the one before has ended.
    async fn upgrade(&mut self) -> Result<()> {
        self.number += 1;
        let program = match &self.setup.other_program {
            Some(other) if self.number % 2 == 1 => other.clone(),
            _ => program()?,
        };
        let url = format!("postgresql://tidepool@{}/tidepool", self.address);
        let arguments = ["upgrade", &url, "--listen", &self.address];
        let (process, mut output) = run(program, &self.setup, &self.connections, &self.pool, self.number, &arguments)?;
        said(&mut output, "has taken over").await?;
        let mut before = std::mem::replace(&mut self.process, process);
        self.output = output;
        let ended = tokio::time::timeout(WITHIN, before.wait()).await;
        let ended = ended.map_err(|_| late("the server before did not end"))?;
        match ended.map_err(|error| Error::io("wait for a server", &error))? {
            status if status.success() => Ok(()),
            status => Err(Error::internal(format!("the server before ended with {status}"))),
        }
    }
}

fn late(what: &str) -> Error {
    Error::new(SqlState::CONNECTION_FAILURE, format!("{what} within {} s", WITHIN.as_secs()))
}

fn run(
    program: PathBuf,
    setup: &HostsSetup,
    connections: &str,
    pool: &MadePool,
    number: usize,
    arguments: &[&str],
) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut command = Command::new(program);
    command.args(arguments).args(setup.arguments()).args(["--connections-max", connections]);
    command.args(["--pool", &pool.location(), "--name", &format!("h{number}"), "--far", "pool:"]);
    command.env_remove("TIDEPOOL_DATA").stdout(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().map_err(|error| Error::io("start a server", &error))?;
    let output = process.stdout.take().ok_or_else(|| Error::internal("a server without output"))?;
    Ok((process, BufReader::new(output).lines()))
}

/// Waits for a line that has this in it.
async fn said(output: &mut Lines<BufReader<ChildStdout>>, what: &str) -> Result<String> {
    let reading = async {
        while let Some(line) = output.next_line().await.map_err(|error| Error::io("read what a server says", &error))? {
            if line.contains(what) {
                return Ok(line);
            }
        }
        Err(Error::internal("a server ended before it was ready"))
    };
    tokio::time::timeout(WITHIN, reading).await.map_err(|_| late("a server was not ready"))?
}
