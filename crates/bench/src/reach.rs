//! `bench reach`: the same work by different ways to far memory, as DirectCXL compares them: loads and stores, a memory
//! node that is asked for what is wanted, and a node whose memory is paged.
//!
//! The work is reading rows of 64 bytes by key, at random, and reading all of them from end to end. Every way finds the
//! same rows, and their sums are compared.

use crate::cli::BenchArgs;
use crate::progress::say;
use crate::random::Random;
use serde::Serialize;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::remote::{Absence, NodeAddress, NodeSettings, Policy, Tenant, read_token};
use tidepool_device::{Access, CacheSize, Location, Profile};
use tidepool_tablespace::{Purpose, Region, Tablespace, TablespaceConfig};
use tidepool_wire::{Allocation, DirectConnection, Extent, Limits, Offer, Place};

const SCHEMA: &str = "tidepool-reach-1";

const ROW_BYTES: usize = 64;

/// What a scan by requests asks for at a time.
const SCAN_BYTES: usize = 64 << 10;

/// What a connection has at the node is written there in pieces of so much.
const WRITE_BYTES: usize = 1 << 20;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, clap::Args)]
pub struct ReachArgs {
    /// reach: a memory node that runs [default: one on this machine, for the time of the benchmark]
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    pub node: Option<NodeAddress>,
    /// reach: the node's token
    #[arg(long, value_name = "FILE", requires = "node")]
    pub node_token: Option<std::path::PathBuf>,
    /// reach: bytes of all rows
    #[arg(long, value_name = "SIZE", default_value = "128MB")]
    pub reach_bytes: ByteSize,
    /// reach: local cache of paged memory
    #[arg(long, value_name = "SIZE", default_value = "10%")]
    pub reach_cache: CacheSize,
}

#[derive(Debug, Serialize)]
pub struct ReachResult {
    pub schema: &'static str,
    pub tidepool_version: &'static str,
    pub machine: crate::machine::Machine,
    pub bytes: u64,
    pub cache_bytes: u64,
    pub node: String,
    pub ways: Vec<WayResult>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WayResult {
    pub name: String,
    /// Of a row by key, ns: median of the rounds' means, and median and 99th percentile of single rows.
    pub key_mean_ns: f64,
    pub key_p50_ns: u64,
    pub key_p99_ns: u64,
    /// Of all rows in their order, median of the rounds.
    pub scan_gb_per_s: f64,
    /// Times the first way's mean.
    pub key_ratio: f64,
}

/// A way to the rows.
trait Way {
    /// The sum of a row's words.
    fn row(&mut self, row: usize) -> Result<u64>;
    /// That of all rows.
    fn scan(&mut self) -> Result<u64>;
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// What row `row` holds.
fn fill(row: usize, into: &mut [u8]) {
    for (number, word) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = ((row * 8 + number) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    }
}

/// Rows in a tablespace: memory that is loaded and stored, or paged.
struct Mapped {
    region: Region,
    rows: usize,
    is_paged: bool,
}

impl Mapped {
    fn new(id: u16, location: Location, profile: Option<Profile>, tenant: &Tenant, bytes: usize) -> Result<Mapped> {
        let is_paged = matches!(location, Location::Node { .. } | Location::Paged { .. });
        let config = TablespaceConfig {
            name: format!("reach{id}"),
            size_bytes: Some(bytes as u64 + (4 << 20)),
            profile,
            profiles: Vec::new(),
            huge_pages: true,
            populate_bytes: 0,
            location,
        };
        let space = match &config.location {
            Location::Node { .. } => Tablespace::open_at_node(TablespaceId(id), config, tenant, Absence::Refused)?,
            _ => Tablespace::open(TablespaceId(id), config)?,
        };
        let mut region = space.allocate(bytes, Purpose::Main)?;
        let rows = bytes / ROW_BYTES;
        for row in 0..rows {
            fill(row, &mut region[row * ROW_BYTES..(row + 1) * ROW_BYTES]);
        }
        Ok(Mapped { region, rows, is_paged })
    }

    fn charge(&self, access: Access) {
        if !self.is_paged {
            self.region.tablespace().charge(Purpose::Main, &[access]);
        }
    }
}

impl Way for Mapped {
    fn row(&mut self, row: usize) -> Result<u64> {
        let found = sum(black_box(&self.region[row * ROW_BYTES..(row + 1) * ROW_BYTES]));
        self.charge(Access::read_random(1, (self.rows * ROW_BYTES) as u64, 1.0));
        Ok(found)
    }

