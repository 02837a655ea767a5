//! Hosts that can be killed: of a pool that this program makes, or of a cluster that others run.

use super::clients::Ended;
use crate::client::{Client, Login};
use crate::served::remove_with_sockets;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tokio::io::AsyncBufReadExt;
use tokio::process::{Child, Command};

/// For a host to start, to follow, or to be the one that takes writes.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const READY_PAUSE: Duration = Duration::from_millis(5);

/// How a host is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// SIGKILL
    Kill,
    /// SIGSTOP: it is there and does nothing
    Stop,
    /// SIGSTOP, and SIGCONT within the time after which hosts would take it for dead: nothing may come of it
    Pause,
}

/// The flag of a thread that has begun to end, in the kernel's numbers.
const EXITING: u64 = 0x4;

/// Between two looks whether a host does anything.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(super) enum Cluster {
    Pool(PoolHosts),
    Others(OtherHosts),
}

/// What hosts of a pool are started with.
#[derive(Debug)]
pub(crate) struct PoolSetup {
    /// Of a pool that is there. `None`: one is made, in a file in shared memory.
    pub location: Option<String>,
    /// Of the one that is made.
    pub size: ByteSize,
    pub near: Option<ByteSize>,
    /// Further arguments of each host.
    pub settings: Vec<String>,
    pub signal: Signal,
    /// Hosts cannot reach each other but by the pool's memory.
    pub apart: bool,
    /// In milliseconds.
    pub host_timeout: Option<u64>,
}

/// This program as two hosts of a pool that it made.
#[derive(Debug)]
pub(crate) struct PoolHosts {
    program: PathBuf,
    pool: String,
    /// Of the pool, if it was made here.
    file: Option<PathBuf>,
    setup: PoolSetup,
    hosts: Vec<PoolHost>,
    started: u32,
}

#[derive(Debug)]
struct PoolHost {
    process: Child,
    address: String,
}

#[derive(Debug)]
pub(super) struct OtherHosts {
    pub addresses: Vec<String>,
    /// Commands of a shell; FAILOVER_HOST is the address of the host that is meant.
    pub kill: String,
    pub restore: String,
}

fn no_host(what: &str) -> Error {
    Error::new(SqlState::CONNECTION_FAILURE, format!("no host {what} within {} s", READY_TIMEOUT.as_secs()))
}

/// Whether the host at an address follows another. `None`: it does not answer.
async fn follows(address: &str, login: &Login) -> Option<bool> {
    let connecting = tokio::time::timeout(Duration::from_secs(2), Client::log_in(address, login));
    let (mut client, _) = connecting.await.ok()?.ok()?;
    let answer = client.query("SELECT pg_is_in_recovery()").await.ok()?;
    Some(answer.values.first()?.as_deref()? == "t")
}

/// How many hosts follow the one at an address.
async fn followers(address: &str, login: &Login) -> Option<i64> {
    let connecting = tokio::time::timeout(Duration::from_secs(2), Client::log_in(address, login));
    let (mut client, _) = connecting.await.ok()?.ok()?;
    let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    client.query(sql).await.ok()?.succeeded().ok()?.number(0).ok()
}