    fn scan(&mut self) -> Result<u64> {
        let mut total = 0_u64;
        for start in (0..self.rows * ROW_BYTES).step_by(SCAN_BYTES) {
            let bytes = &self.region[start..(start + SCAN_BYTES).min(self.rows * ROW_BYTES)];
            self.region.tablespace().about_to_read(bytes);
            total = total.wrapping_add(sum(black_box(bytes)));
            self.charge(Access::read_sequential(bytes.len() as u64));
        }
        Ok(total)
    }
}

/// Rows at a node, each asked for by a request.
struct Asked {
    connection: DirectConnection,
    place: Place,
    bytes: usize,
    buffer: Vec<u8>,
}

impl Asked {
    fn new(settings: &NodeSettings, tenant: &Tenant, bytes: usize) -> Result<Asked> {
        let token = match &settings.token {
            Some(path) => read_token(path)?,
            None => NodeAddress::local_token()?,
        };
        let offer = |lane| Offer {
            tablespace: tenant.database,
            epoch: tenant.epoch,
            client: tenant.client,
            lane,
            incarnation: 1,
            limits: Limits::default(),
            bare_data: true,
        };
        // Beyond those that tablespaces of this process take.
        let control = tidepool_wire::Connection::open(
            settings.address.connect(PATIENCE)?,
            &offer(u32::MAX),
            &token,
            tidepool_wire::Timeouts::default(),
        )?;
        let place = *control
            .register(&[Allocation { bytes: bytes as u64, purpose: 0 }])?
            .first()
            .ok_or_else(|| Error::internal("a node registered nothing"))?;
        let mut piece = vec![0; WRITE_BYTES];
        for start in (0..bytes).step_by(WRITE_BYTES) {
            let piece = &mut piece[..(bytes - start).min(WRITE_BYTES)];
            for (number, row) in piece.chunks_exact_mut(ROW_BYTES).enumerate() {
                fill(start / ROW_BYTES + number, row);
            }
            let extent = Extent { place: Place(place.0 + start as u64), bytes: piece.len() as u32 };
            control.flush(0, &[extent], &[piece])?;
        }
        let transport = settings.address.connect(PATIENCE)?;
        let connection = DirectConnection::open(transport, &offer(u32::MAX - 1), &token, PATIENCE)?;
        Ok(Asked { connection, place, bytes, buffer: vec![0; SCAN_BYTES] })
    }

    fn read(&mut self, start: usize, bytes: usize) -> Result<u64> {
        let extent = Extent { place: Place(self.place.0 + start as u64), bytes: bytes as u32 };
        let into = &mut self.buffer[..bytes];
        self.connection.read_into(&[extent], into, PATIENCE).map_err(|fault| fault.error())?;
        Ok(sum(black_box(into)))
    }
}

impl Way for Asked {
    fn row(&mut self, row: usize) -> Result<u64> {
        self.read(row * ROW_BYTES, ROW_BYTES)
    }