/// The address of the host that takes writes, once another follows it.
async fn ready(addresses: &[String], login: &Login) -> Result<String> {
    let end = Instant::now() + READY_TIMEOUT;
    while Instant::now() < end {
        for address in addresses {
            if follows(address, login).await == Some(false) && followers(address, login).await > Some(0) {
                return Ok(address.clone());
            }
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
    Err(no_host("takes writes and is followed"))
}

async fn shell(command: &str, host: &str) -> Result<()> {
    let status = Command::new("sh").arg("-c").arg(command).env("FAILOVER_HOST", host).status().await;
    let status = status.map_err(|error| Error::io(format!("run \"{command}\""), &error))?;
    if !status.success() {
        return Err(Error::new(SqlState::IO_ERROR, format!("\"{command}\" failed: {status}")));
    }
    Ok(())
}

impl PoolHost {
    /// `signal`: as `kill` names it.
    /// Waits until no thread of it runs code of its program: when that was.
    async fn does_nothing(&self) -> Instant {
        let threads = format!("/proc/{}/task", self.process.id().unwrap_or_default());
        let runs = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let mut rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            // Its state is behind its name, and five numbers later its flags.
            let (state, flags) = (rest.next(), rest.nth(5).and_then(|flags| flags.parse::<u64>().ok()));
            flags.is_some_and(|flags| flags & EXITING == 0) && !matches!(state, Some("T" | "t" | "Z" | "X"))
        };
        while std::fs::read_dir(&threads).is_ok_and(|threads| threads.flatten().any(runs)) {
            tokio::time::sleep(LOOK).await;
        }
        Instant::now()
    }

    async fn signal(&self, signal: &str) -> Result<()> {
        let id = self.process.id().unwrap_or_default().to_string();
        let status = Command::new("kill").args([signal, &id]).status().await;
        let status = status.map_err(|error| Error::io("signal a host", &error))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::internal(format!("kill {signal} of a host failed: {status}"))),
        }
    }
}

impl PoolHosts {
    /// Makes the pool where there is none, and starts two hosts.
    pub async fn start(setup: PoolSetup) -> Result<PoolHosts> {
        let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
        let (pool, file) = match &setup.location {
            Some(location) => (location.clone(), None),
            None => {
                let file = PathBuf::from(format!("/dev/shm/tidepool-failover-{}", std::process::id()));
                (format!("file:{}", file.display()), Some(file))
            }
        };
        if file.is_some() {
            let size = setup.size.0.to_string();
            let mut create = Command::new(&program);
            create.args(["pool", "create", &pool, "--size", &size]).stdout(Stdio::null());
            let made = create.status().await.map_err(|error| Error::io("make a pool", &error))?;
            if !made.success() {
                return Err(Error::internal(format!("the pool was not made: {made}")));
            }
        }
        let mut hosts = PoolHosts { program, pool, file, setup, hosts: Vec::new(), started: 0 };
        hosts.start_host().await?;
        hosts.start_host().await?;
        Ok(hosts)
    }

    async fn start_host(&mut self) -> Result<()> {
        self.started += 1;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--pool", &self.pool, "--role", "auto", "--listen", "127.0.0.1:0"]);
        let name = format!("h{}", self.started);
        command.args(["--name", &name]);
        if let Some(near) = self.setup.near {
            command.args(["--near", &near.0.to_string()]);
        }
        if let Some(timeout) = self.setup.host_timeout {
            command.env("TIDEPOOL_POOL_HOST_TIMEOUT", format!("{timeout}ms"));
        }
        command.args(&self.setup.settings);
        command.stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| Error::io("start a host", &error))?;
        let output = process.stdout.take().ok_or_else(|| Error::internal("a host without output"))?;
        let mut lines = tokio::io::BufReader::new(output).lines();
        let line = lines.next_line().await.map_err(|error| Error::io("read what the host says", &error))?;
        let line = line.unwrap_or_default();
        let address = line.split('@').nth(1).and_then(|rest| rest.split('/').next());
        let Some(address) = address else {
            return Err(Error::internal(format!("the host did not start: \"{line}\"")));
        };
        if self.setup.apart {
            self.hide_socket(&name)?;
        }
        self.hosts.push(PoolHost { process, address: address.to_owned() });
        Ok(())
    }

    /// Takes away the socket by which the other host would ask for this one's, before that one starts or finds it: hosts on
    /// machines of their own have no such socket in common.
    fn hide_socket(&self, name: &str) -> Result<()> {
        let location = self.pool.strip_prefix("file:").ok_or_else(|| {
            Error::new(SqlState::FEATURE_NOT_SUPPORTED, "hosts apart are tried over a pool in a file")
        })?;
        let socket = format!("{location}.{name}.control");
        std::fs::remove_file(&socket).map_err(|error| Error::io(format!("remove \"{socket}\""), &error))
    }

    pub fn addresses(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.address.clone()).collect()
    }

    /// The address of the host that takes writes, once another follows it.
    pub async fn ready(&self, login: &Login) -> Result<String> {
        ready(&self.addresses(), login).await
    }

    pub async fn end(&mut self, address: &str) -> Result<Ended> {
        let signal = self.setup.signal;
        let host = self.hosts.iter_mut().find(|host| host.address == address);
        let host = host.ok_or_else(|| Error::internal(format!("no host is at {address}")))?;
        let failed = |error| Error::io("end a host", &error);
        match signal {
            Signal::Kill => {
                let at = Instant::now();
                host.process.start_kill().map_err(failed)?;
                Ok(Ended { at, over: Some(host.does_nothing().await) })
            }
            Signal::Stop | Signal::Pause => {
                host.signal("-STOP").await?;
                let at = Instant::now();
                Ok(Ended { at, over: Some(host.does_nothing().await) })
            }
        }
    }

    /// Stops the host at an address for so long.
    async fn pause(&self, address: &str, time: Duration) -> Result<()> {
        let host = self.hosts.iter().find(|host| host.address == address);
        let host = host.ok_or_else(|| Error::internal(format!("no host is at {address}")))?;
        host.signal("-STOP").await?;
        tokio::time::sleep(time).await;
        host.signal("-CONT").await
    }

    /// Another host takes the place of what was ended.
    pub async fn replace(&mut self, address: &str) -> Result<()> {
        if let Some(place) = self.hosts.iter().position(|host| host.address == address) {
            let mut host = self.hosts.remove(place);
            host.process.kill().await.map_err(|error| Error::io("end a host", &error))?;
        }
        self.start_host().await
    }

    pub async fn stop(mut self) -> Result<()> {
        for host in &mut self.hosts {
            host.process.kill().await.map_err(|error| Error::io("end a host", &error))?;
        }
        match &self.file {
            Some(file) => remove_with_sockets(file),
            None => Ok(()),
        }
    }
}

impl OtherHosts {
    pub fn new(addresses: Vec<String>, kill: String, restore: String) -> OtherHosts {
        OtherHosts { addresses, kill, restore }
    }
}

impl Cluster {
    pub fn addresses(&self) -> Vec<String> {
        match self {
            Cluster::Pool(hosts) => hosts.addresses(),
            Cluster::Others(hosts) => hosts.addresses.clone(),
        }
    }

    /// The address of the host that takes writes, once another follows it.
    pub async fn ready(&self, login: &Login) -> Result<String> {
        ready(&self.addresses(), login).await
    }

    /// When the host at an address was ended.
    pub async fn end(&mut self, address: &str) -> Result<Ended> {
        match self {
            Cluster::Pool(hosts) => hosts.end(address).await,
            Cluster::Others(hosts) => {
                let at = Instant::now();
                shell(&hosts.kill, address).await?;
                Ok(Ended { at, over: None })
            }
        }
    }

    /// Stops the host at an address for so long.
    pub async fn pause(&self, address: &str, time: Duration) -> Result<()> {
        match self {
            Cluster::Pool(hosts) => hosts.pause(address, time).await,
            Cluster::Others(_) => {
                Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, "hosts of another cluster cannot be paused"))
            }
        }
    }

    /// Lets a host follow in the place of the one that was ended.
    pub async fn restore(&mut self, address: &str) -> Result<()> {
        match self {
            Cluster::Pool(hosts) => hosts.replace(address).await,
            Cluster::Others(hosts) => shell(&hosts.restore, address).await,
        }
    }

    pub async fn stop(self) -> Result<()> {
        match self {
            Cluster::Pool(hosts) => hosts.stop().await,
            Cluster::Others(_) => Ok(()),
        }
    }
}