    fn scan(&mut self) -> Result<u64> {
        let mut total = 0_u64;
        for start in (0..self.bytes).step_by(SCAN_BYTES) {
            total = total.wrapping_add(self.read(start, SCAN_BYTES.min(self.bytes - start))?);
        }
        Ok(total)
    }
}

/// A node of this program, which ends with this.
struct OwnNode {
    child: Child,
    _folder: Folder,
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        // It may be over.
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl OwnNode {
    fn start(bytes: u64) -> Result<(OwnNode, NodeAddress)> {
        let folder = std::env::temp_dir().join(format!("tidepool-reach-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| Error::io("make a folder for a memory node", &error))?;
        let folder = Folder(folder);
        let address = NodeAddress::Unix(folder.0.join("node"));
        let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
        let mut child = Command::new(program)
            .args(["memory-node", "--listen", &address.to_string(), "--memory", &format!("anon:,size={bytes}B")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::io("start a memory node", &error))?;
        let mut line = String::new();
        let read = child.stdout.as_mut().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let node = OwnNode { child, _folder: folder };
        match read {
            Some(Ok(count)) if count > 0 => Ok((node, address)),
            _ => Err(Error::new(SqlState::IO_ERROR, "the memory node did not start")),
        }
    }
}

/// Reads of rows by key in a round.
const READS: usize = 20_000;

fn measure(name: &str, way: &mut dyn Way, rows: usize, rounds: usize) -> Result<WayResult> {
    let expected_scan = (0..rows).fold(0_u64, |total, row| total.wrapping_add(row_sum(row)));
    let (mut means, mut rates, mut singles) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        // Of each way the same rows, and the first round is not counted.
        let mut random = Random::new(round as u64 + 1);
        let mut total = Duration::ZERO;
        for _ in 0..READS {
            let row = random.below(rows as u64) as usize;
            let start = Instant::now();
            let found = way.row(row)?;
            let took = start.elapsed();
            if found != row_sum(row) {
                return Err(Error::corrupted(format!("{name}: row {row} is wrong")));
            }
            total += took;
            if round > 0 {
                singles.push(took.as_nanos() as u64);
            }
        }
        let start = Instant::now();
        if way.scan()? != expected_scan {
            return Err(Error::corrupted(format!("{name}: the sum of all rows is wrong")));
        }
        if round > 0 {
            means.push(total.as_nanos() as f64 / READS as f64);
            rates.push((rows * ROW_BYTES) as f64 / start.elapsed().as_nanos() as f64);
        }
    }
    singles.sort_unstable();
    let at = |percent: usize| singles[(singles.len() - 1) * percent / 100];
    Ok(WayResult {
        name: name.to_owned(),
        key_mean_ns: middle(&mut means),
        key_p50_ns: at(50),
        key_p99_ns: at(99),
        scan_gb_per_s: middle(&mut rates),
        key_ratio: 1.0,
    })
}

fn row_sum(row: usize) -> u64 {
    let mut bytes = [0; ROW_BYTES];
    fill(row, &mut bytes);
    sum(&bytes)
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Fails when a row is not what was written.
pub fn run_reach(args: &BenchArgs) -> Result<ExitCode> {
    let bytes = (args.reach.reach_bytes.0 as usize).next_multiple_of(WRITE_BYTES).max(4 << 20);
    let rounds = args.repeat.max(1);
    let rows = bytes / ROW_BYTES;
    let tenant = Tenant::passing()?;
    let cache_bytes = args.reach.reach_cache.bytes_of(bytes as u64).max(1 << 20);
    // Of each way that has memory there: three, and what they have besides rows.
    let (_own, address) = match &args.reach.node {
        Some(address) => (None, address.clone()),
        None => {
            let (node, address) = OwnNode::start(3 * bytes as u64 + (64 << 20))?;
            (Some(node), address)
        }
    };
    let settings = |policy| NodeSettings { address: address.clone(), token: args.reach.node_token.clone(), policy };
    let mut ways = Vec::new();
    let mut add = |name: &str, way: &mut dyn Way| -> Result<()> {
        say(format!("{name} …"));
        ways.push(measure(name, way, rows, rounds)?);
        Ok(())
    };
    add("near memory", &mut Mapped::new(1, Location::Anon, None, &tenant, bytes)?)?;
    for (number, profile) in args.far_profiles(args.profile.as_deref().unwrap_or("cxl-asic"))?.into_iter().enumerate() {
        let name = profile.as_ref().map_or("none", |profile| &profile.name).to_owned();
        let mut way = Mapped::new(2 + number as u16, Location::Anon, profile, &tenant, bytes)?;
        add(&format!("load and store, {name}"), &mut way)?;
    }
    add("node, asked", &mut Asked::new(&settings(Policy::Os), &tenant, bytes)?)?;
    for policy in [Policy::Os, Policy::Managed] {
        let location = Location::Node { node: Box::new(settings(policy)), cache: CacheSize::Bytes(cache_bytes) };
        let name = format!("node, paged, policy={}", policy.name());
        add(&name, &mut Mapped::new(100 + policy as u16, location, None, &tenant, bytes)?)?;
    }
    let base = ways.first().map_or(1.0, |way| way.key_mean_ns);
    ways.iter_mut().for_each(|way| way.key_ratio = way.key_mean_ns / base);
    let result = ReachResult {
        schema: SCHEMA,
        tidepool_version: env!("CARGO_PKG_VERSION"),
        machine: crate::machine::machine(),
        bytes: bytes as u64,
        cache_bytes,
        node: address.to_string(),
        ways,
    };
    if args.json.as_deref() != Some(std::path::Path::new("-")) {
        print(&result);
    }
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(result: &ReachResult) {
    println!(
        "{} of rows of {ROW_BYTES} bytes; paged ways have a cache of {}; node at {}",
        ByteSize(result.bytes),
        ByteSize(result.cache_bytes),
        result.node
    );
    println!("{:<28} {:>12} {:>10} {:>10} {:>8} {:>10}", "way", "row, mean", "p50", "p99", "times", "scan");
    for way in &result.ways {
        println!(
            "{:<28} {:>9.0} ns {:>7} ns {:>7} ns {:>8.1} {:>5.2} GB/s",
            way.name, way.key_mean_ns, way.key_p50_ns, way.key_p99_ns, way.key_ratio, way.scan_gb_per_s
        );
    }
    println!(
        "DirectCXL printed 8.3 times for RDMA over loads through a switch, and on key-value loads 3 times for swapping and \
         2.2 for a key-value store. What is above is of this machine: a node on it shares its processors."
    );
}
